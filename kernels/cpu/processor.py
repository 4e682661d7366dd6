"""The processor that kernels are made for, read from the system at run time."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from mirage.kernels.target import Rates
from mirage.settings import num_threads

_CPUS = Path("/sys/devices/system/cpu")
_CPUINFO = Path("/proc/cpuinfo")
#: what costs of a search weigh on a processor
CPU_RATES = Rates(launch=3000.0, operator=20.0, memory=0.075, cache=0.005, work=1.0)
#: sizes in bytes where the system does not tell: small enough for every current processor
L1_BYTES, L2_BYTES, L3_BYTES = 32 << 10, 512 << 10, 8 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Processor:
    """A machine: what kernels are tuned for and limits are measured on.

    `cores` may be used by this process. Cache sizes are in bytes: `l1_bytes` (data) and `l2_bytes` of one core,
    `l3_bytes` of all third-level caches that the cores share, 0 where there is none. `vector_bytes` is the width
    of a vector register.
    """

    name: str
    cpu: str
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    vector_bytes: int

    @property
    def cache_bytes(self) -> int:
        """Bytes that the caches of all cores hold together at their last level."""
        return max(self.l3_bytes, self.l2_bytes * self.cores)


def processor(cpus: Path = _CPUS, cpuinfo: Path = _CPUINFO) -> Processor:
    """The processor as Linux describes it in these places.

    Elsewhere, or where a virtual machine hides them: 32 KiB, 512 KiB and 8 MiB of caches, the processor's name as
    Python has it, and vectors of 16 bytes, which every 64-bit processor has.
    """
    found = _read_caches(cpus / "cpu0" / "cache")
    l1, l2, l3 = (found.get(i, 0) for i in (1, 2, 3)) if found.get(1) and found.get(2) else (L1_BYTES, L2_BYTES, L3_BYTES)
    l3 *= max(_count_l3(cpus), 1)
    info = _read_cpuinfo(cpuinfo)
    flags = (info.get("flags") or info.get("Features") or "").split()
    vector = 64 if "avx512f" in flags else 32 if "avx" in flags else 16
    cpu = info.get("model name") or platform.processor() or platform.machine() or "unknown"
    return Processor("cpu", cpu, num_threads(), l1, l2, l3, vector)


def memory_bytes() -> int:
    """Bytes of main memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _read_caches(folder: Path) -> dict[int, int]:
    """Bytes of the data or unified cache of each level; those that cannot be read are left out."""
    sizes: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((index / f).read_text().strip() for f in ("type", "level", "size"))
            if kind in ("Data", "Unified"):
                unit = _UNITS.get(size[-1:], 1)
                sizes[int(level)] = int(size.rstrip("KMG")) * unit
        except (OSError, ValueError):
            continue
    return sizes


def _count_l3(cpus: Path) -> int:
    """How many third-level caches the processors that this process may use have: large machines have several."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    sharers: set[str] = set()
    for cpu in usable:
        try:
            sharers.add((cpus / f"cpu{cpu}" / "cache" / "index3" / "shared_cpu_list").read_text().strip())
        except OSError:
            continue
    return len(sharers)


def _read_cpuinfo(file: Path) -> dict[str, str]:
    """The lines of the first processor."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.split(":", 1) for line in text.split("\n\n")[0].splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}
