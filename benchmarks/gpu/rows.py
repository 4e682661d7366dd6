"""Rows of the benchmark on a GPU: the cases that are measured, what is found of each, their file and their tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path

from benchmarks.programs import KERNELS, kernel_sizes, retyped
from benchmarks.tables import Table
from mirage.errors import FormatError, InputError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.kernels.cpu.model.limits import program_cost

#: element types that are measured
DTYPES = ("float16", "bfloat16")
#: what an H200 reaches: bytes per second that a copy reads and writes, operations per second of a bfloat16 product
BANDWIDTH, FLOPS = 4.3e12, 790e12
#: bytes that a rotation over copies of the arguments reads before it meets one again: caches hold nothing of it
ROTATION = 3 * (60 << 20)
#: copies of the arguments of one program at most
COPIES = 256
#: what the time of a program by CUTLASS kernels alone is called
CUTLASS = "CUTLASS"
#: a row whose ratio is less is one that we lose
PARITY = 0.95
#: sets of sizes of the paper's decode and speculative-decode rows, which are measured first
_FIRST = ("decode", "speculative", "batch1", "4k")


@dataclass(frozen=True)
class Case:
    """A program at one set of sizes in one element type."""

    program: str
    label: str
    sizes: Mapping[str, int]
    dtype: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.program, self.label, self.dtype

    @property
    def first(self) -> bool:
        """Whether it is one of the paper's decode and speculative-decode rows."""
        return self.label in _FIRST

    @cached_property
    def cost(self) -> tuple[int, int]:
        """Compulsory bytes and operations (`program_cost`)."""
        return program_cost(to_axes(traced(self.program, self.dtype)), self.sizes)

    @property
    def floor_us(self) -> float:
        """The least time that the device's bandwidth and arithmetic allow."""
        moved, flops = self.cost
        return 1e6 * max(moved / BANDWIDTH, flops / FLOPS)

    @property
    def memory_bound(self) -> bool:
        moved, flops = self.cost
        return moved / BANDWIDTH >= flops / FLOPS

    @property
    def copies(self) -> int:
        """How many copies of the arguments calls take turns with."""
        return max(2, min(COPIES, -(-ROTATION // self.cost[0]) + 1))

    @property
    def cold(self) -> bool:
        """Whether the copies are too many for the level-2 cache."""
        return self.copies * self.cost[0] >= ROTATION


@dataclass(frozen=True)
class GpuRow:
    """One case on a device; times are medians in microseconds per call, of calls in one CUDA graph.

    `ratio` is the best peer's time over ours, `floor_share` the floor's share of ours. CUTLASS kernels are ours, too: the time of
    the program by them alone, where they have one, is no peer's. `error` is that of our result, the largest difference from
    float64 over its largest element, and `error_peer` that of the most exact peer; `wrong` tells that ours, or CUTLASS's, is too
    large. `cold`: nothing of the arguments was in the level-2 cache. `kernels` are the launches of ours. `times` holds every
    version's time, `left_out` why others have none, or that CUTLASS's result is wrong. `compiled`: `torch.compile` had its turn.
    """

    program: str
    sizes: str
    dtype: str
    batch: int
    first: bool
    device: str
    date: str
    kernels: int
    cold: bool
    memory_bound: bool
    error: float
    error_peer: float
    wrong: bool
    ours_us: float
    best_peer: str
    best_peer_us: float
    ratio: float
    floor_us: float
    floor_share: float
    times: dict[str, float]
    left_out: list[str]
    compiled: bool


@dataclass(frozen=True)
class Failure:
    """A case that could not be measured, and why."""

    program: str
    sizes: str
    dtype: str
    reason: str


@cache
def traced(name: str, dtype: str) -> Program:
    """A measured program in an element type."""
    return retyped(KERNELS[name].trace(), dtype)


def cases(names: Sequence[str]) -> list[Case]:
    """The cases of these programs (all if empty), in the order in which they are measured: the paper's decode rows come first.

    Raises InputError for the name of no program.
    """
    unknown = [n for n in names if n not in KERNELS]
    if unknown:
        raise InputError(f"no measured program is named {', '.join(unknown)}; choose from {', '.join(KERNELS)}")
    found = [
        Case(name, label, sizes, dtype)
        for dtype in DTYPES
        for name in names or KERNELS
        for label, sizes in kernel_sizes(KERNELS[name]).items()
    ]
    return sorted(found, key=lambda c: not c.first)


def read_rows(file: Path) -> list[GpuRow | Failure]:
    """What earlier runs wrote; raises FormatError where a line is no row, but for an unfinished last one."""
    rows: list[GpuRow | Failure] = []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    for i, line in enumerate(lines):
        try:
            found = json.loads(line)
            rows.append(Failure(**found) if "reason" in found else GpuRow(**found))
        except (TypeError, ValueError):
            if i + 1 == len(lines) and not line.endswith("\n"):
                break
            raise FormatError(f"{file}, line {i + 1}: not a row of this benchmark; pass another --output") from None
    return rows


def to_line(row: GpuRow | Failure) -> str:
    """The row in its file."""
    return json.dumps(asdict(row)) + "\n"


def told(row: GpuRow | Failure) -> str:
    """The row in a sentence."""
    name = f"{row.program} {row.sizes} {row.dtype}"
    if isinstance(row, Failure):
        return f"{name}: FAILED: {row.reason}"
    share = f"{row.ratio:.2f} times {row.best_peer}, {row.floor_share:.0%} of the floor"
    return f"{name}: {row.ours_us:.1f} us, {share}" + f", WRONG by {row.error:.1e}" * row.wrong


def gpu_table(rows: Sequence[GpuRow]) -> Table:
    header = [
        "program",
        "sizes",
        "type",
        "ours, us",
        "best peer",
        "its us",
        "CUTLASS, us",
        "ratio",
        "floor, us",
        "share",
        "error",
        "launches",
    ]
    return Table(header, [_cells(r) for r in rows])


def _cells(r: GpuRow) -> list[str]:
    sizes = r.sizes if r.cold else f"{r.sizes} (in L2)"
    error = f"{r.error:.0e}" + " WRONG" * r.wrong
    cutlass = _us(r.times[CUTLASS]) if CUTLASS in r.times else ""
    return [
        r.program, sizes, r.dtype, _us(r.ours_us), r.best_peer, _us(r.best_peer_us), cutlass,
        f"{r.ratio:.2f}", _us(r.floor_us), f"{r.floor_share:.0%}", error, str(r.kernels),
    ]  # fmt: skip


def _us(t: float) -> str:
    return f"{t:,.0f}" if t >= 100 else f"{t:.2f}"


def summary(rows: Sequence[GpuRow]) -> str:
    """Geometric means of the ratios, the floor's share where memory bounds, and the rows that are lost or wrong."""
    first, bound = [r for r in rows if r.first], [r for r in rows if r.memory_bound and r.cold]
    lines = []
    for what, part in (("decode and speculative decode", first), ("all", rows)):
        if part:
            mean = statistics.geometric_mean(r.ratio for r in part)
            lines.append(f"Geometric mean of the ratio over {len(part)} rows ({what}): {mean:.2f}.")
    if bound:
        near = sum(r.floor_share >= 0.8 for r in bound)
        lines.append(f"Memory-bound rows with at least 80% of the floor: {near} of {len(bound)}.")
    lines.append(
        f"Rows below {PARITY}: {sum(r.ratio < PARITY for r in rows)}. Wrong results: {sum(r.wrong for r in rows)}."
    )
    return " ".join(lines)


def markdown(rows: Sequence[GpuRow]) -> str:
    """The rows as a section of a page: device and date, table, summary."""
    taken = sorted({f"{r.device}, {r.date}" for r in rows})
    return "\n\n".join([f"Measured on {'; '.join(taken)}.", gpu_table(rows).markdown(), summary(rows)])
