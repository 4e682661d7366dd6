"""Lowerings of convolutions: products of matrices where patches lie side by side and over one dim, else of windows."""

from __future__ import annotations

from math import prod
from typing import Any

from mirage.frontends import array_ops, ops
from mirage.frontends.aten.table import Call, lowers
from mirage.frontends.convolutions import are_windows, convolution, transposed
from mirage.frontends.imported import unsupported
from mirage.frontends.products import product
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_shape, joined, size_of, window

#: elements of a kernel over one dim beyond which it is one over windows
_TAPS = 16


@lowers("convolution")
def _convolution(
    c: Call, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, is_transposed: bool,
    output_padding: Any, groups: int,
) -> Any:  # fmt: skip
    kernel = weight.shape[2:]
    if not all(isinstance(k, int) for k in (*kernel, *padding)):
        unsupported("its kernel is of unknown size")
    rank = len(kernel)
    stride, padding, dilation, output_padding = (
        list(v) * (rank if len(v) == 1 else 1) for v in (stride, padding, dilation, output_padding)
    )
    patches = (
        any(k != 1 for k in kernel)
        and not any(padding)
        and tuple(kernel) == tuple(stride)
        and all(d == 1 or k == 1 for d, k in zip(dilation, kernel, strict=True))
    )
    if is_transposed:
        behind = [n - more for n, more in zip(padding, output_padding, strict=True)]
        y = as_shape(transposed(x, weight, stride, padding, behind, dilation, groups), c.shape)
    elif are_windows():
        y = as_shape(convolution(x, weight, stride, padding, padding, dilation, groups), c.shape)
    elif patches and groups == 1:
        return _patches(c, x, weight, bias)
    elif rank == 1 and kernel[0] <= _TAPS and (groups == 1 or (weight.shape[1] == 1 and weight.shape[0] == groups)):
        y = _taps(c, x, weight, stride[0], padding[0], dilation[0], groups)
    else:
        y = as_shape(convolution(x, weight, stride, padding, padding, dilation, groups), c.shape)
    return y if bias is None else y + bias.reshape(-1, *(1,) * rank)


def _patches(c: Call, x: Any, weight: Any, bias: Any) -> Any:
    """Windows that lie side by side: each is a row of a matrix, to whose product the bias is added as to any other."""
    kernel, places, rank = weight.shape[2:], c.shape[2:], weight.ndim - 2
    batch, channels = x.shape[:2]
    x = window(x, (batch, channels, *(n * k for n, k in zip(places, kernel, strict=True))))
    x = x.reshape(batch, channels, *(d for pair in zip(places, kernel, strict=True) for d in pair))
    x = ops.transpose(x, (0, *range(2, 2 + 2 * rank, 2), 1, *range(3, 3 + 2 * rank, 2)))
    rows = x.reshape(batch, size_of(places), channels * prod(kernel))
    y = product(rows, weight.reshape(weight.shape[0], size_of(weight.shape[1:])).swapaxes(0, 1))
    y = y if bias is None else y + bias
    return y.swapaxes(1, 2).reshape(batch, weight.shape[0], *places)


def _taps(c: Call, x: Any, weight: Any, stride: int, padding: int, dilation: int, groups: int) -> Any:
    """One dim: the elements that one element of the kernel meets are a slice of the operand."""
    count, wanted = weight.shape[2], c.shape[2]
    depthwise = groups != 1 and weight.shape[1] == 1 and weight.shape[0] == groups
    x = array_ops.pad(x, (0, 0, padding), (0, 0, padding)) if padding else x

    def tap(k: int) -> Any:
        first = k * dilation
        stop = first + (wanted - 1) * stride + 1
        part = apply("slice", x, axes=(2,), starts=(first,), stops=(stop,), steps=(stride,))
        return as_shape(part, (*x.shape[:2], wanted))

    taps = [tap(k) for k in range(count)]
    if depthwise:
        factors = ops.transpose(weight, (2, 0, 1))
        y = None
        for k, part in enumerate(taps):
            factor = apply("slice", factors, axes=(0,), starts=(k,), stops=(k + 1,), steps=(1,))
            y = part * factor if y is None else y + part * factor
        return y
    rows = joined(taps, 1).swapaxes(1, 2)
    factors = ops.transpose(weight, (2, 1, 0)).reshape(count * weight.shape[1], weight.shape[0])
    return product(rows, factors).swapaxes(1, 2)
