"""What a machine without a GPU can check of every measured program's CUDA kernels: `python -m benchmarks.gpu.static [NAME ...]`.

Each program is superoptimized for each architecture in each element type, at the sizes that it is measured at and at some of
many rows. Of every version that the result runs, each kernel's registers, spills, shared memory and tensor core instruction are
read from what was compiled, and its results are compared with float64 in Triton's interpreter at three small, uneven sizes.
Rows are written as they are found: a run that is killed, or out of time, is continued by the same command.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Annotated

import typer

import mirage as mi
from benchmarks.gpu.interpret.interpreter import Interpreter
from benchmarks.gpu.ptx import matrix_instruction
from benchmarks.peers.peers import complain
from benchmarks.programs import PROGRAMS, kernel_sizes, retyped
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.errors import FormatError, InputError, MirageError
from mirage.ir.interpret import Runner
from mirage.ir.operator import PRODUCTS
from mirage.kernels.cuda.device import cuda_device
from mirage.mugraph.graph import MuGraph, Node
from mirage.results.cuda.result import CudaSuperoptimized
from mirage.search.accuracy import Trial
from mirage.search.decision import Version
from mirage.search.inputs import random_inputs

TARGETS = ("cuda:sm_80", "cuda:sm_90")
DTYPES = ("float16", "bfloat16", "float32")
#: seconds to superoptimize a program, for each of its sets of sizes
BUDGET = 10.0
#: rows of the sets of sizes beside those that are measured, for programs with products
ROWS = (64, 256)
#: rows and columns from which a product of a kernel is one of matrices, of which tensor cores compute tiles
MATRIX = 16
#: rows from which it takes the instruction of a warpgroup on the architectures that have one
WGMMA_ROWS = 64
#: sizes of dims at which results are compared with float64: one of each, and primes, which no tile divides
ONES = dict.fromkeys(("b", "e", "f", "h", "m", "n", "s", "t"), 1)
PRIMES = {"b": 2, "e": 2, "f": 19, "h": 1, "m": 3, "n": 37, "s": 3, "t": 37}
TAILS = {"b": 3, "e": 1, "f": 17, "h": 2, "m": 5, "n": 61, "s": 5, "t": 67}
COMPARED = (ONES, PRIMES, TAILS)


@dataclass(frozen=True)
class KernelFigures:
    """A kernel of a version as compiled, and its largest product at the sizes that the version runs at.

    `instruction` is the family of its tensor core instructions, empty where it has none; `rows` and `columns` are the longer and
    the shorter side of the product with the longest shorter side, whatever the tiles; 0 for a kernel without products, and of a
    version that runs at none of the given sizes.
    """

    version: int
    kernel: str
    sizes: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    instruction: str
    rows: int
    columns: int

    @property
    def matmul(self) -> bool:
        """Whether it computes a product of matrices with the rows that a warpgroup's instruction has."""
        return self.columns >= MATRIX and self.rows >= WGMMA_ROWS


@dataclass(frozen=True)
class StaticRow:
    """A program in an element type on an architecture.

    `kernels` are those of the `versions` that run at the given sizes and elsewhere, each at all given sizes that it runs at.
    `errors` are, by sizes, the largest difference of a version's result from float64 over the largest element; `wrong` names the
    sizes at which one is much further from float64 than the program with NumPy. `compiled` schedules took `seconds`, search
    included, of which `spilled` were left out for their spills.
    """

    program: str
    dtype: str
    target: str
    date: str
    versions: int
    compiled: int
    spilled: int
    seconds: float
    kernels: tuple[KernelFigures, ...]
    errors: dict[str, float]
    wrong: tuple[str, ...]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.program, self.dtype, self.target

    @property
    def spills(self) -> int:
        return sum(k.spill_bytes for k in self.kernels)

    @property
    def without_wgmma(self) -> list[KernelFigures]:
        """Kernels that a warpgroup's instruction should compute, and does not: none before sm_90, or of float32."""
        if cuda_device(self.target).capability < (9, 0) or self.dtype == "float32":
            return []
        return [k for k in self.kernels if k.matmul and k.instruction in ("", "mma.sync")]

    @property
    def good(self) -> bool:
        return not (self.spills or self.without_wgmma or self.wrong)


def sizes_of(name: str) -> list[dict[str, int]]:
    """The sets of sizes that a program is superoptimized for: those that it is measured at, and of many rows."""
    function = PROGRAMS[name]
    sets = list(kernel_sizes(function).values())
    if any(n.op in PRODUCTS for n in function.trace().nodes):
        dim = next(d for d in ("s", "n" if name == "moe" else "b") if d in sets[0])
        sets += [{**sets[0], dim: n} for n in ROWS]
    return sets


