"""Operators on elements that only graphs have, as functions for `mirage.compile`: `mirage.where(x > 0, x, 0)`.

Comparison and choice, arithmetic, reductions, order. Their meaning is NumPy's unless said otherwise. Operands are tensors of
the running trace, numbers, dims and small arrays. Errors are those of `mirage.frontends.ops`.
"""

from __future__ import annotations

from mirage.frontends.proxy import Axes, Operand, Proxy, apply, apply_many, axes_of, binary, tensor_operand, unary
from mirage.ir.dims import DimLike

# comparison and choice


equal = binary("equal", "x == y, of booleans.")
not_equal = binary("not_equal", "x != y, of booleans.")
less = binary("less", "x < y, of booleans.")
less_equal = binary("less_equal", "x <= y, of booleans.")
greater = binary("greater", "x > y, of booleans.")
greater_equal = binary("greater_equal", "x >= y, of booleans.")
logical_and = binary("logical_and", "x and y, of booleans.")
logical_or = binary("logical_or", "x or y, of booleans.")
logical_not = unary("logical_not", "Not x, of booleans.")
isnan = unary("isnan", "Which elements are NaN.")
isfinite = unary("isfinite", "Which elements are neither NaN nor infinite.")


def where(condition: Operand, x: Operand, y: Operand) -> Proxy:
    """`x` where the boolean condition holds, else `y`; the three broadcast."""
    return apply("where", condition, x, y)


# arithmetic


sign = unary("sign", "-1, 0 or 1.")
floor_divide = binary("floor_divide", "x // y of integers, rounded down; 0 where y is 0.")
remainder = binary("remainder", "x % y of integers, with the sign of y; 0 where y is 0.")


def cast(x: Operand, dtype: object) -> Proxy:
    """The elements in another type."""
    return apply("cast", x, dtype=dtype)


# reductions


def _reduce(name: str, x: Operand, axis: Axes, keepdims: bool) -> Proxy:
    t = tensor_operand(name, x)
    return apply(name, t, axes=axes_of(name, axis, t.ndim), keepdims=keepdims)


def max(x: Proxy, axis: Axes = None, keepdims: bool = False) -> Proxy:
    """The largest element over `axis`: an int, a tuple, or None for all dims. -inf, or the least integer, of no elements."""
    return _reduce("max", x, axis, keepdims)


def min(x: Proxy, axis: Axes = None, keepdims: bool = False) -> Proxy:
    """The smallest element over `axis`: an int, a tuple, or None for all dims. inf, or the largest integer, of no elements."""
    return _reduce("min", x, axis, keepdims)


def prod(x: Proxy, axis: Axes = None, keepdims: bool = False) -> Proxy:
    """The product over `axis`: an int, a tuple, or None for all dims."""
    return _reduce("prod", x, axis, keepdims)


def any(x: Proxy, axis: Axes = None, keepdims: bool = False) -> Proxy:
    """Whether any boolean over `axis` is set."""
    return _reduce("any", x, axis, keepdims)


def all(x: Proxy, axis: Axes = None, keepdims: bool = False) -> Proxy:
    """Whether all booleans over `axis` are set."""
    return _reduce("all", x, axis, keepdims)


def argmax(x: Proxy, axis: int, keepdims: bool = False) -> Proxy:
    """The position (int64) of the first largest element along `axis`."""
    return apply("argmax", x, axis=axis, keepdims=keepdims)


def argmin(x: Proxy, axis: int, keepdims: bool = False) -> Proxy:
    """The position (int64) of the first smallest element along `axis`."""
    return apply("argmin", x, axis=axis, keepdims=keepdims)


def cumsum(x: Proxy, axis: int) -> Proxy:
    """The sums of elements 0 to j along `axis`."""
    return apply("cumsum", x, axis=axis)


def grouped_matmul(x: Operand, w: Operand, ends: Operand) -> Proxy:
    """Rows in groups, each times a matrix of its own: the rows `[t, k]` from `ends[j - 1]`, or 0, to `ends[j]` times `w[j]` of
    `[g, k, n]`, and 0 for rows behind the last group: `[t, n]`.

    A mixture of experts computes only the rows that are routed to an expert with it. A call raises InputError where ends decrease
    or exceed t.
    """
    return apply("grouped_matmul", x, w, ends)


# order, and results as large as the data says


def sort(x: Proxy, axis: int = -1, descending: bool = False) -> Proxy:
    """The elements sorted along `axis`."""
    return apply("sort", x, axis=axis, descending=descending)


def argsort(x: Proxy, axis: int = -1, descending: bool = False) -> Proxy:
    """The positions (int64) of the sorted elements along `axis`, equal ones in their order."""
    return apply("argsort", x, axis=axis, descending=descending)


def topk(x: Proxy, k: DimLike, axis: int = -1, largest: bool = True) -> tuple[Proxy, Proxy]:
    """The `k` largest (or smallest) elements along `axis` in order, and their positions (int64)."""
    values, positions = apply_many("topk", x, k=k, axis=axis, largest=largest)
    return values, positions


def unique(x: Proxy) -> Proxy:
    """The distinct elements, sorted, in one dim of unknown size: see `match_cast`."""
    return apply("unique", x)


def nonzero(x: Proxy) -> Proxy:
    """The positions (int64) of the elements that are not 0, `[count, rank]` with an unknown count: see `match_cast`."""
    return apply("nonzero", x)


def boolean_mask(x: Proxy, mask: Proxy) -> Proxy:
    """`x[mask]`: the slices of `x` at which the mask over its first dims holds; an unknown number: see `match_cast`."""
    return apply("boolean_mask", x, mask)
