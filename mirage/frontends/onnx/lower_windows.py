"""Lowerings of convolution and pooling."""

from __future__ import annotations

from math import prod
from typing import Any

import sympy

from mirage.frontends import graph_ops, ops
from mirage.frontends.convolutions import convolution, counted, max_pool, sum_pool, transposed
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.lower_reduction import along
from mirage.frontends.onnx.table import Call, add, lowers
from mirage.frontends.proxy import apply
from mirage.ir.dims import floor_div, maximum, to_dim


class Window:
    """The attributes of a window: its size, steps, gaps, and the padding at both sides."""

    def __init__(self, c: Call, x: Any, kernel: Any) -> None:
        self.rank = rank = x.ndim - 2
        if not all(isinstance(k, int) for k in kernel):
            unsupported("its windows are of a size that only the run tells")
        self.kernel = list(kernel)
        self.strides = c.attr("strides", [1] * rank)
        self.dilations = c.attr("dilations", [1] * rank)
        pads = c.attr("pads", [0] * 2 * rank)
        self.low, self.high = list(pads[:rank]), list(pads[rank:])
        self.space = x.shape[2:]
        how = c.attr("auto_pad", "NOTSET")
        if how in ("SAME_UPPER", "SAME_LOWER"):
            self._same(how == "SAME_UPPER")
        elif how == "VALID":
            self.low, self.high = [0] * rank, [0] * rank
        #: what windows of the last places reach beyond the padding
        self.beyond: list[Any] = [0] * rank

    def extent(self, k: int) -> int:
        """Elements from the first to the last of a window along a spatial dim."""
        return int((self.kernel[k] - 1) * self.dilations[k] + 1)

    def _same(self, upper: bool) -> None:
        for k, (size, step) in enumerate(zip(self.space, self.strides, strict=True)):
            if isinstance(size, int):
                total: Any = max((-(-size // step) - 1) * step + self.extent(k) - size, 0)
                half = total // 2
            elif step == 1:
                total = self.extent(k) - 1
                half = total // 2
            else:
                total = maximum(
                    sympy.Integer(0),
                    (floor_div(to_dim(size) + step - 1, sympy.Integer(step)) - 1) * step + self.extent(k) - size,
                )
                half = floor_div(total, sympy.Integer(2))
            self.low[k], self.high[k] = (half, total - half) if upper else (total - half, half)

    def ceil(self) -> None:
        """Places rounded up: a last window that begins within the tensor, or the padding before it, may reach beyond."""
        for k, (size, step) in enumerate(zip(self.space, self.strides, strict=True)):
            if not isinstance(size, int):
                unsupported("its places are rounded up, and the sizes only known at a call")
            whole = size + self.low[k] + self.high[k] - self.extent(k)
            places = -(-whole // step) + 1
            if (places - 1) * step >= size + self.low[k]:
                places -= 1
            self.beyond[k] = max((places - 1) * step - whole, 0)

    @property
    def ends(self) -> list[Any]:
        return [a + b for a, b in zip(self.high, self.beyond, strict=True)]


@lowers("Conv")
def convolved(c: Call, x: Any, w: Any, bias: Any = None) -> Any:
    """A convolution with the attributes of a node."""
    at = Window(c, x, w.shape[2:])
    y = convolution(x, w, at.strides, at.low, at.high, at.dilations, c.attr("group", 1))
    return y if bias is None else y + along(bias, y)


@lowers("ConvTranspose")
def _conv_transpose(c: Call, x: Any, w: Any, bias: Any = None) -> Any:
    at, rank, groups = Window(c, x, w.shape[2:]), x.ndim - 2, c.attr("group", 1)
    extra, shape = c.attr("output_padding", [0] * rank), c.attr("output_shape")
    low, high = list(at.low), list(at.high)
    how = c.attr("auto_pad", "NOTSET")
    if shape is not None or how.startswith("SAME"):
        for k, (n, s) in enumerate(zip(x.shape[2:], at.strides, strict=True)):
            wanted = shape[k] if shape is not None else n * s
            total = s * (n - 1) + extra[k] + at.extent(k) - wanted
            if not isinstance(total, int):
                unsupported("its padding is what only the run tells")
            low[k], high[k] = (
                (total // 2, total - total // 2) if how == "SAME_UPPER" else (total - total // 2, total // 2)
            )
    behind = [h - e for h, e in zip(high, extra, strict=True)]
    y = transposed(x, w, at.strides, low, behind, at.dilations, groups)
    return y if bias is None else y + along(bias, y)


def _pool_window(c: Call, x: Any) -> Window:
    at = Window(c, x, c.attr("kernel_shape"))
    if c.attr("ceil_mode", 0):
        at.ceil()
    return at


@lowers("MaxPool")
def _max_pool(c: Call, x: Any) -> Any:
    if c.wants(1):
        unsupported("it asks for positions")
    at = _pool_window(c, x)
    return max_pool(x, at.kernel, at.strides, at.low, at.ends, at.dilations)


@lowers("AveragePool")
def _average_pool(c: Call, x: Any) -> Any:
    at = _pool_window(c, x)
    total = sum_pool(x, at.kernel, at.strides, at.low, at.ends, at.dilations)
    whole = float(prod(at.kernel))
    if not any(isinstance(n, sympy.Expr) or n for n in (*at.low, *at.ends)):
        return total / whole
    if c.attr("count_include_pad", 0):
        if not any(at.beyond):
            return total / whole
        space = [n + a + b for n, a, b in zip(at.space, at.low, at.high, strict=True)]
        return total / counted(space, at.kernel, at.strides, [0] * at.rank, at.beyond, at.dilations, x.dtype)
    return total / counted(at.space, at.kernel, at.strides, at.low, at.ends, at.dilations, x.dtype)


@lowers("LpPool")
def _lp_pool(c: Call, x: Any) -> Any:
    at, p = _pool_window(c, x), c.attr("p", 2)
    powers = ops.abs(x) if p == 1 else ops.square(x) if p == 2 else ops.pow(ops.abs(x), p)
    total = sum_pool(powers, at.kernel, at.strides, at.low, at.ends, at.dilations)
    return total if p == 1 else ops.sqrt(total) if p == 2 else ops.pow(total, 1 / p)


add(
    {
        "GlobalAveragePool": lambda c, x: x.mean(tuple(range(2, x.ndim)), keepdims=True),
        "GlobalMaxPool": lambda c, x: graph_ops.max(x, tuple(range(2, x.ndim)), keepdims=True),
        "GlobalLpPool": lambda c, x: ops.pow(
            apply("sum", ops.pow(ops.abs(x), c.attr("p", 2)), axes=tuple(range(2, x.ndim)), keepdims=True),
            1 / c.attr("p", 2),
        ),
    }
)
