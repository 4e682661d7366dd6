"""How a kernel of a loop program is divided over a device: block sizes and warps, from sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage.ir.dims import Dim
from mirage.ir.loops.program import LoopProgram
from mirage.ir.loops.traverse import loops_of, reads_of
from mirage.ir.types import ELEMENTS
from mirage.kernels.cuda.device import WARP, CudaDevice
from mirage.kernels.cuda.loops.access import contiguous_along, merged, walks_across
from mirage.kernels.cuda.loops.frame import LoopTensor
from mirage.kernels.cuda.loops.ranges import extent
from mirage.kernels.cuda.loops.structure import Kernel
from mirage.kernels.cuda.schedules.schedule import next_power

#: elements that a program computes at once where there are so many: eight per thread of four warps
BLOCK = 1024
#: elements of one thread
_PER_THREAD = 8
#: columns up to which a program holds a row in registers
PERSISTENT = 8192
#: columns that a program reduces at once where a row has more, and the bytes of them that it should have on their way
COLUMNS, ON_THE_WAY = (1024, 4096), 16 << 10
#: elements of a part of rows at least, parts at most, and programs that a multiprocessor should have
PART_ELEMENTS, MOST_PARTS, PROGRAMS = 4096, 256, 4
#: elements of the last index from which on it has a dim of tiles to itself: with fewer, several indices are taken as one
NARROWEST = 32
#: rows and columns of a tile where neighbouring elements are those of rows, and the columns up to which it holds all
ACROSS, ACROSS_WHOLE = (64, 16), 256
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
    if _across(kernel, tensors, rows, spaces):
        return _along_rows(kernel, rows, counts, longest)
    room = [next_power(-(-n // kernel.parts)) for n in longest]
    whole = max(room) <= PERSISTENT and kernel.parts == 1
    least, most = COLUMNS
    width = min(max(next_power(ON_THE_WAY // _bytes_per_column(kernel, tensors)), least), most)
    columns = tuple(room) if whole else tuple(min(r, width) for r in room)
    height = max(1, min(BLOCK // max(columns), next_power(total * kernel.parts // (2 * device.sms))))
    return LoopSchedule(0, -1, 1, height, columns, whole, _warps(height * max(columns)))


def _along_rows(
    kernel: Kernel, rows: Sequence[tuple[str, ...]], counts: Sequence[int], longest: Sequence[int]
) -> LoopSchedule:
    """The schedule where neighbouring elements are those of rows."""
    height, width = ACROSS
    room = [next_power(n) for n in longest]
    whole = max(room) <= ACROSS_WHOLE and kernel.parts == 1
    columns = tuple(room) if whole else tuple(min(width, r) for r in room)
    height = min(height, max(width, PERSISTENT // 2 // max(columns)), next_power(counts[-1]))
    return LoopSchedule(len(rows) - 1, -1, 1, height, columns, whole, _warps(height * max(columns)))


def _warps(elements: int) -> int:
    return max(1, min(elements // (WARP * _PER_THREAD), MAX_WARPS))


def _bytes_per_column(kernel: Kernel, tensors: Mapping[str, LoopTensor]) -> int:
    """The bytes that are read of a column."""
    columns = {n for s in kernel.spaces for n, _ in s}
    reads = (r for m in kernel.members for b in m.bodies for r in reads_of(b) if r.tensor in tensors)
    read = {r.tensor for r in reads if loops_of(r) & columns}
    return max(sum(ELEMENTS[tensors[t].dtype].itemsize for t in read), 1)


def _pointwise(
    kernel: Kernel,
    tensors: Mapping[str, LoopTensor],
    rows: Sequence[tuple[str, ...]],
    counts: Sequence[int],
    device: CudaDevice,
) -> LoopSchedule:
    elements = max(128, min(BLOCK, next_power(prod(counts) // device.sms)))
    last = len(rows) - 1
    for k in range(last):
        if walks_across(kernel, tensors, rows[k][-1], rows[last][-1]) and min(counts[k], counts[last]) > 8:
            seconds, width = (min(EDGE, next_power(n)) for n in (counts[k], counts[last]))
            return LoopSchedule(last - 1, k, seconds, width, (), False, min(_warps(seconds * width), 8))
    if not rows:
        return LoopSchedule(0, -1, 1, 1, (), False, 1)
    width = min(elements, next_power(counts[last]))
    if last and width >= NARROWEST:
        # as many of the index before it as there are elements to spare
        seconds = min(elements // width, next_power(counts[last - 1]))
        warps = _warps(seconds * width)
        if seconds == 1:
            return LoopSchedule(last, -1, 1, width, (), False, warps)
        return LoopSchedule(last - 1, last - 1, seconds, width, (), False, warps)
    return LoopSchedule(0, -1, 1, elements, (), False, _warps(elements))


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
    """The division of the columns of a program at some sizes (dim symbol -> size)."""

    def __init__(self, program: LoopProgram, device: CudaDevice, sizes: Mapping[str, int]) -> None:
        self.device = device
        self.sizes = dict(sizes)
        types = (*program.inputs, *((n, s.type) for n, s in program.stages))
        self.tensors = {n: LoopTensor(n, t.shape, t.dtype) for n, t in types}

    def _count(self, dims: Iterable[Dim]) -> int:
        return prod(extent(d, self.sizes) for d in dims)

    def shares(self, rows: Sequence[Dim], columns: Sequence[Dim]) -> bool:
        """Not where the rows are too few for the device, and long."""
        return self._count(columns) <= PERSISTENT or self._count(rows) >= self.device.sms

    def parts(self, kernel: Kernel) -> int:
        """As many as give the whole device work, where each has enough."""
        count = self._count(d for _, d in kernel.rows)
        columns = max(self._count(d for _, d in kernel.spaces[m.space]) for m in kernel.members if m.combiner)
        rows, *spaces = merged(kernel, self.tensors)
        height = min(ACROSS[0], max(count, 1)) if _across(kernel, self.tensors, rows, spaces) else 1
        programs = max(-(-count // height), 1)
        found = min(PROGRAMS * self.device.sms // programs, columns * height // PART_ELEMENTS, MOST_PARTS)
        return 1 << (found.bit_length() - 1) if found > 1 else 1
