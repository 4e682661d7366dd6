"""The library functions of `mirage.kernels.blas` on a CUDA device: products by cuBLASLt, on CuPy's current stream.

16-bit factors are multiplied as they are stored, sums are kept in float32, and a result is rounded once, at the end. A bias
that is one number per column, and a ReLU, are epilogues of the product. The arrays are CuPy's and C-contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from mirage.ir.types import compute_dtype
from mirage.kernels import blas
from mirage.kernels.cuda.library.operators import device_arrays


def matmul(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (),
    bias: bool = False,
    relu: bool = False,
) -> None:
    """See `mirage.kernels.blas.matmul`."""
    arrays = device_arrays()
    x, y = (a.transpose(perm) if perm else a for a, perm in zip(inputs, (left, right), strict=False))
    (out,) = outputs
    to = out
    if y.ndim == 2 and x.ndim > 2 and x.flags.c_contiguous:
        # one product of all rows, not one per batch
        x, to = x.reshape(prod(x.shape[:-1]), x.shape[-1]), out.reshape(prod(out.shape[:-1]), out.shape[-1])
    else:
        batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
        x, y = (arrays.xp.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (x, y))
    if bias and inputs[2].size != out.shape[-1]:
        wide = compute_dtype(out.dtype)
        found = arrays.matmul(x, y, dtype=wide).reshape(out.shape) + inputs[2].astype(wide, copy=False)
        out[...] = arrays.xp.maximum(found, wide.type(0)) if relu else found
        return
    column = inputs[2].reshape(-1) if bias else None
    arrays.matmul(x, y, out=to, dtype=out.dtype, bias=column, relu=relu)


def contraction(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    left: Sequence[int],
    right: Sequence[int],
    result: Sequence[int],
) -> None:
    """See `mirage.kernels.blas.contraction`."""

    def product(a: Any, b: Any) -> Any:
        return device_arrays().matmul(a, b, dtype=outputs[0].dtype)

    blas.contract(product, inputs, outputs, left=left, right=right, result=result)


#: the library functions that programs may call without registering them, by the names that they have on a processor
FUNCTIONS: dict[str, Callable[..., Any]] = {"blas.matmul": matmul, "blas.contraction": contraction}
