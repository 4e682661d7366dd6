"""How a kernel of a loop program is divided over a device: block sizes and warps, from sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage.ir.dims import Dim
from mirage.kernels.cuda.device import WARP, CudaDevice
from mirage.kernels.cuda.loops.access import contiguous_along, merged, walks_across
from mirage.kernels.cuda.loops.frame import LoopTensor
from mirage.kernels.cuda.loops.ranges import extent
from mirage.kernels.cuda.loops.structure import Kernel
from mirage.kernels.cuda.schedule import next_power

#: elements that a program computes at once where there are so many: eight per thread of four warps
ELEMENTS = 1024
#: elements of one thread
_PER_THREAD = 8
#: columns up to which a program holds a row in registers
PERSISTENT = 8192
#: columns that a program reduces at once where a row has more
COLUMNS = 2048
#: columns of a part of a row at least, and parts at most
PART_COLUMNS, MOST_PARTS = 4096, 256
#: elements of the last index from which on it has a dim of tiles to itself: with fewer, several indices are taken as one
NARROWEST = 32
#: rows and columns of a tile where neighbouring elements are those of rows
ACROSS = (64, 16)
#: edge of the tiles of transpositions
EDGE = 64
MAX_WARPS = 16


@dataclass(frozen=True)
class LoopSchedule:
    """The blocks of a kernel.

    `outer` row loops (after merging) are single indices of a program, `second` (-1: none) is one that a program has `seconds`
    of, the last ones are one index of which it has `rows`. `columns` are those that a program holds of each space at once: the
    whole row if `whole`, else they are gone over in a loop.
    """

    outer: int
    second: int
    seconds: int
    rows: int
    columns: tuple[int, ...]
    whole: bool
    num_warps: int


def choose(
    kernel: Kernel, tensors: Mapping[str, LoopTensor], sizes: Mapping[str, int], device: CudaDevice
) -> LoopSchedule:
    """The schedule of a kernel at sizes (dim symbol -> size)."""
    extents = {n: max(extent(d, sizes), 1) for n, d in kernel.extents.items()}
    rows, *spaces = merged(kernel, tensors)
    counts = [prod(extents[n] for n in g) for g in rows]
    total = prod(counts)
    if not kernel.spaces:
        return _pointwise(kernel, tensors, rows, counts, device)
    longest = [prod(extents[n] for n in s) for s in (tuple(n for g in space for n in g) for space in spaces)]
    across = _across(kernel, tensors, rows, spaces)
    if across:
        height, width = ACROSS
        height = min(height, next_power(counts[-1]))
        return LoopSchedule(len(rows) - 1, -1, 1, height, tuple(min(width, next_power(n)) for n in longest), False, 4)
    room = [next_power(-(-n // kernel.parts)) for n in longest]
    whole = max(room) <= PERSISTENT and kernel.parts == 1
    columns = tuple(room) if whole else tuple(min(r, COLUMNS) for r in room)
    height = max(1, min(ELEMENTS // max(columns), next_power(total * kernel.parts // (2 * device.sms))))
    warps = max(1, min(height * max(columns) // (WARP * _PER_THREAD), MAX_WARPS))
    return LoopSchedule(0, -1, 1, height, columns, whole, warps)


def _pointwise(
    kernel: Kernel,
    tensors: Mapping[str, LoopTensor],
    rows: Sequence[tuple[str, ...]],
    counts: Sequence[int],
    device: CudaDevice,
) -> LoopSchedule:
    elements = max(128, min(ELEMENTS, next_power(prod(counts) // device.sms)))
    last = len(rows) - 1
    for k in range(last):
        if walks_across(kernel, tensors, rows[k][-1], rows[last][-1]) and min(counts[k], counts[last]) > 8:
            seconds, width = (min(EDGE, next_power(n)) for n in (counts[k], counts[last]))
            return LoopSchedule(
                last - 1, k, seconds, width, (), False, max(1, min(seconds * width // (WARP * _PER_THREAD), 8))
            )
    if not rows:
        return LoopSchedule(0, -1, 1, 1, (), False, 1)
    width = min(elements, next_power(counts[last]))
    if last and width >= NARROWEST:
        # as many of the index before it as there are elements to spare
        seconds = min(elements // width, next_power(counts[last - 1]))
        warps = max(1, seconds * width // (WARP * _PER_THREAD))
        if seconds == 1:
            return LoopSchedule(last, -1, 1, width, (), False, warps)
        return LoopSchedule(last - 1, last - 1, seconds, width, (), False, warps)
    return LoopSchedule(0, -1, 1, elements, (), False, max(1, elements // (WARP * _PER_THREAD)))


def _across(
    kernel: Kernel,
    tensors: Mapping[str, LoopTensor],
    rows: Sequence[tuple[str, ...]],
    spaces: Sequence[Sequence[tuple[str, ...]]],
) -> bool:
    """Whether neighbouring elements are those of rows, rather than of columns."""
    if not rows:
        return False
    near, far = contiguous_along(kernel, tensors, rows[-1][-1])
    along = [contiguous_along(kernel, tensors, s[-1][-1]) for s in spaces]
    return near - far > sum(n - f for n, f in along)


class HintedDivision:
    """The division of columns at some sizes (dim symbol -> size)."""

    def __init__(self, device: CudaDevice, sizes: Mapping[str, int]) -> None:
        self.device = device
        self.sizes = dict(sizes)

    def _count(self, dims: Sequence[Dim]) -> int:
        return prod(extent(d, self.sizes) for d in dims)

    def shares(self, rows: Sequence[Dim], columns: Sequence[Dim]) -> bool:
        """Not where the rows are too few for the device, and long."""
        return self._count(columns) <= PERSISTENT or self._count(rows) >= self.device.sms

    def parts(self, rows: Sequence[Dim], columns: Sequence[Dim]) -> int:
        """As many as give the whole device work, where each has enough."""
        wanted = 2 * self.device.sms // max(self._count(rows), 1)
        found = min(wanted, self._count(columns) // PART_COLUMNS, MOST_PARTS)
        return 1 << (found.bit_length() - 1) if found > 1 else 1
