"""Every measured program on a GPU, in float16 and bfloat16: is it right, how fast is it beside its peers, how close to the floor.

`python -m benchmarks.gpu [NAME ...] [--dry-run] [--output FILE] [--minutes N] [--json | --markdown]`. Without a GPU, `--dry-run`
prints the plan, superoptimizes the programs and compiles their kernels ahead of time; with the same results cache
(`MIRAGE_CACHE_DIR`), a run on a GPU then searches and compiles nothing. Rows are written as they are measured: a run that is
killed, or out of time, is continued by the same command. `docs/cuda.md` says how to run it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

import mirage as mi
from benchmarks.gpu.device import Device, cutlass_program
from benchmarks.gpu.rows import (
    Case,
    Failure,
    GpuRow,
    cases,
    gpu_table,
    markdown,
    read_rows,
    summary,
    to_line,
    told,
    traced,
)
from benchmarks.peers.peers import complain
from benchmarks.programs import KERNELS, kernel_sizes
from benchmarks.tables import emit, emit_lines
from mirage.cli_shared import AsJson
from mirage.errors import LibraryError, MirageError
from mirage.kernels.library_calls import NUMPY
from mirage.results.cuda.result import CudaSuperoptimized

#: seconds to superoptimize a program, for each of its sets of sizes
BUDGET = 10.0


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


def measure(
    wanted: Sequence[Case], file: Path, results: Results, minutes: float, say: Callable[[str], None]
) -> tuple[list[GpuRow], list[Failure]]:
    """The rows of these cases, those in `file` included, and the cases that failed; each is appended to it at once.

    All cases are measured beside the peers that need no compilation, then again with `torch.compile`, which takes most of the
    time. No case is begun after `minutes`. Raises DeviceError where there is no GPU, or it no longer answers, InputError where
    PyTorch or CuPy is missing.
    """
    end = time.monotonic() + 60 * minutes
    done = {(r.program, r.sizes, r.dtype): r for r in read_rows(file)}
    work = [(c, False) for c in wanted if c.key not in done]
    work += [(c, True) for c in wanted if not _is_compiled(done.get(c.key))]
    device = Device() if work else None
    # without an unfinished line
    file.write_text("".join(map(to_line, done.values())), encoding="utf-8")
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
            out.write(to_line(found))
        say(told(found))
        device.check()
    kept = [done[c.key] for c in wanted if c.key in done]
    return [r for r in kept if isinstance(r, GpuRow)], [r for r in kept if isinstance(r, Failure)]


def _is_compiled(row: GpuRow | Failure | None) -> bool:
    """Whether there is nothing to measure again with `torch.compile`."""
    return isinstance(row, Failure) or (row is not None and row.compiled)


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
        found.prepare()
        version = found.choice(case.sizes)
        kernels = (f"{k.name} ({k.registers} registers, {k.spill_bytes} bytes spilled)" for k in version.executable.kernels)
        yield f"{case.program} {case.label} {case.dtype}: {version}: {', '.join(kernels)}"
        try:
            cutlass_program(found, case.sizes, NUMPY)
            yield f"{case.program} {case.label} {case.dtype}: CUTLASS is offered"
        except LibraryError as e:
            yield f"CUTLASS is not offered: {e}"


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
        emit_lines(rehearse(wanted, results), as_json)
        return
    rows, failures = measure(wanted, output, results, minutes, complain)
    if as_markdown and rows and not as_json:
        print(markdown(rows))
    else:
        emit(rows, as_json, gpu_table)
        if not as_json:
            print(summary(rows))
    for f in failures:
        complain(told(f))
    if failures or any(r.wrong for r in rows):
        raise typer.Exit(1)
