"""Models of PyTorch in bfloat16, the type in which most of them are published: times and errors beside what their users run.

`python -m benchmarks.run bfloat16`, or `python -m benchmarks.flow.bfloat16 [--only NAME] [--json] [--markdown]`. Weights,
activations and caches are of that type. Each model is compiled once for all sizes. OpenVINO takes the program that torch exports
of the same weights in float32, and computes in bfloat16 (`INFERENCE_PRECISION_HINT`). Versions take turns in a race.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from torch import nn

from benchmarks.command import command
from benchmarks.flow.exported import Model, cast, exported, first_line, first_result, in_openvino, onnx_file, ours
from benchmarks.flow.models import CASES, FEW, Case, Sizes
from benchmarks.peers.peers import complain, inference
from benchmarks.tables import Table, mean_text
from benchmarks.timing import race
from mirage.errors import InputError
from mirage.settings import num_threads

#: our versions, as they are compiled at once and after a search, and what results are compared with
OURS, SEARCHED, EAGER = "Mirage", "Mirage, searched", "PyTorch"
#: seconds of a search, and of a race; sets of sizes of each model
BUDGET, SECONDS, SIZES = 10.0, 0.5, 2


@dataclass(frozen=True)
class Bfloat16Row:
    """A model of two layers at one set of sizes: medians of calls in ms, and relative L2 errors of its first result beside
    float64 with the same weights, by version.
    """

    case: str
    batch: int
    length: int
    cached: int
    times: dict[str, float]
    errors: dict[str, float]

    @property
    def ratio(self) -> float:
        """The best peer's time over ours: above 1, ours is faster."""
        return min(t for n, t in self.times.items() if n not in (OURS, SEARCHED)) / self.times[OURS]


def measure(names: Sequence[str] = (), say: Callable[[str], None] = complain) -> Iterator[Bfloat16Row]:
    """The rows of each case, all of `CASES` if none is named; raises InputError for a name of nothing."""
    if unknown := [n for n in names if n not in CASES]:
        raise InputError(f"no case is named {', '.join(unknown)}; choose from {', '.join(CASES)}")
    torch.set_num_threads(num_threads())
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(action="ignore"), inference():
            yield from _measured(CASES[name], Path(folder), say)


def _measured(case: Case, folder: Path, say: Callable[[str], None]) -> Iterator[Bfloat16Row]:
    rng = np.random.default_rng(0)
    model = case.build(FEW).to(torch.bfloat16)
    example = cast(case.inputs(model, case.example, rng), torch.bfloat16)
    runs: dict[str, Model] = {}
    with torch.inference_mode(False), torch.no_grad():
        runs[OURS] = ours(model, example, without=("superoptimize",))
        runs[SEARCHED] = ours(model, example, budget=BUDGET)
        say(f"{case.name}: compiled")
        compiled = torch.compile(model, dynamic=True)
        runs |= {EAGER: lambda inputs: model(*inputs), "torch.compile": lambda inputs: compiled(*inputs)}
        runs |= _openvino(case, model, folder, say)
    exact = copy.deepcopy(model).exact()
    for sizes in case.sizes(SIZES):
        yield _raced(case, sizes, cast(case.inputs(model, sizes, rng), torch.bfloat16), runs, exact, say)


def _openvino(case: Case, model: nn.Module, folder: Path, say: Callable[[str], None]) -> Mapping[str, Model]:
    wide = copy.deepcopy(model).float()
    try:
        with redirect_stdout(StringIO()):
            example = cast(case.inputs(wide, case.example, np.random.default_rng(0)), torch.float32)
            run = in_openvino(onnx_file(exported(wide, example), folder), num_threads(), "bf16")
    except Exception as e:  # of packages that are no part of this project: anything
        say(f"{case.name}: OpenVINO is left out: {first_line(e)}")
        return {}
    return {"OpenVINO": run}


def _raced(
    case: Case, sizes: Sizes, inputs: Sequence[Any], runs: Mapping[str, Model], exact: nn.Module, say: Callable[[str], None]
) -> Bfloat16Row:
    wide, wanted = cast(inputs, torch.float32), first_result(exact(*cast(inputs, torch.float64)))
    given = {n: wide if n == "OpenVINO" else inputs for n in runs}
    calls, errors = {}, {}
    for name, run in runs.items():
        try:
            run(given[name])
            errors[name] = float(np.linalg.norm(first_result(run(given[name])) - wanted) / np.linalg.norm(wanted))
            calls[name] = partial(run, given[name])
        except Exception as e:  # the same
            say(f"{case.name} {sizes}: {name} is left out: {first_line(e)}")
    times = {n: t.median_us / 1e3 for n, t in race(calls, seconds=SECONDS).items()}
    say(f"{case.name} {sizes}: " + ", ".join(f"{n} {t:.2f}" for n, t in times.items()))
    return Bfloat16Row(case.name, *sizes, times, errors)


def bfloat16_table(rows: Sequence[Bfloat16Row]) -> Table:
    """A line per row: medians in milliseconds, the best peer's over ours, errors; and the geometric mean."""
    names = list(dict.fromkeys(n for r in rows for n in r.times))
    lines = []
    for r in rows:
        cells = [f"{r.times[n]:.2f}" if n in r.times else "" for n in names]
        errors = [f"{r.errors[n]:.2%}" for n in (OURS, EAGER)]
        lines.append([r.case, str(r.batch), str(r.length or ""), str(r.cached or ""), *cells, f"{r.ratio:.2f}", *errors])
    lines.append(["geometric mean", "", "", "", *[""] * len(names), mean_text([r.ratio for r in rows]), "", ""])
    return Table(["median, ms", "batch", "tokens", "cached", *names, "ratio", "error", "PyTorch's"], lines)


def section(rows: Sequence[Bfloat16Row]) -> str:
    """The part of the page of benchmarks."""
    return bfloat16_table(rows).markdown()


main = command(
    "Models of PyTorch in bfloat16, at random sizes, beside PyTorch, torch.compile and OpenVINO in that type.",
    "A case, such as 'gpt2 decode'", measure, section, bfloat16_table,
)  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
