"""Convolution and pooling of padded tensors, as front ends have them: padding, transposition, counts of what lies within."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf, prod
from typing import Any

import numpy as np

from mirage.frontends import array_ops, ops
from mirage.frontends.graph import graph_trace
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_shape, sliced
from mirage.ir.graph.nodes import OpCall
from mirage.ir.types import DTYPES, ELEMENTS, largest

_as_windows: ContextVar[bool] = ContextVar("as_windows", default=False)


@contextmanager
def as_windows() -> Iterator[None]:
    """While it lasts, front ends import every convolution and pooling as an operator over windows: products of matrices, and what
    else some are faster as, have other layouts, and quantization has kernels for windows alone.
    """
    token = _as_windows.set(True)
    try:
        yield
    finally:
        _as_windows.reset(token)


def are_windows() -> bool:
    """Whether `as_windows` is in force."""
    return _as_windows.get()


def _is_dequantized(x: Any) -> bool:
    """Whether a tensor is what a `dequantize` of the function that is traced has just given."""
    trace = graph_trace("convolution")
    made = trace.function.definition(trace.value("convolution", x))
    return made is not None and isinstance(made.value, OpCall) and made.value.op == "dequantize"


def padded(x: Any, low: Sequence[Any], high: Sequence[Any], value: float = 0) -> Any:
    """Elements `value` before and behind along the last dims; where there are fewer than none, dims are cut. `value` may be -inf:
    the least that the element type has.
    """
    lead = x.ndim - len(low)
    cut = {
        lead + k: (max(-a, 0), x.shape[lead + k] - max(-b, 0))
        for k, (a, b) in enumerate(zip(low, high, strict=True))
        if isinstance(a, int) and isinstance(b, int) and (a < 0 or b < 0)
    }
    x = sliced(x, cut) if cut else x
    low, high = ([max(n, 0) if isinstance(n, int) else n for n in side] for side in (low, high))
    if all(isinstance(n, int) and n == 0 for n in (*low, *high)):
        return x
    if value == -inf:
        value = -largest(ELEMENTS[x.dtype]) if x.dtype in DTYPES else int(np.iinfo(ELEMENTS[x.dtype]).min)
    edge = [0] * lead
    return array_ops.pad(x, [*edge, *low], [*edge, *high], value)


def convolution(
    x: Any,
    w: Any,
    strides: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Any:
    """A convolution `[b, groups * c, *space]` with weights `[o, c, *kernel]` of the tensor padded with zeros."""
    whole = are_windows() or _is_dequantized(x)
    x = as_shape(x, (x.shape[0], w.shape[1] * groups, *x.shape[2:]))
    if not whole and groups == 1 and all(k == s == 1 for k, s in zip(w.shape[2:], strides, strict=True)):
        return pointwise(padded(x, low, high), w)
    return apply(
        "convolution", padded(x, low, high), w, strides=tuple(strides), dilations=tuple(dilations), groups=groups
    )


def pointwise(x: Any, w: Any) -> Any:
    """A convolution with windows of one element: a product of matrices."""
    space = x.shape[2:]
    count: Any = 1
    for d in space:
        count = count * d
    y = ops.matmul(w.reshape((w.shape[0], w.shape[1])), x.reshape((x.shape[0], x.shape[1], count)))
    return y.reshape((x.shape[0], w.shape[0], *space))


def transposed(
    x: Any,
    w: Any,
    strides: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Any:
    """The transposed convolution of `[b, groups * c, *space]` with weights `[groups * c, o, *kernel]`. `low` and `high` are cut
    off from the result, where they are negative zeros are added.

    It is a convolution of the elements with zeros between them. Where windows have no gaps, the result at `s * u + p` has weights
    at `p, p + s, ...` alone: one convolution gives the results of all p side by side, and multiplies no zeros.
    """
    cuts = [*low, *high]
    if any(s != 1 for s in strides) and all(d == 1 for d in dilations) and all(isinstance(n, int) for n in cuts):
        return _by_phases(x, w, strides, low, high, groups)
    rank = x.ndim - 2
    channels, count = w.shape[0] // groups, w.shape[1]
    space = x.shape[2:]
    if any(s != 1 for s in strides):
        wide = x.reshape((*x.shape[:2], *(n for d in space for n in (d, 1))))
        ends = [n for s in strides for n in (0, s - 1)]
        wide = array_ops.pad(wide, [0] * wide.ndim, [0, 0, *ends])
        x = wide.reshape((*x.shape[:2], *(d * s for d, s in zip(space, strides, strict=True))))
        x = sliced(
            x, {2 + k: (0, d * s - (s - 1)) for k, (d, s) in enumerate(zip(space, strides, strict=True)) if s != 1}
        )
    w = (
        w.reshape((groups, channels, count, *w.shape[2:]))
        .swapaxes(1, 2)
        .reshape((groups * count, channels, *w.shape[2:]))
    )
    w = array_ops.flip(w, tuple(range(2, 2 + rank)))
    reach = [(k - 1) * d for k, d in zip(w.shape[2:], dilations, strict=True)]
    before, behind = ([r - n for r, n in zip(reach, side, strict=True)] for side in (low, high))
    return convolution(x, w, (1,) * rank, before, behind, dilations, groups)


def _by_phases(
    x: Any, w: Any, strides: Sequence[int], low: Sequence[int], high: Sequence[int], groups: int
) -> Any:
    rank = x.ndim - 2
    channels, count, kernel = w.shape[0] // groups, w.shape[1], w.shape[2:]
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    more = [t * s - k for t, s, k in zip(taps, strides, kernel, strict=True)]
    w = padded(w, [0] * rank, more)
    split = w.reshape((groups, channels, count, *(n for t, s in zip(taps, strides, strict=True) for n in (t, s))))
    phases, windows = range(4, 4 + 2 * rank, 2), range(3, 3 + 2 * rank, 2)
    w = split.transpose((0, 2, *phases, 1, *windows)).reshape((groups * count * prod(strides), channels, *taps))
    w = array_ops.flip(w, tuple(range(2, 2 + rank)))
    around = [t - 1 for t in taps]
    y = convolution(x, w, (1,) * rank, around, around, (1,) * rank, groups)
    space = y.shape[2:]
    y = y.reshape((y.shape[0], groups * count, *strides, *space))
    order = (n for k in range(rank) for n in (2 + rank + k, 2 + k))
    y = y.transpose((0, 1, *order))
    y = y.reshape((y.shape[0], groups * count, *(n * s for n, s in zip(space, strides, strict=True))))
    return padded(y, [-n for n in low], [-n - m for n, m in zip(high, more, strict=True)])


def max_pool(
    x: Any,
    kernel: Sequence[int],
    strides: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    dilations: Sequence[int],
) -> Any:
    """The largest elements of windows; what is behind the edges is in none."""
    window = {"kernel": tuple(kernel), "strides": tuple(strides), "dilations": tuple(dilations)}
    return apply("max_pool", padded(x, low, high, -inf), **window)


def sum_pool(
    x: Any,
    kernel: Sequence[int],
    strides: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    dilations: Sequence[int],
) -> Any:
    """The sums of windows; what is behind the edges is 0."""
    window = {"kernel": tuple(kernel), "strides": tuple(strides), "dilations": tuple(dilations)}
    return apply("sum_pool", padded(x, low, high), **window)


def counted(
    space: Sequence[Any], kernel: Sequence[int], strides: Sequence[int], low: Sequence[int], high: Sequence[int],
    dilations: Sequence[int], dtype: str,
) -> Any:  # fmt: skip
    """How many elements of each window are within the tensor: `[*places]`."""
    found: Any = None
    for k, d in enumerate(space):
        one = array_ops.full((d,), 1, dtype)
        along = sum_pool(
            one, kernel[k : k + 1], strides[k : k + 1], low[k : k + 1], high[k : k + 1], dilations[k : k + 1]
        )
        along = along.reshape(tuple(along.shape[0] if j == k else 1 for j in range(len(space))))
        found = along if found is None else found * along
    return found
