"""Lowerings of histograms: each element's bin, and the sum of what is in a bin.

Where ATen refuses data that are not finite, as it does if the bounds come from the data, bounds and counts are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.aten.lower_creation import spaced
from mirage.frontends.aten.lower_order import few
from mirage.frontends.aten.table import Call, lowers
from mirage.frontends.graph_ops import cast
from mirage.frontends.imported import unsupported
from mirage.frontends.shapes import size_of, sliced
from mirage.ir.types import DTYPES, ELEMENTS

#: bytes from which on ATen computes numbers in vectors, on a machine whose vectors are not longer than AVX2's
_VECTORS = 64


def _bounds(c: Call, x: Any, given: Sequence[float] | None, apart: float) -> tuple[Any, Any]:
    """The bounds that are given, or the least and largest element of rank 1, 0 and 1 of none; `apart` from equal ones."""
    low: Any
    high: Any
    if given is not None:
        low, high = (c.tensor(v, x.dtype) for v in given)
    else:
        count = array_ops.dim_value(x.shape[0])
        low, high = (
            graph_ops.where(graph_ops.equal(count, 0), c.tensor(none, x.dtype), found)
            for none, found in ((0, graph_ops.min(x, 0)), (1, graph_ops.max(x, 0)))
        )
    equal = graph_ops.equal(low, high)
    return graph_ops.where(equal, low - apart, low), graph_ops.where(equal, high + apart, high)


def _edges(c: Call, x: Any, bins: int, given: Sequence[float] | None) -> Any:
    """The edges of bins of one size over elements of rank 1."""
    if (bins + 1) * ELEMENTS[x.dtype].itemsize >= _VECTORS:
        unsupported("ATen rounds so many edges as the machine's vectors have it, and elements may be equal to one")
    return spaced(c, *_bounds(c, x, given, 0.5), bins + 1)


def _at(edges: Any, k: Any) -> Any:
    return array_ops.take(edges, array_ops.full((), k, "int64"))


def _inside(x: Any, low: Any, high: Any) -> Any:
    return graph_ops.logical_and(graph_ops.greater_equal(x, low), graph_ops.less_equal(x, high))


def _between(c: Call, x: Any, edges: Any) -> tuple[Any, Any]:
    """The bin of each element of rank 1 among those with these edges, and whether it is in any: the last has both edges."""
    last = edges.shape[0] - 2
    inside = _inside(x, _at(edges, 0), _at(edges, last + 1))
    reached = graph_ops.less_equal(few(edges), x.reshape(size_of(x.shape), 1))
    place = cast(reached, "int64").sum(-1) - 1
    return ops.minimum(place, last) if last >= 0 else unsupported("it has no bin"), inside


def _evenly(c: Call, x: Any, bins: int, low: Any, high: Any) -> tuple[Any, Any]:
    """The same for bins of one size: those that a division gives."""
    inside = _inside(x, low, high)
    place = ops.floor(graph_ops.where(inside, (x - low) * bins / (high - low), c.tensor(0, x.dtype)))
    return ops.minimum(cast(place, "int64"), bins - 1), inside


def _totals(c: Call, places: Sequence[tuple[Any, Any]], bins: Sequence[int], weight: Any) -> Any:
    """The sums of weights, or counts, of the elements in each bin: `places` has their bins along each dim."""
    place, inside = places[0]
    for (also, within), count in zip(places[1:], bins[1:], strict=True):
        place, inside = place * count + also, graph_ops.logical_and(inside, within)
    count = prod(bins)
    # elements outside are in a bin behind the last
    place = graph_ops.where(inside, place, c.tensor(count, "int64"))
    values = array_ops.full((), 1, c.dtype) if weight is None else weight.reshape(size_of(weight.shape))
    found = array_ops.scatter(array_ops.full((count + 1,), 0, c.dtype), place, values, 0, True)
    return sliced(found, {0: (0, count)}).reshape(*bins)


def _density(found: Any, edges: Sequence[Any]) -> Any:
    """The shares of the bins per size of a bin."""
    found = found / found.sum()
    for k, e in enumerate(edges):
        count = e.shape[0] - 1
        sizes = sliced(e, {0: (1, count + 1)}) - sliced(e, {0: (0, count)})
        found = found / sizes.reshape(*(count if j == k else 1 for j in range(len(edges))))
    return found


@lowers("histc")
def _histc(c: Call, x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    if c.dtype not in DTYPES:
        unsupported("it counts integers")
    x = x.reshape(size_of(x.shape))
    low, high = _bounds(c, x, None if min == max else (min, max), 1.0)
    found = _totals(c, [_evenly(c, x, bins, low, high)], [bins], None)
    # 0, but NaN where the bounds are not finite
    return found + (low - low) + (high - high)


@lowers("histogram.bins_tensor")
def _histogram_of_edges(c: Call, x: Any, bins: Any, *, weight: Any = None, density: bool = False) -> Any:
    return _histogram(c, x.reshape(size_of(x.shape), 1), [bins], weight, density), bins


@lowers("histogram.bin_ct")
def _histogram_of_count(
    c: Call, x: Any, bins: int = 100, *, range: Any = None, weight: Any = None, density: bool = False
) -> Any:
    edges = _edges(c, x.reshape(size_of(x.shape)), bins, range)
    return _histogram(c, x.reshape(size_of(x.shape), 1), [edges], weight, density), edges


def _histogram(c: Call, x: Any, edges: Sequence[Any], weight: Any, density: bool) -> Any:
    """The histogram of points `[count, dims]` in bins with these edges along each dim."""
    places = [_between(c, _column(x, k), e) for k, e in enumerate(edges)]
    found = _totals(c, places, [e.shape[0] - 1 for e in edges], weight)
    return _density(found, edges) if density else found


def _column(x: Any, k: int) -> Any:
    """One coordinate of all points."""
    return sliced(x, {1: (k, k + 1)}).reshape(x.shape[0])


def _points(x: Any) -> Any:
    return x.reshape(size_of(x.shape[:-1]), x.shape[-1])


def _edges_of_each(c: Call, x: Any, bins: Sequence[int], given: Any) -> list[Any]:
    """The edges along each dim of points, within bounds `[low, high, low, high...]` if they are given."""
    x = _points(x)
    return [_edges(c, _column(x, k), n, given and given[2 * k : 2 * k + 2]) for k, n in enumerate(bins)]


@lowers("_histogramdd_bin_edges")
def _bin_edges(c: Call, x: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    return tuple(_edges_of_each(c, x, bins, range))


@lowers("_histogramdd_from_bin_cts")
def _from_counts(c: Call, x: Any, bins: Any, *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    return _histogram(c, _points(x), _edges_of_each(c, x, bins, range), weight, density)


@lowers("_histogramdd_from_bin_tensors")
def _from_edges(c: Call, x: Any, bins: Any, *, weight: Any = None, density: bool = False) -> Any:
    return _histogram(c, _points(x), bins, weight, density)
