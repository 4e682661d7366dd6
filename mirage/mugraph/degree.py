"""Exp-degrees: which muGraphs may subtract a running maximum from the exponents.

The degree of a tensor in an exp operator says how it scales when every value of that exp is multiplied
by a common factor per row: by that power of the factor. The rule of every operator is its own
definition, read over the algebra of degrees. Where all outputs have degree 0, any shift of the exponents
cancels, so that each tensor of degree 1 can be kept as a pair (value, maximum of its row): online
softmax, derived. An exp whose scale reaches an output, or breaks a rule, is left plain; others are
shifted all the same.

The log of a tensor of degree 1 has degree 0: what the pair stands for is value * exp(maximum), whose log is log(value) + maximum.

A shift may make all but the largest exp of a row vanish, so what is divided by, or has its log taken, has to hold that one, with
a factor that is bounded away from 0: a sum of exps does, one of exps times weights does not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from functools import reduce as fold

from mirage.errors import GraphError
from mirage.ir.functions import LOG, largest
from mirage.ir.operator import PRODUCTS, Elementwise, get_operator, reduced_axes
from mirage.ir.program import Program
from mirage.mugraph.graph import Graph, MuGraph, Node, Role, partial_axis
from mirage.mugraph.scaling import BrokenRule, Degree, DegreeAlgebra, Value, degree_text

#: path of a node: its index in the kernel graph, then in the block graph, then in the thread graph
Path = tuple[int, ...]
Axes = tuple[str, ...]


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
    output) to {index of a site: degree}, zeros left out; `logs` maps the path of a log to the degree of its argument, where that
    is not 0: to its result is added what was subtracted from the exponents, as often as the degree says. `plain` are the paths
    of nodes whose exps cannot; `reason` names the first tensor and rule that forbid it.
    """

    plain: tuple[Path, ...]
    reason: str
    sites: tuple[Site, ...]
    degree: Mapping[tuple[Path, int], Mapping[int, int]]
    logs: Mapping[Path, Mapping[int, int]] = field(default_factory=dict)

    @property
    def safe(self) -> bool:
        """Whether no exponent can overflow: every exp subtracts its row's maximum."""
        return not self.reason


