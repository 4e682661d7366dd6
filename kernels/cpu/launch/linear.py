"""Products with a weight as it lies, on the threads of the pool.

With few rows, reading the weight from memory takes longer than computing with it, so that nothing is gained by a packed copy of
it. With more rows they save a program from threads of two kinds: those of BLAS stay awake for a while after a product, and
kernels wait for them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.kernels import blas
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.emit.matmul import product_parts
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.settings import num_threads

#: rows up to which these are faster than products of packed weights (`python -m benchmarks.run products`)
FEW = 4


@functools.cache
def _function() -> Callable[..., int]:
    source = (HEADERS / "linear.c").read_text(encoding="utf-8")
    function = toolchain.load(toolchain.compile(source, name="linear", parts=product_parts("float32"))).mi_linear
    function.argtypes = [*[ctypes.c_ssize_t] * 3, *[ctypes.c_void_p] * 4, *[ctypes.c_int] * 3, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


def linear(
    x: np.ndarray,
    w: np.ndarray,
    out: np.ndarray,
    *,
    transposed: bool,
    bias: np.ndarray | None = None,
    accumulate: bool = False,
) -> None:
    """Write x[..., k] @ w[k, n], or x @ w[n, k].T where it is `transposed`, plus bias[n] to out[..., n]: C-contiguous float32.

    With `accumulate`, it is added to what is there.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    n, k = out.shape[-1], x.shape[-1]
    rows = out.size // n if n else 0
    if not rows:
        return
    given = address(x), address(w), 0 if bias is None else address(bias), address(out)
    if _function()(rows, k, n, *given, transposed, accumulate, num_threads(), run_address()):
        raise MirageError(f"there is no memory for a product of {rows} rows; use smaller sizes")


def matmul(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (),
    bias: bool = False,
    relu: bool = False,
) -> None:
    """What `mirage.kernels.blas.matmul` computes: here where the second operand is a matrix of float32, else by that."""
    x, y, *added = inputs
    (out,) = outputs
    summand: Any = added[0] if bias else None
    per_column = bias and summand.size == out.shape[-1] == summand.shape[-1]
    fits = all(a.dtype == np.float32 for a in (*inputs, out)) and y.ndim == 2 and x.ndim > 1
    if not fits or (left and left[-1] != x.ndim - 1) or (bias and not per_column and summand.shape != out.shape):
        return blas.matmul(inputs, outputs, left=left, right=right, bias=bias, relu=relu)
    rows = np.ascontiguousarray(x.transpose(left)) if left else x
    if bias and not per_column:
        out[...] = summand
    vector, rest = (summand, False) if per_column else (None, bias)
    linear(rows, y, out, transposed=tuple(right) == (1, 0), bias=vector, accumulate=rest)
    if relu:
        np.maximum(out, np.float32(0), out=out)
