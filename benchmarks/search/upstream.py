"""Graphs that the upstream project stored, next to ours: `python -m benchmarks.search.upstream FOLDER [NAME ...] [--json]`.

Per stored candidate: is it right, and does our search find the same structure, or a graph that is at least as good by
every bound? Structures are compared at the roles that leave most open: an axis that a candidate keeps whole is one block
along a parallel axis, and a loop of ours may run once. The bounds, at the candidate's sizes and number of splits, are

- the kernels,
- the operators, accumulators included,
- the elements that kernels read and write, each tensor once per kernel,
- the arithmetic: a matmul's multiplications and additions, an elementwise operator's own cost per element,
- the blocks among which the kernel of most arithmetic can be divided without repeating any of it: more are better.

They do not depend on tiles or on how often blocks repeat work, which schedules decide.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

import mirage as mi
from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson
from mirage.frontends.spec import TensorFunction
from mirage.frontends.upstream import Imported, UpstreamFile
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.ir.operator import PRODUCTS, Elementwise, get_operator, reduced_axes
from mirage.mugraph.canonical import most_parallel, structure_key, without_loops
from mirage.mugraph.graph import Graph, MuGraph, Node, Role, partial_axis
from mirage.results.evidence import verdicts
from mirage.search.generate import generate
from mirage.search.options import SearchOptions

#: parts of an axis that a graph of ours splits where the candidate splits none
SPLITS = 8


@mi.program(
    x=mi.tensor("b", "k"), w=mi.tensor("k", "n"), sizes={"b": 2, "k": 4096, "n": 6144},
)  # fmt: skip
def rmsnorm_bs1(x: Any, w: Any) -> Any:
    """Rows divided by their root mean square, then a matmul."""
    return (x / mi.sqrt(mi.mean(mi.square(x), axis=-1, keepdims=True))) @ w


@mi.program(
    q=mi.tensor("h", "s", "d"), k=mi.tensor("h", "d", "128*t"), v=mi.tensor("h", "128*t", "e"),
    sizes={"h": 2, "s": 256, "d": 64, "t": 32, "e": 64},
)  # fmt: skip
def gqa_bs1(q: Any, k: Any, v: Any) -> Any:
    """Attention without scaling; query heads of one group are rows."""
    p = mi.exp(q @ k)
    return (p / mi.sum(p, axis=-1, keepdims=True)) @ v


@mi.program(
    x=mi.tensor("m", "k"), w=mi.tensor("k", "n"), a=mi.tensor("k", "r"), b=mi.tensor("r", "n"),
    sizes={"m": 16, "k": 256, "n": 4096, "r": 16},
)  # fmt: skip
def lora(x: Any, w: Any, a: Any, b: Any) -> Any:
    """A matmul and its low-rank correction."""
    return x @ w + (x @ a) @ b


#: the program of each file, by the file's name
PROGRAMS: dict[str, TensorFunction] = {f.name: f for f in (rmsnorm_bs1, gqa_bs1, lora)}


@dataclass(frozen=True)
class Row:
    """A stored candidate: is it right, and what the search found in its place: "same", "better" or "neither"."""

    file: str
    candidate: int
    kernels: int
    verdict: str
    found: str
    theirs: Bounds | None
    ours: Bounds | None


class Bounds(NamedTuple):
    """What a graph takes at some sizes, whatever its schedule; see the module."""

    kernels: int
    operators: int
    moved: float
    arithmetic: float
    blocks: float

    def within(self, other: Bounds) -> bool:
        """Whether this graph is at least as good by every bound."""
        return self.blocks >= other.blocks and all(x <= y for x, y in zip(self[:-1], other[:-1], strict=True))


def bounds(graph: MuGraph, sizes: Mapping[str, int], splits: Mapping[str, int]) -> Bounds:
    """The bounds for sizes of the dim symbols.

    `splits` gives the parts of partial axes; those it lacks have `SPLITS`.
    """
    axes = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
    axes |= {partial_axis(a): splits.get(a, SPLITS) for a in graph.axes}
    nodes = graph.kernel.nodes
    ran = [n for n in nodes if n.op not in ("input", "constant", "size")]
    moved = sum(_volume(axes, nodes[r.node].axes(r.out)) for n in ran for r in n.operands)
    moved += sum(_volume(axes, n.axes(k)) for n in ran for k in range(len(n.dims)))
    operators = sum(len(n.graph.compute_nodes()) if n.graph else 1 for n in ran)
    work = [_work(n, graph.kernel, axes) for n in ran]
    return Bounds(len(ran), operators, moved, sum(work), _blocks(ran[work.index(max(work))], axes))


def _blocks(n: Node, sizes: Mapping[str, int]) -> float:
    """Blocks that share the work of a kernel: along the axes that all its operators have, and parts of split ones."""
    if n.graph is None:
        return _volume(sizes, n.axes())
    g = n.graph
    spaces = [_space(g.nodes[i], g) for i in g.compute_nodes() if g.nodes[i].operands]
    split = {a for a, r in g.roles if r is Role.SPLIT}
    shared = set.intersection(*spaces) - split - {a for i in g.compute_nodes() for a in g.nodes[i].reduce}
    return _volume(sizes, list(shared)) * _volume(sizes, [partial_axis(a) for a in split])


def _space(n: Node, graph: Graph) -> set[str]:
    """The axes of an operator's result and operands."""
    return {*n.axes(), *n.reduce, *(a for r in n.operands for a in graph.nodes[r.node].axes(r.out))}


