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
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

#: rows up to which these are faster than products of packed weights (`python -m benchmarks.run products`)
FEW = 4


class _Prepared(ctypes.Structure):
    """`prepared` of linear.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "added", "out")),
        *((name, ctypes.c_ssize_t) for name in ("m", "k", "n")),
        *((name, ctypes.c_int) for name in ("transposed", "whole", "relu")),
    )


@functools.cache
def library() -> ctypes.CDLL:
    """What linear.c compiles to; raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`."""
    source = (HEADERS / "linear.c").read_text(encoding="utf-8")
    return toolchain.load(toolchain.compile(source, name="linear", parts=product_parts("float32")))


@functools.cache
def _function() -> Callable[..., int]:
    function = library().mi_linear
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
    if not _fits(inputs, outputs, left, bias):
        return blas.matmul(inputs, outputs, left=left, right=right, bias=bias, relu=relu)
    x, y, *added = inputs
    (out,) = outputs
    summand: Any = added[0] if bias else None
    per_column = bias and _per_column(summand, out)
    rows = np.ascontiguousarray(x.transpose(left)) if left else x
    if bias and not per_column:
        out[...] = summand
    vector, rest = (summand, False) if per_column else (None, bias)
    linear(rows, y, out, transposed=tuple(right) == (1, 0), bias=vector, accumulate=rest)
    if relu:
        np.maximum(out, np.float32(0), out=out)


def _per_column(summand: np.ndarray, out: np.ndarray) -> bool:
    return bool(summand.ndim and summand.size == out.shape[-1] == summand.shape[-1])


def _fits(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], left: Sequence[int], bias: bool) -> bool:
    """Whether the product is one of rows with a matrix of float32, to which a row, or a matrix, may be added."""
    x, y, *added = inputs
    (out,) = outputs
    if not all(a.dtype == np.float32 for a in (*inputs, out)) or y.ndim != 2 or x.ndim < 2:
        return False
    in_order = not left or left[-1] == x.ndim - 1
    return in_order and not (bias and added[0].shape != out.shape and not _per_column(added[0], out))


def prepare(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (),
    bias: bool = False,
    relu: bool = False,
) -> Launch | None:
    """The launch of `matmul` for contiguous tensors like these, inputs and then outputs; None where that is more than a product.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch fails with MirageError without
    memory.
    """
    if not _fits(inputs, outputs, left, bias) or left:
        return None
    x, _, *added = inputs
    (out,) = outputs
    n, k = out.shape[-1], x.shape[-1]
    whole = bias and not _per_column(added[0], out)
    args = _Prepared(0, 0, 0, 0, out.size // n if n else 0, k, n, tuple(right) == (1, 0), whole, relu)
    names = ("x", "w", *["added"] * bias, "out")
    pointers = tuple((field(args, name), place) for place, name in enumerate(names))

    def error(status: int) -> Exception:
        return MirageError(f"there is no memory for a product of {args.m} rows; use smaller sizes")

    return Launch(launcher(library().mi_linear_prepared), ctypes.addressof(args), pointers, error, args)
