"""Convolution and pooling as functions, for `mirage.superoptimize` and `mirage.compile`: `mirage.convolution(x, w, padding=1)`.

Spatial dims are the last ones. Strides, paddings and dilations are one number for all of these, or one per dim; a padding is so
many elements on both sides, or a pair of before and behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

from mirage.frontends.convolutions import padded, pointwise
from mirage.frontends.proxy import Proxy, apply, fail, running, tensor_operand

Sizes = int | Sequence[int]
Padding = int | Sequence[int | Sequence[int]]


def windows(x: Proxy, kernel: Sequence[int], strides: Sizes = 1, dilations: Sizes = 1) -> Proxy:
    """The windows of the last dims, element by element: `x[..., *space]` gives `[..., *kernel, *places]`.

    Element r of window i is `x[..., i * stride + r * dilation]`. Raises ShapeError, AttributeValueError, TraceError.
    """
    return apply("windows", x, **_windows("windows", kernel, len(kernel), strides, dilations))


def convolution(
    x: Proxy, w: Proxy, strides: Sizes = 1, padding: Padding = 0, dilations: Sizes = 1, groups: int = 1
) -> Proxy:
    """Products of windows with weights, summed: `x[b, groups * c, *space]` and `w[o, c, *kernel]` give `[b, o, *places]`.

    Zeros lie around x. Nothing is flipped: a cross-correlation, as in PyTorch and ONNX. Raises ShapeError,
    AttributeValueError, TraceError.
    """
    x, w = tensor_operand("convolution", x), tensor_operand("convolution", w)
    if w.ndim < 3 or x.ndim != w.ndim:
        fail(f"convolution: {x!r} with weights {w!r}; give x[b, groups * c, *space] and weights [o, c, *kernel] of one rank")
    rank = w.ndim - 2
    steps, gaps = (_each("convolution", what, n, rank) for what, n in (("strides", strides), ("dilations", dilations)))
    x = _padded("convolution", x, padding, rank, 0)
    # of a program, windows of the result may be taken
    in_graph = running("convolution").graph is not None
    if in_graph and groups == 1 and all(k == 1 for k in w.shape[2:]) and all(s == 1 for s in steps):
        product: Proxy = pointwise(x, w)
        return product
    return apply("convolution", x, w, strides=steps, dilations=gaps, groups=groups)


def max_pool(
    x: Proxy, kernel: Sequence[int], strides: Sizes | None = None, padding: Padding = 0, dilations: Sizes = 1
) -> Proxy:
    """The largest elements of windows of the last dims, which lie side by side by default. What is behind the edges is in none.

    Raises ShapeError, AttributeValueError, TraceError.
    """
    return _pooled("max_pool", x, kernel, strides, padding, dilations, -inf)


def average_pool(
    x: Proxy, kernel: Sequence[int], strides: Sizes | None = None, padding: Padding = 0, dilations: Sizes = 1
) -> Proxy:
    """The means of windows of the last dims; by default, windows lie side by side. What is behind the edges counts as 0.

    Raises ShapeError, AttributeValueError, TraceError.
    """
    return _pooled("sum_pool", x, kernel, strides, padding, dilations, 0) / prod(kernel)


def _pooled(
    op: str, x: Proxy, kernel: Sequence[int], strides: Sizes | None, padding: Padding, dilations: Sizes, edge: float
) -> Proxy:
    rank = len(kernel)
    sizes = _windows(op, kernel, rank, tuple(kernel) if strides is None else strides, dilations)
    return apply(op, _padded(op, tensor_operand(op, x), padding, rank, edge), **sizes)


def _windows(op: str, kernel: Sequence[int], rank: int, strides: Sizes, dilations: Sizes) -> dict[str, Any]:
    given = ("kernel", tuple(kernel)), ("strides", strides), ("dilations", dilations)
    return {what: _each(op, what, n, rank) for what, n in given}


def _each(op: str, what: str, given: Sizes, rank: int) -> tuple[int, ...]:
    """One number per spatial dim."""
    found = (given,) * rank if isinstance(given, int) else tuple(given)
    if len(found) != rank:
        fail(f"{op}: {what}={given!r} for {rank} spatial dims; give one number, or one per dim")
    return found


def _padded(op: str, x: Proxy, padding: Padding, rank: int, value: float) -> Proxy:
    each = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    pairs = [(n, n) if isinstance(n, int) else tuple(n) for n in each]
    allowed = all(len(p) == 2 and all(type(n) is int and n >= 0 for n in p) for p in pairs)
    if len(pairs) != rank or not allowed:
        fail(f"{op}: padding={padding!r} for {rank} spatial dims; give a number of at least 0, or one or a pair per dim")
    low, high = zip(*pairs, strict=True) if pairs else ((), ())
    found: Proxy = padded(x, low, high, value)
    return found
