"""Models of PyTorch, compiled once for all sizes, against what their users run instead, at random sizes.

`python -m benchmarks.flow [--quick] [--only NAME] [--keep FILE] [--json] [--markdown] [--overhead]`. Every model of `models.py`
is exported once; our compiler, ONNX Runtime and OpenVINO take that program, `torch.compile` the model. All are checked and
timed by the referee and the races of the other benchmarks, with the same threads.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import nn
from torch._inductor import config as inductor
from torch.utils import _pytree as pytree

from benchmarks.fairness import Inputs, Referee
from benchmarks.flow.exported import Model, Ours, cast, exported, first_line, in_runtimes, onnx_file, ours
from benchmarks.flow.models import CASES, FEW, Case, Sizes
from benchmarks.flow.overhead import measure as measure_overhead
from benchmarks.flow.overhead import overhead_table
from benchmarks.peers.peers import complain, inference
from benchmarks.tables import Table, as_rows, emit, mean_text
from benchmarks.timing import race
from mirage.cli_shared import AsJson, print_json
from mirage.errors import InputError, VerificationError
from mirage.folders import save_file
from mirage.settings import num_threads

#: sizes of a case, and seconds of a race at each: in all, and where time is short
FULL, QUICK = (20, 1.0), (2, 0.5)
#: our versions, as they are compiled at once and after a search of so many seconds, and the peer that is what users start from
OURS, SEARCHED, EAGER = "Mirage", "Mirage, searched", "PyTorch"
BUDGET = 30.0
#: entries of a profile
_PROFILED = 12


@dataclass(frozen=True)
class FlowRow:
    """A model at one set of sizes. Times are medians of calls, in milliseconds, of `peers` by name.

    `length` are tokens of each of `batch` sequences (0 for images), `cached` those that its cache holds. `ratio` is the best
    peer's time over ours: above 1, ours is faster. Ours is what runs at once, `searched` what the search in the background makes
    of it. `compile_s` are the seconds of the first call of all, which exports and compiles for all sizes and compares with the
    model, `first_ms` is our first call at these sizes. `kernels` and `libraries` are calls of generated kernels and of library
    functions in a call, `activation_mb` (10^6 bytes) the memory that it takes for intermediate tensors. `refused` are peers whose
    results are not right, and why. Where a peer is faster, `profile` has our milliseconds by kernel and function.
    """

    model: str
    mode: str
    layers: int
    batch: int
    length: int
    cached: int
    peers: dict[str, float]
    best: str
    ours: float
    searched: float
    ratio: float
    compile_s: float
    first_ms: float
    kernels: int
    libraries: int
    activation_mb: float
    refused: dict[str, str] = field(default_factory=dict)
    profile: dict[str, float] = field(default_factory=dict)


def measure(
    names: Sequence[str] = (), quick: bool = False, say: Callable[[str], None] = complain
) -> Iterator[list[FlowRow]]:
    """The rows of each case, when they are measured; `names` are of models or cases, all if there are none.

    `quick` is for few sizes of models with few layers, without what takes minutes to compile. Raises InputError for a name of
    nothing, VerificationError where our results are not right.
    """
    known = {word for c in CASES.values() for word in (c.name, c.model)}
    if unknown := [n for n in names if n not in known]:
        raise InputError(f"no model is named {', '.join(unknown)}; choose from {', '.join(sorted(known))}")
    torch.set_num_threads(num_threads())
    for case in CASES.values():
        if not names or case.name in names or case.model in names:
            yield list(_measured(case, quick, say))
            gc.collect()


def _measured(case: Case, quick: bool, say: Callable[[str], None]) -> Iterator[FlowRow]:
    count, seconds = QUICK if quick else FULL
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"), inference():
        model = case.build(FEW if quick else None)
        example = case.inputs(model, case.example, rng)
        with torch.inference_mode(False), torch.no_grad():
            mine = ours(model, example, without=("superoptimize",))
            searched = ours(model, example, budget=BUDGET)
            say(f"{case.name}: compiled in {mine.seconds:.1f} s; ATen's own: {mine.fallbacks or 'none'}")
            peers = _peers(model, exported(model, example), Path(folder), say)
        exact = case.build(FEW if quick else None).exact()
        for k, sizes in enumerate(case.sizes(count)):
            inputs = case.inputs(model, sizes, rng)
            # what is compiled for one set of sizes takes minutes: once per case, and not for a cache, whose
            # size changes with every token
            static = {} if quick or k or case.mode == "decode" else _static(model, inputs, case.name, say)
            yield _raced(case, sizes, inputs, mine, {SEARCHED: searched} | peers | static, (model, exact), seconds, say)


def _peers(model: nn.Module, program: Any, folder: Path, say: Callable[[str], None]) -> dict[str, Model]:
    """What users run instead, for all sizes; `say` is told of what cannot be made."""
    found: dict[str, Model] = {EAGER: lambda inputs: model(*inputs)}
    dynamic = torch.compile(model, dynamic=True)
    found["torch.compile"] = lambda inputs: dynamic(*inputs)
    try:
        with redirect_stdout(StringIO()):
            path = onnx_file(program, folder)
    except Exception as e:  # of an exporter that is no part of this project: anything
        say(f"no ONNX file: {first_line(e)}")
        return found
    return found | in_runtimes(path, num_threads(), say)


def _static(model: nn.Module, inputs: Sequence[Any], name: str, say: Callable[[str], None]) -> dict[str, Model]:
    """The model compiled for these sizes alone, with its weights as constants and all that `max-autotune` tries."""
    torch.compiler.reset()
    run = torch.compile(model, dynamic=False, mode="max-autotune")
    start = time.perf_counter()
    try:
        with inductor.patch({"freezing": True, "fx_graph_cache": False, "autotune_num_choices_displayed": 0}):
            run(*inputs)
    except Exception as e:
        say(f"{name}: torch.compile for sizes alone is left out: {first_line(e)}")
        return {}
    say(f"{name}: torch.compile for sizes alone took {time.perf_counter() - start:.0f} s")
    return {"torch.compile max-autotune": lambda given: run(*given)}


def _raced(
    case: Case,
    sizes: Sizes,
    inputs: Sequence[Any],
    mine: Ours,
    others: Mapping[str, Model],
    models: tuple[nn.Module, nn.Module],
    seconds: float,
    say: Callable[[str], None],
) -> FlowRow:
    start = time.perf_counter()
    mine(inputs)
    first = time.perf_counter() - start
    runs: dict[str, Callable[[], object]] = {OURS: lambda: mine(inputs)}
    for name, run in others.items():
        try:
            run(inputs)
        except Exception as e:
            say(f"{case.name} {sizes}: {name} is left out: {first_line(e)}")
            continue
        runs[name] = lambda run=run: run(inputs)  # type: ignore[misc]
    arrays = [t.numpy() for t in pytree.tree_leaves(inputs)]
    # every value of floats is allowed, those of token numbers and masks are not
    given = Inputs(arrays, [a.dtype.kind == "f" for a in arrays], seed=0)
    referee = Referee(given, lambda: _yardstick(models, inputs))
    referee.examine_all(runs)
    if reason := referee.refused.get(OURS) or referee.refused.get(SEARCHED):
        raise VerificationError(f"{case.name} {sizes}: {reason}")
    times = race({n: r for n, r in runs.items() if n not in referee.refused}, seconds=seconds, referee=referee)
    if reason := referee.refused.get(OURS) or referee.refused.get(SEARCHED):
        raise VerificationError(f"{case.name} {sizes}: {reason}")
    medians = {n: t.median_us / 1e3 for n, t in times.items() if n not in referee.refused}
    own, searched = medians.pop(OURS), medians.pop(SEARCHED)
    best = min(medians, key=lambda n: medians[n])
    ratio = medians[best] / own
    say(f"{case.name} {sizes}: {own:.2f} ms, searched {searched:.2f}, " + ", ".join(f"{n} {t:.2f}" for n, t in medians.items()))
    profile = dict(list(mine.profile(inputs).items())[:_PROFILED]) if ratio < 1 else {}
    kernels, libraries = mine.counts
    layers = getattr(models[0].config, "num_hidden_layers", 0)
    return FlowRow(
        case.model, case.mode, layers, *sizes, medians, best, own, searched, ratio, mine.seconds, 1e3 * first, kernels, libraries,
        mine.activation_bytes(inputs) / 1e6, dict(referee.refused), profile,
    )  # fmt: skip


def _yardstick(models: tuple[nn.Module, nn.Module], inputs: Sequence[Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The results in float64, and those of the model in float32."""
    model, exact = models
    wide = cast(inputs, torch.float64)
    return [t.numpy() for t in exact(*wide)], [t.numpy() for t in model(*inputs)]


