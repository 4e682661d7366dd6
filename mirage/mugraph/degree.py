"""Exp-degrees: which muGraphs may subtract a running maximum from the exponents.

The degree of a tensor in an exp operator says how it scales when every value of that exp is multiplied
by a common factor per row: by that power of the factor. The rule of every operator is its own
definition, read over the algebra of degrees. Where all outputs have degree 0, any shift of the exponents
cancels, so that each tensor of degree 1 can be kept as a pair (value, maximum of its row): online
softmax, derived. An exp whose scale reaches an output, or breaks a rule, is left plain; others are
shifted all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce as fold

import sympy

from mirage.errors import GraphError
from mirage.ir.functions import EXP, ScalarFunction
from mirage.ir.operator import PRODUCTS, Elementwise, get_operator, reduced_axes
from mirage.ir.program import Program
from mirage.mugraph.graph import Graph, MuGraph, Node, Role, partial_axis

#: path of a node: its index in the kernel graph, then in the block graph, then in the thread graph
Path = tuple[int, ...]
Degree = dict[int, int]


@dataclass(frozen=True)
class Site:
    """An exp whose argument may be shifted: the path of its node, and the axes over which a shift may differ.

    `rows` are the exp's axes without those that are reduced or joined while a tensor depends on the shift.
    """

    path: Path
    rows: tuple[str, ...]


@dataclass(frozen=True)
class RunningMaximum:
    """The exp-degrees of a muGraph.

    `sites` are the exps that subtract their row's maximum without changing a result. `degree` maps (path of a node,
    output) to {index of a site: degree}, zeros left out. `plain` are the paths of nodes whose exps cannot; `reason` names
    the first tensor and rule that forbid it.
    """

    plain: tuple[Path, ...]
    reason: str
    sites: tuple[Site, ...]
    degree: Mapping[tuple[Path, int], Mapping[int, int]]

    @property
    def safe(self) -> bool:
        """Whether no exponent can overflow: every exp subtracts its row's maximum."""
        return not self.reason


class _Broken(Exception):
    """A rule of degrees that a tensor breaks, in words, and the sites whose degrees break it."""

    def __init__(self, text: str, sites: Iterable[int]) -> None:
        super().__init__(text)
        self.sites = frozenset(sites)


class _Degrees:
    """The algebra of degrees, of one node; every exp that it meets becomes a site, unless it is `plain`."""

    def __init__(self, first_site: int, plain: bool = False) -> None:
        self.next = first_site
        self.plain = plain

    def constant(self, value: Fraction) -> Degree:
        return {}

    def dim(self, size: sympy.Expr) -> Degree:
        return {}

    def add(self, x: Degree, y: Degree) -> Degree:
        if x != y:
            apart = [s for s in {*x, *y} if x.get(s) != y.get(s)]
            raise _Broken(f"adds terms of degrees {_text(x)} and {_text(y)}, which scale differently", apart)
        return x

    sub = add

    def mul(self, x: Degree, y: Degree) -> Degree:
        return _plain({s: x.get(s, 0) + y.get(s, 0) for s in (*x, *y)})

    def div(self, x: Degree, y: Degree) -> Degree:
        return _plain({s: x.get(s, 0) - y.get(s, 0) for s in (*x, *y)})

    def neg(self, x: Degree) -> Degree:
        return x

    def function(self, fn: ScalarFunction, x: Degree, *params: Fraction) -> Degree:
        if x:
            raise _Broken(f"applies {fn.name} to a term of degree {_text(x)}, not 0", x)
        if fn is not EXP or self.plain:
            return {}
        self.next += 1
        return {self.next - 1: 1}


def _plain(x: Degree) -> Degree:
    return {s: d for s, d in x.items() if d}


def _text(x: Mapping[int, int]) -> str:
    return ", ".join(f"{d} in exp {s}" for s, d in sorted(x.items())) or "0"


