"""CUDA devices that kernels are compiled for, tuned for and ranked on."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from mirage.errors import UnknownTarget

#: of the peak figures, what large copies and large products reach (measured on an H200: 4.3 of 4.8 TB/s counting bytes
#: read and written, 790 of 989 TFLOP/s in bfloat16 on random data)
SUSTAINED_BANDWIDTH, SUSTAINED_FLOPS = 0.9, 0.8

#: threads of a warp, on every device
WARP = 32


@dataclass(frozen=True)
class CudaDevice:
    """A GPU: what kernels are compiled for, and what models need to rank them.

    `name` is the product's, `capability` its compute capability, such as (9, 0). Per streaming multiprocessor, of which there
    are `sms`: `shared_bytes` of shared memory, of which one block may have `block_shared_bytes`, while every resident block
    costs `reserved_shared_bytes` more; `registers` of 32 bits; at most `threads` and `blocks` resident at once. `l2_bytes` of
    level-2 cache serve all. Peaks: `bandwidth` of the device memory and `l2_bandwidth` in bytes per second, counting bytes read
    and written; `flops` in operations per second by element type, a multiplication with an addition counted as two: those of
    the tensor cores for dense products, accumulated in float32 (`tf32` has an entry of its own), and of the ordinary cores for
    float32 and float64. `launch_s` are seconds between the end of a kernel and the start of the next in one stream.
    `present` tells whether this is the device at hand, whose own figures these are; otherwise they are those of a table.
    """

    name: str
    capability: tuple[int, int]
    sms: int
    shared_bytes: int
    block_shared_bytes: int
    reserved_shared_bytes: int
    registers: int
    threads: int
    blocks: int
    l2_bytes: int
    bandwidth: float
    l2_bandwidth: float
    flops: Mapping[str, float]
    launch_s: float = 2e-6
    present: bool = False

    @property
    def arch(self) -> str:
        """The architecture as compilers name it, such as "sm_90"."""
        return "sm_{}{}".format(*self.capability)

    @property
    def target(self) -> str:
        """The target that names this architecture, such as "cuda:sm_90"."""
        return f"cuda:{self.arch}"

    @property
    def number(self) -> int:
        """The compute capability as one number, such as 90."""
        return 10 * self.capability[0] + self.capability[1]

    @property
    def sustained_bandwidth(self) -> float:
        """Bytes per second that large copies reach."""
        return SUSTAINED_BANDWIDTH * self.bandwidth

    def sustained_flops(self, dtype: str) -> float:
        """Operations per second that large products of that element type, or of "tf32", reach."""
        return SUSTAINED_FLOPS * self.flops[dtype]

    @property
    def note(self) -> str:
        """A sentence for reports: where the figures are from."""
        if self.present:
            return f"{self.name} ({self.arch}), as the device reports itself"
        return f"no {self.arch} device is at hand: figures of {self.name} from a table"

    def resident_blocks(self, num_warps: int, shared: int, registers: int) -> int:
        """How many blocks of so many warps, bytes of shared memory and registers per thread one multiprocessor holds at once;
        0 where it cannot hold one (CUDA C++ Programming Guide, "Hardware Multithreading").
        """
        if shared > self.block_shared_bytes:
            return 0
        # registers are given to warps, in units of 256
        per_warp = -(-max(registers, 1) * WARP // 256) * 256
        limits = (
            self.blocks,
            self.threads // (WARP * num_warps),
            self.registers // (per_warp * num_warps),
            self.shared_bytes // (shared + self.reserved_shared_bytes),
        )
        return min(limits)


def _table(*devices: CudaDevice) -> dict[str, CudaDevice]:
    return {d.arch: d for d in devices}


#: the SXM modules' figures. Sources: NVIDIA's data sheets of A100 (80 GB), H200 and B200 (bandwidth, dense peaks without
#: sparsity), the CUDA C++ Programming Guide's table "Technical Specifications per Compute Capability" (shared memory,
#: registers, threads, blocks), and what an H200 reports about itself (60 MB of L2). The level-2 cache hands out 5120 bytes per
#: clock on A100 (NVIDIA A100 whitepaper) and H100; for B200, which nothing is published of, the same per multiprocessor.
DEVICES: dict[str, CudaDevice] = _table(
    CudaDevice(
        name="A100",
        capability=(8, 0),
        sms=108,
        shared_bytes=164 << 10,
        block_shared_bytes=163 << 10,
        reserved_shared_bytes=1 << 10,
        registers=64 << 10,
        threads=2048,
        blocks=32,
        l2_bytes=40 << 20,
        bandwidth=2.039e12,
        l2_bandwidth=5120 * 1.41e9,
        flops={"float16": 312e12, "bfloat16": 312e12, "tf32": 156e12, "float32": 19.5e12, "float64": 9.7e12},
    ),
    CudaDevice(
        name="H200",
        capability=(9, 0),
        sms=132,
        shared_bytes=228 << 10,
        block_shared_bytes=227 << 10,
        reserved_shared_bytes=1 << 10,
        registers=64 << 10,
        threads=2048,
        blocks=32,
        l2_bytes=60 << 20,
        bandwidth=4.8e12,
        l2_bandwidth=5120 * 1.755e9,
        flops={"float16": 989e12, "bfloat16": 989e12, "tf32": 494e12, "float32": 67e12, "float64": 34e12},
    ),
    CudaDevice(
        name="B200",
        capability=(10, 0),
        sms=148,
        shared_bytes=228 << 10,
        block_shared_bytes=227 << 10,
        reserved_shared_bytes=1 << 10,
        registers=64 << 10,
        threads=2048,
        blocks=32,
        l2_bytes=126 << 20,
        bandwidth=8.0e12,
        l2_bandwidth=5120 * 1.755e9 * 148 / 132,
        flops={"float16": 2250e12, "bfloat16": 2250e12, "tf32": 1125e12, "float32": 75e12, "float64": 37e12},
    ),
)

#: the architecture of target "cuda" where no device is at hand
DEFAULT_ARCH = "sm_90"
#: what targets can be called
TARGETS = ("cuda", *(d.target for d in DEVICES.values()))
_TARGET = re.compile(r"cuda(?::(sm_\d+))?")
#: older devices have no bfloat16, and no asynchronous copies to shared memory
_OLDEST = (8, 0)


def is_cuda(target: str) -> bool:
    """Whether a target is written as one of these, "cuda" or "cuda:sm_90"."""
    return _TARGET.fullmatch(target) is not None


def cuda_device(target: str = "cuda") -> CudaDevice:
    """The device that a target names.

    "cuda" is CuPy's current device, or H200's figures from the table where no device is at hand. A named architecture such as
    "cuda:sm_90" is the device at hand if it has that architecture, else an entry of the table.

    Raises UnknownTarget, with the choices, for anything else, and where the device at hand is older than compute
    capability 8.0.
    """
    match = _TARGET.fullmatch(target)
    here = present_device() if match else None
    if match and (match[1] in DEVICES or match[1] in (None, here.arch if here else None)):
        if match[1] is None and here is not None and here.capability < _OLDEST:
            raise UnknownTarget(
                f"target 'cuda': {here.name} has compute capability {here.capability[0]}.{here.capability[1]}, and kernels need "
                "8.0 or newer; use target='cpu'"
            )
        if here is not None and match[1] in (None, here.arch):
            return here
        return DEVICES[match[1] or DEFAULT_ARCH]
    raise UnknownTarget(f"target {target!r} does not exist; choose one of {', '.join(TARGETS)}")


def present_device() -> CudaDevice | None:
    """CuPy's current device; None where CuPy is not installed or finds no device."""
    cupy = find_cupy()
    if cupy is None:
        return None
    return _read(cupy, int(cupy.cuda.runtime.getDevice()))


