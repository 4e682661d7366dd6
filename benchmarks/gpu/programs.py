"""Whole programs on a GPU, in float16: are they right, and how fast are they beside PyTorch, eager and compiled.

`python -m benchmarks.gpu.programs [NAME ...] [--dry-run] [--minutes N] [--json | --markdown]`. Without a GPU, `--dry-run`
compiles the programs and says what was made of them; with the same results cache (`MIRAGE_CACHE_DIR`), a run on a GPU then
searches and compiles nothing. Layers of the size of published models read more weights than the level-2 cache holds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import mirage as mi
from benchmarks.graphs.convolutions import CONVOLUTIONS
from benchmarks.graphs.programs import PUBLISHED, GraphProgram, Sizes, programs
from benchmarks.peers.peers import complain
from benchmarks.tables import Table, emit, emit_lines
from mirage.cli_shared import AsJson
from mirage.errors import DeviceError, InputError, MirageError
from mirage.ir.types import epsilon

if TYPE_CHECKING:
    from benchmarks.peers.in_torch import Form

#: the programs that PyTorch has, too; the paper's decode shapes first
NAMES = ("llama_decode", "llama_prefill", "bert_encoder", "mixtral_moe", *CONVOLUTIONS)
DTYPE = "float16"
#: seconds to superoptimize the subprograms of one program
BUDGET = 40.0
#: calls before any is timed, rounds of timed calls at least, and seconds of them
WARM, ROUNDS, SECONDS = 4, 15, 1.0
#: our result may be off by so many roundings of its type, or twice what PyTorch's is
_ROUNDINGS = 16


@dataclass(frozen=True)
class GpuProgramRow:
    """One program at one set of sizes; times are medians in microseconds, by the device's clock, of interleaved calls.

    `error` is the largest difference from float64 over the largest element, `error_peer` that of PyTorch. `ratio` is the time of
    the best peer over ours. `graphs` says whether calls of ours are replayed CUDA graphs, or why not.
    """

    program: str
    sizes: str
    dtype: str
    device: str
    date: str
    error: float
    error_peer: float
    wrong: bool
    ours_us: float
    best_peer: str
    best_peer_us: float
    ratio: float
    graphs: str
    times: dict[str, float]
    left_out: list[str]


def measured(names: Sequence[str]) -> list[GraphProgram]:
    """The programs of these names, all if none is given; raises InputError for others."""
    if unknown := [n for n in names if n not in NAMES]:
        raise InputError(f"{unknown[0]!r} is not measured; the programs are {', '.join(NAMES)}")
    found = programs(PUBLISHED.of(DTYPE), batch=8, length=512, measured=True)
    found |= {name: c.program(name) for name, c in CONVOLUTIONS.items()}
    return [found[n] for n in names or NAMES]


def compiled(program: GraphProgram, target: str, budget: float, say: Callable[[str], None]) -> mi.Executable:
    """The executable for all sizes that are measured, tuned at these."""
    return mi.compile(
        program.fn, program.specs, bounds=program.bounds, sizes=list(program.measured.values()), constants=program.constants,
        target=target, budget=budget, progress=say,
    )  # fmt: skip


def rehearse(wanted: Sequence[GraphProgram], target: str, budget: float) -> Iterator[str]:
    """What was made of each program, in lines. Needs no GPU."""
    for p in wanted:
        executable = compiled(p, target, budget, lambda _: None)
        yield f"{p.name} {p.measured}\n{executable.explain()}"


class Device:
    """The current CUDA device; raises InputError without PyTorch, DeviceError where there is none."""

    def __init__(self) -> None:
        try:
            self._torch: Any = import_module("torch")
        except ImportError as e:
            raise InputError(f"{e}; this benchmark needs PyTorch: run pip install -e '.[cuda,torch]'") from None
        if not self._torch.cuda.is_available():
            raise DeviceError("PyTorch finds no CUDA device; without one, --dry-run compiles")
        # its best form, which takes a search
        self._torch.backends.cudnn.benchmark = True
        self.name = str(self._torch.cuda.get_device_name())

    def row(self, program: GraphProgram, executable: mi.Executable, label: str, sizes: Sizes) -> GpuProgramRow:
        """The row of a program at one set of sizes; raises DeviceError where ours fails, or all peers do."""
        arguments = program.arguments(sizes, np.random.default_rng(0))
        wanted = program.expected(arguments)
        left_out: list[str] = []
        with self._torch.inference_mode():
            tensors = [self._torch.from_numpy(a).cuda() for a in arguments]
            eager = self._peers(program, tensors)
            calls: dict[str, Callable[[], Any]] = {"mirage": lambda: executable(*tensors)}
            calls |= {f"PyTorch {label}".strip(): form for label, form in eager.items()}
            calls |= self._compiled(eager)
            errors = {
                name: e for name, run in calls.items() if (e := self._error(name, run, wanted, left_out)) is not None
            }
            times = self._race({name: calls[name] for name in errors}, left_out, SECONDS)
        peers = {name: t for name, t in times.items() if name != "mirage"}
        if "mirage" not in times or not peers:
            raise DeviceError(f"{program.name} {label}: nothing to compare: {'; '.join(left_out)}")
        best = min(peers, key=lambda name: peers[name])
        peer_error = min(e for name, e in errors.items() if name != "mirage")
        limit = max(_ROUNDINGS * epsilon(np.dtype(DTYPE)), 2 * peer_error)
        return GpuProgramRow(
            program.name, label, DTYPE, self.name, time.strftime("%Y-%m-%d"), errors["mirage"], peer_error,
            not errors["mirage"] <= limit, times["mirage"], best, peers[best], peers[best] / times["mirage"],
            str(executable.to_json()["graphs"]), times, left_out,
        )  # fmt: skip

    def _peers(self, program: GraphProgram, tensors: Sequence[Any]) -> Mapping[str, Form]:
        from benchmarks.peers.layers_in_torch import tensor_layers

        return tensor_layers(program, tensors)

    def _compiled(self, eager: Mapping[str, Form]) -> dict[str, Callable[[], Any]]:
        """The fastest of these forms with everything that PyTorch's compiler tries, which takes minutes; it replays CUDA graphs,
        too.
        """
        times = self._race(eager, [], 0.1)
        if not times:
            return {}
        label = min(times, key=times.__getitem__)
        self._torch.compiler.reset()
        run = self._torch.compile(eager[label].run, mode="max-autotune", dynamic=False)
        return {f"torch.compile {label}".strip(): partial(run, *eager[label].arguments)}

    def _error(
        self, name: str, run: Callable[[], Any], wanted: Sequence[np.ndarray], left_out: list[str]
    ) -> float | None:
        """The largest difference from float64; None for a version that fails."""
        try:
            found = run()
            results = found if isinstance(found, tuple) else (found,)
            worst = 0.0
            for r, w in zip(results, wanted, strict=True):
                off = np.abs(r.double().cpu().numpy() - w).max(initial=0)
                worst = max(worst, float(off / max(np.abs(w).max(initial=0), 1e-30)))
            return worst
        except Exception as e:  # of a peer, or of our own: the row says why it has no time
            left_out.append(_reason(name, e))
            return None

    def _race(
        self, calls: Mapping[str, Callable[[], Any]], left_out: list[str], seconds: float
    ) -> dict[str, float]:
        """Median microseconds of each version, which take turns."""
        alive = dict(calls)
        for name, run in calls.items():
            try:
                for _ in range(WARM):
                    run()
            except Exception as e:  # of a peer, or of our own: the row says why it has no time
                left_out.append(_reason(name, e))
                del alive[name]
        times: dict[str, list[float]] = {name: [] for name in alive}
        start = time.monotonic()
        while alive and (len(next(iter(times.values()))) < ROUNDS or time.monotonic() - start < seconds * len(alive)):
            for name, run in alive.items():
                times[name].append(self._time(run))
        return {name: statistics.median(t) for name, t in times.items()}

    def _time(self, run: Callable[[], Any]) -> float:
        """Microseconds of a call on the device, the previous ones being finished."""
        self._torch.cuda.synchronize()
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        return 1e3 * float(begin.elapsed_time(end))


def _reason(name: str, error: Exception) -> str:
    return f"{name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def measure(
    wanted: Sequence[GraphProgram], target: str, budget: float, minutes: float, say: Callable[[str], None]
) -> Iterator[GpuProgramRow]:
    """A row per program and set of sizes; after so many minutes none is begun. A program that fails is told of."""
    device, stop = Device(), time.monotonic() + 60 * minutes
    for p in wanted:
        if time.monotonic() > stop:
            say(f"{p.name}: not measured, as {minutes} minutes are over; name it to measure it")
            continue
        try:
            executable = compiled(p, target, budget, lambda _: None)
        except MirageError as e:
            say(f"{p.name}: FAILED: {e}")
            continue
        for label, sizes in p.measured.items():
            if time.monotonic() > stop:
                say(f"{p.name} {label}: not measured, as {minutes} minutes are over; name it to measure it")
                continue
            try:
                row = device.row(p, executable, label, sizes)
            except MirageError as e:
                say(f"{p.name} {label}: FAILED: {e}")
                continue
            say(f"{p.name} {label}: {row.ours_us:.1f} us, {row.ratio:.2f} times {row.best_peer}" + " WRONG" * row.wrong)
            yield row


def program_table(rows: Sequence[GpuProgramRow]) -> Table:
    header = ["program", "sizes", "type", "ours, us", "best peer", "its us", "ratio", "error", "its error"]
    return Table(header, [_cells(r) for r in rows])


def _cells(r: GpuProgramRow) -> list[str]:
    error = f"{r.error:.0e}" + " WRONG" * r.wrong
    return [
        r.program, r.sizes, r.dtype, f"{r.ours_us:.1f}", r.best_peer, f"{r.best_peer_us:.1f}", f"{r.ratio:.2f}", error,
        f"{r.error_peer:.0e}",
    ]  # fmt: skip


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Compile, and say what was made; measure nothing.")
    ] = False,
    minutes: Annotated[float, typer.Option(help="No case is begun after that long.")] = 8.0,
    budget: Annotated[float, typer.Option(help="Seconds to superoptimize, per program.")] = BUDGET,
    target: Annotated[str, typer.Option(help="What is compiled for.")] = "cuda:sm_90",
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a section for docs/cuda.md.")] = False,
) -> None:
    wanted = measured(names or [])
    if dry_run:
        emit_lines(rehearse(wanted, target, budget), as_json)
        return
    rows = list(measure(wanted, target, budget, minutes, complain))
    if as_markdown and rows and not as_json:
        print(f"Measured on {rows[0].device}, {rows[0].date}.\n\n{program_table(rows).markdown()}")
    else:
        emit(rows, as_json, program_table)
    if not rows or any(r.wrong for r in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
