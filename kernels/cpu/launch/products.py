"""Products of matrices as they lie, one or a batch of them (csrc/linear.c): how dims of tensors become rows, columns, terms and
batches.

What a contraction does with a dim follows from which tensors have it: a dim of both operands and the result is a batch, one of an
operand and the result has its rows or columns, and one of both operands alone is summed. Dims of one kind that lie behind one
another in all their tensors are one.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from mirage.errors import MirageError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.emit.matmul import product_parts
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.settings import num_threads

#: BATCH_DIMS of linear.c
_BATCH_DIMS = 4
#: bytes of an operand up to which a product finds it in the caches, if the program has just made it
_RESIDENT = 1 << 20

_Steps = ctypes.c_ssize_t * _BATCH_DIMS


class Products(ctypes.Structure):
    """`products` of linear.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "gate", "added", "out")),
        *((name, ctypes.c_ssize_t) for name in ("m", "k", "n", "x_row", "x_term", "w_row", "out_row")),
        *((name, _Steps) for name in ("sizes", "x_step", "w_step", "out_step")),
        *((name, ctypes.c_int) for name in ("dims", "transposed", "packed", "whole", "activation", "resident")),
    )

    def error(self) -> MirageError:
        return MirageError(f"there is no memory for a product of {self.m} rows; use smaller sizes")

    def run(self, x: np.ndarray, w: np.ndarray, out: np.ndarray, added: np.ndarray | None = None) -> None:
        """Compute these products. Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError
        without memory.
        """
        args = Products.from_buffer_copy(self)
        args.x, args.w, args.out = address(x), address(w), address(out)
        if added is not None:
            args.added = address(added)
        if _function()(ctypes.addressof(args), run_address(), num_threads()):
            raise self.error()


@functools.cache
def library() -> ctypes.CDLL:
    """What linear.c compiles to; raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`."""
    source = (HEADERS / "linear.c").read_text(encoding="utf-8")
    return toolchain.load(toolchain.compile(source, name="linear", parts=product_parts(["float32"])))


@functools.cache
def _function() -> Callable[..., int]:
    function = library().mi_products
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return function


class Axis(NamedTuple):
    """A dim of a contraction: its size, and by how many elements its steps move in each tensor; 0 in those that lack it."""

    size: int
    x: int
    w: int
    out: int


class Arranged(NamedTuple):
    """Products without addresses; whether `x` and `w` are exchanged in them."""

    products: Products
    swapped: bool


def strides(shape: Sequence[int]) -> list[int]:
    """Of a C-contiguous tensor, in elements; none is 0."""
    return [prod(max(s, 1) for s in shape[i + 1 :]) for i in range(len(shape))]


def is_order(order: Sequence[int], rank: int) -> bool:
    """Whether it permutes so many dims; without any, they stay as they lie. Files of programs may say anything."""
    return not order or sorted(order) == list(range(rank))


def arranged(axes: Sequence[Axis]) -> Arranged | None:
    """The products that make a contraction; None where no order of dims is one of linear.c, or a size is 0."""
    axes = [a for a in axes if a.size != 1]
    if not all(a.size for a in axes if a.out):
        return None
    # the last dim of the result is one of columns
    swapped = any(a.out == 1 and a.x and not a.w for a in axes)
    if swapped:
        axes = [Axis(a.size, a.w, a.x, a.out) for a in axes]
    batch = _merged([a for a in axes if a.x and a.w and a.out])
    rows = _merged([a for a in axes if a.x and not a.w])
    columns = _merged([a for a in axes if a.w and not a.x])
    terms = _merged([a for a in axes if not a.out])
    if len(terms) > 1 or any(a.out == 1 for a in batch):
        return None
    row = max(rows, default=Axis(1, 0, 0, 0))
    column = next((a for a in columns if a.out == 1), Axis(1, 0, 1, 1))
    term = terms[0] if terms else Axis(1, 1, 1, 0)
    batch += [a for a in rows if a is not row] + [a for a in columns if a is not column]
    along_terms = term.x == term.w == 1
    transposed = column.w != 1 or (column.size == 1 and along_terms)
    if len(batch) > _BATCH_DIMS or (transposed and not along_terms):
        return None
    w_row = column.w if transposed else term.w if terms else column.size
    in_caches = 4 * term.size * column.size <= _RESIDENT
    steps = [_Steps(*step) for step in zip(*batch, strict=True)] if batch else [_Steps()] * 4
    products = Products(
        0, 0, 0, 0, 0, row.size, term.size, column.size, row.x, term.x, w_row, row.out,
        *steps, len(batch), transposed, False, False, 0, bool(batch) and in_caches,
    )  # fmt: skip
    return Arranged(products, swapped)


def _merged(axes: Sequence[Axis]) -> list[Axis]:
    """As few dims as the same elements have, the outer ones first."""
    found: list[Axis] = []
    for a in sorted(axes, key=lambda a: (a.out, a.x, a.w), reverse=True):
        last = found[-1] if found else None
        if last and all(b == a.size * s for b, s in zip(last[1:], a[1:], strict=True)):
            found[-1] = Axis(last.size * a.size, *a[1:])
        else:
            found.append(a)
    return found