class _Kernel:
    """The degrees within one operator of a kernel graph.

    `inputs` and `operands` are the values and the axes of its operands, `exps` the axes of the sites of earlier operators.
    What it finds holds in every graph in which these are the same; only its own path, which messages name, is the graph's.
    """

    def __init__(
        self,
        node: Node,
        path: Path,
        inputs: Sequence[Value],
        operands: Sequence[Axes],
        exps: Sequence[Axes],
        plain: Collection[Path] = (),
    ) -> None:
        self.of = node
        self.path = path
        self.inputs = inputs
        self.operands = operands
        self.plain = plain
        #: axes of all sites so far, its own last
        self.exps = list(exps)
        self.first = len(exps)
        #: paths of its own sites
        self.paths: list[Path] = []
        #: axes that are reduced or joined here while a tensor depends on a site
        self.removed: dict[int, set[str]] = {}
        self.values: dict[tuple[Path, int], Value] = {}
        self.axes: dict[tuple[Path, int], Axes] = {}
        self.current: Path = path
        #: every tensor that something is divided by, or whose log is taken: who does what with it, its axes and value
        self.kept: list[tuple[str, Axes, Value]] = []
        #: path of a log -> axes and value of its argument, where that scales
        self.logs: dict[Path, tuple[Axes, Value]] = {}

    @property
    def results(self) -> list[Value]:
        return [self.values[self.path, out] for out in range(len(self.of.dims))]

    def run(self) -> None:
        """Find the degrees; raises BrokenRule."""
        inputs = [Value(frozenset(self.of.axes()), {})] if self.of.op == "input" else self.inputs
        self.node(self.of, self.path, inputs, self.operands, ())

    def graph(self, graph: Graph, at: Path, inputs: Sequence[Value]) -> list[Value]:
        for i, n in enumerate(graph.nodes):
            args = [self.values[(*at, r.node), r.out] for r in n.operands]
            if n.op == "input":
                args = [inputs[n.attr["index"]]]
            operands = [graph.nodes[r.node].axes(r.out) for r in n.operands]
            self.node(n, (*at, i), args, operands, graph.loop)
        return [self.values[(*at, r.node), r.out] for r in graph.outputs]

    def node(self, n: Node, path: Path, args: Sequence[Value], operands: Sequence[Axes], loop: Axes) -> None:
        """Note the values of a node, of whose operands these are the values and the axes. An input's are its argument's."""
        self.current = path
        try:
            if n.op == "input":
                results = list(args)
            elif n.op == "graph":
                assert n.graph is not None
                results = self.graph(n.graph, path, args)
            else:
                results = [self.apply(n, path, args, operands, loop)]
        except BrokenRule as e:
            # that of an inner node is named already
            raise e if n.op == "graph" else BrokenRule(f"{_name(path, n)} {e}", e.sites) from None
        for out, value in enumerate(results):
            self.values[path, out] = value
            self.axes[path, out] = n.axes(out)

    def apply(self, n: Node, path: Path, args: Sequence[Value], operands: Sequence[Axes], loop: Axes) -> Value:
        """The value of an operator's result, by the rule of the operator."""
        self.check_partial([x.degree for x in args], operands)
        algebra = DegreeAlgebra(len(self.exps), path in self.plain, n.op == LOG.name)
        if n.op in PRODUCTS:
            terms = []
            for (i, j), axes in zip(PRODUCTS[n.op], reduced_axes(n.op, operands, n.reduce), strict=True):
                terms.append(algebra.mul(args[i], args[j]))
                self.remove(axes, [args[i], args[j], terms[-1]])
                terms[-1] = algebra.sum(terms[-1], axes)
            return fold(algebra.add, terms)
        if n.op == "concat":
            result = fold(algebra.add, args)
            self.remove(n.joined[1] if n.joined else (), [*args, result])
            return result._replace(axes=frozenset(n.axes()), attained=all(x.attained for x in args))
        if n.op in ("sum", "accumulator"):
            (x,) = args
            axes = loop if n.op == "accumulator" else n.reduce
            self.remove(axes, args)
            if n.op == "accumulator":
                _check_stored(x.degree, "accumulates a tensor")
            return algebra.sum(x, axes if n.op == "sum" or n.attr["mode"] == "sum" else ())
        if n.op == "max":
            # what scales is rejected: a factor may differ along the axes
            found: Value = largest(algebra, args[0], lambda x: algebra.sum(x, n.reduce))
            return found
        op = get_operator(n.op)
        if not isinstance(op, Elementwise):
            raise GraphError(f"{n.op}: not an operator of a muGraph; expand the program first")
        value: Value = op.apply(algebra, args, n.attr)
        self.kept += [(f"{_name(path, n)} {what}", tuple(y.axes), y) for what, y in algebra.kept]
        if n.op == LOG.name and args[0].degree:
            self.logs[path] = operands[0], args[0]
        for _ in range(algebra.next - len(self.exps)):
            self.paths.append(path)
            self.exps.append(n.axes())
        return value

    def remove(self, axes: Sequence[str], values: Sequence[Value]) -> None:
        for s in {s for x in values for s in x.degree}:
            self.removed.setdefault(s, set()).update(axes)

    def check_partial(self, args: Sequence[Degree], operands: Sequence[Axes]) -> None:
        """Partial results have a maximum of their own: they can't meet a tensor with that of the whole."""
        for s in {s for d in args for s in d}:
            split = {partial_axis(a) for a in self.exps[s]}
            seen = {frozenset(split & set(axes)) for axes, d in zip(operands, args, strict=True) if s in d}
            if len(seen) > 1:
                raise BrokenRule(f"combines a partial result of exp {s} with a whole one: two maxima", [s])

    def check_results(self) -> None:
        for value in self.results:
            try:
                _check_stored(value.degree, "hands other kernels a tensor")
            except BrokenRule as e:
                raise BrokenRule(f"{_name(self.path, self.of)} {e}", e.sites) from None

    def check_sites(self, removed: Sequence[Collection[str]]) -> None:
        """The blocks of a kernel must agree on the maxima of its own sites; `removed` are the axes that the graph removes."""
        graph = self.of.graph
        if graph is None:
            return
        for s, path in enumerate(self.paths, self.first):
            for out, value in enumerate(self.results):
                side_by_side = [
                    a for a, r in graph.roles if r is Role.SPLIT and partial_axis(a) not in self.of.axes(out)
                ]
                if value.degree.get(s) and side_by_side:
                    raise BrokenRule(
                        f"output {out} of kernel {self.path[0]} scales with exp {s} and holds the parts of all blocks along "
                        f"{side_by_side[0]}, which have maxima of their own",
                        [s],
                    )
            for a in self.exps[s]:
                role = graph.role.get(a)
                looped = role is Role.SPLIT or (role is Role.LOOP and path[1] not in graph.after_loop)
                if looped and a not in removed[s]:
                    raise BrokenRule(f"exp {s} at {_where(path)}: its rows differ along {a}, which is looped over", [s])
            for a in self.exps[s]:
                if a in removed[s] and graph.role.get(a) is Role.PARALLEL:
                    raise BrokenRule(f"exp {s} at {_where(path)}: {a} is summed, but its blocks share no maximum", [s])

    def check_kept(self, removed: Sequence[Collection[str]]) -> None:
        """What is divided by, or has its log taken, has the largest exp of its row, with a factor that is not 0, and of no other
        row.
        """
        for name, axes, value in self.kept:
            for s in value.degree:
                over = [a for a in self.exps[s] if a in removed[s]]
                apart = [a for a in axes if a in (*over, *map(partial_axis, over))]
                if apart:
                    raise BrokenRule(
                        f"{name} a tensor with axis {apart[0]}, but the maximum of exp {s} is taken over {apart[0]} too: a sum "
                        "far below it would be 0",
                        [s],
                    )
            where = [a for s, t, a in value.together if a in removed[s] and a in removed[t]]
            if not value.attained or where:
                why = f"two exps are largest at other places along {where[0]}" if where else "no factor is known not to be"
                raise BrokenRule(
                    f"{name} a tensor that may be 0 where exponents are shifted by their maximum: {why}", value.degree
                )

    def check_logs(self, removed: Sequence[Collection[str]]) -> None:
        """What a log adds again is there where it is computed: the final maximum of every row, one that several exps share."""
        graph = self.of.graph
        for path, (axes, value) in self.logs.items():
            for s in value.degree:
                rows = [a for a in self.exps[s] if a not in removed[s]]
                why = ""
                if missing := [a for a in rows if a not in axes]:
                    why = f"has a maximum per element of {missing[0]}, which its argument lacks"
                elif graph is not None and s >= self.first and (path[1] in graph.in_loop or set(rows) & set(graph.loop)):
                    why = "has a maximum that is known only after the loop"
                if why:
                    raise BrokenRule(f"log at {_where(path)}: exp {s} {why}", [s])

    def check_rows(self, removed: Sequence[Collection[str]]) -> None:
        """A tensor that is kept beside its maximum has a place for the maximum of every row."""
        for (path, out), value in self.values.items():
            for s, d in value.degree.items():
                if d != 1:
                    continue
                missing = set(self.exps[s]).difference(removed[s], self.axes[path, out])
                if missing:
                    lacks = ", ".join(sorted(missing))
                    raise BrokenRule(f"{_where(path)}: its degree in exp {s} is 1, but it lacks axes {lacks}", [s])


