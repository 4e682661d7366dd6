"""How the time of a search grows with the program and with workers.

`python -m benchmarks.search.scaling [--cut SECONDS] [--json]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Annotated, Any

import typer

import mirage as mi
from benchmarks.programs import PROGRAMS
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.frontends.attention import attention
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.kernels.cpu.processor import processor
from mirage.mugraph.degree import program_is_stable
from mirage.search.generate import generate
from mirage.search.jobs import OUT_OF_TIME
from mirage.search.options import SearchOptions

#: seconds after which a search is cut; larger programs of its series would be cut as well
CUT = 60.0
#: the program of the slowest search, for workers
SLOWEST = "qknorm_attention"
WIDTH = 1024
#: sizes of the dim symbols, that of every batch axis last
SYMBOLS, BATCH = {"s": 16, "t": 4096}, 8


@dataclass(frozen=True)
class ScalingRow:
    """One search: `count` of what the `series` is about. `operators` are those of the program.

    Where it was `cut`, its counts are of what it did until then.
    """

    series: str
    count: int
    operators: int
    seconds: float
    prefixes: int
    checks: int
    candidates: int
    cut: bool


def mlp(layers: int) -> Program:
    """One to six layers, each a matmul and relu."""

    def run(x: Any, w1: Any, w2: Any = None, w3: Any = None, w4: Any = None, w5: Any = None, w6: Any = None) -> Any:
        for w in (w1, w2, w3, w4, w5, w6)[:layers]:
            x = mi.relu(x @ w)
        return x

    weights = {f"w{i}": mi.tensor(WIDTH, WIDTH) for i in range(1, layers + 1)}
    return _trace("mlp", run, x=mi.tensor("batch", WIDTH), **weights)


def block(operators: int) -> Program:
    """An MLP with a residual, the norm after it, and a gated matmul: the first of their twelve operators."""

    def run(x: Any, w1: Any, w2: Any, g: Any, w3: Any) -> Any:
        steps: Sequence[Callable[[], Any]] = (
            lambda: x @ w1,
            lambda: mi.relu(h),
            lambda: h @ w2,
            lambda: h + x,
            lambda: mi.square(h),
            lambda: mi.sum(h, axis=-1, keepdims=True),
            lambda: mi.sqrt(h),
            lambda: residual / h,
            lambda: h * g,
            lambda: h @ w3,
            lambda: mi.sigmoid(h),
            lambda: h * gated,
        )
        h = residual = gated = x
        for n, step in enumerate(steps[:operators], 1):
            h = step()
            residual = h if n == 4 else residual
            gated = h if n == 10 else gated
        return h

    square = mi.tensor(WIDTH, WIDTH)
    return _trace("block", run, x=mi.tensor("batch", WIDTH), w1=square, w2=square, g=mi.tensor(WIDTH), w3=square)


def batched_attention(axes: int) -> Program:
    """Attention with so many batch axes."""
    batch = [f"b{i}" for i in range(axes)]
    keys = mi.tensor(*batch, "t", 64)
    return _trace("attention", attention, q=mi.tensor(*batch, "s", 64), k=keys, v=keys)


def norm(axes: int) -> Program:
    """Root mean square normalisation over so many axes."""
    over = tuple(range(-axes, 0))

    def run(x: Any, g: Any) -> Any:
        return x / mi.sqrt(mi.mean(mi.square(x), axis=over, keepdims=True)) * g

    dims = (64, 32, 16)[:axes]
    return _trace("norm", run, x=mi.tensor("batch", *dims), g=mi.tensor(*dims))


def _trace(name: str, run: Callable[..., Any], **types: Any) -> Program:
    return mi.trace(run, name, **types)


#: series -> the program of each count
SERIES: dict[str, tuple[Callable[[int], Program], Sequence[int]]] = {
    "operators of an MLP block": (block, range(2, 13)),
    "layers of an MLP": (mlp, range(1, 7)),
    "batch axes of attention": (batched_attention, range(1, 6)),
    "axes of a normalisation": (norm, range(1, 4)),
}
#: the series of workers
WORKERS = f"workers, {SLOWEST}"
#: the series that a chart shows together, by what they are drawn against
PANELS: dict[str, tuple[str, ...]] = {
    "operators": ("operators of an MLP block", "layers of an MLP"),
    "axes": ("batch axes of attention", "axes of a normalisation"),
    "workers": (WORKERS,),
}


def scaling(cut: float = CUT, say: Callable[[str], None] = lambda _: None) -> Iterator[ScalingRow]:
    """Ever larger programs of every series until one is cut, then ever more workers for one program."""
    for series, (make, counts) in SERIES.items():
        for count in counts:
            program = make(count)
            row = _row(series, count, program, {s: SYMBOLS.get(s, BATCH) for s in program.symbols()}, cut, None)
            say(f"{series}, {count}: {row.seconds:.2f} s{', cut' * row.cut}")
            yield row
            if row.cut:
                break
    function = PROGRAMS[SLOWEST]
    for workers in worker_counts(processor().cores):
        with nullcontext() if workers == 1 else ProcessPoolExecutor(workers, get_context("spawn")) as executor:
            row = _row(WORKERS, workers, function.trace(), next(iter(function.sizes.values())), cut, executor)
        say(f"{WORKERS}, {workers}: {row.seconds:.2f} s{', cut' * row.cut}")
        yield row


def worker_counts(cores: int) -> list[int]:
    """One, two, and on more cores their powers of two."""
    return [1, 2, *(2**i for i in range(2, cores.bit_length()))]


def _row(
    series: str, count: int, program: Program, sizes: Mapping[str, int], cut: float, executor: Executor | None
) -> ScalingRow:
    axes = to_axes(program)
    options, safe = SearchOptions(budget=cut), program_is_stable(program)
    stats = generate(axes, sizes, options, executor=executor, safe=safe).stats
    return ScalingRow(
        series,
        count,
        sum(n.op not in ("input", "constant", "size") for n in axes.nodes),
        stats.seconds,
        stats.prefixes,
        stats.checks,
        stats.candidates,
        OUT_OF_TIME in stats.stop_reason,
    )


def scaling_table(rows: Sequence[ScalingRow]) -> Table:
    """The seconds of every search, and what it was; of a search that was cut, the counts until then."""
    return Table(
        ["search time against", "count", "operators", "search, s", "prefixes", "checks", "candidates"],
        [
            [
                r.series,
                str(r.count),
                str(r.operators),
                f"> {r.seconds:.3g}" if r.cut else f"{r.seconds:.2f}",
                *(f"{n:,}" for n in (r.prefixes, r.checks, r.candidates)),
            ]
            for r in rows
        ],
    )


def main(
    as_json: AsJson = False,
    cut: Annotated[float, typer.Option(help="Seconds after which a search is cut.")] = CUT,
) -> None:
    rows = list(scaling(cut, lambda line: print(line, file=sys.stderr, flush=True)))
    emit(rows, as_json, scaling_table)


if __name__ == "__main__":
    typer.run(main)