class _Analysis:
    def __init__(self, graph: MuGraph, plain: Collection[Path]) -> None:
        self.graph = graph
        self.plain = plain
        self.paths: list[Path] = []
        self.exp_axes: list[tuple[str, ...]] = []
        self.removed: list[set[str]] = []
        self.degree: dict[tuple[Path, int], Degree] = {}
        self.axes: dict[tuple[Path, int], tuple[str, ...]] = {}
        self.current: Path = ()
        #: name, axes and degree of every tensor that something is divided by
        self.divisors: list[tuple[str, tuple[str, ...], Degree]] = []

    def run(self, graph: Graph, at: Path, inputs: Sequence[Degree]) -> None:
        for i, n in enumerate(graph.nodes):
            path = (*at, i)
            args = [self.degree[(*at, r.node), r.out] for r in n.operands]
            self.current = path
            try:
                results = self.node(n, path, args, inputs, graph)
            except _Broken as e:
                raise _Broken(f"{_name(path, n)} {e}", e.sites) from None
            for out, d in enumerate(results):
                self.degree[path, out] = d
                self.axes[path, out] = n.axes(out)

    def node(
        self, n: Node, path: Path, args: list[Degree], inputs: Sequence[Degree], graph: Graph
    ) -> list[Degree]:
        if n.op == "input":
            return [inputs[n.attr["index"]] if len(path) > 1 else {}]
        if n.op == "graph":
            assert n.graph is not None
            self.run(n.graph, path, args)
            return [self.degree[(*path, r.node), r.out] for r in n.graph.outputs]
        self.check_partial(n, graph, args)
        algebra = _Degrees(len(self.paths), path in self.plain)
        if n.op in PRODUCTS:
            operands = [graph.nodes[r.node].axes(r.out) for r in n.operands]
            terms = []
            for (i, j), axes in zip(PRODUCTS[n.op], reduced_axes(n.op, operands, n.reduce), strict=True):
                terms.append(algebra.mul(args[i], args[j]))
                self.remove(axes, [args[i], args[j], terms[-1]])
            return [fold(algebra.add, terms)]
        if n.op in ("sum", "accumulator", "concat"):
            result = fold(algebra.add, args)
            gone = {"accumulator": graph.loop, "concat": n.joined[1] if n.joined else ()}
            self.remove(gone.get(n.op, n.reduce), [*args, result])
            if n.op == "accumulator":
                self.check_stored(result, "accumulates a tensor")
            return [result]
        op = get_operator(n.op)
        if not isinstance(op, Elementwise):
            raise GraphError(f"{n.op}: not an operator of a muGraph; expand the program first")
        result = op.apply(algebra, args, n.attr)
        if n.op == "div":
            divisor = n.operands[1]
            self.divisors.append((_name(path, n), graph.nodes[divisor.node].axes(divisor.out), args[1]))
        for _ in range(algebra.next - len(self.paths)):
            self.paths.append(path)
            self.exp_axes.append(n.axes())
            self.removed.append(set())
        return [result]

    def remove(self, axes: Sequence[str], degrees: Sequence[Degree]) -> None:
        for s in {s for d in degrees for s in d}:
            self.removed[s].update(axes)

    def check_stored(self, degree: Degree, what: str) -> None:
        if others := [s for s, d in degree.items() if d not in (0, 1)]:
            raise _Broken(f"{what} of degree {_text(degree)}; only degrees 0 and 1 can be rescaled", others)

    def check_partial(self, n: Node, graph: Graph, args: Sequence[Degree]) -> None:
        """Partial results have a maximum of their own: they can't meet a tensor with that of the whole."""
        for s in {s for d in args for s in d}:
            split = {partial_axis(a) for a in self.exp_axes[s]}
            seen = {
                frozenset(split & set(graph.nodes[r.node].axes(r.out)))
                for r, d in zip(n.operands, args, strict=True)
                if s in d
            }
            if len(seen) > 1:
                raise _Broken(f"combines a partial result of exp {s} with a whole one: two maxima", [s])

    def path(self, site: int) -> Path:
        """The node of a site, which may be the one that is looked at."""
        return self.paths[site] if site < len(self.paths) else self.current

    def rows(self, site: int) -> tuple[str, ...]:
        return tuple(a for a in self.exp_axes[site] if a not in self.removed[site])

    def check(self) -> None:
        """The rules that need the whole graph; raises _Broken."""
        kernel = self.graph.kernel
        for k, r in enumerate(kernel.outputs):
            if degree := self.degree[(r.node,), r.out]:
                raise _Broken(f"output {k} has degree {_text(degree)}, not 0: a shifted exponent changes it", degree)
        for i, n in enumerate(kernel.nodes):
            for out in range(len(n.dims)):
                try:
                    self.check_stored(self.degree[(i,), out], "hands other kernels a tensor")
                except _Broken as e:
                    raise _Broken(f"{_name((i,), n)} {e}", e.sites) from None
        for s, path in enumerate(self.paths):
            self.check_site(s, path)
        for name, axes, degree in self.divisors:
            self.check_divisor(name, axes, degree)
        for (path, out), degree in self.degree.items():
            for s, d in degree.items():
                missing = ", ".join(sorted(set(self.rows(s)) - set(self.axes[path, out])))
                if d == 1 and missing:
                    raise _Broken(f"{_where(path)}: its degree in exp {s} is 1, but it lacks axes {missing}", [s])

    def check_divisor(self, name: str, axes: Sequence[str], degree: Degree) -> None:
        """A sum of an exp contains the largest term of its row, unless the maximum is that of several rows."""
        for s in degree:
            apart = [a for a in axes if a in self.exp_axes[s] and a in self.removed[s]]
            if apart:
                raise _Broken(
                    f"{name} divides by a tensor with axis {apart[0]}, but the maximum of exp {s} is taken over "
                    f"{apart[0]} too: a sum far below it would be 0",
                    [s],
                )

    def check_site(self, s: int, path: Path) -> None:
        node = self.graph.kernel.nodes[path[0]]
        graph = node.graph
        if graph is None:
            return
        for out in range(len(node.dims)):
            side_by_side = [a for a, r in graph.roles if r is Role.SPLIT and partial_axis(a) not in node.axes(out)]
            if self.degree[path[:1], out].get(s) and side_by_side:
                raise _Broken(
                    f"output {out} of kernel {path[0]} scales with exp {s} and holds the parts of all blocks along "
                    f"{side_by_side[0]}, which have maxima of their own",
                    [s],
                )
        for a in self.rows(s):
            role = graph.role.get(a)
            if role is Role.SPLIT or (role is Role.LOOP and path[1] not in graph.after_loop):
                raise _Broken(f"exp {s} at {_where(path)}: its rows differ along {a}, which is looped over", [s])
        for a in self.exp_axes[s]:
            if a in self.removed[s] and graph.role.get(a) is Role.PARALLEL:
                raise _Broken(f"exp {s} at {_where(path)}: {a} is summed, but its blocks share no maximum", [s])


