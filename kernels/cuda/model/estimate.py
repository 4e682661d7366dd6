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

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import WARP, CudaDevice
from mirage.kernels.cuda.model.extents import CORES, NARROW, WGMMA_WARPS
from mirage.kernels.cuda.model.traffic import COPY_BYTES, LOAD_OPERATIONS, Traffic

#: share of its time by which a resource that is not the slowest delays a kernel
OVERLAP = 0.1
#: us for a block to start and to end
START_US = 1.0
#: us that a load from DRAM, and one from L2, takes
DRAM_LATENCY_US, L2_LATENCY_US = 0.7, 0.3
#: us between two operators of a block that wait for one another
PAUSE_US = 0.05
#: warps with which a multiprocessor issues instructions in every cycle, about
BUSY_WARPS = 8
#: bytes of shared memory that a multiprocessor reads or writes per cycle
SHARED_BYTES = 128
#: share of the peak of sm_90 and later that the older instructions (mma) reach, which smaller tiles take (63% on average on
#: an H100: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024)
MMA_SHARE = 0.63
#: how much slower a loop of products runs than one in which some warps load and others compute (FlashAttention-3, table 2: 570 to
#: 661 TFLOP/s), as it does in the libraries whose figures are those of what large products sustain, from sm_90 on
UNSPECIALIZED = 1.16
#: us that one thread takes to write a block's tensor descriptor to memory and to see it there: a round trip to the L2 cache
#: and back (an estimate)
DESCRIPTOR_US = 0.5
#: registers of a thread: at most, beside tensors, of these for addresses that descriptors save, and bytes of one (as ptxas
#: says: 111 and 90 for a product in tiles of 64 by 128, 174 and 154 in tiles of 128 by 128)
REGISTERS, OWN_REGISTERS, ADDRESS_REGISTERS, REGISTER_BYTES = 255, 40, 20, 4
#: elements of a block tensor, at most (Triton's own limit is 2^20, which no block holds)
MAX_ELEMENTS = 1 << 17


@dataclass(frozen=True)
class Estimate:
    """What the model makes of each candidate of a kernel: arrays.

    `us` is infinite where a block does not fit the device. `parts` are the times of the resources; `shared_bytes` and
    `registers` (per thread) are what a block takes, about; `swap` is the order of operands that it is for.
    """

    us: np.ndarray
    parts: Mapping[str, np.ndarray]
    shared_bytes: np.ndarray
    registers: np.ndarray
    blocks: np.ndarray
    swap: np.ndarray


class Counter(Traffic):
    """The candidates of one kernel, and what they cost."""

    def estimate(self, compiled: CompiledKernel | None = None) -> Estimate:
        d = self.device
        shared, registers = self._shared_bytes(), self._registers()
        if compiled is not None:
            shared, registers = self.ones * compiled.shared, self.ones * compiled.registers
        per_sm = self._occupancy(shared, registers)
        fits = (per_sm >= 1) & (registers <= REGISTERS) & (self._largest() <= MAX_ELEMENTS)
        per_sm = np.maximum(per_sm, 1)
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
        slower = np.where(self.wgmma, UNSPECIALIZED, 1.0)
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
        return Estimate(np.where(fits & self.serves, us, np.inf), parts, shared, registers, self.blocks, self.swap)

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


