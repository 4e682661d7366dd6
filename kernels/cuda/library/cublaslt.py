"""Matrix products by cuBLASLt, through the bindings of nvmath-python: batched, transposed, with epilogues.

`matrix` reads the memory of an array as cuBLASLt describes it, and `Problem` is one product in these terms: plain data, which
needs no GPU. `CublasLt` runs it. Products of 16-bit numbers are summed in float32; those of float32 are never rounded to tf32.
cuBLASLt's GELU epilogue is the approximation with tanh, which is another function than the exact one that programs have: it is
not used.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from mirage.errors import InputError, LibraryError
from mirage.ir.types import compute_dtype

#: bytes of workspace that an algorithm may ask for: what NVIDIA recommends for Hopper
WORKSPACE = 32 << 20
#: problems whose algorithms are kept
_KEPT = 1024
#: the largest alignment of pointers that algorithms are chosen for, in bytes
_ALIGNMENT = 256
_CUDA_TYPES = {"float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF", "float32": "CUDA_R_32F", "float64": "CUDA_R_64F"}


@dataclass(frozen=True)
class Matrix:
    """A batch of column-major matrices: element (i, j) of the b-th is the element `b * stride + j * ld + i` of the memory.

    `transposed`: a product takes the transposed matrices.
    """

    rows: int
    columns: int
    ld: int
    batch: int
    stride: int
    transposed: bool = False


def matrix(shape: Sequence[int], strides: Sequence[int]) -> Matrix | None:
    """An array of row-major matrices [..., r, c] without empty dims as the memory of the transposed ones, [..., c, r]; strides
    in elements.

    None where neither dim of the matrices is contiguous, or the batch dims have no one stride: such an array is copied first.
    """
    r, c = shape[-2:]
    down, along = strides[-2:]
    batch = _batch(shape[:-2], strides[:-2])
    if batch is None:
        return None
    if (along == 1 or c == 1) and (down >= c or r == 1):
        return Matrix(c, r, max(down if r > 1 else c, 1), *batch)
    if (down == 1 or r == 1) and (along >= r or c == 1):
        return Matrix(r, c, max(along if c > 1 else r, 1), *batch, transposed=True)
    return None


def _batch(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int] | None:
    """How many matrices there are, and their distance; None where they are not equally far apart."""
    dims = [(n, s) for n, s in zip(shape, strides, strict=True) if n > 1]
    if any(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(dims)):
        return None
    return prod(shape), dims[-1][1] if dims else 0


@dataclass(frozen=True)
class Problem:
    """A batched product x @ y with an epilogue, as cuBLASLt is asked for it: its D is the transposed result, A is y, B is x.

    `dtype` is that of the factors, `result` that of D and of the bias, names as in `mirage.ir.types.DTYPES`. The epilogue adds
    `bias`, one number per column of the result, and then takes the maximum of that and 0 if `relu`. `alignment` is that of
    the pointers in bytes: of A, B and D.
    """

    a: Matrix
    b: Matrix
    d: Matrix
    dtype: str
    result: str
    bias: bool = False
    relu: bool = False
    alignment: tuple[int, int, int] = (_ALIGNMENT,) * 3

    @property
    def epilogue(self) -> str:
        """The name of a member of cublasLtEpilogue_t."""
        return "_".join(n for n, has in (("RELU", self.relu), ("BIAS", self.bias)) if has) or "DEFAULT"


def problem(x: Any, y: Any, out: Any, *, bias: bool = False, relu: bool = False) -> Problem | None:
    """The product of arrays x [..., m, k] and y [..., k, n] into `out` [..., m, n], of equal batch dims.

    None where an array's memory cannot be described, see `matrix`. The arrays are CuPy's or NumPy's, without empty dims.
    """
    b, a, d = (matrix(t.shape, [s // t.itemsize for s in t.strides]) for t in (x, y, out))
    if a is None or b is None or d is None or d.transposed:
        return None
    alignment = tuple(_aligned(_address(t)) for t in (y, x, out))
    return Problem(a, b, d, str(x.dtype), str(out.dtype), bias, relu, alignment)  # type: ignore[arg-type]


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _aligned(address: int) -> int:
    return min(address & -address or _ALIGNMENT, _ALIGNMENT)


@dataclass(frozen=True)
class _Call:
    """A problem's descriptors, and what the heuristics answered: a structure that begins with the algorithm."""

    desc: int
    a: int
    b: int
    d: int
    algorithm: Any
    workspace: int


