"""Results as they are stored: what `save` writes, the results store keeps, and both load again with suspicion. Here what every
target has.

A record holds graphs, schedules and timings, never code: that is printed again from the graph, and the graph is verified again
before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from mirage.errors import FormatError
from mirage.ir.codec import decode
from mirage.search.candidates import Candidate, Known
from mirage.search.versions import Point


def known(c: Candidate) -> Known:
    """What is stored of a candidate: its graph, and what was measured of it."""
    return Known(c.graph, c.cost, c.schedule, c.sizes, c.timing, c.accuracy, c.tried)


class StoredGraphs(Sequence[Known]):
    """Graphs that `read` makes of the items of a list, of each when it is first asked for."""

    def __init__(self, items: Sequence[Any], read: Callable[[Any], Known]) -> None:
        self._items = items
        self._make = read
        self._read: dict[int, Known] = {}

    @staticmethod
    def of_json(items: Sequence[Any], symbols: Collection[str]) -> StoredGraphs:
        """Graphs of a program with these dim symbols, as JSON; raises FormatError, and the errors of graphs and schedules, when
        one is asked for that is malformed.
        """

        def read(item: Any) -> Known:
            found = decode(Known, item, "graphs")
            check_sizes(found.sizes, symbols if found.schedule is not None else ())
            return found

        return StoredGraphs(items, read)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if place not in self._read:
            self._read[place] = self._make(self._items[place])
        return self._read[place]


def check_sizes(sizes: Mapping[str, int], symbols: Collection[str]) -> None:
    """Raises FormatError unless there is a size for every one of these dim symbols, and no other."""
    if set(sizes) != set(symbols):
        raise FormatError(f"sizes: expected those of {', '.join(symbols) or 'none'}, got {', '.join(sizes) or 'none'}"[:200])


def rename_sizes(sizes: Mapping[str, int], symbols: Mapping[str, str]) -> dict[str, int]:
    """The sizes with other names of their dim symbols."""
    return {symbols[s]: n for s, n in sizes.items()}


def check_points(points: Sequence[Point], versions: int, symbols: Collection[str]) -> None:
    """Raises FormatError unless every point has the times of so many versions, and sizes of these dim symbols."""
    for p in points:
        check_sizes(p.sizes, symbols)
        if len(p.times) != versions:
            raise FormatError(f"decision: times must be a list of {versions}, got {len(p.times)}")


def rename_points(points: Sequence[Point], symbols: Mapping[str, str]) -> tuple[Point, ...]:
    """The points with other names of their dim symbols."""
    return tuple(Point(rename_sizes(p.sizes, symbols), p.times) for p in points)
