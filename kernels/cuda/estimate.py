"""What a Triton kernel costs on a CUDA device, for many candidate schedules at once.

A roofline per resource (Williams et al., 2009), with what the roofline leaves out and small shapes are made of: launches, whole
waves of blocks, too few bytes in flight, iterations that wait for one another, tiles that are padded. Per kernel:

    us = launch + slowest + OVERLAP * (sum of the others)

over these resources, where `blocks` run in waves of as many as fit the multiprocessors at a time:

| resource | time |
| --- | --- |
| dram | bytes / (bandwidth * share); share = min(1, bytes in flight / (bandwidth * latency)) (Little's law) |
| l2 | bytes that all blocks load and store, each time they do, / (L2 bandwidth * the same kind of share) |
| tensor | flops of padded tiles on the busiest multiprocessor / its rate, less for tiles that do not fill an instruction |
| cores | operations of elementwise operators, sums and products in full precision, likewise |
| shared | bytes that products read of shared memory, likewise |
| chain | waves * (start + iterations * (latency / stages + operators * pause)) |

Arguments of the program come from DRAM (the caches are cold), results of earlier kernels from L2 where they fit there; bytes that
are read again count as DRAM's as far as the tensor exceeds L2. All candidates of a kernel are counted at once, as arrays.
The estimates only order candidates; a device decides where there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from mirage.ir.operator import PRODUCTS
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.model import KernelWork, divided
from mirage.kernels.cuda.choices import Choices
from mirage.kernels.cuda.compile import CompiledKernel
from mirage.kernels.cuda.device import WARP, CudaDevice
from mirage.kernels.cuda.emit_descriptors import LEAST, MOST
from mirage.kernels.cuda.emitted import DIVISIBILITY
from mirage.mugraph.graph import Role, partial_axis

#: share of its time by which a resource that is not the slowest delays a kernel
OVERLAP = 0.1
#: us for a block to start and to end
START_US = 1.0
#: us that a load from DRAM, and one from L2, takes
DRAM_LATENCY_US, L2_LATENCY_US = 0.7, 0.3
#: us between two operators of a block that wait for one another
PAUSE_US = 0.05
#: bytes of the smallest transfer of memory
SECTOR = 32
#: least extents of a tile of tl.dot, and the rows that a warpgroup's instruction has (wgmma, PTX ISA 9.7.15)
DOT, WGMMA_ROWS, WGMMA_WARPS = 16, 64, 4
#: compute capability from which there are such instructions
WGMMA = (9, 0)
#: element types that tensor cores take (float32 is computed in full precision, by ordinary cores), and the type of these
HALVES, CORES = ("float16", "bfloat16"), "float32"
#: warps with which a multiprocessor issues instructions in every cycle, about
BUSY_WARPS = 8
#: bytes of shared memory that a multiprocessor reads or writes per cycle
SHARED_BYTES = 128
#: share of the peak of sm_90 and later that the older instructions (mma) reach, which smaller tiles take (63% on average on
#: an H100: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024)
MMA_SHARE = 0.63
#: numbers of warps whose loops Triton 3.6 specializes, by capability: where it does not it says nothing, but its PTX shows it
SPECIALIZED = {(9, 0): (4,), (10, 0): (4, 8)}
#: how much faster a loop of products runs whose warps are specialized (FlashAttention-3, table 2: 661 to 570 TFLOP/s); figures
#: of what large products sustain are those of libraries, whose kernels do so from sm_90 on
SPECIALIZED_GAIN = 1.16
#: bytes of the widest load of a thread, and of the narrowest that is copied to shared memory without it (cp.async, PTX ISA);
#: its operations per load beside it: address and mask (an estimate)
LOAD_BYTES, COPY_BYTES, LOAD_OPERATIONS = 16, 4, 5
#: us that one thread takes to write a block's tensor descriptor to memory and to see it there: a round trip to the L2 cache
#: and back (an estimate)
DESCRIPTOR_US = 0.5
#: rows and columns from which a product is one of matrices, and how many times as long a kernel takes that leaves one with as
#: many rows as a warpgroup has to the older instructions: their operands pass through registers, and nothing runs beside them
MATRIX, NARROW = 16, 2.0
#: registers of a thread: at most, beside tensors, of these for addresses that descriptors save, and bytes of one (as ptxas
#: says: 111 and 90 for a product in tiles of 64 by 128, 174 and 154 in tiles of 128 by 128)
REGISTERS, OWN_REGISTERS, ADDRESS_REGISTERS, REGISTER_BYTES = 255, 40, 20, 4
#: elements of a block tensor, at most (Triton's own limit is 2^20, which no block holds)
MAX_ELEMENTS = 1 << 17


@dataclass(frozen=True)
class Estimate:
    """What the model makes of each candidate of a kernel: arrays.

    `us` is infinite where a block does not fit the device. `parts` are the times of the resources; `shared_bytes` and
    `registers` (per thread) are what a block takes, about; `swap` is the order of operands that it is for, `specialized` tells
    whether the loop's warps are.
    """

    us: np.ndarray
    parts: Mapping[str, np.ndarray]
    shared_bytes: np.ndarray
    registers: np.ndarray
    blocks: np.ndarray
    swap: np.ndarray
    specialized: np.ndarray


def _innermost(axes: tuple[str, ...], axis: str | None) -> tuple[str, ...]:
    """The axes with one of them last."""
    return axes if axis is None else (*(a for a in axes if a != axis), axis)


def _padded(extent: np.ndarray) -> np.ndarray:
    """The next powers of two: tiles of Triton have no other extents."""
    found: np.ndarray = 2.0 ** np.ceil(np.log2(np.maximum(extent, 1.0)))
    return found


class Counter:
    """Counts of the candidates of one kernel."""

    def __init__(
        self,
        device: CudaDevice,
        work: KernelWork,
        choices: Choices,
        sizes: Mapping[str, int],
        dtype: str,
        warm: Collection[int],
        inner: Mapping[int, str],
    ) -> None:
        self.device, self.work, self.sizes, self.dtype, self.warm = device, work, sizes, dtype, warm
        self.choices = choices
        self.itemsize = DTYPES[dtype].itemsize
        self.tensor_cores = dtype in HALVES
        self.wgmma = device.capability >= WGMMA
        self.warps, self.stages, self.dot = choices.warps, choices.stages, choices.dot
        tiles, splits = choices.tiles, choices.splits
        self.ones = np.ones(len(choices))
        #: whether the rooms of axes that block tensors hold whole are large enough
        self.serves = all(sizes[a] <= n for a, n in choices.rooms.items())
        #: extents that a block has altogether, the same padded, and the padded ones that it holds in an iteration
        self.block: dict[str, np.ndarray] = {}
        self.whole: dict[str, np.ndarray] = {}
        self.inner: dict[str, np.ndarray] = {}
        #: sizes of the axes of partial results that the kernel writes
        self.parts: dict[str, np.ndarray] = {}
        self.blocks = self.ones
        #: numbers of blocks along grid axes
        self.counts: dict[str, np.ndarray] = {}
        g = work.graph
        for a, role in g.roles:
            size = max(sizes[a], 1)
            count, block = divided(role, self.ones * size, tiles.get(a, self.ones), splits.get(a, self.ones))
            if role is Role.SPLIT:
                self.parts[partial_axis(a)] = count
            if role in (Role.PARALLEL, Role.SPLIT):
                self.counts[a] = count
            self.blocks = self.blocks * count
            self.block[a] = block
            self.whole[a] = _padded(choices.rooms.get(a, 1.0) * self.ones) if a in choices.rooms else _padded(block)
            self.inner[a] = self.whole[a] if role is Role.WHOLE else _padded(tiles[a])
            if role is Role.PARALLEL:
                self.whole[a] = self.inner[a]
        self.trips = [np.ceil(self.block[a] / self.inner[a]) for a in g.loop]
        self.iterations = np.prod([self.ones, *self.trips], axis=0)
        packed = dict(choices.packed)
        laid = {**inner, **packed}
        #: axes of inputs and results, the innermost one in memory last
        self.input_axes = [_innermost(t.axes, laid.get(k)) for k, t in enumerate(work.inputs)]
        self.output_axes = [_innermost(axes, dict(choices.layouts).get(k)) for k, axes in enumerate(work.outputs)]
        #: whether they can have descriptors
        self.input_described = [self._describable(axes, k in packed) for k, axes in enumerate(self.input_axes)]
        self.output_described = [self._describable(axes, False) for axes in self.output_axes]
        #: block tensors that stay in registers throughout the loop
        self.accumulated = [n.axes() for n in g.nodes if n.op == "accumulator"]
        self.swap = self._best_order() if choices.swap is None else choices.swap

    def _describable(self, axes: Sequence[str], whole_rows: bool) -> np.ndarray:
        """Whether a tensor that the kernel reads or writes has a descriptor (as `plan_operand`, of which grouped axes are left
        to the emitter), its rows being whole 16 bytes at these sizes.
        """
        none: np.ndarray = self.ones < 0
        own = [a for a in axes if a in self.inner]
        row = self.sizes[axes[-1]] * self.itemsize if own and own[-1] == axes[-1] else 1
        if row % DIVISIBILITY and not (whole_rows and own):
            return none
        role, loop = self.work.graph.role, self.work.graph.loop
        single = {a: (self.inner[a] == 1) & (role[a] is not Role.WHOLE or self.sizes[a] == 1) for a in own}
        dims = sum((~s for s in single.values()), self.ones * 0)
        moving = sum((single[a] for a in own if a in loop), self.ones * 0)
        long = ~single[own[-1]] & (self.inner[own[-1]] * self.itemsize >= DIVISIBILITY)
        found: np.ndarray = (dims >= LEAST) & (dims <= MOST) & (moving == 0) & long
        return found

    def describable(self, k: int) -> tuple[int, ...]:
        """The operands and then the results that candidate k can have descriptors of."""
        return tuple(i for i, can in enumerate((*self.input_described, *self.output_described)) if can[k])

    def _copied(self, k: int) -> np.ndarray:
        """Whether the copy engine loads input k."""
        found: np.ndarray = self.choices.described & self.input_described[k] & self.wgmma
        return found

    def _specializable(self) -> np.ndarray:
        """Whether Triton specializes the warps of the loop: everything that it loads comes through descriptors, and all that it
        computes are products that are added up. It refuses other loops, ignores them, or nobody has tried them.
        """
        graph, work = self.work.graph, self.work
        found = self.dot & np.isin(self.warps, SPECIALIZED.get(self.device.capability, ()))
        inside = [n for i, n in enumerate(graph.nodes) if graph.depth[i] and n.op not in ("input", "accumulator")]
        if len(graph.loop) != 1 or not inside or any(n.op not in PRODUCTS for n in inside):
            return found & False
        for k, t in enumerate(work.inputs):
            found = found & self._copied(k) if t.depth else found
        for k, p in enumerate(work.products):
            found = found & self._is_wide(k) if p.depth else found
        return found

    def _volume(self, axes: Sequence[str], extents: Mapping[str, np.ndarray]) -> np.ndarray:
        found = self.ones
        for a in axes:
            # partial axes, which the kernel's own graph does not have
            if a in extents:
                found = found * extents[a]
        return found

    def _times(self, depth: int) -> np.ndarray:
        """How often a block runs what varies with so many loops."""
        found: np.ndarray = np.prod([self.ones, *self.trips[:depth]], axis=0)
        return found

    def estimate(self, compiled: CompiledKernel | None = None) -> Estimate:
        d = self.device
        shared, registers = self._shared_bytes(), self._registers()
        if compiled is not None:
            shared, registers = self.ones * compiled.shared, self.ones * compiled.registers
        per_sm = self._occupancy(shared, registers)
        fits = (per_sm >= 1) & (registers <= REGISTERS) & (self._largest() <= MAX_ELEMENTS)
        specialized = self.choices.specialized & self._specializable()
        # the specialized warps of a block share out all registers
        per_sm = np.where(specialized, 1, np.maximum(per_sm, 1))
        at_once = np.minimum(self.blocks, per_sm * d.sms)
        waves = np.ceil(self.blocks / (per_sm * d.sms))
        #: blocks that the busiest multiprocessor runs
        busiest = np.ceil(self.blocks / d.sms)
        dram, l2 = self._bytes(waves, at_once)
        flying = at_once * self._in_flight()
        tensor, cores, moved = self._operations()
        #: share of the cycles in which a multiprocessor has an instruction to issue
        issued = np.minimum(1.0, np.minimum(per_sm, busiest) * self.warps / BUSY_WARPS)
        operators = sum(p.depth > 0 for p in self.work.products) + sum(x.depth > 0 for x in self.work.groups)
        wait = DRAM_LATENCY_US / np.maximum(self.stages, 1) + PAUSE_US * operators
        slower = np.where(self.wgmma & ~specialized, SPECIALIZED_GAIN, 1.0)
        copied = np.any([self._copied(k) for k in range(len(self.work.inputs))] or [self.ones < 0], axis=0)
        parts = {
            "dram": _moved(dram, d.sustained_bandwidth, flying, DRAM_LATENCY_US),
            "l2": _moved(l2, d.l2_bandwidth, flying, L2_LATENCY_US),
            "tensor": 1e6 * busiest * tensor * d.sms * slower / d.sustained_flops(self.dtype),
            "cores": 1e6 * busiest * cores * d.sms / (d.sustained_flops(CORES) * issued),
            "shared": 1e6 * busiest * moved / (SHARED_BYTES * clock(d)),
            "chain": waves * (START_US + DESCRIPTOR_US * copied + (self.iterations if self.trips else 1.0) * wait),
        }
        table = np.stack(np.broadcast_arrays(*parts.values()))
        slowest = table.max(axis=0)
        us = 1e6 * d.launch_s + slowest + OVERLAP * (table.sum(axis=0) - slowest)
        us = us * np.where(self._is_narrow(), NARROW, 1.0)
        return Estimate(np.where(fits & self.serves, us, np.inf), parts, shared, registers, self.blocks, self.swap, specialized)

    # memory

    def _row_waste(self, axes: Sequence[str], extents: Mapping[str, np.ndarray]) -> np.ndarray:
        """How many times as many bytes as wanted are moved, where a row of the tile is shorter than a sector."""
        if not axes or axes[-1] not in extents:
            return self.ones
        run = np.minimum(extents[axes[-1]], self.sizes[axes[-1]]) * self.itemsize
        whole = self.sizes[axes[-1]] * self.itemsize
        # a tile of whole rows is contiguous beyond them
        return np.where(run >= whole, 1.0, np.maximum(SECTOR / run, 1.0))

    def _whole(self, axes: Sequence[str]) -> np.ndarray:
        """Bytes of a kernel-level tensor."""
        found = self.ones * self.itemsize
        for a in axes:
            found = found * (self.parts[a] if a in self.parts else max(self.sizes[a], 1))
        return found

    def _distinct(self, at_once: np.ndarray) -> dict[str, np.ndarray]:
        """How many different blocks along each grid axis run at a time, in the candidates' orders of the grid."""
        choices = self.choices
        found = {a: self.ones for a in self.counts}
        for k, order in enumerate(choices.orders):
            left, own = at_once, dict(found)
            axes = list(order or self.work.graph.grid)
            if len(axes) > 1:
                *axes, outer, last = axes
                rows = np.minimum(choices.group, self.counts[outer])
                own[last] = np.minimum(self.counts[last], np.ceil(left / rows))
                own[outer] = np.minimum(self.counts[outer], rows * np.ceil(left / (rows * self.counts[last])))
                left = np.ceil(left / (self.counts[outer] * self.counts[last]))
            for a in reversed(axes):
                own[a] = np.minimum(self.counts[a], left)
                left = np.ceil(left / self.counts[a])
            found = {a: np.where(choices.order == k, own[a], n) for a, n in found.items()}
        return found

    def _bytes(self, waves: np.ndarray, at_once: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bytes from and to DRAM, and L2. What blocks that run together read of a tensor comes from DRAM once; later ones find
        it in the L2 cache as far as the tensor fits there.
        """
        distinct = self._distinct(at_once)
        l2_bytes = self.device.l2_bytes
        dram, l2 = self.ones * 0, self.ones * 0
        for k, t in enumerate(self.work.inputs):
            whole = self._whole(t.axes)
            extents = self.inner if t.depth else self.block
            loaded = np.minimum(self._volume(t.axes, extents), self._volume(t.axes, self.block)) * self._times(t.depth)
            loaded = loaded * self.itemsize * self._row_waste(self.input_axes[k], extents) * self.blocks
            l2 = l2 + loaded
            missed = np.maximum(1 - l2_bytes / whole, 0)
            shares = [n / self.counts[a] for a, n in distinct.items() if a in t.axes]
            together = whole * np.prod([self.ones, *shares], axis=0) * self._outer(t.axes)
            again = np.minimum(loaded, waves * together) - whole
            dram = (
                dram + np.maximum(again, 0) * missed + (whole * missed if k in self.warm else np.minimum(whole, loaded))
            )
        for axes in self.output_axes:
            whole = self._whole(axes)
            l2 = l2 + whole * self._row_waste(axes, self.block)
            dram = dram + (whole * np.maximum(1 - l2_bytes / whole, 0) if self._partial(axes) else whole)
        return dram, l2

    def _load_bytes(self, k: int) -> np.ndarray:
        """Bytes of one load of input k through pointers: rows must begin at multiples of them."""
        axes = self.input_axes[k]
        if not axes or axes[-1] not in self.inner:
            return self.ones * self.itemsize
        whole_rows = k in dict(self.choices.packed) or len(axes) == 1
        aligned = LOAD_BYTES if whole_rows else gcd(self.sizes[axes[-1]] * self.itemsize, LOAD_BYTES)
        found: np.ndarray = np.clip(self.inner[axes[-1]] * self.itemsize, self.itemsize, aligned)
        return found

    def _outer(self, axes: Sequence[str]) -> np.ndarray:
        """How often a block itself reads a tensor again, for loops inside of which it does not vary."""
        found = self.ones
        inside = False
        for a, n in zip(reversed(self.work.graph.loop), reversed(self.trips), strict=True):
            inside = inside or a in axes
            if inside and a not in axes:
                found = found * n
        return found

    def _partial(self, axes: Sequence[str]) -> bool:
        """Whether these are partial results, which the next kernel reads at once."""
        return any(a in self.parts for a in axes)

    def _in_flight(self) -> np.ndarray:
        """Bytes that a block has asked for at a time: those of the loads of an iteration, for all stages but that which
        is computed, or everything that it loads before its loops.
        """
        looped = sum((self._tile_bytes(t.axes, t.depth) for t in self.work.inputs if t.depth), self.ones * 0)
        first = sum((self._tile_bytes(t.axes, t.depth) for t in self.work.inputs if not t.depth), self.ones * 0)
        ahead = np.minimum(np.maximum(self.stages - 1, 1), self.iterations)
        found: np.ndarray = np.maximum(np.maximum(looped * ahead, first if not self.trips else 0), 1.0)
        return found

    def _tile_bytes(self, axes: Sequence[str], depth: int) -> np.ndarray:
        extents = self.inner if depth else self.block
        found: np.ndarray = np.minimum(self._volume(axes, extents), self._volume(axes, self.block)) * self.itemsize
        return found

    # operations

    def _product(self, k: int) -> tuple[np.ndarray, ...]:
        """(products of a batch, rows, columns, depth) of the k-th product, padded as tl.dot takes them where it does."""
        p = self.work.products[k]
        x, y = (set(axes) for axes in p.operands)
        out = [a for a in p.out if a in self.inner]
        batch = self._volume([a for a in out if a in x and a in y], self.inner)
        rows = self._volume([a for a in out if a in x and a not in y], self.inner)
        columns = self._volume([a for a in out if a in y and a not in x], self.inner)
        least = np.where(self.dot, DOT, 1)
        return batch, *(np.maximum(n, least) for n in (rows, columns, self._volume(p.reduce, self.inner)))

    def _is_wide(self, k: int) -> np.ndarray:
        """Whether the k-th product is a warpgroup's: 64 rows in the order of the operands, and no batch in a tile."""
        batch, m, n, _ = self._product(k)
        rows = np.where(self.swap, n, m)
        found: np.ndarray = self.dot & (rows >= WGMMA_ROWS) & (batch <= 1) & (self.warps >= WGMMA_WARPS)
        found = found & (self.wgmma & self.tensor_cores)
        return found

    def _best_order(self) -> np.ndarray:
        """Whether more products have the rows of a warpgroup with their operands swapped; or else, of large tiles, whether more
        sums are along rows then: a thread holds elements of few rows and many columns, and sums of rows in few registers.
        """
        gain = self.ones * 0
        summed = {a for n in self.work.graph.nodes if n.op == "sum" for a in n.reduce}
        for k, p in enumerate(self.work.products):
            _, m, n, _ = self._product(k)
            x, y = ([a for a in p.out if a in own and a not in other] for own, other in (p.operands, p.operands[::-1]))
            along = 1.0 * bool(summed.intersection(x)) - 1.0 * bool(summed.intersection(y))
            gain = gain + np.where(np.minimum(m, n) >= WGMMA_ROWS, along / 4, 0.0)
            if self.wgmma:
                gain = gain + (n >= WGMMA_ROWS) - 1.0 * (m >= WGMMA_ROWS)
        found: np.ndarray = (gain > 0) & self.dot & self.tensor_cores
        return found

    def _is_narrow(self) -> np.ndarray:
        """Whether no product is a warpgroup's, and one has as many rows at these sizes."""
        narrow, large = self.ones > 0, False
        for k, p in enumerate(self.work.products):
            x, y = p.operands
            sides = [prod(self.sizes[a] for a in p.out if a in own and a not in other) for own, other in ((x, y), (y, x))]
            large = large or (min(sides) >= MATRIX and max(sides) >= WGMMA_ROWS)
            narrow = narrow & ~self._is_wide(k)
        return narrow & (large and self.wgmma and self.tensor_cores)

    def _operations(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of one block: flops of tensor cores as if at their full rate, operations of CUDA cores, bytes of shared memory."""
        tensor, cores, moved = self.ones * 0, self.ones * 0, self.ones * 0
        for k, p in enumerate(self.work.products):
            batch, m, n, depth = self._product(k)
            times = self._times(p.depth)
            flops = 2 * batch * m * n * depth * times
            on_tensor_cores, wide = self.dot & self.tensor_cores, self._is_wide(k)
            share = np.where(wide, 1.0, MMA_SHARE if self.wgmma else 1.0)
            tensor = tensor + np.where(on_tensor_cores, flops / share, 0)
            cores = cores + np.where(on_tensor_cores, 0, flops)
            # each operand is written once; warps that share rows or columns read it once each, a warpgroup once
            again = np.where(wide, np.ceil(self.warps / WGMMA_WARPS), np.sqrt(self.warps))
            read = batch * (m + n) * depth * self.itemsize * (1 + again) * times
            # a sum of products is in registers: what is shared are the parts of each warp
            moved = moved + np.where(self.dot, read, batch * m * n * self.warps * REGISTER_BYTES * times)
        for k, t in enumerate(self.work.inputs):
            elements = self._volume(t.axes, self.inner if t.depth else self.whole) * self._times(t.depth)
            loads = elements * self.itemsize / self._load_bytes(k)
            cores = cores + np.where(self._copied(k), 0, loads * LOAD_OPERATIONS)
        for group in self.work.groups:
            extents = self.inner if group.depth else self.whole
            elements = self._volume(group.space, extents)
            cores = cores + elements * (group.light + group.heavy + group.reductions) * self._times(group.depth)
        return tensor, cores, moved

    # what a block takes

    def _shared_bytes(self) -> np.ndarray:
        """Bytes of shared memory of a block: operands of products, those that are loaded in the loop once per stage, with what
        the block loads there to compute operands, the others as long as the loop runs, or one after the other where none is.
        """
        looped, once = self.ones * 0, self.ones * 0
        computed = False
        given = {k for p in self.work.products for k in p.inputs if k is not None}
        for p in self.work.products:
            for axes, k in zip(p.operands, p.inputs, strict=True):
                tile = self._volume(axes, self.inner) * self.itemsize
                computed = computed or k is None
                if k is not None and self.work.inputs[k].depth:
                    looped = looped + tile
                else:
                    once = once + tile if self.trips else np.maximum(once, tile)
        for k, t in enumerate(self.work.inputs):
            if computed and t.depth and k not in given:
                looped = looped + self._volume(t.axes, self.inner) * self.itemsize
        found: np.ndarray = looped * self.stages + np.where(self.dot, once, 0)
        return found

    def _registers(self) -> np.ndarray:
        """Registers of a thread: accumulators, and the largest tensors of an iteration beside them."""
        kept = sum((self._volume(axes, self.whole) for axes in self.accumulated), self.ones * 0)
        tensors = [t.axes for t in self.work.held if t.axes not in self.accumulated]
        tensors += [axes for x in self.work.groups for axes in x.tensors]
        largest = np.max([self._volume(axes, self.inner) for axes in tensors] or [self.ones], axis=0)
        # loads pass through registers, but for those that run ahead of a loop; asynchronous copies are of 4 bytes at least
        pointers = self.ones < 0
        for k, t in enumerate(self.work.inputs):
            words = self._volume(t.axes, self.inner) * self.itemsize / REGISTER_BYTES
            wide = self._copied(k) | (self._load_bytes(k) >= COPY_BYTES)
            largest = np.maximum(largest, np.where((self.stages > 1) & (t.depth > 0) & wide, 0, words))
            pointers = pointers | ~self._copied(k)
        # without tl.dot all products of a tile are there before they are added up
        for k in range(len(self.work.products)):
            terms = np.prod(self._product(k), axis=0)
            largest = np.where(self.dot, largest, np.maximum(largest, terms))
        bytes_held = (kept + largest) * REGISTER_BYTES
        own = OWN_REGISTERS - np.where(pointers, 0, ADDRESS_REGISTERS)
        found: np.ndarray = own + bytes_held / (REGISTER_BYTES * WARP * self.warps)
        return found

    def _largest(self) -> np.ndarray:
        tensors = [*self.work.inputs, *self.work.held]
        volumes = [self._volume(t.axes, self.inner if t.depth else self.whole) for t in tensors]
        found: np.ndarray = np.max(volumes or [self.ones], axis=0)
        return found

    def _occupancy(self, shared: np.ndarray, registers: np.ndarray) -> np.ndarray:
        """Blocks that a multiprocessor runs at a time; 0 where not even one fits (as `CudaDevice.resident_blocks`)."""
        d = self.device
        threads = self.warps * WARP
        by_shared = d.shared_bytes // (shared + d.reserved_shared_bytes)
        by_registers = d.registers // (np.minimum(registers, REGISTERS) * threads)
        fits = shared <= d.block_shared_bytes
        found: np.ndarray = (
            np.minimum.reduce([by_shared, by_registers, d.threads // threads, self.ones * d.blocks]) * fits
        )
        return found


def clock(device: CudaDevice) -> float:
    """Cycles per second, from the peak of the ordinary cores: a multiply-add per lane and cycle."""
    lanes = 64 if device.capability == (8, 0) else 128
    return device.flops[CORES] / (2 * lanes * device.sms)


def _moved(count: np.ndarray, bandwidth: float, flying: np.ndarray, latency_us: float) -> np.ndarray:
    """us to move bytes, of which so many are on their way at a time."""
    share = np.minimum(1.0, flying / (bandwidth * latency_us * 1e-6))
    found: np.ndarray = 1e6 * count / (bandwidth * share)
    return found


