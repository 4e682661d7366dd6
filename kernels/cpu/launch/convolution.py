"""Convolutions in C (csrc/convolution.c): patches as columns for the micro-kernels of products, in a thread's cache."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.ir.graph_operator import GraphOperator
from mirage.ir.operator import get_operator
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.emit.matmul import product_parts
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.settings import num_threads

#: spatial dims that C has
_RANK = 3


@functools.cache
def _function(dtype: str) -> Callable[..., int]:
    source = (HEADERS / "convolution.c").read_text(encoding="utf-8")
    real = {"float32": "float", "float64": "double"}[dtype]
    parts = product_parts(dtype, ("outer",))
    text = f"#define MI_REAL {real}\n{source}"
    function = toolchain.load(toolchain.compile(text, name="convolution", parts=parts)).mi_convolution
    function.argtypes = [*[ctypes.c_void_p] * 4, ctypes.c_int, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


def convolution(arrays: Sequence[Any], attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """What the operator `convolution` gives for arrays of NumPy; raises InputError where a window is larger than a dim.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    x, w = arrays
    groups, rank = attrs["groups"], x.ndim - 2
    operator = get_operator("convolution")
    assert isinstance(operator, GraphOperator)
    if x.dtype.name not in ("float32", "float64") or rank > _RANK or (w.shape[1] == 1 and groups == w.shape[0]):
        return operator.run(arrays, attrs, sizes)
    operator.check_run(arrays, attrs)
    x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
    steps, gaps = attrs["strides"], attrs["dilations"]
    windows = zip(x.shape[2:], w.shape[2:], steps, gaps, strict=True)
    places = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in windows]
    out = np.empty((x.shape[0], w.shape[0], *places), x.dtype)
    if not out.size:
        return out
    if not w.shape[1]:
        out[...] = 0
        return out
    lead = [1] * (_RANK - rank)
    each = [v for dims in (x.shape[2:], w.shape[2:], places, steps, gaps) for v in (*lead, *dims)]
    numbers = (ctypes.c_ssize_t * 19)(x.shape[0], groups, w.shape[1], w.shape[0] // groups, *each)
    function = _function(x.dtype.name)
    if function(ctypes.addressof(numbers), address(x), address(w), address(out), num_threads(), run_address()):
        raise MirageError(f"there is no memory for a convolution of {list(x.shape)}; use smaller sizes")
    return out
