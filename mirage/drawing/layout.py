"""Layered drawing of a directed acyclic graph: boxes in rows, edges from row to row.

Rows are given; here boxes are ordered within their row (barycenter heuristic) and placed along it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

Box = Hashable

#: space between neighbours in a row, and breadth of an edge that passes a row
GAP = 22.0
LANE = 8.0
_SWEEPS = 8


@dataclass(frozen=True)
class Layout:
    """Each box's `center` along its row; per edge, its positions (`lanes`) in the rows that it passes."""

    center: dict[Box, float]
    lanes: dict[tuple[Box, Box], tuple[float, ...]]
    breadth: float


def layered(
    rows: Sequence[Sequence[Box]], breadth: Mapping[Box, float], edges: Sequence[tuple[Box, Box]]
) -> Layout:
    """Place boxes of the given breadths; every edge leads from an earlier row to a later one."""
    row_of = {box: k for k, row in enumerate(rows) for box in row}
    order: list[list[Box]] = [list(row) for row in rows]
    size = dict(breadth)
    links: list[tuple[Box, Box]] = []
    for source in dict.fromkeys(a for a, _ in edges):
        # edges of one source share a lane; each leaves it in the row before its target
        targets = [b for a, b in edges if a == source]
        last = max(row_of[b] for b in targets)
        chain: list[Box] = [source]
        for k in range(row_of[source] + 1, last):
            lane = (source, "lane", k)
            order[k].append(lane)
            size[lane] = LANE
            links.append((chain[-1], lane))
            chain.append(lane)
        links += [(chain[row_of[b] - row_of[source] - 1], b) for b in targets]
    above: dict[Box, list[Box]] = {box: [] for row in order for box in row}
    below: dict[Box, list[Box]] = {box: [] for row in order for box in row}
    for a, b in links:
        above[b].append(a)
        below[a].append(b)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        near = above if down else below
        for k in range(1, len(order)) if down else range(len(order) - 2, -1, -1):
            rank = {
                box: i for row in (order[k - 1], order[(k + 1) % len(order)]) for i, box in enumerate(row)
            }
            own = {box: i for i, box in enumerate(order[k])}
            order[k].sort(key=lambda box: (_mean([rank[x] for x in near[box]], own[box]), own[box]))
    center = _place(order, size, above, below)
    left = min(center[box] - size[box] / 2 for box in center)
    center = {box: x - left for box, x in center.items()}
    lanes = {(a, b): tuple(center[(a, "lane", k)] for k in range(row_of[a] + 1, row_of[b])) for a, b in edges}
    return Layout(center, lanes, max(center[box] + size[box] / 2 for box in center))


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _place(
    order: Sequence[Sequence[Box]],
    size: Mapping[Box, float],
    above: Mapping[Box, Sequence[Box]],
    below: Mapping[Box, Sequence[Box]],
) -> dict[Box, float]:
    """Positions near the mean of the neighbours' ones, in order and without overlap."""
    center: dict[Box, float] = {}
    for row in order:
        for box, x in zip(row, _spread([0.0] * len(row), [size[b] for b in row]), strict=True):
            center[box] = x
    for sweep in range(2 * _SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in order if sweep % 2 == 0 else order[::-1]:
            wanted = [_mean([center[x] for x in near[box]], center[box]) for box in row]
            for box, x in zip(row, _spread(wanted, [size[b] for b in row]), strict=True):
                center[box] = x
    return center


def _spread(wanted: Sequence[float], sizes: Sequence[float]) -> list[float]:
    """Positions nearest to the wanted ones (least squares) that keep order and gaps: isotonic regression."""
    offset = [0.0]
    for a, b in pairwise(sizes):
        offset.append(offset[-1] + (a + b) / 2 + GAP)
    pools: list[tuple[float, int]] = []
    for w, o in zip(wanted, offset, strict=False):
        mean, count = w - o, 1
        while pools and pools[-1][0] > mean:
            m, n = pools.pop()
            mean, count = (m * n + mean * count) / (n + count), n + count
        pools.append((mean, count))
    flat = [m for m, n in pools for _ in range(n)]
    return [m + o for m, o in zip(flat, offset, strict=False)]