def _check_stored(degree: Degree, what: str) -> None:
    if others := [s for s, d in degree.items() if d not in (0, 1)]:
        raise BrokenRule(f"{what} of degree {degree_text(degree)}; only degrees 0 and 1 can be rescaled", others)


class _Analysis:
    """The degrees of a whole graph, operator by operator of its kernel graph; `make` begins one of them."""

    def __init__(self, graph: MuGraph, make: Callable[..., _Kernel]) -> None:
        self.graph = graph.kernel
        self.make = make
        self.kernels: list[_Kernel] = []

    def run(self) -> None:
        """Raises BrokenRule where an operator's own rule is broken."""
        for i, n in enumerate(self.graph.nodes):
            inputs = [self.kernels[r.node].results[r.out] for r in n.operands]
            operands = [self.graph.nodes[r.node].axes(r.out) for r in n.operands]
            exps = self.kernels[-1].exps if self.kernels else ()
            self.kernels.append(self.make(n, (i,), inputs, operands, exps))
            if not self.kernels[-1].values:
                self.kernels[-1].run()

    def path(self, site: int) -> Path:
        """The node of a site, which may be the one that is looked at."""
        return next(
            (k.paths[site - k.first] for k in self.kernels if k.first <= site < len(k.exps)), self.kernels[-1].current
        )

    @property
    def removed(self) -> list[set[str]]:
        """Per site, the axes that are reduced or joined while a tensor depends on it."""
        found: list[set[str]] = [set() for _ in (self.kernels[-1].exps if self.kernels else ())]
        for k in self.kernels:
            for s, axes in k.removed.items():
                found[s] |= axes
        return found

    def sites(self) -> tuple[Site, ...]:
        removed = self.removed
        return tuple(
            Site(path, tuple(a for a in k.exps[s] if a not in removed[s]))
            for k in self.kernels
            for s, path in enumerate(k.paths, k.first)
        )

    def check(self) -> None:
        """The rules that need the whole graph; raises BrokenRule."""
        for k, r in enumerate(self.graph.outputs):
            if degree := self.kernels[r.node].results[r.out].degree:
                raise BrokenRule(f"output {k} has degree {degree_text(degree)}, not 0: a shifted exponent changes it", degree)
        removed = self.removed
        for kernel in self.kernels:
            kernel.check_results()
        for kernel in self.kernels:
            kernel.check_sites(removed)
        for kernel in self.kernels:
            kernel.check_kept(removed)
        for i, kernel in enumerate(self.kernels):
            kernel.check_logs(removed)
            self.check_library_exps(i, kernel)
        for kernel in self.kernels:
            kernel.check_rows(removed)

    def check_library_exps(self, i: int, kernel: _Kernel) -> None:
        """A library hands on no maxima: the log of a sum of its exps is the library's too, and in the same run of calls."""
        for path, (_, value) in kernel.logs.items():
            for s in value.degree:
                first = next(k for k, other in enumerate(self.kernels) if s < len(other.exps))
                between = self.graph.nodes[first : i + 1]
                if between[0].graph is None and any(n.op == "graph" for n in between):
                    raise BrokenRule(f"log at {_where(path)}: exp {s} is a library's, which hands on no maximum", [s])


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
        analysis = _Analysis(graph, partial(_Kernel, plain=plain))
        try:
            analysis.run()
            if whole:
                analysis.check()
            break
        except BrokenRule as e:
            reason = reason or str(e)
            # exps of one node are shifted all, or none
            plain += dict.fromkeys(analysis.path(s) for s in sorted(e.sites))
    degree = {at: value.degree for k in analysis.kernels for at, value in k.values.items()}
    logs = {path: value.degree for k in analysis.kernels for path, (_, value) in k.logs.items()}
    return RunningMaximum(tuple(plain), reason, analysis.sites(), degree, logs)


