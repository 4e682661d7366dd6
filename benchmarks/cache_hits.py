"""How long a recalled result takes in a new process, imports aside: `python -m benchmarks.cache_hits [--runs 9]`.

A first process finds the results. The next one recalls them and tells which modules were imported by then. Each of those that
are measured imports all of these, recalls one, and calls it for the first time.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson

NAMES = ("rmsnorm_linear", "gqa_decode", "gated_mlp")
#: sets of sizes of the program that is recalled with as many: up to as many versions
MANY = "rmsnorm_linear"
SIZES = tuple({"b": b, "n": n} for b in (1, 4, 16, 64) for n in (1024, 4096))
#: programs, and whether at many sets of sizes
CASES = (*((name, False) for name in NAMES), (MANY, True))
#: seconds of the search, per set of sizes
BUDGET = 5.0
#: how often it is gone on with where there is no kernel yet
TRIES = 5


@dataclass(frozen=True)
class HitRow:
    """Milliseconds in processes of their own: of the imports, of a recalled `superoptimize` (of these, on a processor), of the
    first call of the result, which was found at so many sets of sizes and has so many versions.
    """

    program: str
    sizes: int
    versions: int
    imports_ms: float
    recall_ms: float
    recall_min_ms: float
    recall_cpu_ms: float
    first_call_ms: float


def child(name: str, many: bool, modules: Path, measured: bool) -> None:
    """Recall a result, and print the milliseconds of the parts; or write which modules this needs."""
    start = time.perf_counter()
    if measured:
        for module in json.loads(modules.read_text()):
            # some are made at run time, or are gone when they were used
            with suppress(ImportError):
                importlib.import_module(module)
    from benchmarks.programs import PROGRAMS
    from mirage.api import superoptimize
    from mirage.search.inputs import random_inputs

    program = PROGRAMS[name]
    sizes = SIZES if many else (next(iter(program.sizes.values())),)
    budget = BUDGET * len(sizes)
    inputs = random_inputs(program.trace(), sizes[0], 0)
    begun, cpu = time.perf_counter(), time.process_time()
    result = superoptimize(program, sizes=sizes, budget=budget)
    recalled, cpu = time.perf_counter(), time.process_time() - cpu
    result(*inputs)
    called = time.perf_counter()
    if measured:
        assert result.recalled, result.tune_stop
    else:
        # a result without a kernel is not recalled: on a busy machine there may be none yet
        for _ in range(TRIES):
            if superoptimize(program, sizes=sizes, budget=budget).recalled:
                break
            superoptimize(program, sizes=sizes, budget=budget, more=True)
        modules.write_text(json.dumps([m for m in sys.modules if m != "__main__"]))
    times = [1e3 * s for s in (begun - start, recalled - begun, cpu, called - recalled)]
    print(json.dumps([*times, len(sizes), len(result.versions)]))


def measure(runs: int, cases: Sequence[tuple[str, bool]] = CASES) -> Iterator[HitRow]:
    """A row per case."""
    with tempfile.TemporaryDirectory(prefix="mirage-hits-") as folder:
        # bytecode is kept, as it is for users
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment = {**kept, "MIRAGE_CACHE_DIR": folder, "MIRAGE_CACHE_URL": ""}

        def run(name: str, *more: str) -> list[float]:
            command = [sys.executable, "-m", "benchmarks.cache_hits", "--child", name, "--modules", f"{folder}/modules", *more]
            found = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE, text=True).stdout
            return [float(ms) for ms in json.loads(found)]

        for name, many in cases:
            own = ["--many"] * many
            for _ in range(2):
                run(name, *own)
            found = (run(name, *own, "--measured") for _ in range(runs))
            imports, recalls, cpu, calls, sizes, versions = zip(*found, strict=True)
            middle = statistics.median
            times = middle(imports), middle(recalls), min(recalls), middle(cpu), middle(calls)
            yield HitRow(name, int(sizes[0]), int(versions[0]), *times)


def hit_table(rows: Sequence[HitRow]) -> Table:
    """Milliseconds per program."""
    cells = [
        [
            r.program, str(r.sizes), str(r.versions), f"{r.imports_ms:,.0f}", f"{r.recall_ms:.1f}", f"{r.recall_min_ms:.1f}",
            f"{r.recall_cpu_ms:.1f}", f"{r.first_call_ms:.1f}",
        ]
        for r in rows
    ]
    times = ["imports, ms", "recalled in, ms", "least, ms", "of a processor, ms", "first call, ms"]
    return Table(["program", "sets of sizes", "versions", *times], cells)


def main(
    runs: Annotated[int, typer.Option(min=1, help="Processes per program.")] = 9,
    child_of: Annotated[str, typer.Option("--child", hidden=True)] = "",
    modules: Annotated[Path, typer.Option(hidden=True)] = Path("modules"),
    many: Annotated[bool, typer.Option("--many", hidden=True)] = False,
    measured: Annotated[bool, typer.Option("--measured", hidden=True)] = False,
    as_json: AsJson = False,
) -> None:
    """Milliseconds of a recalled result in a new process."""
    if child_of:
        child(child_of, many, modules, measured)
        return
    emit(list(measure(runs)), as_json, hit_table)


if __name__ == "__main__":
    typer.run(main)
