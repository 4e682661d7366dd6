"""Library functions in destination-passing style: products and contractions by NumPy's BLAS, with cheap epilogues.

`mirage.kernels.cuda.library.blas` has the same functions for a CUDA device.

Each is called as `fn(inputs, outputs, **attrs)` with tuples of C-contiguous arrays. A transposed operand reaches BLAS as a
view. The 16-bit types are computed in float32, as everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from mirage.ir.types import compute_dtype

Arrays = Sequence[np.ndarray]


def _wide(x: np.ndarray) -> np.ndarray:
    """The operand in the type that it is computed in."""
    return x.astype(compute_dtype(x.dtype), copy=False)


def _permuted(x: np.ndarray, perm: Sequence[int]) -> np.ndarray:
    return _wide(x.transpose(perm) if perm else x)


def matmul(
    inputs: Arrays,
    outputs: Arrays,
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (),
    bias: bool = False,
    relu: bool = False,
) -> None:
    """`x[..., m, k] @ y[..., k, n]`, then `+ bias` (a third input that broadcasts), then max(·, 0).

    `left` and `right` are permutations that the operands are read through: dim i is dim `left[i]` of the input.
    """
    x, y = _permuted(inputs[0], left), _permuted(inputs[1], right)
    (out,) = outputs
    if y.ndim == 2 and x.ndim > 2 and x.flags.c_contiguous:
        # one product of all rows, not one per batch
        x, out = x.reshape(prod(x.shape[:-1]), x.shape[-1]), out.reshape(prod(out.shape[:-1]), out.shape[-1])
    # a result of fewer bits is rounded once, at the end
    found = np.matmul(x, y, out=out if out.dtype == x.dtype else None)
    if bias:
        whole = found.reshape(outputs[0].shape)
        np.add(whole, _wide(inputs[2]), out=whole)
    if relu:
        np.maximum(found, found.dtype.type(0), out=found)
    if found is not out:
        out[...] = found


def contraction(
    inputs: Arrays, outputs: Arrays, *, left: Sequence[int], right: Sequence[int], result: Sequence[int]
) -> None:
    """The sum of products of two operands over the labels that `result` lacks: a label per dim, as in `numpy.einsum`.

    See `contract`.
    """
    contract(lambda a, b: np.matmul(_wide(a), _wide(b)), inputs, outputs, left=left, right=right, result=result)


def contract(
    product: Callable[[Any, Any], Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    left: Sequence[int],
    right: Sequence[int],
    result: Sequence[int],
) -> None:
    """A contraction of arrays of any module, whose batched product of matrices is given.

    -1 labels a dim of size 1 that broadcasts, or that the result keeps in place of a summed one. Every summed label is one of
    both operands. One batched product: labels of both are batches, labels of one its rows or columns.
    """
    x, xs = _squeezed(inputs[0], left)
    y, ys = _squeezed(inputs[1], right)
    summed = [v for v in xs if v in ys and v not in result]
    batch = [v for v in xs if v in ys and v in result]
    rows, columns = [v for v in xs if v not in ys], [v for v in ys if v not in xs]
    sizes = dict(zip(xs, x.shape, strict=True)) | dict(zip(ys, y.shape, strict=True))

    def extents(labels: Sequence[int]) -> list[int]:
        return [sizes[v] for v in labels]

    lead, inner = extents(batch), prod(extents(summed))
    a = x.transpose([xs.index(v) for v in (*batch, *rows, *summed)])
    b = y.transpose([ys.index(v) for v in (*batch, *summed, *columns)])
    found = product(a.reshape([*lead, prod(extents(rows)), inner]), b.reshape([*lead, inner, prod(extents(columns))]))
    order = (*batch, *rows, *columns)
    kept = [v for v in result if v >= 0]
    shaped = found.reshape(extents(order)).transpose([order.index(v) for v in kept])
    outputs[0][...] = shaped.reshape(outputs[0].shape) if len(kept) < len(result) else shaped


def _squeezed(x: Any, labels: Sequence[int]) -> tuple[Any, list[int]]:
    """The operand without dims that broadcast, and the labels of the others."""
    index = tuple(0 if v < 0 else slice(None) for v in labels)
    return x[index], [v for v in labels if v >= 0]


#: the library functions that programs may call without registering them
FUNCTIONS: dict[str, Callable[..., Any]] = {"blas.matmul": matmul, "blas.contraction": contraction}