def _volume(sizes: Mapping[str, int], axes: Sequence[str]) -> float:
    return math.prod(sizes[a] for a in axes)


def _work(n: Node, graph: Graph, sizes: Mapping[str, int]) -> float:
    if n.graph is not None:
        inner = n.graph
        parts = math.prod(sizes[partial_axis(a)] for a, r in inner.roles if r is Role.SPLIT)
        return sum(
            _work(inner.nodes[i], inner, sizes) * (parts if i in inner.after_loop else 1) for i in inner.compute_nodes()
        )
    operands = [graph.nodes[r.node].axes(r.out) for r in n.operands]
    if n.op in PRODUCTS:
        summed = reduced_axes(n.op, operands, n.reduce)
        spaces = [{*n.axes(), *over} for over in summed]
        return sum(2 * _volume(sizes, list(space)) for space in spaces)
    volume = _volume(sizes, list(_space(n, graph)))
    definition = None if n.op == "accumulator" else get_operator(n.op)
    return volume * (definition.flops if isinstance(definition, Elementwise) else 1)


def compare(file: str, found: Imported, ours: Sequence[MuGraph], keys: set[str], verdict: str) -> Row:
    """The row of a candidate, for the graphs of a search and the keys of their structures (`structures`)."""
    splits = {a: n for k in found.schedule.kernels for a, n in k.splits}
    theirs = bounds(found.graph, found.sizes, splits)
    same = structure_key(most_parallel(found.graph)) in keys
    # the same number of parts, whatever the axis is called in the program with finer axes
    parts = dict.fromkeys(ours[0].axes if ours else (), next(iter(splits.values()), SPLITS))
    costs = sorted(bounds(g, found.sizes, parts) for g in ours)
    good = [c for c in costs if c.within(theirs)]
    word = "same" if same else "better" if good else "neither"
    best = theirs if same else good[0] if good else min(costs, default=None)
    return Row(file, found.index, len(found.graph.kernel.compute_nodes()), verdict, word, theirs, best)


def structures(graphs: Sequence[MuGraph]) -> set[str]:
    """The keys of graphs, and of the same at one iteration of their loops, with as many parallel axes as there can be."""
    return {structure_key(most_parallel(x)) for g in graphs for x in (g, without_loops(g))}


def rows(path: Path, program: TensorFunction, budget: float) -> Iterator[Row]:
    """A row per candidate of a file; `budget` is the seconds of the search."""
    traced = program.trace()
    sizes = next(iter(program.sizes.values()))
    ours = generate(to_axes(traced), sizes, SearchOptions(budget=budget)).graphs
    keys = structures(ours)
    file = UpstreamFile(path)
    for verdict in verdicts(traced, file, 0):
        if verdict.certificate is None or verdict.executed:
            yield Row(path.stem, verdict.index, 0, verdict.verdict, "neither", None, None)
        else:
            yield compare(path.stem, file.load(verdict.index, traced), ours, keys, verdict.verdict)


def summary(found: Sequence[Row]) -> Table:
    """How many candidates of each file are right, and what the search found in their place."""
    header = ["file", "candidates", "proved", "same", "better", "neither"]
    cells = []
    for file in dict.fromkeys(r.file for r in found):
        of_file = [r for r in found if r.file == file]
        words = Counter(r.found for r in of_file)
        proved = sum(r.verdict == "proved equal" for r in of_file)
        cells.append(
            [file, *(str(n) for n in (len(of_file), proved, words["same"], words["better"], words["neither"]))]
        )
    return Table(header, cells)


def main(
    folder: Annotated[Path, typer.Argument(help="Where the stored files are.")],
    names: Annotated[list[str] | None, typer.Argument(help="Files without .json; all if none is named.")] = None,
    as_json: AsJson = False,
    budget: Annotated[float, typer.Option(help="Seconds for the search of each program.")] = 30.0,
) -> None:
    found: list[Row] = []
    for name in names or PROGRAMS:
        print(f"{name}: searching", file=sys.stderr, flush=True)
        found += rows(folder / f"{name}.json", PROGRAMS[name], budget)
    emit(found, as_json, summary)


if __name__ == "__main__":
    typer.run(main)
