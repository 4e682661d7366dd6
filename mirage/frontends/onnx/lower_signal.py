"""Lowerings of Fourier transforms: products with their matrices."""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np

from mirage.frontends import ops
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.table import Call, lowers
from mirage.frontends.products import product
from mirage.frontends.shapes import axis_of, size_of, sliced

#: elements of the longest transform that is a product with its matrix
_LONGEST = 512


@lowers("DFT", static=(1, 2))
def _dft(c: Call, x: Any, length: Any = None, axis: Any = None) -> Any:
    along = c.attr("axis", 1) if c.version < 20 else -2 if axis is None else int(np.asarray(axis).item())
    along, rank = axis_of(along, x.ndim), x.ndim
    size, parts = x.shape[along], x.shape[-1]
    count = size if length is None else np.asarray(length).item()
    inverse, onesided = c.attr("inverse", 0), c.attr("onesided", 0)
    if not isinstance(size, int) or not isinstance(count, int) or parts not in (1, 2):
        unsupported("its length is only known at a call")
    if inverse or count > _LONGEST:
        unsupported("it is an inverse one, or as long as NumPy's is faster")
    kept = min(size, count)
    angle = -2 * pi / count * np.outer(np.arange(kept), np.arange(count // 2 + 1 if onesided else count))
    real, imaginary = np.cos(angle), np.sin(angle)
    # rows [..., n] of the axis, real parts before imaginary ones
    order = [*(k for k in range(rank - 1) if k != along), rank - 1, along]
    rows = sliced(ops.transpose(x, tuple(order)), {rank - 1: (0, kept)})
    lead = rows.shape[:-2]
    rows = rows.reshape((size_of(lead), parts * kept))
    # (a + ib)(c + is) = (ac - bs) + i(as + bc)
    matrix = np.block([[real, imaginary], [-imaginary, real]])[: parts * kept]
    # in float64, as sums of cosines that cancel are to be 0
    found = product(c.cast(rows, "float64"), c.constant(matrix, "float64")).reshape((*lead, 2, real.shape[1]))
    found = c.cast(found, x.dtype)
    return ops.transpose(found, tuple(order.index(k) for k in range(rank)))
