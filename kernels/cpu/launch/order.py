"""The largest elements along an axis, in C (csrc/order.c): NumPy sorts all of them for that."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy

from mirage.ir.dims import value_at
from mirage.ir.operator import get_operator
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.launch.memory import address

#: elements wanted of each row, up to which C is asked: each one that is kept moves past up to so many
_MOST = 64


def topk(arrays: Sequence[Any], attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """What the operator `topk` gives for arrays of NumPy; raises InputError where `k` is larger than the dim.

    Raises NoCompilerError, CompilerError or UnsafeCacheError, as `toolchain.library`, at the first call.
    """
    (x,) = arrays
    k = attrs["k"]
    k = value_at(k, sizes) if isinstance(k, sympy.Expr) else k
    axis = attrs["axis"] % x.ndim
    count = x.shape[axis]
    run = _function(x.dtype.name) if k <= min(count, _MOST) else None
    if run is None:
        return get_operator("topk").run(arrays, attrs, sizes)
    last = axis == x.ndim - 1
    rows = np.ascontiguousarray(x if last else np.moveaxis(x, axis, -1))
    shape = (*rows.shape[:-1], k)
    values, places = np.empty(shape, x.dtype), np.empty(shape, np.int64)
    run(address(rows), x.size // max(count, 1), count, k, attrs["largest"], address(values), address(places))
    return (values, places) if last else (np.moveaxis(values, -1, axis), np.moveaxis(places, -1, axis))


@functools.cache
def _function(dtype: str) -> Callable[..., None] | None:
    """The function for an element type; None where there is none."""
    if dtype not in ("float32", "float64", "int32", "int64"):
        return None
    found = getattr(toolchain.library("order"), f"mi_topk_{dtype}")
    found.argtypes = [ctypes.c_void_p, *(ctypes.c_long,) * 3, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    found.restype = None
    return found  # type: ignore[no-any-return]
