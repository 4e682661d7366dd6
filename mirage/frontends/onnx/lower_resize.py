"""Lowerings of operators that read between elements: resizing, and sampling at places that a tensor holds."""

from __future__ import annotations

from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.lower_movement import axes_given
from mirage.frontends.onnx.table import Call, lowers
from mirage.frontends.products import product as matrix_product
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import size_of
from mirage.ir.types import DTYPES

#: elements along a resized axis
_LONGEST = 1 << 16

# resizing


def _coordinate(c: Call, x: int, scale: float, size: int, roi: tuple[float, float]) -> float:
    """Where, among `size` elements along an axis, element x of the result is."""
    how = c.attr("coordinate_transformation_mode", "half_pixel")
    wide = scale * size
    if how == "half_pixel" or (how == "pytorch_half_pixel" and wide > 1):
        return (x + 0.5) / scale - 0.5
    if how == "pytorch_half_pixel":
        return -0.5
    if how == "align_corners":
        return 0.0 if wide == 1 else x * (size - 1) / (wide - 1)
    if how == "asymmetric":
        return x / scale
    if how == "half_pixel_symmetric":
        return size / 2 * (1 - int(wide) / wide) + (x + 0.5) / scale - 0.5
    if how == "tf_crop_and_resize":
        first, last = roi
        return (
            first * (size - 1) + x * (last - first) * (size - 1) / (wide - 1)
            if wide > 1
            else (first + last) * (size - 1) / 2
        )
    return unsupported(f"the coordinates {how}")


_NEAREST = {
    "round_prefer_floor": lambda x: ceil(x - 0.5),
    "round_prefer_ceil": lambda x: floor(x + 0.5),
    "floor": floor,
    "ceil": ceil,
}


def _weight(mode: str, a: float, x: float) -> float:
    """The weight of an element at a distance."""
    x = abs(x)
    if mode == "linear":
        return max(1 - x, 0.0)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a if x < 2 else 0.0


def _shares(c: Call, mode: str, scale: float, size: int, count: int, roi: tuple[float, float]) -> np.ndarray:
    """The weights `[count, size]` of an axis's elements in those of the result."""
    found = np.zeros((count, size))
    a, narrow = c.attr("cubic_coeff_a", -0.75), min(scale, 1.0) if c.attr("antialias", 0) else 1.0
    reach = (1 if mode == "linear" else 2) / narrow
    for x in range(count):
        at = _coordinate(c, x, scale, size, roi)
        first = floor(at)
        places = range(first + floor(-reach) + 1, first + 1 + ceil(reach))
        weights = {k: _weight(mode, a, (k - at) * narrow) for k in places}
        if c.attr("exclude_outside", 0):
            weights = {k: w for k, w in weights.items() if 0 <= k < size}
        total = sum(weights.values()) if narrow < 1 or c.attr("exclude_outside", 0) else 1.0
        for k, w in weights.items():
            found[x, min(max(k, 0), size - 1)] += w / total
    return found


def _outside(c: Call, scale: float, size: int, count: int, roi: tuple[float, float]) -> np.ndarray:
    places = [_coordinate(c, x, scale, size, roi) for x in range(count)]
    return np.array([not 0 <= p <= size - 1 for p in places])