def flow_table(rows: Sequence[FlowRow]) -> Table:
    """A line per row, the best peer's time among those of all."""
    header = [
        "model", "mode", "batch", "tokens", "cached", *(names := _names(rows)), "ours, ms", "searched, ms", "ratio",
        "compile, s", "first call, ms", "kernels", "library calls", "activations, MB",
    ]  # fmt: skip
    lines = []
    for r in rows:
        peers = [f"{r.peers[n]:.2f}" if n in r.peers else "" for n in names]
        lines.append([
            r.model, r.mode, str(r.batch), str(r.length or ""), str(r.cached or ""), *peers, f"{r.ours:.2f}",
            f"{r.searched:.2f}", f"{r.ratio:.2f}", f"{r.compile_s:.1f}", f"{r.first_ms:.0f}", str(r.kernels), str(r.libraries),
            f"{r.activation_mb:.1f}",
        ])  # fmt: skip
    return Table(header, lines)


def _names(rows: Sequence[FlowRow]) -> list[str]:
    return list(dict.fromkeys(n for r in rows for n in r.peers))


def mean_table(rows: Sequence[FlowRow]) -> Table:
    """Geometric means over the sizes of each case, of each mode, and of all, against every peer and the best one; of each case
    what it takes to compile, the longest first call at a size, kernels, and the most memory for intermediate tensors.
    """
    groups: dict[str, list[FlowRow]] = {}
    for r in rows:
        groups.setdefault(f"{r.model} {r.mode}", []).append(r)
    cases = len(groups)
    for r in rows:
        groups.setdefault(f"all {r.mode}", []).append(r)
    groups["batch 1, and decoding"] = [r for r in rows if r.batch == 1 or r.mode == "decode"]
    groups["all"] = list(rows)
    names = _names(rows)
    lines = []
    for i, (label, of) in enumerate(groups.items()):
        against = [[r.peers[n] / r.ours for r in of if n in r.peers] for n in names]
        both = mean_text([r.ratio for r in of]), mean_text([r.ratio * r.ours / r.searched for r in of])
        least = f"{min(r.ratio for r in of):.2f}"
        facts = [
            f"{of[0].compile_s:.1f}", f"{max(r.first_ms for r in of):.0f}", str(of[0].kernels), str(of[0].libraries),
            f"{max(r.activation_mb for r in of):.1f}",
        ] if i < cases else [""] * 5  # fmt: skip
        lines.append([label, str(len(of)), *(mean_text(a) for a in against), *both, least, *facts])
    header = [
        "peer's time over ours", "sizes", *names, "best peer", "best peer, over searched", "its least", "compile, s",
        "first call, ms", "kernels", "library calls", "activations, MB",
    ]  # fmt: skip
    return Table(header, lines)


