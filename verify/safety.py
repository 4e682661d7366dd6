"""Numerical safety: exp-degrees tested in the field, and which graphs may be offered.

The test multiplies what every exp gives by random factors, one per row. A tensor of degree n must come out
multiplied by the n-th power of the factors, so an output, of degree 0, unchanged: that is what lets a
kernel subtract its row's maximum from the exponents. A log is taken of its argument without these factors, as a kernel adds to it
what was subtracted; so it changes unless its argument has the degree that it is said to have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import numpy as np

from mirage.ir.axes import AxisDims, AxisInput, AxisOutput, AxisProgram
from mirage.ir.dims import symbol
from mirage.ir.program import Program
from mirage.mugraph.degree import Path, RunningMaximum, analyze, program_is_stable
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role, partial_axis
from mirage.mugraph.interpret import run_mugraph
from mirage.verify.field import ArrayModule, FieldArithmetic, Pair, draw
from mirage.verify.measure import DrawnMeasure
from mirage.verify.primes import Residues, with_primes
from mirage.verify.sizes import AxisSizes, axis_symbol, draw_schedule
from mirage.verify.trial import valid_tests

#: random tests of the degrees
FACTOR_TESTS = 16


def offered(program: Program, graph: MuGraph) -> bool:
    """Whether a graph may be an answer: where the user's form is stable, only graphs with safe running
    maxima are.
    """
    return analyze(graph).safe or not program_is_stable(program)


def degree_violation(
    program: AxisProgram, graph: MuGraph, maximum: RunningMaximum, seed: int = 0, xp: ArrayModule = np
) -> str:
    """Test the degrees that `analyze` found; the first tensor that scales otherwise, in words, or "".

    Outputs are tested, and all values of block graphs that exist outside the loop, on arrays of the module `xp`.
    """
    key = f"safety {seed} {program} {graph!r}"
    return with_primes(key, lambda residues: _violation(program, graph, maximum, seed, xp, residues))


def _violation(
    program: AxisProgram, graph: MuGraph, maximum: RunningMaximum, seed: int, xp: ArrayModule, residues: Residues
) -> str:
    primes = residues.primes
    rng = np.random.default_rng(seed)
    table = AxisSizes(program).draw(1, 3, Random(f"safety {seed}"))[0]
    sizes = table.elements
    schedule, full = draw_schedule(graph, sizes, Random(f"safety schedule {seed}"))
    scaled = _Scaled(graph, maximum)
    roots = rng.integers(0, primes.q, FACTOR_TESTS, dtype=np.int64)
    inputs = [
        draw([math.prod(full[a] for a in d) for d in x.dims], FACTOR_TESTS, primes, rng, xp) for x in graph.inputs
    ]
    shapes = [[full[a] for a in s.rows] for s in maximum.sites]
    factors = [draw(shape, FACTOR_TESTS, primes, rng, xp) for shape in shapes]
    ones = [Pair(np.ones_like(f.p), np.ones_like(f.p)) for f in factors]
    symbols = {axis_symbol(i): n for i, n in enumerate(sizes.values())} | dict(table.symbols)
    own = replace(scaled.graph, axes={a: symbol(axis_symbol(i)) for i, a in enumerate(sizes)})
    measure = None if table.measure is None else DrawnMeasure(table.measure, primes, roots.astype(np.uint64), seed)
    ar = FieldArithmetic(symbols, primes, roots, seed, measure, xp, residues)
    plain, changed = (run_mugraph(own, schedule, [*inputs, *f], ar) for f in (ones, factors))
    for (path, out, axes), x, y in zip(scaled.shown, plain, changed, strict=True):
        wanted = x
        for s, power in maximum.degree[path, out].items():
            factor = _aligned(factors[s], maximum.sites[s].rows, axes)
            for _ in range(abs(power)):
                wanted = (ar.mul if power > 0 else ar.div)(wanted, factor)
        valid = valid_tests(ar.invalid, ar.joined)
        if ((wanted.p != y.p) & valid.reshape(-1, *(1,) * (y.p.ndim - 1))).any():
            degrees = dict(maximum.degree[path, out])
            return f"output {out} of node {path} does not scale with its degrees {degrees}"
    return ""


def _aligned(x: Pair, rows: Sequence[str], axes: Sequence[str]) -> Pair:
    order = [0, *(1 + rows.index(a) for a in axes if a in rows)]
    p = x.p.transpose(order)
    sizes = iter(p.shape[1:])
    return Pair(p.reshape(len(p), *(next(sizes) if a in rows else 1 for a in axes)), None)


@dataclass
class _Scaled:
    """A muGraph with an input of factors per site, multiplied to its exp, and every tensor outside loops as
    output.

    `shown` names the outputs: (path of the node, output, axes).
    """

    original: MuGraph
    maximum: RunningMaximum
    graph: MuGraph = field(init=False)
    shown: list[tuple[Path, int, tuple[str, ...]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        g, sites = self.original, self.maximum.sites
        inputs = [*g.inputs, *(AxisInput(f"factor{s}", _one(x.rows)) for s, x in enumerate(sites))]
        kernel, shown = self.rewrite(g.kernel, (), len(g.inputs))
        self.shown = [(path, out, axes) for path, out, axes, _ in shown]
        outputs = tuple(AxisOutput(0, _one(axes)) for *_, axes, _ in shown)
        kernel = replace(kernel, outputs=tuple(ref for *_, ref in shown))
        self.graph = replace(g, inputs=tuple(inputs), kernel=kernel, outputs=outputs)

    def sites_below(self, path: Path) -> list[int]:
        """The sites whose factors are needed at a path, or below: those of its exps, and of the arguments of its logs."""
        logs = {s for p, degree in self.maximum.logs.items() if p[: len(path)] == path for s in degree}
        return [s for s, x in enumerate(self.maximum.sites) if x.path[: len(path)] == path or s in logs]

    def rewrite(
        self, graph: Graph, at: Path, first: int
    ) -> tuple[Graph, list[tuple[Path, int, tuple[str, ...], Ref]]]:
        """The graph with the factors of the sites below as inputs from index `first`; and the tensors
        to show.
        """
        nodes: list[Node] = []
        new: dict[int, int] = {}
        shown: list[tuple[Path, int, tuple[str, ...], Ref]] = []
        split = tuple(partial_axis(a) for a, r in graph.roles if r is Role.SPLIT)
        factor: dict[int, int] = {}
        for k, s in enumerate(self.sites_below(at)):
            nodes.append(Node("input", (), (_one(self.maximum.sites[s].rows),), (("index", first + k),)))
            factor[s] = len(nodes) - 1
        for i, n in enumerate(graph.nodes):
            path = (*at, i)
            below = self.sites_below(path)
            node = replace(n, operands=tuple(Ref(new[r.node], r.out) for r in n.operands))
            if path in self.maximum.logs:
                unscaled = {s: -d for s, d in self.maximum.logs[path].items()}
                node = replace(node, operands=(_times(nodes, node.operands[0], unscaled, factor),))
            inner: list[tuple[Path, int, tuple[str, ...], Ref]] = []
            if n.graph is not None:
                child, inner = self.rewrite(n.graph, path, len(n.operands))
                extra = tuple(Ref(factor[s]) for s in below)
                child = replace(child, outputs=(*child.outputs, *(ref for *_, ref in inner)))
                dims = (*n.dims, *(_one(axes) for *_, axes, _ in inner))
                node = replace(node, operands=(*node.operands, *extra), dims=dims, graph=child)
            nodes.append(node)
            own = [s for s in below if n.graph is None and self.maximum.sites[s].path == path]
            powers = {s: self.maximum.degree[path, 0].get(s, 0) for s in own}
            new[i] = _times(nodes, Ref(len(nodes) - 1), powers, factor).node
            if not at and n.op != "input":
                shown += [(path, k, n.axes(k), Ref(new[i], k)) for k in range(len(n.dims))]
                outer = (Ref(new[i], len(n.dims) + j) for j in range(len(inner)))
                shown += [(p, k, axes, ref) for (p, k, axes, _), ref in zip(inner, outer, strict=True)]
            elif len(at) == 1 and i in graph.after_loop and n.graph is None:
                shown.append((path, 0, (*split, *n.axes()), Ref(new[i])))
        outputs = tuple(Ref(new[r.node], r.out) for r in graph.outputs)
        return replace(graph, nodes=tuple(nodes), outputs=outputs), shown


def _times(nodes: list[Node], x: Ref, powers: Mapping[int, int], factor: Mapping[int, int]) -> Ref:
    """A tensor times these powers of the sites' factors, as new nodes; `factor` are the nodes of the factors."""
    for s, power in powers.items():
        for _ in range(abs(power)):
            op = "mul" if power > 0 else "div"
            nodes.append(Node(op, (x, Ref(factor[s])), (nodes[x.node].dims[x.out],)))
            x = Ref(len(nodes) - 1)
    return x


def _one(axes: Sequence[str]) -> AxisDims:
    return tuple((a,) for a in axes)
