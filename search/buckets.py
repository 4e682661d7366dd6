"""The sizes at which versions of a program are tuned and compared, beside those that the user gives.

A star around the first given sizes: each dim alone larger and smaller, in a geometric series, since what runs best depends on
ratios of sizes to tiles, cores and caches. And one corner, where everything is small and calls cost more than work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from mirage.errors import DimError
from mirage.ir.program import Program

#: points beside the given ones
MAX_POINTS = 10
#: ratio of the series, and what is tried where a point as much larger is not allowed
RATIO, SMALLER_RATIO = 8, 2

Sizes = dict[str, int]


def sample_points(anchors: Sequence[Mapping[str, int]], allowed: Callable[[Sizes], bool]) -> list[Sizes]:
    """At most `MAX_POINTS` further sizes around the first of `anchors`, the most telling first, without these.

    `allowed` says whether there are memory and time enough to run the program at some sizes. Every dim gets its
    neighbours before any dim gets a second pair. A program without dims has none.
    """
    center = dict(anchors[0])
    taken = [dict(a) for a in anchors]
    found: list[Sizes] = []

    def add(point: Sizes) -> bool:
        if point in taken or len(found) == MAX_POINTS or not allowed(point):
            return False
        taken.append(point)
        found.append(point)
        return True

    for dim, n in center.items():
        for ratio in (RATIO, SMALLER_RATIO):
            if add({**center, dim: n * ratio}):
                break
    for dim, n in center.items():
        add({**center, dim: max(n // RATIO, 1)})
    add(dict.fromkeys(center, 1))
    for further in (
        lambda n: 1,
        lambda n: max(n // RATIO**2, 1),
        lambda n: n * RATIO**2,
        lambda n: max(n // RATIO**3, 1),
        lambda n: n * RATIO**3,
    ):
        for dim, n in center.items():
            add({**center, dim: further(n)})
    return found


def bytes_needed(program: Program, sizes: Mapping[str, int]) -> int:
    """Bytes, in float64, of the arguments, the results and the largest tensor between; raises DimError of a negative dim."""
    ends = [*program.input_types, *program.output_types]
    return 8 * (sum(prod(t.bind(sizes)) for t in ends) + max(prod(n.type.bind(sizes)) for n in program.nodes))


def is_empty(program: Program, sizes: Mapping[str, int]) -> bool:
    """Whether a tensor of the program has no elements, or a negative dim, at these sizes, or an operator does not allow them."""
    try:
        if any(need.problem(sizes) for need in program.needs):
            return True
        return any(prod(t.bind(sizes)) == 0 for t in [*program.input_types, *(n.type for n in program.nodes)])
    except DimError:
        return True
