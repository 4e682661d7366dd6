"""Every measured program on a GPU, in float16 and bfloat16: is it right, how fast is it beside its peers, how close to the floor.

`python -m benchmarks.gpu [NAME ...] [--dry-run] [--output FILE] [--minutes N] [--json | --markdown]`. Without a GPU, `--dry-run`
prints the plan, superoptimizes the programs and compiles their kernels ahead of time; with the same results cache
(`MIRAGE_CACHE_DIR`), a run on a GPU then searches and compiles nothing. Rows are written as they are measured: a run that is
killed, or out of time, is continued by the same command. `docs/cuda.md` says how to run it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated

import typer

import mirage as mi
from benchmarks.gpu_cutlass import cutlass_program
from benchmarks.peers import complain
from benchmarks.programs import KERNELS, kernel_sizes, retyped
from benchmarks.tables import AsJson, Table, emit
from mirage.errors import FormatError, InputError, MirageError
from mirage.ir.axes import to_axes
from mirage.kernels.cpu.limits import program_cost
from mirage.kernels.library import NUMPY
from mirage.results.cuda.result import CudaSuperoptimized

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
#: seconds to superoptimize a program, for each of its sets of sizes
BUDGET = 10.0
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
def traced(name: str, dtype: str) -> mi.Program:
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


class Results:
    """The superoptimized programs, each made for all of its sets of sizes when it is first asked for."""

    def __init__(self, target: str, budget: float, say: Callable[[str], None]) -> None:
        self._target, self._budget, self._say = target, budget, say
        self._found: dict[tuple[str, str], CudaSuperoptimized] = {}

    def __call__(self, case: Case) -> CudaSuperoptimized:
        key = case.program, case.dtype
        if key not in self._found:
            start, sets = time.perf_counter(), list(kernel_sizes(KERNELS[case.program]).values())
            result = mi.superoptimize(
                traced(*key), target=self._target, sizes=sets, budget=self._budget * len(sets), seed=0
            )
            assert isinstance(result, CudaSuperoptimized)
            self._found[key] = result
            self._say(f"{case.program} {case.dtype}: ready after {time.perf_counter() - start:.1f} s")
        return self._found[key]


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


def measure(
    wanted: Sequence[Case], file: Path, results: Results, minutes: float, say: Callable[[str], None]
) -> tuple[list[GpuRow], list[Failure]]:
    """The rows of these cases, those in `file` included, and the cases that failed; each is appended to it at once.

    All cases are measured beside the peers that need no compilation, then again with `torch.compile`, which takes most of the
    time. No case is begun after `minutes`. Raises DeviceError where there is no GPU, or it no longer answers, InputError where
    PyTorch or CuPy is missing.
    """
    from benchmarks.gpu_device import Device

    end = time.monotonic() + 60 * minutes
    done = {(r.program, r.sizes, r.dtype): r for r in read_rows(file)}
    work = [(c, False) for c in wanted if c.key not in done]
    work += [(c, True) for c in wanted if not _is_compiled(done.get(c.key))]
    device = Device() if work else None
    # without an unfinished line
    file.write_text("".join(map(_line, done.values())), encoding="utf-8")
    for i, (case, compiled) in enumerate(work):
        assert device is not None
        if time.monotonic() >= end:
            say(f"{minutes:g} minutes are over: {len(work) - i} measurements are left; run the same command again")
            break
        if compiled and isinstance(done[case.key], Failure):
            continue
        found: GpuRow | Failure
        try:
            found = device.row(case, results(case), compiled)
        except MirageError as e:
            found = Failure(*case.key, str(e))
        done[case.key] = found
        with file.open("a", encoding="utf-8") as out:
            out.write(_line(found))
        say(_told(found))
        device.check()
    kept = [done[c.key] for c in wanted if c.key in done]
    return [r for r in kept if isinstance(r, GpuRow)], [r for r in kept if isinstance(r, Failure)]


def _is_compiled(row: GpuRow | Failure | None) -> bool:
    """Whether there is nothing to measure again with `torch.compile`."""
    return isinstance(row, Failure) or (row is not None and row.compiled)


def _line(row: GpuRow | Failure) -> str:
    return json.dumps(asdict(row)) + "\n"


def _told(row: GpuRow | Failure) -> str:
    name = f"{row.program} {row.sizes} {row.dtype}"
    if isinstance(row, Failure):
        return f"{name}: FAILED: {row.reason}"
    share = f"{row.ratio:.2f} times {row.best_peer}, {row.floor_share:.0%} of the floor"
    return f"{name}: {row.ours_us:.1f} us, {share}" + f", WRONG by {row.error:.1e}" * row.wrong


def rehearse(wanted: Sequence[Case], results: Results) -> Iterator[str]:
    """The plan in lines: every case with its floor, then what was compiled for it. Needs no GPU."""
    for case in wanted:
        moved, flops = case.cost
        bound = "memory" if case.memory_bound else "arithmetic"
        yield (
            f"{case.program} {case.label} {case.dtype}: {moved / 1e6:,.2f} MB, {flops / 1e9:,.2f} GFLOP, "
            f"floor {case.floor_us:.2f} us ({bound}), {case.copies} copies{'' if case.cold else ', not cold'}"
        )
    for case in wanted:
        found = results(case)
        version = found.choice(case.sizes)
        kernels = (f"{k.name} ({k.registers} registers, {k.spill_bytes} bytes spilled)" for k in version.built.kernels)
        yield f"{case.program} {case.label} {case.dtype}: {version}: {', '.join(kernels)}"
        try:
            gemms = cutlass_program(found.program, case.sizes, found.device, NUMPY)
            yield f"{case.program} {case.label} {case.dtype}: CUTLASS alone: {gemms.gemms.config}"
        except MirageError as e:
            yield f"{case.program} {case.label} {case.dtype}: no CUTLASS kernels: {e}"


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


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan, search and compile; measure nothing.")
    ] = False,
    output: Annotated[Path, typer.Option(help="The file of rows, which is continued.")] = Path("gpu.jsonl"),
    minutes: Annotated[float, typer.Option(help="No case is begun after that long.")] = 8.5,
    budget: Annotated[float, typer.Option(help="Seconds to superoptimize, per set of sizes.")] = BUDGET,
    target: Annotated[str, typer.Option(help="What is compiled for.")] = "cuda:sm_90",
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a section for docs/cuda.md.")] = False,
) -> None:
    wanted = cases(names or [])
    results = Results(target, budget, complain)
    if dry_run:
        for line in rehearse(wanted, results):
            print(line, flush=True)
        return
    rows, failures = measure(wanted, output, results, minutes, complain)
    if as_markdown and rows:
        print(markdown(rows))
    else:
        emit(rows, as_json, gpu_table)
        if not as_json:
            print(summary(rows))
    for f in failures:
        complain(_told(f))
    if failures or any(r.wrong for r in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
