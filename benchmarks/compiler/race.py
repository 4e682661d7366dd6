"""Whole programs of the graph compiler: what each optimization brings, against peers; memory; what a call costs.

`python -m benchmarks.compiler [NAME ...] [--json] [--budget S] [--cut S]`. Every program of `benchmarks/graphs/programs.py`
is compiled once per version (`VERSIONS`), for all sizes, checked against its float64 yardstick at every set of measured sizes,
and raced there with its other versions and its peers (the Relax paper's Fig. 17 as the model).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import typer

import mirage as mi
from benchmarks.compiler.calls import array_bytes, calls_of
from benchmarks.compiler.dispatch import DispatchRow, dispatch_table
from benchmarks.compiler.dispatch import measure as measure_dispatch
from benchmarks.compiler.memory import MemoryRow, memory_table
from benchmarks.compiler.memory import measure as measure_memory
from benchmarks.fairness import Inputs, Referee, aligned, impossible
from benchmarks.graphs.programs import MEASURED, GraphProgram, Sizes
from benchmarks.kernels.race import better
from benchmarks.peers.peers import PEERS, complain, inference, installed
from benchmarks.tables import Table, as_rows, mean_text
from benchmarks.timing import Run, race
from mirage.cache import ResultStore
from mirage.cli_shared import AsJson, print_json
from mirage.errors import InputError, VerificationError
from mirage.kernels.cpu.model.limits import Limits, limit_us, measure_limits
from mirage.kernels.cpu.processor import processor
from mirage.kernels.profile import Timing
from mirage.runtime.executable import Executable
from mirage.settings import num_threads

#: seconds to superoptimize the subprograms of a program, and to race the versions of a row
BUDGET, CUT = 60.0, 3.0
#: versions of a program, and the optimizations that each leaves out
VERSIONS: Mapping[str, tuple[str, ...]] = {
    "library only": ("superoptimize", "fuse"),
    "fused, no merge": ("superoptimize", "merge"),
    "fused, no plan": ("superoptimize", "plan"),
    "fused only": ("superoptimize",),
    "full": (),
}
#: the version that users get
_FULL = "full"
#: layers of models, which have peers
MODELS = (
    "llama_prefill", "llama_decode", "bert_encoder", "gpt2_decode", "t5_encoder", "whisper_decode", "gemma_decode",
    "mixtral_moe", "mixtral_routed",
)  # fmt: skip
#: those of which every version reads all arguments, so that these bytes are a limit
_WHOLE = MODELS[:6]
#: largest error of float32 results, sums of some thousand terms, by the largest element
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class CompilerRow:
    """A version of a program, or a peer, at one set of sizes; times are those of a call, in microseconds.

    `kernels`, `libraries` and `operators` (of NumPy, and packed functions) are calls per call of the program, `megabytes` (10^6)
    the inputs and outputs of all of them; 0 for a peer. `error` is the largest one against float64, by the largest element.
    `limit_us` is the least time that the machine allows for arguments, results and the program's matmuls; 0 where these
    are no limit. `compile_s` are the seconds to compile the program for all sizes, of "full" with its searches. `speedup` is that
    of the median over "library only".
    """

    program: str
    sizes: str
    version: str
    peer: bool
    kernels: int
    libraries: int
    operators: int
    megabytes: float
    min_us: float
    median_us: float
    speedup: float
    limit_us: float
    compile_s: float
    error: float


@dataclass(frozen=True)
class Results:
    """What is measured of the graph compiler."""

    programs: list[CompilerRow]
    memory: list[MemoryRow]
    dispatch: list[DispatchRow]

    def beside(self, programs: Sequence[CompilerRow], memory: Sequence[MemoryRow]) -> Results:
        """The same with earlier rows of the programs that were not measured this time."""
        new = {r.program for r in self.programs}
        kept = [r for r in programs if r.program not in new]
        order = list(MEASURED)
        return Results(
            sorted([*kept, *self.programs], key=lambda r: order.index(r.program)),
            [*(r for r in memory if r.program not in new), *self.memory],
            self.dispatch,
        )


@dataclass(frozen=True)
class _Race:
    """What the rows of one set of sizes are made of, but for the machine's limits, which are known at the end."""

    program: str
    sizes: str
    #: compulsory bytes and operations, where they are a limit
    cost: tuple[int, int] | None
    times: Mapping[str, Timing]
    errors: Mapping[str, float]
    #: kernels, library functions, NumPy operators, and bytes
    counts: Mapping[str, tuple[int, int, int, int]]