def superoptimized(name: str, dtype: str, target: str, budget: float = BUDGET) -> CudaSuperoptimized:
    """A measured program in an element type, for a CUDA target, at `sizes_of` it."""
    sets = sizes_of(name)
    program = retyped(PROGRAMS[name].trace(), dtype)
    result = mi.superoptimize(program, target=target, sizes=sets, budget=budget * len(sets), seed=0)
    assert isinstance(result, CudaSuperoptimized)
    return result


def examined(name: str, dtype: str, target: str, interpreter: Interpreter, budget: float = BUDGET) -> StaticRow:
    """The row of a program; raises the errors of `superoptimize`."""
    start = time.perf_counter()
    result = superoptimized(name, dtype, target, budget)
    seconds = time.perf_counter() - start
    errors, wrong = compared(result, interpreter)
    return StaticRow(
        name,
        dtype,
        target,
        time.strftime("%Y-%m-%d"),
        len(result.versions),
        result.compiled,
        sum("spill" in why for why in result.rejected),
        seconds,
        tuple(figures(result)),
        errors,
        wrong,
    )


def figures(result: CudaSuperoptimized) -> Iterator[KernelFigures]:
    """The kernels of the versions that run, at each of the given sizes that they run at, and of the others once."""
    used: set[int] = set()
    for sizes in result.anchors:
        at = result.decision.number(sizes)
        used.add(at)
        yield from _kernels(at, result.decision.versions[at], sizes)
    for k, version in enumerate(result.versions):
        if k not in used:
            yield from (replace(f, rows=0, columns=0) for f in _kernels(k, version, version.sizes))


def _kernels(number: int, version: Version, sizes: Mapping[str, int]) -> Iterator[KernelFigures]:
    graph, at = version.executable.mugraph, _text(sizes)
    extents = version.schedule.plain.axis_sizes(graph, sizes)
    for node, compiled in zip(graph.kernels, version.executable.kernels, strict=True):
        rows, columns = matrix(graph, node, extents)
        yield KernelFigures(
            number,
            compiled.name,
            at,
            compiled.registers,
            compiled.spill_bytes,
            compiled.shared,
            matrix_instruction(compiled.ptx) or "",
            rows,
            columns,
        )


def matrix(graph: MuGraph, node: Node, extents: Mapping[str, int]) -> tuple[int, int]:
    """Rows and columns of a kernel's product whose shorter side is longest, the longer side first; zeros where it has none.

    A side's elements are those along the axes of one operand that the other operand lacks, in the whole problem.
    """
    best = 0, 0
    assert node.graph is not None
    nodes = node.graph.nodes
    for n in nodes:
        for x, y in PRODUCTS.get(n.op, ()):
            left, right = (nodes[n.operands[k].node].axes(n.operands[k].out) for k in (x, y))
            sides = [
                prod(extents[a] for a in n.axes() if a in own and a not in other)
                for own, other in ((left, right), (right, left))
            ]
            best = max(best, (min(sides), max(sides)))
    return best[1], best[0]


def compared(result: CudaSuperoptimized, interpreter: Interpreter) -> tuple[dict[str, float], tuple[str, ...]]:
    """The largest errors of all versions that run, by sizes, under the interpreter; and the sizes at which one is wrong."""
    errors: dict[str, float] = {}
    wrong: dict[str, None] = {}
    for table in COMPARED:
        sizes = {s: table[s] for s in result.program.symbols()}
        at = _text(sizes)
        trial = Trial.of(at, result.program, random_inputs(result.program, sizes, 0), sizes)
        for version in result.versions:
            if version.serves(sizes):
                accuracy, passed = trial.measure(_interpreted(version, interpreter))
                errors[at] = max(errors.get(at, 0.0), accuracy.kernel)
                if not passed:
                    wrong[f"{at} ({version})"] = None
    return errors, tuple(wrong)


def _interpreted(version: Version, interpreter: Interpreter) -> Runner:
    c, emitted = version.candidate, version.executable.emitted
    assert c is not None
    return lambda arrays, sizes: interpreter.run(emitted, c.graph, arrays, sizes, c.maximum)


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{s}={n}" for s, n in sizes.items()) or "fixed sizes"


def read_rows(file: Path) -> list[StaticRow]:
    """What earlier runs wrote; raises FormatError where a line is no row, but for an unfinished last one."""
    rows: list[StaticRow] = []
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []
    for i, line in enumerate(lines):
        try:
            found = json.loads(line)
            kernels = tuple(KernelFigures(**k) for k in found.pop("kernels"))
            rows.append(StaticRow(**{**found, "kernels": kernels, "wrong": tuple(found["wrong"])}))
        except (KeyError, TypeError, ValueError):
            if i + 1 == len(lines) and not line.endswith("\n"):
                break
            raise FormatError(f"{file}, line {i + 1}: not a row of this benchmark; pass another --output") from None
    return rows