class SafetyCheck:
    """`analyze(graph).safe` for many graphs that share the block graphs of their kernels, as objects.

    A kernel is looked at once for the degrees of its operands and the exps before it.
    """

    def __init__(self) -> None:
        self._kernels: dict[Hashable, tuple[_Kernel, bool]] = {}

    def safe(self, graph: MuGraph) -> bool:
        analysis = _Analysis(graph, self._kernel)
        try:
            analysis.run()
            analysis.check()
        except BrokenRule:
            return False
        return True

    def _kernel(
        self, node: Node, path: Path, inputs: Sequence[Value], operands: Sequence[Axes], exps: Sequence[Axes]
    ) -> _Kernel:
        if node.graph is None:
            return _Kernel(node, path, inputs, operands, exps)
        key = id(node.graph), node.dims, tuple(x.key for x in inputs), tuple(exps)
        found = self._kernels.get(key)
        if found is None:
            kernel = _Kernel(node, path, inputs, operands, exps)
            try:
                kernel.run()
                kernel.check_results()
            except BrokenRule:
                found = kernel, False
            else:
                found = kernel, True
            # the kernel keeps its block graph alive, whose id is not given to another one
            self._kernels[key] = found
        kernel, unbroken = found
        if not unbroken:
            raise BrokenRule("", ())
        return kernel


def program_is_stable(program: Program) -> bool:
    """Whether the user's own form is stable: every exp is inside softmax, which subtracts the maximum."""
    for n in program.nodes:
        op = get_operator(n.op) if n.op != "input" else None
        if isinstance(op, Elementwise) and _has_exp(op, n.attr, len(n.inputs)):
            return False
    return True


def _has_exp(op: Elementwise, attrs: Mapping[str, object], arity: int) -> bool:
    algebra = DegreeAlgebra(0)
    try:
        op.apply(algebra, [Value(frozenset(), {})] * arity, attrs)
    except BrokenRule:
        # only an exp gives a term a degree that a rule could reject
        return True
    return algebra.next > 0