def _where(path: Path) -> str:
    return "kernel " + ", node ".join(map(str, path))


def _name(path: Path, n: Node) -> str:
    return f"{n.op} at {_where(path)}"


def analyze(graph: MuGraph) -> RunningMaximum:
    """The exp-degree of every tensor, and which exps subtract their row's maximum (see the module's text).

    A graph without exp is safe and has no sites. Raises GraphError for operators that no muGraph has.
    """
    return _analyze(graph, whole=True)


def operator_degrees(graph: MuGraph) -> RunningMaximum:
    """The same by the rules of operators alone: sites are exps that could be shifted, had they readers of one kind."""
    return _analyze(graph, whole=False)


def _analyze(graph: MuGraph, whole: bool) -> RunningMaximum:
    plain: list[Path] = []
    reason = ""
    while True:
        analysis = _Analysis(graph, plain)
        try:
            analysis.run(graph.kernel, (), ())
            if whole:
                analysis.check()
            break
        except _Broken as e:
            reason = reason or str(e)
            # exps of one node are shifted all, or none
            plain += dict.fromkeys(analysis.path(s) for s in sorted(e.sites))
    sites = tuple(Site(p, analysis.rows(s)) for s, p in enumerate(analysis.paths))
    return RunningMaximum(tuple(plain), reason, sites, analysis.degree)


def program_is_stable(program: Program) -> bool:
    """Whether the user's own form is stable: every exp is inside softmax, which subtracts the maximum."""
    for n in program.nodes:
        op = get_operator(n.op) if n.op != "input" else None
        if isinstance(op, Elementwise) and _has_exp(op, n.attr, len(n.inputs)):
            return False
    return True


def _has_exp(op: Elementwise, attrs: Mapping[str, object], arity: int) -> bool:
    algebra = _Degrees(0)
    try:
        op.apply(algebra, [{}] * arity, attrs)
    except _Broken:
        # only an exp gives a term a degree that a rule could reject
        return True
    return algebra.next > 0
