"""A group of operators as one graph-defined kernel, built directly: what fusion uses where no search has been made.

The group's outputs share the axes that blocks are laid out along; reductions run inside a block, whole or in a loop that
streams tiles of the operands and accumulates (Mirage, section 2). So a group is fused whatever operators it has, as in
BladeDISC's stitch fusion (section 4.2): group dims are the parallel axes here, tile dims all others, and values between
operators stay in a block's scratch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mirage.errors import GraphError
from mirage.ir.axes import AxisNode, AxisProgram
from mirage.ir.operator import PRODUCTS, REDUCTIONS, Level
from mirage.kernels.separate import with_separate_exps
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.validate import validate
from mirage.search.assemble import single_dims
from mirage.search.cost import LOOP_TILE
from mirage.search.plan import KernelPlan, kernel_plans

#: axes of one reduction that a kernel loops over together, at most
_MAX_LOOPS = 2
#: elements assumed along a symbolic axis where plans are ordered
_SYMBOLIC = 4096

_SCALARS = ("constant", "size")


def fused_graph(program: AxisProgram) -> MuGraph | None:
    """The first of `fused_graphs`, None where there is none."""
    return next(fused_graphs(program), None)


def fused_graphs(program: AxisProgram) -> Iterator[MuGraph]:
    """The forms of a program as one graph-defined kernel; the most promising first, whatever the sizes.

    They differ in the axis that is looped over, and in whether blocks repeat small products rather than share none
    of the axes. All are valid; exponents are as safe as in the program itself (`mirage.mugraph.degree`). There is no form
    where nothing is computed, or where the outputs share no axis that blocks could be laid out along, be it that they have
    none in common or that all are reduced on the way; one block computes scalars and vectors alone.
    """
    separate = with_separate_exps(program)
    allowed = len(analyze(reference_graph(separate)).plain)
    found: list[Graph] = []
    for plan in _plans(separate):
        moved = _with_late_factors_outside(separate, plan.loops)
        for whole in _held_whole(moved):
            graph = _assemble(moved, plan, whole)
            if graph is None or graph.kernel in found:
                continue
            try:
                validate(graph)
            except GraphError:
                continue  # the plan does not suit the program: something needs a whole axis that it loops over
            if len(analyze(graph).plain) <= allowed:
                found.append(graph.kernel)
                yield graph


def _plans(program: AxisProgram) -> list[KernelPlan]:
    """Ways to divide the reductions: loops over what matmuls contract, the longest first, then none, then over other sums."""
    contracted = {a for n in program.nodes if n.op in PRODUCTS for a in n.reduce}

    def length(a: str) -> int:
        size = program.axes[a]
        return int(size) if size.is_Integer else _SYMBOLIC

    def order(plan: KernelPlan) -> tuple[int, int, int]:
        streamed = [a for a in plan.loops if a in contracted]
        kind = 0 if streamed else 1 if not plan.loops else 2
        return kind, -max((length(a) for a in streamed), default=0), len(plan.loops)

    plans = [p for p in kernel_plans(program, _MAX_LOOPS) if p.split is None]
    # one tile holds a short axis
    return sorted((p for p in plans if all(length(a) > LOOP_TILE for a in p.loops)), key=order)


def _held_whole(program: AxisProgram) -> list[frozenset[str]]:
    """Output axes that blocks may hold whole rather than divide: first so that none computes a product of a matmul that
    another block computes too, then none.
    """
    shared = _shared_axes(program, [o.value for o in program.outputs])
    live = _live(program)
    repeated = frozenset(
        a for i in live if program.nodes[i].op in PRODUCTS for a in shared - set(program.nodes[i].axes)
    )
    return [repeated, frozenset()] if repeated else [frozenset()]


def _live(program: AxisProgram) -> list[int]:
    """The nodes that the outputs need, in order."""
    needed = {o.value for o in program.outputs}
    for i in range(len(program.nodes) - 1, -1, -1):
        if i in needed:
            needed.update(program.nodes[i].operands)
    return sorted(needed)


def _shared_axes(program: AxisProgram, values: Sequence[int]) -> set[str]:
    """Axes that all of these values have and nothing reduces or joins."""
    axes = set(program.axes)
    computed = [program.nodes[i] for i in values if program.nodes[i].op not in ("input", *_SCALARS)]
    for n in computed:
        axes &= set(n.axes)
    for i in _live(program):
        n = program.nodes[i]
        axes -= {*n.reduce, *((n.joined[0], *n.joined[1]) if n.joined else ())}
    return axes if computed else set()


class _Rewriter:
    """Nodes of a program that is being rewritten; equal nodes are shared. `late` are the values that depend on a sum over
    one of the `loops`, so that they are known after the loop only.
    """

    def __init__(self, program: AxisProgram, loops: Sequence[str]) -> None:
        self.program = program
        self.loops = set(loops)
        self.nodes: list[AxisNode] = []
        self.late: set[int] = set()
        self._index: dict[AxisNode, int] = {}

    def add(self, node: AxisNode) -> int:
        if node not in self._index:
            self._index[node] = len(self.nodes)
            if self.loops & set(node.reduce) or any(j in self.late for j in node.operands):
                self.late.add(len(self.nodes))
            self.nodes.append(node)
        return self._index[node]

    def binary(self, op: str, x: int, y: int) -> int:
        axes = self.program.order({*self.nodes[x].axes, *self.nodes[y].axes})
        return self.add(AxisNode(op, (x, y), (), axes))

    def factors(self, i: int, power: int = 1) -> list[tuple[int, int]]:
        """A late value as a product: (factor, 1 or -1)."""
        n = self.nodes[i]
        if n.op not in ("mul", "div") or i not in self.late:
            return [(i, power)]
        x, y = n.operands
        return [*self.factors(x, power), *self.factors(y, power if n.op == "mul" else -power)]

    def product(self, factors: Sequence[tuple[int, int]]) -> int:
        """The product of factors, of which at least one has the power 1."""
        first, *above = [i for i, power in factors if power == 1]
        for i in above:
            first = self.binary("mul", first, i)
        for i in (i for i, power in factors if power == -1):
            first = self.binary("div", first, i)
        return first

    def reduction(self, n: AxisNode) -> int:
        """A sum or matmul without the late factors of its operands that are the same in all terms: these come after it."""
        outside: list[tuple[int, int]] = []
        operands = []
        for j in n.operands:
            inside: list[tuple[int, int]] = []
            moved: list[tuple[int, int]] = []
            for i, power in self.factors(j):
                constant = i in self.late and not set(self.nodes[i].axes) & set(n.reduce)
                (moved if constant else inside).append((i, power))
            if moved and any(power == 1 for _, power in inside):
                outside += moved
                operands.append(self.product(inside))
            else:
                operands.append(j)
        axes = {a for j in operands for a in self.nodes[j].axes} - set(n.reduce)
        result = self.add(replace(n, operands=tuple(operands), axes=self.program.order(axes)))
        return self.product([(result, 1), *outside])


def _with_late_factors_outside(program: AxisProgram, loops: Sequence[str]) -> AxisProgram:
    """The program whose reductions over the loops do not need what other reductions over them give, where that is a factor:
    sum(x / y) = sum(x) / y for a y without the summed axis, as FlashAttention and the fused RMSNorm have it (Mirage,
    section 3).
    """
    if not loops:
        return program
    rewriter = _Rewriter(program, loops)
    new: list[int] = []
    for n in program.nodes:
        node = replace(n, operands=tuple(new[j] for j in n.operands))
        linear = n.op == "sum" or n.op == "matmul"
        new.append(rewriter.reduction(node) if linear and set(n.reduce) & set(loops) else rewriter.add(node))
    outputs = tuple(replace(o, value=new[o.value]) for o in program.outputs)
    return replace(program, nodes=tuple(rewriter.nodes), outputs=outputs)


def _assemble(program: AxisProgram, plan: KernelPlan, whole: frozenset[str]) -> MuGraph | None:
    """The muGraph of one kernel with the axes of `whole` undivided; None where there is no such kernel."""
    nodes = [Node("input", (), (x.dims,), (("index", k),)) for k, x in enumerate(program.inputs)]
    places = {x.name: k for k, x in enumerate(program.inputs)}
    goals: dict[int, int] = {}
    for o in program.outputs:
        if program.nodes[o.value].op not in ("input", *_SCALARS):
            goals.setdefault(o.value, len(goals))
    if not goals:
        return None
    common = set.intersection(*(set(program.nodes[i].axes) for i in goals))
    if not common and any(program.nodes[i].axes for i in goals):
        return None
    parallel = _shared_axes(program, list(goals)) - whole
    if not parallel and any(len(program.nodes[i].axes) > 1 for i in goals):
        return None  # one block would compute a whole matrix
    block, reads = _block(program, plan, parallel, list(goals), places)
    dims = tuple(_stored_dims(program, i) for i in goals)
    nodes.append(Node("graph", tuple(Ref(k) for k in reads), dims, graph=block))
    kernel = len(nodes) - 1
    outputs = []
    for o in program.outputs:
        n = program.nodes[o.value]
        if o.value in goals:
            outputs.append(Ref(kernel, goals[o.value]))
        elif n.op == "input":
            outputs.append(Ref(places[n.attr["name"]]))
        else:
            nodes.append(Node(n.op, (), ((),), n.attrs))
            outputs.append(Ref(len(nodes) - 1))
    graph = Graph(Level.KERNEL, tuple(nodes), tuple(outputs))
    origin = f"fused, {plan}" + f", {', '.join(sorted(whole))} whole" * bool(whole)
    return MuGraph(program.name, dict(program.axes), program.inputs, graph, program.outputs, program.dtype, origin)


def _stored_dims(program: AxisProgram, value: int) -> tuple[tuple[str, ...], ...]:
    """The program's own dims of an output where it can be written as it is: where it has all of their axes."""
    axes = program.nodes[value].axes
    own = (o.dims for o in program.outputs if o.value == value and {a for d in o.dims for a in d} == set(axes))
    return next(own, single_dims(axes))