def measure(
    names: Sequence[str], budget: float = BUDGET, cut: float = CUT, say: Callable[[str], None] = complain
) -> Results:
    """Rows of these programs (all if empty). `budget` and `cut` are in seconds, as of `BUDGET` and `CUT`.

    Raises InputError for the name of no program, and VerificationError where a version computes something else.
    """
    unknown = [n for n in names if n not in MEASURED]
    if unknown:
        raise InputError(f"no measured program is named {', '.join(unknown)}; choose from {', '.join(MEASURED)}")
    for peer in PEERS:
        if peer not in installed():
            say(f"{peer} is not installed and left out; install it with pip install -e '.[test,bench]'")
    limits = measure_limits(force=True)
    races: list[_Race] = []
    seconds: dict[tuple[str, str], float] = {}
    with tempfile.TemporaryDirectory() as folder:
        # nothing is found that an earlier run has stored
        store = ResultStore(f"sqlite:///{folder}/results.sqlite")
        for name in names or MEASURED:
            program, versions = MEASURED[name], {}
            for version, without in VERSIONS.items():
                start = time.perf_counter()
                versions[version] = compiled(program, without, budget, store)
                seconds[name, version] = time.perf_counter() - start
                say(f"{name}, {version}: compiled in {seconds[name, version]:.1f} s")
            for label, sizes in program.measured.items():
                races.append(_raced(program, label, sizes, versions, cut, say))
                # the memory of a machine with neighbours has another speed every minute
                limits = better(limits, measure_limits(force=True))
        memory = list(measure_memory(names or MEASURED, budget, store, say))
    rows = [row for r in races for row in _rows(r, limits, seconds)]
    return Results(rows, memory, list(measure_dispatch(say)))


def compiled(program: GraphProgram, without: Sequence[str], budget: float, store: ResultStore) -> Executable:
    """A program compiled for all sizes within its bounds, tuned at the measured ones."""
    return mi.compile(
        program.trace(),
        bounds=program.bounds,
        sizes=list(program.measured.values()),
        constants=program.constants,
        budget=budget,
        without=without,
        cache=store,
    )


def _raced(
    program: GraphProgram,
    label: str,
    sizes: Sizes,
    versions: Mapping[str, Executable],
    cut: float,
    say: Callable[[str], None],
) -> _Race:
    """All versions of a program and its peers at one set of sizes: checked, counted, and timed in one race."""
    made = program.arguments(sizes, np.random.default_rng(0))
    arguments = [aligned(a) if isinstance(a, np.ndarray) else a for a in made]
    expected = program.expected(arguments)
    # what a call writes in place is written again by the next one, at the same places
    found = {name: _outputs(e(*_copies(arguments, program))) for name, e in versions.items()}
    calls = {name: calls_of(e, _copies(arguments, program)) for name, e in versions.items()}
    runs: dict[str, Run] = {name: _run(e, _copies(arguments, program)) for name, e in versions.items()}
    with inference():
        peers = _peers(program, arguments, [e.shape for e in expected], say)
        found |= {name: _outputs(run()) for name, run in peers.items()}
        errors = {name: error(values, expected) for name, values in found.items()}
        for name, e in errors.items():
            if not e < _TOLERANCE:
                wrong = f"{program.name}, {label}: {name} differs from float64 by {e:.1e} of the largest element"
                if name in versions:
                    raise VerificationError(wrong)
                say(f"{wrong}, and is left out")
                del peers[name]
        referee = _referee(program, arguments, versions)
        if referee:
            referee.examine_all(runs | peers)
        refused = referee.refused if referee else {}
        raced = {name: run for name, run in (runs | peers).items() if name in versions or name not in refused}
        times = race(raced, seconds=cut, referee=referee)
    for name, reason in refused.items():
        if name in versions:
            raise VerificationError(f"{program.name}, {label}: {name}: {reason}")
        say(f"{program.name}, {label}: {name} is not raced: {reason}")
    times = {name: t for name, t in times.items() if name not in refused}
    counts = {
        name: (
            sum(c.launches for c in of if c.kind == "kernel"),
            sum(c.launches for c in of if c.kind == "library"),
            sum(c.launches for c in of if c.kind in ("operator", "packed")),
            sum(c.bytes for c in of),
        )
        for name, of in calls.items()
    }
    # the program as it is written, without what fusion and the search make of it
    flops = sum(c.flops for c in calls[next(iter(VERSIONS))])
    cost = (array_bytes([*arguments, *found[_FULL]]), flops) if program.name in _WHOLE else None
    say(f"{program.name} {label}: " + ", ".join(f"{name} {t.median_us:,.0f} us" for name, t in times.items()))
    return _Race(program.name, label, cost, times, errors, counts)


