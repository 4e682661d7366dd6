"""Which predefined operators of a muGraph CUTLASS kernels compute, and how long that takes, as the model has it.

A roofline like that of Triton kernels (`model/estimate.py`), whose constants it shares: DRAM and L2 with as many bytes in flight
as the stages hold, tensor cores on padded tiles, and the iterations of a block that wait for one another.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import prod

from mirage.ir.dims import evaluate
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.emitted import EmittedTriton, TritonKernel
from mirage.kernels.cuda.gemm.gemm import Gemm, OperandKind
from mirage.kernels.cuda.gemm.launch import Gemms
from mirage.kernels.cuda.gemm.plan import CutlassCalls, GemmStep
from mirage.kernels.cuda.library.predefined import PredefinedOperators, read_types
from mirage.kernels.cuda.model.estimate import (
    DRAM_LATENCY_US,
    L2_LATENCY_US,
    MMA_SHARE,
    OVERLAP,
    OWN_REGISTERS,
    PAUSE_US,
    START_US,
)
from mirage.kernels.cuda.model.extents import WGMMA
from mirage.kernels.library import NUMPY
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph

#: share of the rate of tensor cores that wgmma reaches where threads, not TMA, load its factors
_WGMMA_SHARE = 0.75


def gemm_us(device: CudaDevice, gemm: Gemm, sizes: tuple[int, int, int, int], kernel: CompiledKernel | None = None) -> float:
    """Microseconds of a kernel for so many (matrices, rows, columns, depth); infinite where a block does not fit the device.

    What `kernel` says of registers is taken for a guess.
    """
    (batch, rows, columns, depth), config = sizes, gemm.config
    tile_rows, tile_columns, tile_depth = config.tile
    guess = OWN_REGISTERS + tile_rows * tile_columns // config.threads
    resident = device.resident_blocks(config.num_warps, config.shared_bytes, kernel.registers if kernel else guess)
    if not resident:
        return float("inf")
    blocks = batch * -(-rows // tile_rows) * -(-columns // tile_columns)
    iterations = -(-depth // tile_depth)
    waves, busiest = -(-blocks // (resident * device.sms)), -(-blocks // device.sms)
    itemsize = DTYPES[gemm.dtype].itemsize
    written = rows * columns * DTYPES[gemm.result].itemsize
    for o in gemm.epilogue.operands:
        shape = {OperandKind.ELEMENTS: rows * columns, OperandKind.ROWS: rows, OperandKind.COLUMNS: columns}.get(o.kind, 1)
        written += shape * DTYPES[o.dtype].itemsize
    lines = min(tile_rows, rows) + min(tile_columns, columns)
    flying = min(blocks, resident * device.sms) * lines * tile_depth * itemsize * min(config.stages - 1, iterations)
    dram = batch * ((rows + columns) * depth * itemsize + written)
    l2 = blocks * lines * depth * itemsize + batch * written
    share = _WGMMA_SHARE if config.wgmma else MMA_SHARE if device.capability >= WGMMA else 1.0
    flops = 2 * busiest * device.sms * tile_rows * tile_columns * iterations * tile_depth
    wait = DRAM_LATENCY_US / config.stages + PAUSE_US
    parts = (
        _moved(dram, device.sustained_bandwidth, flying, DRAM_LATENCY_US),
        _moved(l2, device.l2_bandwidth, flying, L2_LATENCY_US),
        1e6 * flops / (share * device.sustained_flops(gemm.dtype)),
        waves * (START_US + iterations * wait),
    )
    return 1e6 * device.launch_s + max(parts) + OVERLAP * (sum(parts) - max(parts))


def calls_us(
    calls: CutlassCalls, extents: Mapping[str, int], dtype: str, device: CudaDevice, kernels: Mapping[Gemm, CompiledKernel]
) -> float:
    """Microseconds of a library plan at these sizes of axes; infinite where a kernel of it does not serve them."""
    if not all(s.gemm.serves(*s.sizes(extents)[1:]) for s in calls.steps):
        return float("inf")
    total = sum(gemm_us(device, s.gemm, s.sizes(extents), kernels.get(s.gemm)) for s in calls.steps)
    for other in calls.others:
        # its result, and about as much that is read
        moved = 2 * prod(extents[a] for a in other.axes) * DTYPES[dtype].itemsize
        total += 1e6 * (device.launch_s + moved / device.sustained_bandwidth) + START_US
    return total


def _moved(count: int, bandwidth: float, flying: int, latency_us: float) -> float:
    """us to move bytes, of which so many are on their way at a time (Little's law)."""
    return 1e6 * count / (bandwidth * min(1.0, flying / (bandwidth * latency_us * 1e-6)))


class PredefinedGemms:
    """The predefined operators of an emitted muGraph whose schedule names a configuration: CUTLASS kernels and other calls."""

    def __init__(self, mugraph: MuGraph, emitted: EmittedTriton, maximum: RunningMaximum, device: CudaDevice) -> None:
        assert emitted.gemm is not None
        self.emitted, self.device, self.dtype = emitted, device, mugraph.dtype
        gemms = Gemms(emitted.gemm, device)
        self.calls: list[CutlassCalls] = []
        for run in emitted.runs:
            if not isinstance(run, TritonKernel):
                plan = partial(CutlassCalls, arrays=NUMPY, gemms=gemms, types=read_types(emitted, run))
                calls = PredefinedOperators(mugraph, emitted, run, maximum, plan).stage.calls
                assert isinstance(calls, CutlassCalls)
                self.calls.append(calls)

    @property
    def steps(self) -> tuple[GemmStep, ...]:
        """What kernels compute."""
        return tuple(s for c in self.calls for s in c.steps)

    @property
    def gemms(self) -> tuple[Gemm, ...]:
        """The kernels."""
        return tuple(dict.fromkeys(s.gemm for s in self.steps))

    @property
    def is_complete(self) -> bool:
        """Whether kernels compute everything."""
        return not any(c.others for c in self.calls)

    def us(self, sizes: Mapping[str, int], kernels: Mapping[Gemm, CompiledKernel] | None = None) -> float:
        """Microseconds of all predefined operators at these sizes of the dim symbols; infinite where a kernel does not serve
        them, so that another library computes the product.
        """
        extents = {a: evaluate(d, sizes) for a, d in self.emitted.axes.items()}
        return sum(calls_us(c, extents, self.dtype, self.device, kernels or {}) for c in self.calls)
