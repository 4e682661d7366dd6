"""Programs over float16 and bfloat16 end to end: arrays of NumPy and torch, the report, the store, files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.errors import DTypeError, InputError
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.types import DTYPES, epsilon
from mirage.results.cpu.result import Superoptimized
from tests.api.small import BUDGET, adapter, arrays, check, loaded
from tests.modelled import modelled
from tests.programs import retyped

HALF = ("float16", "bfloat16")
SIZES = {"b": 6, "n": 9}


def program(dtype: str) -> Program:
    return retyped(adapter.trace(), dtype)


@functools.cache
def result(dtype: str) -> Superoptimized:
    return modelled(program(dtype), {"b": 3, "n": 5}, kernels=3)


@pytest.mark.parametrize("dtype", HALF)
def test_arrays_of_numpy_and_torch(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    r = result(dtype)
    inputs = arrays(r.program, SIZES)
    found = r(*inputs)
    assert found.dtype == DTYPES[dtype]
    check(r.program, [found], inputs, SIZES, floor=2)
    tensors = [torch.from_numpy(a.astype(np.float32)).to(getattr(torch, dtype)) for a in inputs]
    theirs = r(*tensors)
    assert theirs.dtype == getattr(torch, dtype)
    np.testing.assert_array_equal(theirs.float().numpy(), found.astype(np.float32))
    # strides of any kind
    columns = [t.T.contiguous().T for t in tensors]
    np.testing.assert_array_equal(r(*columns).float().numpy(), found.astype(np.float32))
    with_gaps = [np.repeat(a, 2, axis=1)[:, ::2] for a in inputs]
    np.testing.assert_array_equal(r(*with_gaps).astype(np.float32), found.astype(np.float32))
    # no elements: NumPy's case
    empty = r(*arrays(r.program, {"b": 0, "n": 9}))
    assert empty.shape == (0, 8) and empty.dtype == DTYPES[dtype]


@pytest.mark.parametrize("dtype", HALF)
def test_every_kernel_is_right(dtype: str) -> None:
    r = result(dtype)
    kernels = [c.executable for c in r.graphs if c.executable is not None]
    assert kernels and any("mi_load_narrow" in k.source for k in kernels)
    for kernel in kernels:
        for sizes in ({"b": 1, "n": 1}, SIZES, {"b": 17, "n": 33}):
            inputs = arrays(r.program, sizes)
            check(r.program, kernel(inputs, sizes), inputs, sizes, floor=2)
    # errors are those of the type: a unit or two in its last place
    assert all(a.kernel < 3 * epsilon(DTYPES[dtype]) for a in r.accuracy)


@pytest.mark.parametrize("dtype", HALF)
def test_saved_and_loaded(dtype: str, tmp_path: Path) -> None:
    r = result(dtype)
    r.save(tmp_path / "r.json")
    again = loaded(tmp_path / "r.json")
    assert again.program == r.program and again.program.dtype == dtype
    assert again.best.kind == r.best.kind
    inputs = arrays(r.program, SIZES)
    np.testing.assert_array_equal(again(*inputs).astype(np.float32), r(*inputs).astype(np.float32))


def test_the_store_keeps_types_apart(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/r.sqlite")
    for dtype in HALF:
        assert not mi.superoptimize(program(dtype), sizes=SIZES, budget=BUDGET, cache=store).cache_hit
        assert mi.superoptimize(program(dtype), sizes=SIZES, budget=BUDGET, cache=store).cache_hit
    assert {r.dtype for r in store.list()} == set(HALF)


@pytest.mark.parametrize("dtype", HALF)
def test_arrays_of_another_type_are_refused(dtype: str) -> None:
    other = HALF[1 - HALF.index(dtype)]
    x, *rest = arrays(program(dtype), SIZES)
    for wrong in (other, "float32"):
        with pytest.raises(InputError, match=f"input 'x' has dtype {wrong}, the program wants {dtype}"):
            result(dtype)(x.astype(DTYPES[wrong]), *rest)


def test_types_are_not_mixed_in_a_program() -> None:
    def add(x: Any, y: Any) -> Any:
        return x + y

    with pytest.raises(DTypeError, match="operands of dtypes bfloat16, float16; convert them to one dtype first"):
        mi.trace(add, x=mi.tensor("n", dtype="float16"), y=mi.tensor("n", dtype="bfloat16"))
    with pytest.raises(DTypeError, match="operands of dtypes bfloat16, float32"):
        mi.trace(add, x=mi.tensor("n"), y=mi.tensor("n", dtype="bfloat16"))


def test_the_reference_rounds_each_operator_once() -> None:
    """A norm is one operator: its squares do not overflow. What the program itself stores does."""

    def norm(x: Any) -> Any:
        return mi.rms_norm(x)

    def written_out(x: Any) -> Any:
        return x * mi.rsqrt(mi.mean(mi.square(x), axis=-1, keepdims=True))

    x = np.array([[1000.0, 500.0]], np.float16)
    x_type = mi.tensor("m", "n", dtype="float16")
    (found,) = run_reference(mi.trace(norm, x=x_type), [x], {"m": 1, "n": 2})
    exact = x.astype(np.float64) / np.sqrt(np.mean(np.square(x.astype(np.float64))))
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, exact.astype(np.float16))
    (found,) = run_reference(mi.trace(written_out, x=x_type), [x], {"m": 1, "n": 2})
    assert (found == 0).all()