def _block(
    program: AxisProgram, plan: KernelPlan, parallel: set[str], goals: Sequence[int], places: Mapping[str, int]
) -> tuple[Graph, list[int]]:
    """The block graph of all that `goals` need, and the inputs of the program that it reads.

    A sum over all loops is accumulated at once, so that what follows runs after them.
    """
    nodes: list[Node] = []
    reads: list[int] = []
    value: dict[int, Ref] = {}
    loops = set(plan.loops)
    pending: dict[int, set[str]] = {}
    for i in _live(replace(program, outputs=tuple(o for o in program.outputs if o.value in goals))):
        n = program.nodes[i]
        dims = (single_dims(n.axes),)
        pending[i] = set().union(*(pending[j] for j in n.operands))
        if n.op == "input":
            k = places[n.attr["name"]]
            nodes.append(Node("input", (), (program.inputs[k].dims,), (("index", len(reads)),)))
            reads.append(k)
        else:
            nodes.append(Node(n.op, tuple(value[j] for j in n.operands), dims, n.attrs, n.reduce, n.joined))
        if n.op in REDUCTIONS and loops & set(n.reduce):
            pending[i] |= loops & set(n.reduce)
            if pending[i] == loops:
                mode = (("mode", "sum"), ("axis", plan.loops[0]))
                nodes.append(Node("accumulator", (Ref(len(nodes) - 1),), dims, mode))
                pending[i] = set()
        value[i] = Ref(len(nodes) - 1)
    used = dict.fromkeys(a for n in nodes for a in (*n.axes(), *n.reduce, *((n.joined[1]) if n.joined else ())))
    roles = tuple((a, Role.LOOP if a in loops else Role.PARALLEL if a in parallel else Role.WHOLE) for a in used)
    return Graph(Level.BLOCK, tuple(nodes), tuple(value[i] for i in goals), roles), reads
