"""Thread graphs as vector code: one loop nest per group of elementwise operators, sums and maxima."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import sympy

from mirage.ir.operator import FOLDS, Elementwise, get_operator
from mirage.kernels.cpu.emit.algebra import CAlgebra, FunctionSources
from mirage.kernels.cpu.emit.folds import COMBINE, EACH_PART, of_parts
from mirage.kernels.cpu.emit.hidden import Terms
from mirage.kernels.cpu.emit.layout import BlockAxes, View
from mirage.kernels.cpu.emit.loops import Nest, vector_axis
from mirage.kernels.cpu.emit.writer import Writer
from mirage.mugraph.graph import Graph, Node


@dataclass(frozen=True)
class GroupPlan:
    """Members, and the loops: `outer` axes, then the vector axis and the reduced ones."""

    members: tuple[int, ...]
    outer: tuple[str, ...]
    reduce: tuple[str, ...]
    vector: str | None

    @property
    def order(self) -> tuple[str, ...]:
        """Axes of the iteration space, the vector axis last: the storage order of elementwise results."""
        rest = [*self.outer, *(a for a in self.reduce if a != self.vector)]
        return (*rest, self.vector) if self.vector is not None else tuple(rest)


@dataclass(frozen=True)
class Target:
    """Where a result goes; `accumulate` adds it to what is there."""

    view: View
    accumulate: bool = False


def plan_group(
    axes: BlockAxes, graph: Graph, members: Sequence[int], looping: bool, units: Sequence[tuple[int, str | None]]
) -> GroupPlan:
    """Loop order of a group; `units` are the nodes that it reads or stores, with the axes along which they are contiguous."""
    n = graph.nodes[members[0]]
    reduce = next((graph.nodes[i].reduce for i in members if graph.nodes[i].op in FOLDS), ())
    table = [a for a, _ in graph.roles]
    space = sorted({*n.axes(), *n.reduce}, key=table.index)
    votes: dict[str, float] = {}
    for i, unit in units:
        if unit is not None:
            votes[unit] = votes.get(unit, 0.0) + prod(float(axes.hint(a, looping)) for a in graph.nodes[i].axes())
    vector = vector_axis(axes, looping, space, votes)
    outer = tuple(a for a in space if a not in reduce and a != vector)
    return GroupPlan(tuple(members), outer, tuple(a for a in space if a in reduce), vector)


@dataclass(frozen=True)
class _Fold:
    """C of a fold over vectors: `start` is the statement that makes partial results `{a}` of no elements, `none` what changes no
    result, `add` the statement that adds `{b}` to one, `row` what all lanes of all of them are.
    """

    start: str
    none: str
    add: str
    row: str


_FOLDS = {
    "sum": _Fold("{a}[MI_PARTS] = {{0}};", "mi_broadcast(0)", "{a} += {b};", "mi_hsum(mi_sum_parts({a}))"),
    "max": _Fold(
        f"{{a}}[MI_PARTS];\n{EACH_PART} {{a}}[part] = mi_broadcast(-MI_INFINITY);", "mi_broadcast(-MI_INFINITY)",
        f"{{a}} = {COMBINE['max']};", of_parts("max", "{a}"),
    ),
}  # fmt: skip


class GroupEmitter:
    """Prints groups of one graph."""

    def __init__(
        self, graph: Graph, axes: BlockAxes, functions: FunctionSources, dims: Mapping[sympy.Expr, str]
    ) -> None:
        self.graph = graph
        self.axes = axes
        self.functions = functions
        self.dims = dims

    def elementwise(
        self, n: Node, args: Sequence[str], shifts: Sequence[str], divisors: Mapping[str, str] | None = None
    ) -> tuple[str, list[str]]:
        """C expression of an elementwise node, and the arguments of its exps."""
        op = get_operator(n.op)
        assert isinstance(op, Elementwise)
        algebra = CAlgebra(self.functions, self.dims, shifts, divisors)
        return str(op.apply(algebra, args, n.attr)), algebra.arguments

    def group(
        self,
        w: Writer,
        plan: GroupPlan,
        looping: bool,
        view: Callable[[int], View],
        targets: Mapping[int, Target],
        shifts: Mapping[int, Sequence[View]],
        fetched: View | None = None,
    ) -> None:
        """Print a group: operands through `view`, results that are stored to `targets`. What is `fetched` is on its way to the
        caches afterwards, if it is `past` these.
        """
        nest = Nest(w, self.axes, looping)
        v, inside = plan.vector, set(plan.members)
        folds = {i: _FOLDS[self.graph.nodes[i].op] for i in plan.members if self.graph.nodes[i].op in FOLDS}
        reads: dict[str, View] = {}
        for i in plan.members:
            for r in self.graph.nodes[i].operands:
                if r.node not in inside:
                    reads.setdefault(f"v{r.node}", view(r.node))
            for k, s in enumerate(shifts.get(i, ())):
                reads.setdefault(f"shift{i}_{k}", s)
        divisors = {
            f"v{self.graph.nodes[i].operands[1].node}" for i in plan.members if self.graph.nodes[i].op == "div"
        }
        loads = _Loads(nest, reads, v, divisors)

        def name(i: int) -> str:
            return f"{self.graph.nodes[i].op}{i}"

        def body(lanes: str, part: str = "0") -> None:
            loads.ready(plan.order, lanes, keep=False)
            for i in plan.members:
                n = self.graph.nodes[i]
                if i in folds:
                    value = f"v{n.operands[0].node}"
                    if lanes and v in plan.reduce:
                        value = f"mi_fill_tail({value}, {lanes}, {folds[i].none})"
                    w.line(folds[i].add.format(a=f"{name(i)}[{part}]", b=value))
                    continue
                names = [f"shift{i}_{k}" for k in range(len(shifts.get(i, ())))]
                text, _ = self.elementwise(n, [f"v{r.node}" for r in n.operands], names, loads.factors)
                w.line(f"const mi_vec v{i} = {text};")
                if i in targets:
                    nest.store(targets[i].view, v, lanes, f"v{i}", targets[i].accumulate)
            if fetched is not None:
                w.line(f"mi_fetch_line({fetched.at(nest.index)}, {fetched.past});")

        def start() -> None:
            for i, fold in folds.items():
                w.add(f"mi_vec {fold.start.format(a=name(i))}".split("\n"))

        def store(axis: str | None, lanes: str, value: Callable[[int], str]) -> None:
            for i in folds:
                if i in targets:
                    nest.store(targets[i].view, axis, lanes, value(i), targets[i].accumulate)

        with nest.over(plan.outer):
            loads.ready(plan.outer)
            if not plan.reduce:
                nest.vectors(v, body)
            elif v is None or v in plan.reduce:
                start()
                before = [a for a in plan.reduce if a != v]
                with nest.over(before):
                    loads.ready([*plan.outer, *before])
                    nest.parts(v, body)
                store(None, "", lambda i: f"mi_broadcast({folds[i].row.format(a=name(i))})")
            else:

                def finish(lanes: str, part: str) -> None:
                    store(v, lanes, lambda i: f"{name(i)}[{part}]")

                nest.columns(v, plan.reduce, start, body, finish)

    def maximum(
        self,
        w: Writer,
        i: int,
        site: int,
        rows: Sequence[str],
        looping: bool,
        view: Callable[[int], View],
        state: Sequence[View],
        shifts: Sequence[View],
        plan: GroupPlan,
    ) -> None:
        """Print the update of the row maxima for the site-th exp of node i; `rows` are their axes in storage order.

        `state` holds the rows' maxima, shifts and, if `looping`, factors; the C variable `grown` becomes true then where
        a maximum grew.
        """
        n = self.graph.nodes[i]
        nest = Nest(w, self.axes, looping)
        names = [f"shift{i}_{k}" for k in range(len(shifts))]
        reads = {f"v{r.node}": view(r.node) for r in n.operands} | dict(zip(names, shifts, strict=True))
        # rows that were reduced one by one are put side by side, and updated as vectors
        found, one_by_one = state[-1], plan.vector is None or plan.vector not in rows

        def value() -> str:
            _, arguments = self.elementwise(n, [f"v{r.node}" for r in n.operands], names)
            return arguments[site]

        def update(value: str, lanes: str) -> None:
            pointers = ", ".join(s.at(nest.index) for s in state)
            call = f"({pointers}, {value}, {lanes or 'MI_W'});"
            w.line(f"grown |= running_maximum{call}" if looping else f"only_maximum{call}")

        def finish(value: str, lanes: str) -> None:
            if one_by_one:
                w.line(f"*({found.at(nest.index)}) = mi_hmax({value});")
            else:
                update(value, lanes)

        self._row_maxima(nest, plan, rows, reads, value, finish)
        if one_by_one:
            last = rows[-1] if rows else None
            with nest.over(rows[:-1]):
                nest.vectors(last, lambda lanes: update(nest.load(found, last, lanes), lanes))

    def hidden(
        self, w: Writer, terms: Terms, rows: Sequence[str], view: Callable[[int], View], found: View, plan: GroupPlan
    ) -> None:
        """Print what hides an exponent of these terms in the tile at hand, the largest of each row into `found`; C goes to the
        label `seen` where an element is not hidden.
        """
        nest = Nest(w, self.axes, True)
        members = set(terms.members)
        leaves = {r.node for i in members for r in self.graph.nodes[i].operands}
        used = leaves | {i for f in terms.factors for i in f} | {i for _, i in terms.added}
        reads = {f"v{i}": view(i) for i in sorted(used - members)}

        def value() -> str:
            for i in terms.members:
                n = self.graph.nodes[i]
                w.line(f"const mi_vec v{i} = {self.elementwise(n, [f'v{r.node}' for r in n.operands], [])[0]};")
            zeros = [" | ".join(f"(v{i} == mi_broadcast(0))" for i in f) for f in terms.factors]
            zero = " & ".join(f"({z})" for z in zeros) if all(zeros) else "(mi_ivec){0}"
            added = " ".join(f"{'-' if subtracted else '+'} v{i}" for subtracted, i in terms.added)
            return f"hidden_by({zero}, {added.removeprefix('+ ')})"

        def finish(value: str, lanes: str) -> None:
            if plan.vector in rows:
                nest.store(found, plan.vector, lanes, value)
                largest = f"mi_hmax(mi_fill_tail({value}, {lanes or 'MI_W'}, mi_broadcast(-MI_INFINITY)))"
                w.line(f"if ({largest} == MI_INFINITY) goto seen;")
            else:
                row = found.at(nest.index)
                w.line(f"*({row}) = mi_hmax({value});")
                w.line(f"if (*({row}) == MI_INFINITY) goto seen;")

        self._row_maxima(nest, plan, rows, reads, value, finish)

    def _row_maxima(
        self,
        nest: Nest,
        plan: GroupPlan,
        rows: Sequence[str],
        reads: Mapping[str, View],
        value: Callable[[], str],
        finish: Callable[[str, str], None],
    ) -> None:
        """Print loops for the maxima along all axes of the plan but `rows` of what `value()` prints and names, NaN passed over;
        `finish(vector, lanes)` prints what becomes of the maximum of a row, whose parts are the elements of a vector, or of
        those of a vector of rows.
        """
        w, v = nest.w, plan.vector
        reduce = [a for a in plan.order if a not in rows]
        outer = [a for a in plan.order if a in rows and a != v]
        loads = _Loads(nest, reads, v)

        def body(lanes: str, part: str) -> None:
            loads.ready(plan.order, lanes, keep=False)
            text = value()
            if lanes and v in reduce:
                text = f"mi_fill_tail({text}, {lanes}, mi_broadcast(-MI_INFINITY))"
            w.line(f"high[{part}] = mi_max({text}, high[{part}]);")

        def start() -> None:
            w.line("mi_vec high[MI_PARTS];")
            w.line("MI_UNROLL for (int part = 0; part < MI_PARTS; part++) high[part] = mi_broadcast(-MI_INFINITY);")

        with nest.over(outer):
            loads.ready(outer)
            if v is None or v in reduce:
                start()
                before = [a for a in reduce if a != v]
                with nest.over(before):
                    loads.ready([*outer, *before])
                    nest.parts(v, body)
                finish("mi_max_parts(high)", "")
            else:
                nest.columns(v, reduce, start, body, lambda lanes, part: finish(f"high[{part}]", lanes))


class _Loads:
    """Prints each load once, in the outermost loop where its index is known.

    The factors of `divisors` that are loaded outside the innermost loop are computed there.
    """

    def __init__(
        self, nest: Nest, reads: Mapping[str, View], vector: str | None, divisors: Collection[str] = ()
    ) -> None:
        self.nest = nest
        self.reads = reads
        self.vector = vector
        self.divisors = divisors
        self.hoisted: set[str] = set()
        self.factors: dict[str, str] = {}

    def ready(self, bound: Sequence[str], lanes: str = "", keep: bool = True) -> None:
        """Print the loads whose axes are bound; they are printed again later unless to `keep`."""
        for name, view in self.reads.items():
            if name not in self.hoisted and view.strides.keys() <= set(bound):
                self.nest.w.line(f"const mi_vec {name} = {self.nest.load(view, self.vector, lanes)};")
                if keep:
                    self.hoisted.add(name)
                    if name in self.divisors:
                        self.factors[name] = f"divisor_{name}"
                        self.nest.w.line(f"const mi_divisor divisor_{name} = mi_divisor_of({name});")
