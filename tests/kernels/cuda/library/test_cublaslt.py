"""Products by cuBLASLt: how it is asked for them, and what they are, without a GPU where possible."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.errors import InputError, LibraryError
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.library.cublaslt import CublasLt, Matrix, matrix, problem
from tests.kernels.cuda.memory import TOLERANCE, MemoryLt, numbers


@st.composite
def strided(draw: Any, batch: tuple[int, ...], r: int, c: int) -> Callable[[np.random.Generator], np.ndarray]:
    """An array [*batch, r, c] in any layout: dims in any order in memory, with gaps."""
    order = draw(st.permutations(range(len(batch) + 2)))
    gaps = [draw(st.integers(0, 2)) for _ in order]

    def make(rng: np.random.Generator) -> np.ndarray:
        shape = (*batch, r, c)
        full = rng.standard_normal([shape[d] + g for d, g in zip(order, gaps, strict=True)])
        part = full[tuple(slice(shape[d]) for d in order)]
        return part.transpose(np.argsort(order))

    return make


@given(st.data(), st.lists(st.integers(1, 3), max_size=2), *(st.integers(1, 4) for _ in range(3)))
def test_products_of_any_layout(data: st.DataObject, batch: list[int], m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(0)
    lead = tuple(batch)
    x, y, out = (data.draw(strided(lead, *d))(rng) for d in ((m, k), (k, n), (m, n)))
    lt = MemoryLt()
    np.testing.assert_allclose(lt.matmul(x, y), x @ y, atol=1e-12)
    assert lt.matmul(x, y, out) is out
    np.testing.assert_allclose(out, x @ y, atol=1e-12)


def test_layouts_that_need_no_copy() -> None:
    # row-major, transposed, a window of columns, equal distances, one matrix for all
    assert matrix((4, 6), (6, 1)) == Matrix(6, 4, 6, 1, 0)
    assert matrix((4, 6), (1, 4)) == Matrix(4, 6, 4, 1, 0, transposed=True)
    assert matrix((4, 6), (16, 1)) == Matrix(6, 4, 16, 1, 0)
    assert matrix((2, 3, 4, 6), (72, 24, 6, 1)) == Matrix(6, 4, 6, 6, 24)
    assert matrix((5, 4, 6), (0, 6, 1)) == Matrix(6, 4, 6, 5, 0)
    # neither dim contiguous, batches at no one distance
    assert matrix((4, 6), (12, 2)) is None
    assert matrix((2, 3, 4, 6), (24, 48, 6, 1)) is None


def test_problem_knows_alignment_and_epilogue() -> None:
    memory = np.zeros(4096, np.float16)
    base = -memory.ctypes.data % 512 // 2
    x, y, out = (memory[base + at : base + at + 64].reshape(8, 8) for at in (0, 136, 512))
    found = problem(x, y, out, bias=True, relu=True)
    assert found is not None and found.alignment == (16, 256, 256)
    assert found.epilogue == "RELU_BIAS" and found.dtype == found.result == "float16"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("bias", "relu"), [(True, False), (False, True), (True, True)])
def test_epilogues(dtype: str, bias: bool, relu: bool) -> None:
    rng = np.random.default_rng(1)
    x, y, b = (numbers(rng, s, dtype) for s in ((3, 5, 7), (3, 7, 4), (4,)))
    wanted = np.matmul(x.astype(np.float64), y.astype(np.float64)) + (b.astype(np.float64) if bias else 0)
    wanted = np.maximum(wanted, 0) if relu else wanted
    lt = MemoryLt()
    found = lt.matmul(x, y, dtype=x.dtype, bias=b if bias else None, relu=relu)
    assert found.dtype == DTYPES[dtype] and len(lt.asked) == 1
    np.testing.assert_allclose(found.astype(np.float64), wanted, atol=TOLERANCE[dtype] * 8)
    # sums of 16-bit numbers are kept in float32
    assert lt.matmul(x, y).dtype == np.float32


@pytest.mark.parametrize("relu", [False, True])
def test_sums_of_no_products(relu: bool) -> None:
    x, y, b = np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32), np.array([1, -2, 3], np.float32)
    lt = MemoryLt()
    wanted = np.maximum(b, 0) if relu else b
    np.testing.assert_array_equal(lt.matmul(x, y, bias=b, relu=relu), [wanted, wanted])
    assert lt.matmul(np.zeros((0, 4)), np.zeros((4, 3))).shape == (0, 3) and not lt.asked


def test_bad_factors_are_refused() -> None:
    lt, x = MemoryLt(), np.zeros((2, 3), np.float32)
    for y, bias in [(np.zeros((2, 3), np.float32), None), (np.zeros((3, 4)), None)]:
        with pytest.raises(InputError, match="no product of matrices"):
            lt.matmul(x, y, bias=bias)
    with pytest.raises(InputError, match=r"the bias must be float32\[4\]"):
        lt.matmul(x, np.zeros((3, 4), np.float32), bias=np.zeros(3, np.float32))


class _Refused(Exception):
    """What the bindings raise."""


def _bindings(algorithms: int = 1) -> Any:
    """The bindings of cuBLASLt, which note what they are called with and find so many algorithms."""
    lt = MagicMock()
    lt.cuBLASLtError = _Refused
    lt.create.return_value = 7
    lt.matmul_desc_create.return_value = 10
    lt.matrix_layout_create.side_effect = lambda dtype, rows, columns, ld: 1000 * rows + columns
    lt.MatmulHeuristicResult.return_value = SimpleNamespace(ptr=40, workspace_size=64)
    for kind in ("matmul_desc", "matrix_layout", "matmul_preference"):
        getattr(lt, f"get_{kind}_attribute_dtype").return_value = np.uint64

    def heuristic(*arguments: Any) -> None:
        ctypes.c_int32.from_address(arguments[-1]).value = algorithms

    lt.matmul_algo_get_heuristic.side_effect = heuristic
    return lt


def _device_memory(at: int, shape: tuple[int, ...]) -> Any:
    """A contiguous float16 array of CuPy at an address."""
    own = np.empty(shape, np.float16)
    attributes = {n: getattr(own, n) for n in ("shape", "strides", "dtype", "itemsize")}
    return SimpleNamespace(**attributes, data=SimpleNamespace(ptr=at))


def _on_bindings(monkeypatch: pytest.MonkeyPatch, lt: Any) -> CublasLt:
    cupy = MagicMock()
    cupy.cuda.runtime.getDevice.return_value = 0
    cupy.cuda.get_current_stream.return_value.ptr = 99
    cupy.empty.side_effect = lambda shape, dtype: _device_memory(0x5000, (1,))
    cupy.ascontiguousarray.side_effect = lambda array: array
    modules = {"cupy": cupy, "nvmath.bindings.cublasLt": lt}
    monkeypatch.setattr("mirage.kernels.cuda.library.cublaslt.import_module", lambda name: modules.get(name, MagicMock()))
    return CublasLt()


def test_what_cublaslt_is_called_with(monkeypatch: pytest.MonkeyPatch) -> None:
    lt = _bindings()
    x, y, bias, out = (_device_memory(a, s) for a, s in ((256, (3, 4)), (512, (4, 5)), (768, (5,)), (1024, (3, 5))))
    cublaslt = _on_bindings(monkeypatch, lt)
    for _ in range(2):
        assert cublaslt.matmul(x, y, out, bias=bias) is out
    # handle, operation; A is y, B is x, both column-major; C is D; algorithm, workspace, stream
    (handle, desc, _, a, a_is, b, b_is, _, c, c_is, d, d_is, *rest) = lt.matmul.call_args.args
    assert (handle, desc, a, a_is, b, b_is) == (7, 10, 512, 5004, 256, 4003)
    assert (c, c_is, d, d_is, rest) == (1024, 5003, 1024, 5003, [40, 0x5000, 64, 99])
    # chosen once
    assert lt.matmul_algo_get_heuristic.call_count == 1 and lt.matmul.call_count == 2


def test_refusals_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, out = (_device_memory(256, s) for s in ((3, 4), (4, 5), (3, 5)))
    with pytest.raises(LibraryError, match="no algorithm for Problem"):
        _on_bindings(monkeypatch, _bindings(algorithms=0)).matmul(x, y, out)
    lt = _bindings()
    lt.create.side_effect = _Refused("NOT_INITIALIZED")
    with pytest.raises(LibraryError, match=r"cuBLASLt refuses Problem.*NOT_INITIALIZED"):
        _on_bindings(monkeypatch, lt).matmul(x, y, out)


@pytest.mark.gpu
def test_products_of_any_layout_on_a_gpu(cupy: Any) -> None:
    pytest.importorskip("nvmath", reason="needs nvmath-python")
    rng, lt = np.random.default_rng(3), CublasLt()
    for dtype in ("float16", "bfloat16", "float32", "float64"):
        base = [cupy.asarray(numbers(rng, s, dtype)) for s in ((2, 24, 16), (2, 32, 24), (16,))]
        x, y, bias = base[0].transpose(0, 2, 1), base[1].transpose(0, 2, 1), base[2]
        y = y[:, :, :16]
        wanted = np.maximum(x.get().astype(np.float64) @ y.get().astype(np.float64) + bias.get().astype(np.float64), 0)
        found = lt.matmul(x, y, dtype=x.dtype, bias=bias, relu=True)
        np.testing.assert_allclose(found.get().astype(np.float64), wanted, atol=TOLERANCE[dtype] * wanted.max())