def _referee(program: GraphProgram, arguments: Sequence[Any], versions: Mapping[str, Executable]) -> Referee | None:
    """A referee that changes the normal random arguments other than weights; None where calls change their arguments."""
    if program.written:
        return None
    fixed = {*program.constants, *program.makers}
    given = {n: a for n, a in zip(program.specs, arguments, strict=True) if isinstance(a, np.ndarray)}
    inputs = Inputs(list(given.values()), [n not in fixed and a.dtype.kind == "f" for n, a in given.items()], seed=0)
    plain = versions[next(iter(VERSIONS))]
    return Referee(inputs, lambda: (program.expected(list(arguments)), _outputs(plain(*arguments))))


def _copies(arguments: Sequence[Any], program: GraphProgram) -> list[Any]:
    """The arguments, with copies of those that a call writes to."""
    return [a.copy() if name in program.written else a for name, a in zip(program.specs, arguments, strict=True)]


def _run(executable: Executable, arguments: Sequence[Any]) -> Run:
    return lambda: executable(*arguments)


def _outputs(value: Any) -> list[np.ndarray]:
    return [np.asarray(v) for v in (value if isinstance(value, tuple | list) else (value,))]


def error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference to float64, by the largest element of all results; infinite where shapes or counts differ."""
    if [f.shape for f in found] != [e.shape for e in expected]:
        return float("inf")
    differences = [float(np.max(np.abs(f - e))) for f, e in zip(found, expected, strict=True) if e.size]
    largest = max((float(np.max(np.abs(e))) for e in expected if e.size), default=1.0)
    return max(differences, default=0.0) / max(largest, 1e-30)


def _peers(
    program: GraphProgram, arguments: Sequence[Any], shapes: Sequence[tuple[int, ...]], say: Callable[[str], None]
) -> dict[str, Run]:
    """What users run instead of a model's layer, of what is installed; nothing for other programs."""
    found: dict[str, Run] = {}
    if program.name not in MODELS:
        return found
    threads = num_threads()
    if find_spec("torch"):
        from benchmarks.peers.layers_in_torch import compiled_layers, torch_layers

        forms = torch_layers(program, arguments, threads)
        found |= {f"PyTorch {label}".strip(): form for label, form in forms.items()}
        for label, run in compiled_layers(program, forms, say).items():
            found[f"torch.compile {label}".strip()] = run
        if find_spec("openvino"):
            from benchmarks.peers.layers_in_openvino import openvino_layers

            found |= {f"OpenVINO {k}".strip(): run for k, run in openvino_layers(program, forms, threads, say).items()}
    if "JAX" in installed():
        from benchmarks.peers.layers_in_jax import jax_layers

        found |= {f"JAX {label}".strip(): run for label, run in jax_layers(program, arguments, threads).items()}
    if "ONNX Runtime" in installed():
        from benchmarks.peers.layers_in_onnx import onnx_layers

        found |= {f"ONNX Runtime {k}": run for k, run in onnx_layers(program, arguments, shapes, threads).items()}
    return found


