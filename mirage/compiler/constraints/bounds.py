"""Bounds that users give: `{"n": 4096}` or `{"n": (1, 4096)}`, also from the range constraints of `torch.export`."""

from __future__ import annotations

import operator
import sys
from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from mirage.compiler.constraints.store import Constraints
from mirage.errors import DimError
from mirage.ir.dims import symbol

Bound: TypeAlias = int | tuple[int, int | None]


class ValueRange(Protocol):
    """A range constraint of `torch.export`: ends are numbers, infinite ones where there is no bound."""

    lower: Any
    upper: Any


def from_range_constraints(constraints: Mapping[Any, ValueRange]) -> dict[str, Bound]:
    """The bounds that the range constraints of a program of `torch.export` say, by the names of its symbols.

    `mi.compile(..., bounds=from_range_constraints(exported.range_constraints))`. Raises DimError for ends that are no sizes.
    """
    found: dict[str, Bound] = {}
    for name, r in constraints.items():
        low, high = (_end(str(name), end) for end in (r.lower, r.upper))
        found[str(name)] = max(low or 0, 0), high
    return found


def _end(name: str, end: Any) -> int | None:
    """An end of a range; None where it is infinite, or larger than any size."""
    try:
        number = float(end)
        return None if abs(number) >= sys.maxsize // 2 else int(number)
    except (TypeError, ValueError, OverflowError):
        raise DimError(f"range constraint of {name}: {end!r} is not a size; use integers or infinity") from None


def from_bounds(bounds: Mapping[str, Bound]) -> Constraints:
    """A store that knows the range of some dim symbols: of 0 to `n`, or of `(low, high)`; a high of None is no bound.

    Raises DimError naming the symbol where a bound is not an integer or a pair, is negative, or has low > high.
    """
    if not isinstance(bounds, Mapping):
        raise DimError(f"bounds: {bounds!r} is not a mapping; use bounds={{'n': 4096}} or {{'n': (1, 4096)}}")
    store = Constraints()
    for name, bound in bounds.items():
        if not isinstance(name, str):
            raise DimError(f"bounds: {name!r} is not the name of a dim; use bounds={{'n': 4096}}")
        dim = symbol(name)
        low, high = range_of(name, bound)
        store.add_range(dim, low, high, f"bounds[{name!r}]")
    return store


def range_of(name: str, bound: object) -> tuple[int, int | None]:
    """The smallest and the largest size that a bound allows; raises DimError, naming the dim, for what is none."""
    pair = bound if isinstance(bound, tuple | list) else (0, bound)
    low, high = (_size(x) for x in pair) if len(pair) == 2 else (None, None)
    if low is None or (high is None and not (isinstance(bound, tuple | list) and pair[1] is None)):
        raise DimError(
            f"bounds[{name!r}]: {bound!r} is not a bound; use the largest size, 0 or more, or (smallest, largest)"
        )
    if high is not None and low > high:
        raise DimError(f"bounds[{name!r}]: the smallest size {low} is above the largest, {high}; swap them")
    return low, high


def _size(value: object) -> int | None:
    """An integer, 0 or more, as such; None for anything else."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    size = operator.index(value)
    return size if size >= 0 else None