@lowers("Resize", static=(1, 2, 3), since=11)
def _resize(c: Call, x: Any, roi: Any = None, scales: Any = None, sizes: Any = None) -> Any:
    axes = axes_given(c, None, x.ndim) or list(range(x.ndim))
    mode = c.attr("mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        unsupported(f"the mode {mode}")
    if roi is not None and roi.size:
        given = np.asarray(roi, np.float64)
        windows = dict(zip(axes, zip(given[: len(axes)], given[len(axes) :], strict=True), strict=True))
    else:
        windows = {a: (0.0, 1.0) for a in axes}
    if scales is not None and scales.size:
        factors = [float(s) for s in scales]
        counts: list[Any] = [None] * len(axes)
    else:
        if any(not isinstance(x.shape[a], int) for a in axes) or sizes is None or sizes.dtype == object:
            unsupported("it resizes to, or from, sizes that only the run tells")
        counts = [int(n) for n in sizes]
        factors = [n / x.shape[a] for n, a in zip(counts, axes, strict=True)]
        policy = c.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            counts = [floor(factor * x.shape[a] + 0.5) for a in axes]
            factors = [factor] * len(axes)
    beyond: Any = None
    for a, scale, count in zip(axes, factors, counts, strict=True):
        size = x.shape[a]
        if scale == 1 and c.attr("coordinate_transformation_mode", "half_pixel") != "tf_crop_and_resize":
            continue
        if not isinstance(size, int):
            x = _repeated(c, x, a, scale, mode)
            continue
        count = floor(min(size * scale, 2 * _LONGEST)) if count is None else count
        if count > _LONGEST:
            unsupported(f"an axis of it would have more than {_LONGEST} elements")
        if c.attr("coordinate_transformation_mode") == "tf_crop_and_resize":
            own = _outside(c, scale, size, count, windows[a]).reshape(
                tuple(count if k == a else 1 for k in range(x.ndim))
            )
            beyond = own if beyond is None else beyond | own
        x = _along(c, x, a, scale, count, mode, windows[a])
    if beyond is None or not beyond.any():
        return x
    return graph_ops.where(c.constant(beyond, "bool"), c.constant(c.attr("extrapolation_value", 0.0), x.dtype), x)


def _along(c: Call, x: Any, axis: int, scale: float, count: int, mode: str, roi: tuple[float, float]) -> Any:
    """Resized along one axis of a known size."""
    size = x.shape[axis]
    if mode == "nearest":
        nearest = _NEAREST[c.attr("nearest_mode", "round_prefer_floor")]
        places = [min(max(nearest(_coordinate(c, k, scale, size, roi)), 0), size - 1) for k in range(count)]
        times = count // size
        if places == [k // times for k in range(size * times)]:
            return ops.repeat(x, times, axis)
        return array_ops.take(x, c.constant(np.array(places), "int64"), axis)
    if x.dtype not in DTYPES:
        unsupported("it interpolates integers")
    shares = c.constant(_shares(c, mode, scale, size, count, roi).T, x.dtype)
    if axis == x.ndim - 1:
        return matrix_product(x.reshape((size_of(x.shape[:-1]), size)), shares).reshape((*x.shape[:-1], count))
    order = [*(k for k in range(x.ndim) if k != axis), axis]
    moved = ops.transpose(x, tuple(order))
    y = matrix_product(moved.reshape((size_of(moved.shape[:-1]), size)), shares).reshape((*moved.shape[:-1], count))
    return ops.transpose(y, tuple(order.index(k) for k in range(x.ndim)))


def _repeated(c: Call, x: Any, axis: int, scale: float, mode: str) -> Any:
    """Resized along an axis whose size only the run tells: a whole number of times, each element repeated."""
    how, nearest = c.attr("coordinate_transformation_mode", "half_pixel"), c.attr("nearest_mode", "round_prefer_floor")
    alike = (how == "asymmetric" and nearest == "floor") or (how == "half_pixel" and nearest.startswith("round"))
    if mode != "nearest" or not alike or not float(scale).is_integer():
        unsupported("it interpolates along a dim that only the run tells")
    return ops.repeat(x, int(scale), axis)


# sampling


def _reflected(at: Any, low: float, high: float) -> Any:
    """Places within bounds, at which those outside are mirrored as often as need be."""
    span = high - low
    away = ops.abs(at - low)
    turns = ops.floor(away / span)
    rest = away - turns * span
    even = graph_ops.equal(turns - ops.floor(turns / 2) * 2, 0)
    return graph_ops.where(even, rest + low, high - rest)


@lowers("GridSample")
def _grid_sample(c: Call, x: Any, grid: Any) -> Any:
    mode, padding, corners = c.attr("mode", "linear"), c.attr("padding_mode", "zeros"), c.attr("align_corners", 0)
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    rank = x.ndim - 2
    sizes = x.shape[2:]
    if not all(isinstance(n, int) and n > 0 for n in sizes) or (padding == "reflection" and corners and 1 in sizes):
        unsupported("it samples along a dim that only the run tells, or of one element")
    places = grid.shape[1:-1]
    count = size_of(places)
    flat = x.reshape((x.shape[0], x.shape[1], size_of(sizes)))
    grid = graph_ops.cast(grid, "float64" if x.dtype == "float64" else "float32")
    taps: list[list[tuple[Any, Any]]] = []
    for k, size in enumerate(sizes):
        # the last coordinate is that of the last axis but for the order: x, y, z
        column = rank - 1 - k
        at = apply("slice", grid, axes=(grid.ndim - 1,), starts=(column,), stops=(column + 1,)).reshape(
            (x.shape[0], count)
        )
        at = (at + 1) / 2 * (size - 1) if corners else ((at + 1) * size - 1) / 2
        taps.append(_taps(c, at, size, mode, padding, bool(corners)))
    total: Any = None
    for choice in product(*taps):
        index: Any = None
        weight: Any = None
        for (place, share), size in zip(choice, sizes, strict=True):
            index = place if index is None else index * size + place
            weight = share if weight is None else weight * share
        part = array_ops.take_along_axis(flat, index.reshape((x.shape[0], 1, count)), 2)
        part = part * c.cast(weight, x.dtype).reshape((x.shape[0], 1, count))
        total = part if total is None else total + part
    return total.reshape((x.shape[0], x.shape[1], *places))


def _taps(c: Call, at: Any, size: int, mode: str, padding: str, corners: bool) -> list[tuple[Any, Any]]:
    """The positions that a coordinate reads along an axis, and their weights."""
    low, high = (0.0, size - 1.0) if corners else (-0.5, size - 0.5)
    inner = mode == "cubic"
    if padding == "border" and not inner:
        at = ops.clamp(at, 0, size - 1)
    if padding == "reflection" and not inner:
        at = ops.clamp(_reflected(at, low, high), 0, size - 1)
    if mode == "nearest":
        found = [(ops.round(at), None)]
    else:
        first = ops.floor(at)
        rest = at - first
        if mode == "linear":
            found = [(first, 1 - rest), (first + 1, rest)]
        else:
            found = [(first + d, _cubic(rest - d)) for d in (-1, 0, 1, 2)]
    taps: list[tuple[Any, Any]] = []
    for place, weight in found:
        inside = graph_ops.logical_and(graph_ops.greater_equal(place, 0), graph_ops.less_equal(place, size - 1))
        if padding == "reflection" and inner:
            place = _reflected(place, low, high)
        index = graph_ops.cast(ops.clamp(place, 0, size - 1), "int64")
        share: Any = weight
        if padding == "zeros":
            on = c.cast(inside, at.dtype)
            share = on if share is None else share * on
        elif share is None:
            share = array_ops.ones(at.shape, at.dtype)
        taps.append((index, share))
    return taps


def _cubic(x: Any) -> Any:
    """The weight of an element at a distance below 2."""
    a, x = -0.75, ops.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return graph_ops.where(graph_ops.less_equal(x, 1), near, far)
