"""Random indices mean what they mean in NumPy, at literal and at symbolic sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

import mirage as mi
from mirage.ir.graph.check import check_module
from mirage.ir.graph.interpret import run_module

SHAPES = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)


def forwards(key: Any) -> bool:
    """Whether no slice goes backwards, which is refused."""
    keys = key if isinstance(key, tuple) else (key,)
    return all(not isinstance(k, slice) or k.step is None or k.step > 0 for k in keys)


@st.composite
def indexed(draw: st.DrawFn) -> tuple[np.ndarray, Any]:
    shape = draw(SHAPES)
    key = draw(basic_indices(shape, allow_newaxis=True, allow_ellipsis=True).filter(forwards))
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape), key


def found(x: np.ndarray, key: Any, dims: tuple[int | str, ...]) -> np.ndarray:
    module = mi.trace_module(lambda x: x[key], {"x": mi.tensor(*dims, dtype="float64")})
    check_module(module)
    result = run_module(module, [x])
    assert isinstance(result, np.ndarray)
    return result


@settings(max_examples=3 * settings().max_examples // 2)
@given(indexed())
def test_literal_sizes(case: tuple[np.ndarray, Any]) -> None:
    x, key = case
    np.testing.assert_array_equal(found(x, key, x.shape), x[key])


@settings(max_examples=3 * settings().max_examples // 2)
@given(indexed(), st.data())
def test_symbolic_sizes(case: tuple[np.ndarray, Any], data: st.DataObject) -> None:
    x, key = case
    keys = list(key) if isinstance(key, tuple) else [key]
    at = next((i for i, k in enumerate(keys) if k is Ellipsis), None)
    whole = x.ndim - sum(k is not None and k is not Ellipsis for k in keys)
    axis = 0
    for i, k in enumerate(keys):
        if k is None:
            continue
        if i == at:
            axis += whole
            continue
        if isinstance(k, slice):
            # within the dim: what lies outside is cut only at literal sizes
            start, stop, step = k.indices(x.shape[axis])
            stop = max(start, stop)
            n = x.shape[axis]
            if data.draw(st.booleans()) and start < n and stop < n:
                start, stop = start - n, stop - n
            keys[i] = slice(start, stop, step)
        axis += 1
    dims = tuple(f"n{i}" if data.draw(st.booleans()) else n for i, n in enumerate(x.shape))
    np.testing.assert_array_equal(found(x, tuple(keys), dims), x[tuple(keys)])
