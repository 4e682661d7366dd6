"""Lowerings of pooling: windows are read with a dim of their own, and reduced."""

from __future__ import annotations

from functools import reduce
from math import inf, prod
from typing import Any

import numpy as np

from mirage.frontends import array_ops, graph_ops
from mirage.frontends.aten.table import Call, lowers
from mirage.frontends.convolutions import are_windows, max_pool, sum_pool
from mirage.frontends.imported import as_tensor, unsupported
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_shape, window
from mirage.ir.dims import minimum, to_dim
from mirage.ir.types import DTYPES, ELEMENTS, largest


def _each(values: Any, rank: int) -> list[Any]:
    """A value per spatial dim: one stands for all."""
    return list(values) * rank if len(values) == 1 else list(values)


class Windows:
    """The windows of a pooling over the last dims: `[..., *places, elements of a window]`."""

    def __init__(self, c: Call, kernel: Any, stride: Any, padding: Any, dilation: Any, rank: int) -> None:
        self.kernel, self.padding, self.dilation = (_each(v, rank) for v in (kernel, padding, dilation))
        self.stride = _each(stride, rank) if stride else self.kernel
        self.rank = rank
        self.places = c.shape[len(c.shape) - rank :]

    def starts(self, k: int) -> Any:
        """Where the windows begin along spatial dim k: before 0 in the padding."""
        return array_ops.arange(0, self.places[k]) * self.stride[k] - self.padding[k]

    def inside(self, at: Any, k: int, last: Any) -> Any:
        """Which positions `[places, elements]` of windows along spatial dim k belong to these; `last` is the last of the dim."""
        return (at >= 0) & (at <= last)

    def along(self, x: Any, k: int, inner: int = 0) -> Any:
        """What belongs to spatial dim k, `[places]` or `[places, inner]`, beside the places (and elements) of the others."""
        own = [1] * self.rank
        own[k] = self.places[k]
        if not inner:
            return x.reshape(own)
        elements = [1] * self.rank
        elements[k] = inner
        return apply("reshape", x, shape=(*own, *elements))

    def of(self, x: Any) -> tuple[Any, Any]:
        """The elements of the windows, and which of these lie within the tensor: `[*places, elements]`."""
        lead = x.ndim - self.rank
        sizes = x.shape[lead:]
        if any(n == 0 for n in sizes):
            unsupported("there is nothing in a window")
        inside = []
        # from the last dim on, so that axes before keep their numbers
        for k in reversed(range(self.rank)):
            at = self.starts(k).reshape(self.places[k], 1) + array_ops.arange(0, self.kernel[k]) * self.dilation[k]
            last = array_ops.dim_value(sizes[k]) - 1
            inside.append(self.along(self.inside(at, k, last), k, self.kernel[k]))
            x = array_ops.take(x, apply("elementwise_min", apply("elementwise_max", at, 0), last), lead + k)
        order = [*range(lead), *(lead + 2 * k for k in range(self.rank)), *(lead + 2 * k + 1 for k in range(self.rank))]
        x = apply("transpose", x, perm=tuple(order))
        count = prod(self.kernel)
        within = array_ops.broadcast_to(reduce(graph_ops.logical_and, inside), (*self.places, *self.kernel))
        return x.reshape((*x.shape[: lead + self.rank], count)), within.reshape((*self.places, count))


