"""Products and contractions of float32 on the threads of the pool; those of 16 bits are computed in float32.

Weights that never change are packed, for any number of rows: with few, panels are read from memory in order, with many, they stay
in the caches. For batches as for these, a program is saved from threads of two kinds: those of BLAS stay awake for a while after
a product, and kernels wait for them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from mirage.errors import LibraryError
from mirage.kernels import blas
from mirage.kernels.cpu.launch.halves import in_float32, prepared_in_float32
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.panels import Panels
from mirage.kernels.cpu.launch.products import Arranged, Axis, Products, arranged, is_order, library, strides
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.kernels.cpu.processor import processor

#: functions of the elements of a result, as linear.c numbers them behind that which changes nothing
ACTIVATIONS = ("relu", "gelu", "sigmoid", "silu", "tanh")

_Arrays = Sequence[np.ndarray]
_Shape = tuple[int, ...]
_T = TypeVar("_T")


@in_float32
def matmul(
    inputs: Sequence[Any],
    outputs: _Arrays,
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (),
    packed: bool = False,
    bias: bool = False,
    relu: bool = False,
    activation: str = "",
) -> None:
    """What `mirage.kernels.blas.matmul` computes: here where all is float32 or of 16 bits, else by that.

    `inputs` are its, with the second one's `Panels` behind it if it is `packed`. Tensors of float32 may have another `activation`
    than relu.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    x, w, added, panels = _operands(inputs, packed)
    (out,) = outputs
    found = _products(x, w, panels, out, left, right) if _is_float32((x, w, *added), outputs) else None
    if found is None:
        if activation and out.size:
            shapes = f"{list(x.shape)} and {list(w.shape)}"
            raise LibraryError(f"there is no {activation} of a product of {shapes}; compile the program again")
        return blas.matmul((x, w, *added), outputs, left=left, right=right, bias=bias, relu=relu)
    products = Products.from_buffer_copy(found.products)
    products.activation = activation_number("relu" if relu else activation)
    summand = added[0] if bias else None
    if summand is not None and not _fits(products, summand, out):
        # it is added to what is in the result
        out[...] = summand
        summand, products.whole = out, True
    first, second = _exchanged((x, panels.array if products.packed and panels else w), found)
    products.run(first, second, out, summand)


@in_float32
def contraction(
    inputs: _Arrays, outputs: _Arrays, *, left: Sequence[int], right: Sequence[int], result: Sequence[int]
) -> None:
    """What `mirage.kernels.blas.contraction` computes: here where all is float32 or of 16 bits, else by that.

    Raises as `matmul`.
    """
    shapes = [a.shape for a in (*inputs, *outputs)]
    if not _is_float32(inputs, outputs):
        return blas.contraction(inputs, outputs, left=left, right=right, result=result)
    found = _of_labels(*shapes, tuple(left), tuple(right), tuple(result))
    if found is None:
        return blas.contract(_copied, inputs, outputs, left=left, right=right, result=result)
    first, second = _exchanged(inputs, found)
    found.products.run(first, second, outputs[0])


@prepared_in_float32
def prepare_matmul(
    inputs: Sequence[Any],
    outputs: _Arrays,
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (),
    packed: bool = False,
    bias: bool = False,
    relu: bool = False,
    activation: str = "",
) -> Launch | None:
    """The launch of `matmul` for contiguous tensors like these, inputs and then outputs, and these panels; None where that is
    more than a product.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory for the panels;
    the launch fails with MirageError without memory.
    """
    x, w, added, panels = _operands(inputs, packed)
    (out,) = outputs
    found = _products(x, w, panels, out, left, right) if _is_float32((x, w), outputs) else None
    if found is None:
        return None
    args = Products.from_buffer_copy(found.products)
    if bias and not (_is_float32(added, ()) and _fits(args, added[0], out)):
        return None
    args.activation = activation_number("relu" if relu else activation)
    names = [*_exchanged(("x", "w"), found), *["panels"] * packed, *["added"] * bias, "out"]
    return _launch(args, names, panels.array if args.packed and panels else None)


@prepared_in_float32
def prepare_contraction(
    inputs: _Arrays, outputs: _Arrays, *, left: Sequence[int], right: Sequence[int], result: Sequence[int]
) -> Launch | None:
    """The same of `contraction`."""
    shapes = [a.shape for a in (*inputs, *outputs)]
    found = _of_labels(*shapes, tuple(left), tuple(right), tuple(result)) if _is_float32(inputs, outputs) else None
    if found is None:
        return None
    return _launch(Products.from_buffer_copy(found.products), (*_exchanged(("x", "w"), found), "out"))


def _operands(inputs: Sequence[Any], packed: bool) -> tuple[np.ndarray, np.ndarray, list[np.ndarray], Panels | None]:
    """The factors of a product, what is added to it, and the panels of the second factor."""
    x, w, *added = inputs
    panels = added.pop(0) if packed else None
    return x, w, added, panels


def activation_number(activation: str) -> int:
    """What linear.c calls a function."""
    return 1 + ACTIVATIONS.index(activation) if activation else 0


