"""Lowerings of operators that make tensors of nothing."""

from __future__ import annotations

from typing import Any

from mirage.frontends import array_ops, graph_ops
from mirage.frontends.aten.lower_movement import filled
from mirage.frontends.aten.table import Call, add, lowers
from mirage.frontends.proxy import apply
from mirage.ir.types import DTYPES

add({"fill.Scalar": lambda c, x, value: filled(c, value), "fill.Tensor": lambda c, x, value: filled(c, value)})


@lowers("empty.memory_format", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
def _empty(c: Call, *_: Any, **__: Any) -> Any:
    # whoever reads elements that nobody has written may get any
    return filled(c, 0)


@lowers("arange.start_step", "arange.start", "arange")
def _arange(c: Call, *args: Any, **_: Any) -> Any:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) == 3 else 1)
    counted = array_ops.arange(0, c.shape[0])
    if c.dtype not in DTYPES:
        # as ATen: both become integers, which the number of elements is not found from
        start, step = (int(v) if isinstance(v, bool | float) else v for v in (start, step))
        return c.tensor(counted * step + start if step != 1 or start != 0 else counted)
    return c.tensor(c.tensor(counted, "float64") * step + start)


@lowers("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor")
def _linspace(c: Call, start: Any, end: Any, steps: Any, **_: Any) -> Any:
    wide = c.dtype if c.dtype == "float32" else "float64"
    first, last = (c.tensor(c.tensor(v), wide) for v in (start, end))
    return c.tensor(spaced(c, first, last, c.shape[0]))


def spaced(c: Call, first: Any, last: Any, count: Any) -> Any:
    """So many numbers from one to another, tensors of one floating-point type: both ends are exact."""
    if count == 1:
        return first.reshape(1)
    wide = first.dtype
    places, before_last = array_ops.arange(0, count), array_ops.dim_value(count) - 1
    step = (last - first) / c.tensor(apply("elementwise_max", before_last, 1), wide)
    # from both ends; a single element is the start
    half = apply("elementwise_max", (before_last + 1) // 2, 1)
    rising, falling = first + c.tensor(places, wide) * step, last - c.tensor(before_last - places, wide) * step
    return graph_ops.where(places < half, rising, falling)


@lowers("eye", "eye.m")
def _eye(c: Call, *_: Any, **__: Any) -> Any:
    rows, columns = c.shape
    return c.tensor(graph_ops.equal(array_ops.arange(0, rows).reshape(rows, 1), array_ops.arange(0, columns)))
