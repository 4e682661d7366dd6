"""Memory planning for bounded sizes: every buffer at a fixed offset of one arena."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mirage.compiler.memory.buffers import Buffer, round_up

#: orders in which buffers are placed; the best plan counts. By size is the best single one on most networks (Pisarchyk and
#: Lee, "Efficient memory management for deep neural net inference", section 5.2); the others win on the rest.
_ORDERS: tuple[Callable[[Buffer, int], tuple[int, ...]], ...] = (
    lambda b, size: (-size, b.first),
    lambda b, size: (-size * (b.last - b.first + 1), b.first),
    lambda b, size: (b.first, -size),
    lambda b, size: (b.first - b.last, -size),
)


def most_live(buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> int:
    """The most bytes, each buffer rounded up to the alignment, that are in use at one step: no plan has a smaller arena."""
    changes: dict[int, int] = {}
    for b in buffers:
        size = round_up(sizes[b.id])
        changes[b.first] = changes.get(b.first, 0) + size
        changes[b.last + 1] = changes.get(b.last + 1, 0) - size
    live = most = 0
    for at in sorted(changes):
        live += changes[at]
        most = max(most, live)
    return most


def plan_static(buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """The size of the arena and the offset of each buffer in it, in bytes, multiples of the alignment.

    `sizes` gives the bytes of each buffer at the upper bounds of the dims. Each buffer goes to the smallest gap between those
    placed before it whose lifetimes meet its own, in several orders until one reaches the lower bound `most_live`. The arena
    is never larger than all buffers side by side.
    """
    least = most_live(buffers, sizes)
    best: tuple[int, dict[str, int]] | None = None
    for order in _ORDERS:
        found = _place(sorted(buffers, key=lambda b: order(b, sizes[b.id])), sizes)
        if best is None or found[0] < best[0]:
            best = found
        if best[0] == least:
            break
    assert best is not None
    return best


def _place(ordered: Sequence[Buffer], sizes: Mapping[str, int]) -> tuple[int, dict[str, int]]:
    """Offsets by best fit in this order."""
    arena = 0
    offsets: dict[str, int] = {}
    # (offset, end, buffer) by offset
    placed: list[tuple[int, int, Buffer]] = []
    for b in ordered:
        size = round_up(sizes[b.id])
        best, gap, end = None, 0, 0
        for low, high, other in placed:
            if not b.meets(other):
                continue
            if size <= low - end and (best is None or low - end < gap):
                best, gap = end, low - end
            end = max(end, high)
        offset = offsets[b.id] = end if best is None else best
        if size:
            placed.append((offset, offset + size, b))
            placed.sort(key=lambda p: p[:2])
        arena = max(arena, offset + size)
    return arena, offsets