def _launch(args: Products, names: Sequence[str], panels: np.ndarray | None = None) -> Launch:
    """The launch of products of tensors with these names, in order: those of C, and "panels", which is no tensor.

    Of a matrix in `panels`, nothing else is read.
    """
    # what is prepared is run again, and finds a matrix for which the caches have room where it left it
    args.resident = 4 * args.k * args.n <= _cache_bytes()
    if panels is not None:
        args.w = address(panels)
    read = [name for name in names if name != "panels" and not (name == "w" and args.packed)]
    pointers = tuple((field(args, name), names.index(name)) for name in read)
    run = launcher(library().mi_products)
    return Launch(run, ctypes.addressof(args), pointers, lambda status: args.error(), (args, panels))


def _products(
    x: np.ndarray, w: np.ndarray, panels: Panels | None, out: np.ndarray, left: Sequence[int], right: Sequence[int]
) -> Arranged | None:
    """The products of a `matmul`: with the panels, if there are rows that are multiplied with one matrix."""
    if panels is not None and len(panels.shape) == 2:
        found = _of_matrices(x.shape, panels.shape, out.shape, tuple(left), ())
        if found is not None and not found.swapped and found.products.m:
            packed = Products.from_buffer_copy(found.products)
            packed.packed = True
            return Arranged(packed, False)
    return _of_matrices(x.shape, w.shape, out.shape, tuple(left), tuple(right))


@functools.cache
def _cache_bytes() -> int:
    """Bytes of the caches that cores have for themselves: of one that all share, other programs have a part."""
    own = processor()
    return own.l2_bytes * own.cores


def _exchanged(of: Sequence[_T], found: Arranged) -> Sequence[_T]:
    """The operands, or what stands for them, as the products take them."""
    return of[::-1] if found.swapped else of


def _is_float32(inputs: _Arrays, outputs: _Arrays) -> bool:
    return all(a.dtype == np.float32 for a in (*inputs, *outputs))


def _fits(args: Products, added: np.ndarray, out: np.ndarray) -> bool:
    """Whether the products add a tensor themselves, which is noted there: one like the result, or a row of it."""
    args.whole = added.shape == out.shape
    return bool(args.whole or (added.ndim and added.size == out.shape[-1] == added.shape[-1] == args.n))


def _copied(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The batched product of x[..., m, k] and w[..., k, n], of copies in the order that it takes."""
    out = np.empty((*x.shape[:-1], w.shape[-1]), np.float32)
    matmul([np.ascontiguousarray(x), np.ascontiguousarray(w)], [out])
    return out


@functools.lru_cache(maxsize=1024)
def _of_matrices(x: _Shape, w: _Shape, out: _Shape, left: _Shape, right: _Shape) -> Arranged | None:
    """The products of a `matmul` of tensors of these shapes, with the permutations that the operands are read through; None where
    they do not fit, for NumPy to say so.
    """
    if min(len(x), len(w)) < 2 or not is_order(left, len(x)) or not is_order(right, len(w)):
        return None
    sizes, steps = [], []
    for shape, order in ((x, left), (w, right)):
        moved = strides(shape)
        order = order or tuple(range(len(shape)))
        sizes.append([shape[i] for i in order])
        # a dim of size 1 broadcasts
        steps.append([moved[i] if shape[i] != 1 else 0 for i in order])
    (xs, ws), os = steps, strides(out)
    if not _is_product(sizes[0], sizes[1], out):
        return None
    rank = len(out) - 2
    missing = [[0] * (rank + 2 - len(s)) for s in steps]
    axes = [Axis(*a) for a in zip(out, missing[0] + xs, missing[1] + ws, os, strict=True)][:rank]
    axes += Axis(out[-2], xs[-2], 0, os[-2]), Axis(out[-1], 0, ws[-1], os[-1]), Axis(sizes[0][-1], xs[-1], ws[-2], 0)
    return arranged(axes)


def _is_product(x: Sequence[int], w: Sequence[int], out: _Shape) -> bool:
    """Whether the product of matrices of these sizes has that shape."""
    try:
        batch = np.broadcast_shapes(tuple(x[:-2]), tuple(w[:-2]))
    except ValueError:
        return False
    return x[-1] == w[-2] and (*batch, x[-2], w[-1]) == out


@functools.lru_cache(maxsize=1024)
def _of_labels(x: _Shape, w: _Shape, out: _Shape, left: _Shape, right: _Shape, result: _Shape) -> Arranged | None:
    """The products of a `contraction` of tensors of these shapes; None where they do not fit."""
    sizes: dict[int, int] = {}
    steps: list[dict[int, int]] = []
    for shape, labels in ((x, left), (w, right), (out, result)):
        if len(labels) != len(shape):
            return None
        if any(sizes.setdefault(v, n) != n if v >= 0 else n != 1 for v, n in zip(labels, shape, strict=True)):
            return None
        moved = {v: s for v, s in zip(labels, strides(shape), strict=True) if v >= 0}
        steps.append(moved)
    return arranged([Axis(n, *(s.get(v, 0) for s in steps)) for v, n in sizes.items()])
