"""Laws that tie operators of graphs together, over random shapes, dims and data."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mirage.ir.dims import to_dim, value_at
from mirage.ir.operator import get_operator
from mirage.ir.requirements import always, at_most, needs, never

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4)
FLOATS = hnp.arrays(np.float32, SHAPES, elements=st.floats(-4, 4, width=16))
INTEGERS = hnp.arrays(np.int64, SHAPES, elements=st.integers(-9, 9))


def run(op: str, *arrays: Any, **attrs: Any) -> Any:
    definition = get_operator(op)
    return definition.run(arrays, definition.check_attrs(attrs), {})


def same(a: Any, b: Any) -> None:
    np.testing.assert_array_equal(a, b)
    assert np.asarray(a).dtype == np.asarray(b).dtype


@given(x=FLOATS, data=st.data())
def test_a_slice_undoes_a_pad(x: np.ndarray, data: st.DataObject) -> None:
    low = tuple(data.draw(st.integers(0, 3)) for _ in x.shape)
    high = tuple(data.draw(st.integers(0, 3)) for _ in x.shape)
    padded = run("pad", x, low=low, high=high, value=7)
    stops = tuple(a + n for a, n in zip(low, x.shape, strict=True))
    same(run("slice", padded, axes=tuple(range(x.ndim)), starts=low, stops=stops), x)
    # a pad is an update of a constant
    same(run("update_slice", run("full", shape=padded.shape, value=7), x, starts=low), padded)


@given(x=INTEGERS, data=st.data())
def test_flips_undo_themselves(x: np.ndarray, data: st.DataObject) -> None:
    axes = data.draw(st.lists(st.integers(0, x.ndim - 1), unique=True))
    same(run("flip", run("flip", x, axes=axes), axes=axes), x)


@given(x=FLOATS, data=st.data())
def test_gathers_read_what_scatters_wrote(x: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    n = x.shape[axis]
    at = np.array(data.draw(st.lists(st.integers(0, n - 1), unique=True) if n else st.just([])), np.int64)
    values = run("neg", run("take", x, at, axis=axis))
    same(run("take", run("scatter", x, at, values, axis=axis), at, axis=axis), values)
    same(run("scatter", x, at, run("take", x, at, axis=axis), axis=axis), x)
    # adding the opposite gives zeros
    zeros = run("take", run("scatter", x, at, values, axis=axis, add=True), at, axis=axis)
    same(zeros + 0, np.zeros_like(zeros))


@given(x=INTEGERS, data=st.data())
def test_sorting(x: np.ndarray, data: st.DataObject) -> None:
    axis, descending = data.draw(st.integers(-x.ndim, x.ndim - 1)), data.draw(st.booleans())
    order = run("argsort", x, axis=axis, descending=descending)
    ranked = run("sort", x, axis=axis, descending=descending)
    same(run("take_along_axis", x, order, axis=axis), ranked)
    k = data.draw(st.integers(0, x.shape[axis]))
    values, positions = run("topk", x, k=k, axis=axis, largest=descending)
    first = {"axes": axis, "starts": 0, "stops": k}
    same(values, run("slice", ranked, **first))
    same(positions, run("slice", order, **first))
    if x.shape[axis]:
        extreme = run("argmax" if descending else "argmin", x, axis=axis, keepdims=True)
        same(extreme, run("slice", order, axes=axis, starts=0, stops=1))


@given(x=FLOATS, data=st.data())
def test_masks(x: np.ndarray, data: st.DataObject) -> None:
    mask = data.draw(hnp.arrays(np.bool_, x.shape))
    kept = run("boolean_mask", x, mask)
    same(run("sum", run("cast", mask, dtype="int64"), axes=tuple(range(x.ndim))), np.asarray(kept.size))
    at = run("nonzero", mask)
    same(x[tuple(at.T)], kept)
    both = run("where", mask, x, run("where", run("logical_not", mask), x, 0))
    same(both, x)


@given(x=INTEGERS, data=st.data())
def test_division(x: np.ndarray, data: st.DataObject) -> None:
    y = data.draw(hnp.arrays(np.int64, x.shape, elements=st.integers(-3, 3)))
    quotient, rest = run("floor_divide", x, y), run("remainder", x, y)
    same(np.where(y == 0, 0, quotient * y + rest), np.where(y == 0, 0, x))
    same(run("mul", run("sign", x), run("abs", x)), x)


@given(x=INTEGERS, data=st.data())
def test_sums(x: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    n = x.shape[axis]
    sums = run("cumsum", x, axis=axis)
    if n:
        same(run("take", sums, np.asarray(n - 1), axis=axis), run("sum", x, axes=axis))
    same(run("max", run("neg", x), axes=axis) if n else 0, run("neg", run("min", x, axes=axis)) if n else 0)


TERMS = ["0", "3", "n", "m", "2*n", "n + m", "n + 4", "n*m", "n // 2", "5 - n"]


@given(small=st.sampled_from(TERMS), large=st.sampled_from(TERMS))
def test_what_is_known_of_requirements(small: str, large: str) -> None:
    need = at_most(to_dim(small), to_dim(large), "why")
    found = [
        value_at(need.small, {"n": n, "m": m}) <= value_at(need.large, {"n": n, "m": m})
        for n in range(9)
        for m in range(9)
    ]
    assert all(found) or not always(need)
    assert not any(found) or not never(need)
    assert needs(need) == (() if always(need) else (need,))
    sizes = {"n": 1, "m": 2}
    assert (need.problem(sizes) is None) == (value_at(need.small, sizes) <= value_at(need.large, sizes))
