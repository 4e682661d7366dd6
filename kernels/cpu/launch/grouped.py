"""Products of groups of rows, each with a matrix of its own as it lies (csrc/linear.c)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.ir.operator import get_operator
from mirage.ir.operators.grouped import wrong_ends
from mirage.kernels.cpu.launch.halves import in_float32, prepared_in_float32
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.products import library as products
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

_OPERATOR = "grouped_matmul"
#: MI_WRONG_ENDS of mirage_groups.h
_WRONG_ENDS = 2


class _Arguments(ctypes.Structure):
    """`grouped` of linear.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "ends", "out")),
        *((name, ctypes.c_ssize_t) for name in ("m", "k", "n", "groups")),
        *((name, ctypes.c_int) for name in ("transposed", "wide")),
    )


@functools.cache
def _function() -> Callable[..., int]:
    function = products().mi_grouped
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return function


def _arguments(inputs: Sequence[np.ndarray], out: np.ndarray, right: Sequence[int]) -> _Arguments | None:
    """The arguments without addresses; None where the product is not of float32, the matrices are in another order, or shapes do
    not fit.
    """
    x, w, ends = inputs
    if not x.dtype == w.dtype == out.dtype == np.float32 or tuple(right) not in ((), (0, 1, 2), (0, 2, 1)):
        return None
    groups, k, n = w.transpose(right or (0, 1, 2)).shape
    if x.shape[1:] != (k,) or out.shape != (len(x), n) or ends.shape != (groups,) or ends.dtype not in (np.int32, np.int64):
        return None
    return _Arguments(0, 0, 0, 0, *x.shape, n, groups, tuple(right) == (0, 2, 1), ends.dtype == np.int64)


def error(status: int, rows: int) -> Exception:
    """What a status of C means for so many rows."""
    if status == _WRONG_ENDS:
        return wrong_ends(_OPERATOR, rows)
    return MirageError(f"there is no memory for products of {rows} rows; use smaller sizes")


@in_float32
def library(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, right: Sequence[int] = ()) -> None:
    """What programs call as `cpu.grouped_matmul`, in C where the product is of float32 or 16 bits; `right` permutes dims of w.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, InputError for wrong ends, MirageError
    without memory.
    """
    x, w, ends = inputs
    (out,) = outputs
    args = _arguments(inputs, out, right)
    if args is None:
        out[...] = get_operator(_OPERATOR).run([x, w.transpose(right) if right else w, ends], {}, {})
        return
    args.x, args.w, args.ends, args.out = map(address, (*inputs, out))
    if status := _function()(ctypes.addressof(args), run_address(), num_threads()):
        raise error(status, args.m)


def grouped_matmul(arrays: Sequence[Any], attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """What the operator `grouped_matmul` gives for arrays of NumPy. Raises as `library`."""
    x, w, ends = (np.ascontiguousarray(a) for a in arrays)
    out = np.empty((x.shape[0], w.shape[2]), x.dtype)
    library((x, w, ends), (out,))
    return out


@prepared_in_float32
def prepare(
    inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], *, right: Sequence[int] = ()
) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs; None where that is not in C.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch fails as `library`.
    """
    args = _arguments(inputs, outputs[0], right)
    if args is None:
        return None
    pointers = tuple((field(args, name), place) for place, name in enumerate(("x", "w", "ends", "out")))
    run, rows = launcher(products().mi_grouped), args.m
    return Launch(run, ctypes.addressof(args), pointers, lambda status: error(status, rows), args)


#: the functions that programs may call without registering them
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.grouped_matmul": library}