def _rows(r: _Race, limits: Limits, seconds: Mapping[tuple[str, str], float]) -> Iterator[CompilerRow]:
    limit = limit_us(*r.cost, limits, processor()) if r.cost else 0.0
    base = r.times[next(iter(VERSIONS))].median_us
    for name, t in r.times.items():
        kernels, libraries, operators, moved = r.counts.get(name, (0, 0, 0, 0))
        yield CompilerRow(
            r.program, r.sizes, name, name not in VERSIONS, kernels, libraries, operators, moved / 1e6, t.min_us, t.median_us,
            base / t.median_us, limit, seconds.get((r.program, name), 0.0), r.errors[name],
        )  # fmt: skip


def compiler_table(rows: Sequence[CompilerRow]) -> Table:
    header = [
        "program", "sizes", "version", "kernels", "library calls", "NumPy operators", "MB moved", "min, us", "median, us",
        "speed-up", "limit", "compile, s",
    ]  # fmt: skip
    return Table(header, [_cells(r) for r in rows])


def _cells(r: CompilerRow) -> list[str]:
    counts = [""] * 4 if r.peer else [str(r.kernels), str(r.libraries), str(r.operators), f"{r.megabytes:,.3g}"]
    limit = f"{r.limit_us / r.min_us:.0%}" if r.limit_us else ""
    times = [f"{t:,.0f}" if t >= 100 else f"{t:.1f}" for t in (r.min_us, r.median_us)]
    return [
        r.program, r.sizes, r.version, *counts, *times, f"{r.speedup:.2f}", limit, "" if r.peer else f"{r.compile_s:.1f}",
    ]  # fmt: skip


def summary(results: Results) -> str:
    """What fusion and superoptimization bring, the comparison with the best peers, and what the plan saves."""
    medians: dict[tuple[str, str], dict[str, CompilerRow]] = {}
    for r in results.programs:
        medians.setdefault((r.program, r.sizes), {})[r.version] = r
    groups = list(medians.values())

    fused = mean_text([g["library only"].median_us / g["fused only"].median_us for g in groups])
    full = mean_text([g["fused only"].median_us / g[_FULL].median_us for g in groups])
    lines = [
        f"Geometric means over {len(groups)} rows of sizes: fusion is {fused} times as fast as library calls, superoptimization "
        f"{full} times as fast as fusion alone."
    ]
    peers = [
        min(r.median_us for r in g.values() if r.peer) / g[_FULL].median_us
        for g in groups
        if any(r.peer for r in g.values())
    ]
    if peers:
        lines.append(f"The best peer of a model's layer takes {mean_text(peers)} times as long as ours ({len(peers)} rows).")
    if results.memory:
        saved = ", ".join(f"{r.program} ({r.version}) {r.saved:.0%}" for r in results.memory)
        lines.append(f"Static plans save of the caching pool: {saved}.")
    return " ".join(lines)


def check(rows: Sequence[CompilerRow]) -> None:
    """Raises VerificationError where a row took less than its limit."""
    impossible({f"{r.program} {r.sizes} {r.version}": r.limit_us / r.min_us for r in rows})


def sections(results: Results) -> dict[str, str]:
    """The parts of the page of benchmarks, by the names of their markers, as Markdown."""
    return {
        "compiler": f"{compiler_table(results.programs).markdown()}\n\n{summary(results)}",
        "activation memory": memory_table(results.memory).markdown(),
        "dispatch": dispatch_table(results.dispatch).markdown(),
    }


def as_data(results: Results) -> dict[str, list[dict[str, Any]]]:
    """The rows as JSON objects, by the names of their markers."""
    return {
        "compiler": as_rows(results.programs),
        "activation memory": as_rows(results.memory),
        "dispatch": as_rows(results.dispatch),
    }


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    as_json: AsJson = False,
    budget: Annotated[float, typer.Option(help="Seconds to superoptimize a program.")] = BUDGET,
    cut: Annotated[float, typer.Option(help="Seconds to race the versions at one set of sizes.")] = CUT,
) -> None:
    results = measure(names or [], budget, cut)
    if as_json:
        print_json(as_data(results))
    else:
        compiler_table(results.programs).show()
        if results.memory:
            memory_table(results.memory).show()
        dispatch_table(results.dispatch).show()
        print(summary(results))
    check(results.programs)