def survey(
    names: Sequence[str], file: Path, budget: float, minutes: float, say: Callable[[str], None]
) -> tuple[list[StaticRow], list[str]]:
    """The rows of these programs (all if empty), those in `file` included, and what failed; each is appended to it at once.

    No row is begun after `minutes`. Raises InputError for the name of no program.
    """
    unknown = [n for n in names if n not in PROGRAMS]
    if unknown:
        raise InputError(f"no measured program is named {', '.join(unknown)}; choose from {', '.join(PROGRAMS)}")
    end = time.monotonic() + 60 * minutes
    done = {r.key: r for r in read_rows(file)}
    file.write_text("".join(map(_line, done.values())), encoding="utf-8")
    wanted = [(n, d, t) for d in DTYPES for n in names or PROGRAMS for t in TARGETS]
    failures: list[str] = []
    left = [key for key in wanted if key not in done]
    with Interpreter() as interpreter:
        for i, key in enumerate(left):
            if time.monotonic() >= end:
                say(f"{minutes:g} minutes are over: {len(left) - i} rows are left; run the same command again")
                break
            try:
                row = done[key] = examined(*key, interpreter, budget)
            except MirageError as e:
                failures.append(f"{' '.join(key)}: {e}")
                say(f"FAILED: {failures[-1]}")
                continue
            with file.open("a", encoding="utf-8") as out:
                out.write(_line(row))
            say(_told(row))
    return [done[key] for key in wanted if key in done], failures


def _line(row: StaticRow) -> str:
    return json.dumps(asdict(row)) + "\n"


def _told(r: StaticRow) -> str:
    why = [f"{r.spills} bytes spilled"] * bool(r.spills)
    why += [f"{k.kernel} of version {k.version} has no wgmma at {k.sizes}" for k in r.without_wgmma]
    why += [f"wrong at {at}" for at in r.wrong]
    error = max(r.errors.values(), default=0.0)
    return (
        f"{r.program} {r.dtype} {r.target}: {r.versions} versions, {r.compiled} compiled in {r.seconds:.1f} s, "
        f"error {error:.1e}" + f"; BAD: {'; '.join(why)}" * bool(why)
    )


def static_table(rows: Sequence[StaticRow]) -> Table:
    """A row per program and architecture, all element types together."""
    header = [
        "program",
        "target",
        "kernels",
        "registers",
        "spilled, bytes",
        "shared, KiB",
        "of 64 rows",
        "with wgmma",
        *(f"error, {d}" for d in DTYPES),
    ]
    cells = []
    for name, target in dict.fromkeys((r.program, r.target) for r in rows):
        own = [r for r in rows if (r.program, r.target) == (name, target)]
        kernels = [k for r in own for k in r.kernels]
        large = [k for r in own if r.dtype != "float32" for k in r.kernels if k.matmul]
        wide = sum(k.instruction.startswith("wgmma") for k in large)
        errors = {r.dtype: max(r.errors.values(), default=0.0) for r in own}
        cells.append(
            [
                name,
                target.removeprefix("cuda:"),
                str(len(kernels)),
                f"{max(k.registers for k in kernels)}",
                str(sum(r.spills for r in own)),
                f"{max(k.shared_bytes for k in kernels) >> 10}",
                str(len(large)),
                str(wide) if target != TARGETS[0] else "none there",
                *(
                    f"{errors[d]:.0e}" + " WRONG" * any(r.wrong for r in own if r.dtype == d) if d in errors else ""
                    for d in DTYPES
                ),
            ]
        )
    return Table(header, cells)


def summary(rows: Sequence[StaticRow]) -> str:
    """What is wrong among the rows, in one line."""
    lost, wrong = sum(len(r.without_wgmma) for r in rows), sum(bool(r.wrong) for r in rows)
    return (
        f"{len(rows)} rows, {sum(r.compiled for r in rows)} schedules compiled. Bytes spilled: {sum(r.spills for r in rows)}. "
        f"Kernels of {WGMMA_ROWS} rows without wgmma on sm_90: {lost}. Rows with wrong results: {wrong}."
    )


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Programs; all if none is named.")] = None,
    output: Annotated[Path, typer.Option(help="The file of rows, which is continued.")] = Path("cuda_static.jsonl"),
    minutes: Annotated[float, typer.Option(help="No row is begun after that long.")] = 60.0,
    budget: Annotated[float, typer.Option(help="Seconds to superoptimize, per set of sizes.")] = BUDGET,
    as_json: AsJson = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a section for docs/cuda.md.")] = False,
) -> None:
    rows, failures = survey(names or [], output, budget, minutes, complain)
    if as_markdown and rows and not as_json:
        print(f"{static_table(rows).markdown()}\n\n{summary(rows)}")
    else:
        emit(rows, as_json, static_table)
        if not as_json:
            print(summary(rows))
    if failures or not all(r.good for r in rows):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