def section(rows: Sequence[FlowRow]) -> str:
    """The part of the page of benchmarks; the rows are beside it, in JSON."""
    return mean_table(rows).markdown()


def main(
    only: Annotated[
        list[str] | None, typer.Option(help="A model, or a model and its mode ('gpt2 decode'); all if none is named.")
    ] = None,
    quick: Annotated[bool, typer.Option(help="Two sizes per model of 2 layers: sized for half an hour on two cores.")] = False,
    keep: Annotated[
        Path | None, typer.Option(help="JSON file of the rows: what it has is not measured again, what is measured is added.")
    ] = None,
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option(help="Print Markdown tables.")] = False,
    overhead: Annotated[bool, typer.Option(help="Measure calls of small graphs and imports instead.")] = False,
) -> None:
    """Race models of PyTorch that are compiled once, at random sizes, against eager PyTorch, torch.compile, ONNX Runtime and
    OpenVINO.

    All of it takes an hour and a half on two quiet cores. It can be interrupted and resumed: with --keep FILE every model's rows
    are written when they are measured, and left out of the next run with that file; --only NAME measures one model.
    """
    if overhead:
        found = measure_overhead(complain)
        emit(found, as_json, overhead_table)
        return
    kept = json.loads(keep.read_text(encoding="utf-8")) if keep and keep.exists() else []
    rows = [FlowRow(**r) for r in kept]
    done = {f"{r.model} {r.mode}" for r in rows}
    wanted = [c.name for c in CASES.values() if not only or c.name in only or c.model in only]
    if only and not wanted:
        wanted = list(only)
    for group in measure([n for n in wanted if n not in done], quick) if set(wanted) - done else ():
        rows += group
        if keep:
            save_file(keep, json.dumps(as_rows(rows), indent=1) + "\n")
    if as_json:
        print_json(as_rows(rows))
    elif markdown:
        print(section(rows))
    else:
        flow_table(rows).show()
        mean_table(rows).show()