@functools.cache
def find_cupy() -> Any | None:
    """CuPy, if it is installed and finds a device."""
    try:
        cupy = import_module("cupy")
        count = cupy.cuda.runtime.getDeviceCount()
    except (ImportError, RuntimeError, OSError):
        # CuPy's errors of the driver are RuntimeErrors; libraries of CUDA that are missing are ImportErrors or OSErrors
        return None
    return cupy if count else None


@functools.lru_cache(maxsize=64)
def _read(cupy: Any, index: int) -> CudaDevice:
    name = cupy.cuda.runtime.getDeviceProperties(index)["name"]
    found = cupy.cuda.Device(index)
    # CuPy's attributes lack it: "90" is 9.0, "120" is 12.0
    capability = divmod(int(found.compute_capability), 10)
    return from_attributes(name.decode() if isinstance(name, bytes) else str(name), capability, found.attributes)


def from_attributes(name: str, capability: tuple[int, int], attributes: Mapping[str, int]) -> CudaDevice:
    """A device at hand by its compute capability and CUDA attributes, named as CuPy names them (`cudaDevAttr...` without the
    prefix).

    What a device does not report (clocks, in some virtual machines) is taken from the table: the entry of its architecture, or
    of the newest one before it, for each multiprocessor.
    """
    older = [d for d in DEVICES.values() if d.capability <= capability]
    like = max(older, key=lambda d: d.capability, default=next(iter(DEVICES.values())))
    sms = attributes["MultiProcessorCount"]
    # kHz, twice a clock, over so many bits
    bandwidth = 2e3 * attributes.get("MemoryClockRate", 0) * attributes.get("GlobalMemoryBusWidth", 0) / 8
    share = sms / like.sms
    return replace(
        like,
        name=name,
        capability=capability,
        sms=sms,
        shared_bytes=attributes["MaxSharedMemoryPerMultiprocessor"],
        block_shared_bytes=attributes["MaxSharedMemoryPerBlockOptin"],
        reserved_shared_bytes=attributes.get("ReservedSharedMemoryPerBlock", like.reserved_shared_bytes),
        registers=attributes["MaxRegistersPerMultiprocessor"],
        threads=attributes["MaxThreadsPerMultiProcessor"],
        blocks=attributes.get("MaxBlocksPerMultiprocessor", like.blocks),
        l2_bytes=attributes["L2CacheSize"],
        bandwidth=bandwidth or like.bandwidth * share,
        l2_bandwidth=like.l2_bandwidth * share,
        flops={k: v * share for k, v in like.flops.items()},
        present=True,
    )