class CublasLt:
    """cuBLASLt on the current device of CuPy, launched on its current stream. May be called from several threads at once.

    Raises LibraryError where nvmath-python, cuBLAS or a device is missing.
    """

    def __init__(self) -> None:
        try:
            self._cupy = import_module("cupy")
            self._lt = import_module("nvmath.bindings.cublasLt")
            self._compute = import_module("nvmath.bindings.cublas").ComputeType
            self._types = import_module("nvmath").CudaDataType
        except ImportError as e:
            raise LibraryError(f"cuBLASLt: {e}; run pip install -e '.[cuda]'") from None
        self._lock = threading.Lock()
        self._handles: dict[int, int] = {}
        self._calls: dict[tuple[int, Problem], _Call] = {}
        self._one = {t: (np.ones(1, t), np.zeros(1, t)) for t in ("float32", "float64")}

    def matmul(
        self, x: Any, y: Any, out: Any = None, *, dtype: Any = None, bias: Any = None, relu: bool = False
    ) -> Any:
        """x [..., m, k] @ y [..., k, n] + bias [n], then its positive part if `relu`, as an array of `dtype`.

        CuPy arrays of one dtype and equal batch dims; by default the result has the type that they are computed in. `out`
        takes the result, `bias` has its dtype. Raises InputError for other shapes, LibraryError if cuBLASLt refuses.
        """
        cp = self._cupy
        shape = (*x.shape[:-1], y.shape[-1])
        if x.shape[:-2] != y.shape[:-2] or x.shape[-1] != y.shape[-2] or x.dtype != y.dtype:
            raise InputError(f"cuBLASLt: {x.dtype}{list(x.shape)} @ {y.dtype}{list(y.shape)} is no product of matrices")
        result = np.dtype(dtype or (compute_dtype(x.dtype) if out is None else out.dtype))
        if bias is not None and (bias.shape != shape[-1:] or bias.dtype != result):
            raise InputError(f"cuBLASLt: the bias must be {result}[{shape[-1]}], not {bias.dtype}{list(bias.shape)}")
        if 0 in (*shape, x.shape[-1]):
            return self._empty(shape, result, out, bias, relu)
        to = out
        if to is None or to.dtype != result or (own := matrix(to.shape, _strides(to))) is None or own.transposed:
            to = cp.empty(shape, result)
        x, y = (t if matrix(t.shape, _strides(t)) is not None else cp.ascontiguousarray(t) for t in (x, y))
        asked = problem(x, y, to, bias=bias is not None, relu=relu)
        assert asked is not None
        self._run(asked, x, y, to, None if bias is None else cp.ascontiguousarray(bias))
        if out is None or to is out:
            return to
        out[...] = to
        return out

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype, out: Any, bias: Any, relu: bool) -> Any:
        """The sums of no products."""
        out = self._cupy.empty(shape, dtype) if out is None else out
        out[...] = 0 if bias is None else self._cupy.maximum(bias, 0) if relu else bias
        return out

    def _run(self, asked: Problem, x: Any, y: Any, d: Any, bias: Any) -> None:
        lt, scale = self._lt, "float64" if asked.dtype == "float64" else "float32"
        device = self._cupy.cuda.runtime.getDevice()
        alpha, beta = self._one[scale]
        with self._lock:
            try:
                if device not in self._handles:
                    self._handles[device] = lt.create()
                call = self._call(device, asked)
                workspace = self._cupy.empty(call.workspace, np.uint8)
                if bias is not None:
                    # part of the descriptor, which cuBLASLt reads when it is called
                    self._set(call.desc, "MatmulDescAttribute", "BIAS_POINTER", bias.data.ptr)
                pointers = (y.data.ptr, call.a, x.data.ptr, call.b)
                lt.matmul(
                    self._handles[device],
                    call.desc,
                    alpha.ctypes.data,
                    *pointers,
                    beta.ctypes.data,
                    d.data.ptr,
                    call.d,
                    d.data.ptr,
                    call.d,
                    call.algorithm.ptr,
                    workspace.data.ptr,
                    call.workspace,
                    self._cupy.cuda.get_current_stream().ptr,
                )
            except (lt.cuBLASLtError, RuntimeError) as e:
                raise LibraryError(f"cuBLASLt refuses {asked}: {e}") from None

    def _set(self, descriptor: int, kind: str, name: str, value: int) -> None:
        """One attribute of a descriptor: `kind` is the enum's name, which the functions' names follow."""
        lt = self._lt
        prefix = {
            "MatmulDescAttribute": "matmul_desc",
            "MatrixLayoutAttribute": "matrix_layout",
            "MatmulPreferenceAttribute": "matmul_preference",
        }[kind]
        attribute = getattr(lt, kind)[name]
        buffer = np.array([value], dtype=getattr(lt, f"get_{prefix}_attribute_dtype")(attribute))
        getattr(lt, f"{prefix}_set_attribute")(descriptor, attribute, buffer.ctypes.data, buffer.nbytes)

    def _layout(self, m: Matrix, dtype: str) -> int:
        layout = self._lt.matrix_layout_create(self._types[_CUDA_TYPES[dtype]], m.rows, m.columns, m.ld)
        self._set(layout, "MatrixLayoutAttribute", "BATCH_COUNT", m.batch)
        self._set(layout, "MatrixLayoutAttribute", "STRIDED_BATCH_OFFSET", m.stride)
        return int(layout)

    def describe(self, asked: Problem) -> tuple[int, int, int, int]:
        """The descriptors of a problem: of the operation, A, B and D. Needs no device."""
        wide = asked.dtype == "float64"
        compute = self._compute["COMPUTE_64F" if wide else "COMPUTE_32F"]
        desc = self._lt.matmul_desc_create(compute, self._types["CUDA_R_64F" if wide else "CUDA_R_32F"])
        for name, value in (
            ("TRANSA", int(asked.a.transposed)),
            ("TRANSB", int(asked.b.transposed)),
            ("EPILOGUE", int(self._lt.Epilogue[asked.epilogue])),
        ):
            self._set(desc, "MatmulDescAttribute", name, value)
        if asked.bias:
            self._set(desc, "MatmulDescAttribute", "BIAS_DATA_TYPE", int(self._types[_CUDA_TYPES[asked.result]]))
        a, b = (self._layout(m, asked.dtype) for m in (asked.a, asked.b))
        return int(desc), a, b, self._layout(asked.d, asked.result)

    def _preference(self, asked: Problem) -> int:
        preference = self._lt.matmul_preference_create()
        limits = {"MAX_WORKSPACE_BYTES": WORKSPACE}
        names = ("MIN_ALIGNMENT_A_BYTES", "MIN_ALIGNMENT_B_BYTES", "MIN_ALIGNMENT_D_BYTES")
        limits |= dict(zip(names, asked.alignment, strict=True))
        limits["MIN_ALIGNMENT_C_BYTES"] = asked.alignment[-1]
        for name, value in limits.items():
            self._set(preference, "MatmulPreferenceAttribute", name, value)
        return int(preference)

    def _call(self, device: int, asked: Problem) -> _Call:
        key = (device, asked)
        if (found := self._calls.get(key)) is not None:
            return found
        lt = self._lt
        while len(self._calls) >= _KEPT:
            self._free(self._calls.pop(next(iter(self._calls))))
        desc, a, b, d = self.describe(asked)
        preference = self._preference(asked)
        best, count = lt.MatmulHeuristicResult(1), np.zeros(1, np.int32)
        lt.matmul_algo_get_heuristic(
            self._handles[device], desc, a, b, d, d, preference, 1, best.ptr, count.ctypes.data
        )
        lt.matmul_preference_destroy(preference)
        if not count[0]:
            raise LibraryError(f"cuBLASLt has no algorithm for {asked}")
        call = self._calls[key] = _Call(desc, a, b, d, best, int(best.workspace_size))
        return call

    def _free(self, call: _Call) -> None:
        self._lt.matmul_desc_destroy(call.desc)
        for layout in (call.a, call.b, call.d):
            self._lt.matrix_layout_destroy(layout)


def _strides(array: Any) -> list[int]:
    return [s // array.itemsize for s in array.strides]