class Adaptive(Windows):
    """Windows over all of a dim, as equal as they can be: window j of n over m elements is from j m / n to (j + 1) m / n."""

    def __init__(self, c: Call, x: Any, rank: int) -> None:
        super().__init__(c, (1,), (1,), (0,), (1,), rank)
        self.sizes = x.shape[x.ndim - rank :]
        if not all(isinstance(n, int) and n for n in (*self.sizes, *self.places)):
            unsupported("its windows are as large as sizes say that are not known")
        self.kernel = [
            max(-(-(j + 1) * m // n) - j * m // n for j in range(n)) for m, n in zip(self.sizes, self.places, strict=True)
        ]

    def starts(self, k: int) -> Any:
        """Where the windows begin along spatial dim k."""
        return array_ops.arange(0, self.places[k]) * self.sizes[k] // self.places[k]

    def ends(self, k: int) -> Any:
        """Behind which element they end."""
        n = self.places[k]
        return ((array_ops.arange(0, n) + 1) * self.sizes[k] + (n - 1)) // n

    def inside(self, at: Any, k: int, last: Any) -> Any:
        return at < self.ends(k).reshape(self.places[k], 1)


@lowers("adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(c: Call, x: Any, size: Any) -> Any:
    return _largest(c, x, Adaptive(c, x, 2 if "2d" in c.name else 3))


@lowers("_adaptive_avg_pool3d")
def _adaptive_avg_pool(c: Call, x: Any, size: Any) -> Any:
    windows = Adaptive(c, x, 3)
    elements, within = windows.of(x)
    wide = "float64" if c.dtype == "float64" else "float32"
    total = graph_ops.where(within, c.tensor(elements, wide), 0).sum(-1)
    return c.tensor(total / c.tensor(within, wide).sum(-1))


@lowers("max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool(
    c: Call, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,), ceil_mode: bool = False
) -> Any:
    windows = Windows(c, kernel, stride, padding, dilation, 2 if "2d" in c.name else 3)
    values, position = _largest(c, x, windows)
    # positions need the elements of all windows side by side, which nobody reads where they are not asked for
    if not ceil_mode:
        edges = windows.padding
        values = as_shape(max_pool(x, windows.kernel, windows.stride, edges, edges, windows.dilation), values.shape)
        if any(edges) and x.dtype in DTYPES and not are_windows():
            # what is behind the edges is the least number there, and less only where all else is
            least = -largest(ELEMENTS[x.dtype])
            values = graph_ops.where(graph_ops.equal(values, c.tensor(least)), c.tensor(-inf), values)
    return values, position


def _largest(c: Call, x: Any, windows: Windows) -> Any:
    """The largest element of each window, and its position among those of the spatial dims."""
    elements, within = windows.of(x)
    least = -inf if x.dtype in DTYPES else int(np.iinfo(ELEMENTS[x.dtype]).min)
    elements = as_tensor(graph_ops.where(within, elements, c.tensor(least)))
    values = graph_ops.max(elements, -1)
    # the first element that is the largest, or the last NaN: not one outside, where all are as small as can be
    count = prod(windows.kernel)
    rank: Any = c.tensor(graph_ops.equal(elements, graph_ops.max(elements, -1, keepdims=True)), "int64")
    if x.dtype in DTYPES:
        rank = graph_ops.where(graph_ops.isnan(elements), array_ops.arange(2, count + 2), rank)
    found = graph_ops.argmax(graph_ops.where(within, rank, 0), -1)
    position: Any = 0
    for k in range(windows.rank):
        after = prod(windows.kernel[k + 1 :])
        step = apply("remainder", apply("floor_divide", found, after), windows.kernel[k]) * windows.dilation[k]
        here = step + windows.along(windows.starts(k), k)
        position = here if k == 0 else position * x.shape[x.ndim - windows.rank + k] + here
    return values, position


@lowers("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    c: Call, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Any:  # fmt: skip
    windows = Windows(c, kernel, stride, padding, (1,), int(c.name.split("pool")[1][0]))
    wide, edges = "float64" if c.dtype == "float64" else "float32", windows.padding
    if all(n == 1 for n in windows.places) and not any(edges):
        total = _first_window(c.tensor(x, wide), windows)
    elif ceil_mode:
        elements, within = windows.of(x)
        total = graph_ops.where(within, c.tensor(elements, wide), 0).sum(-1)
    else:
        ones = [1] * windows.rank
        total = as_shape(sum_pool(c.tensor(x, wide), windows.kernel, windows.stride, edges, edges, ones), c.shape)
    if divisor_override is not None:
        return c.tensor(total / divisor_override)
    count: Any = 1
    for k in range(windows.rank):
        first, size = windows.starts(k), array_ops.dim_value(x.shape[x.ndim - windows.rank + k])
        beyond = size + windows.padding[k] if count_include_pad else size
        end = apply("elementwise_min", first + windows.kernel[k], beyond)
        begin = first if count_include_pad else apply("elementwise_max", first, 0)
        extent = windows.along(end - begin, k)
        count = extent if k == 0 else count * extent
    return c.tensor(total / c.tensor(count, total.dtype))


def _first_window(x: Any, windows: Windows) -> Any:
    """The sum of the window at the start of a tensor, beyond which it may go: users pool images by windows that are larger."""
    lead = x.ndim - windows.rank
    sizes = (minimum(to_dim(n), to_dim(k)) for n, k in zip(x.shape[lead:], windows.kernel, strict=True))
    return window(x, (*x.shape[:lead], *sizes)).sum(tuple(range(lead, x.ndim)), keepdims=True)
