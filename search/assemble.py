"""From chosen derivations to a muGraph: nodes, roles and kernel-level tensors."""

from __future__ import annotations

from collections.abc import Sequence

from mirage.ir.axes import AxisDims, AxisNode, AxisProgram
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role, partial_axis
from mirage.search.closure import Value
from mirage.search.extract import Choice, topological
from mirage.search.plan import KernelPlan


def single_dims(axes: Sequence[str]) -> AxisDims:
    """One dim per axis."""
    return tuple((a,) for a in axes)


def kernel_axes(value: Value, plan: KernelPlan) -> tuple[str, ...]:
    """The axes of a kernel's result at the kernel level: the split axis's partial index comes first."""
    return ((partial_axis(plan.loop),) if plan.split and plan.loop else ()) + value.axes


def assemble(program: AxisProgram, kernels: Sequence[tuple[KernelPlan, Choice]], origin: str) -> MuGraph:
    """The muGraph of one choice per kernel; the last kernel's goals are the program's outputs, in order."""
    nodes = [Node("input", (), (x.dims,), (("index", k),)) for k, x in enumerate(program.inputs)]
    where: dict[Value, Ref] = {}
    names = [x.name for x in program.inputs]
    for k, (plan, choice) in enumerate(kernels):
        last = k == len(kernels) - 1
        dims = [
            program.outputs[i].dims
            if last and _fills(v, program.outputs[i].dims)
            else single_dims(kernel_axes(v, plan))
            for i, v in enumerate(choice.goals)
        ]
        reads: list[Ref] = []
        graph = _block(choice, plan, names, nodes, where, reads)
        nodes.append(Node("graph", tuple(reads), tuple(dims), graph=graph))
        for out, v in enumerate(choice.goals):
            where[v] = Ref(len(nodes) - 1, out)
    outputs = tuple(where[v] for v in kernels[-1][1].goals)
    kernel = Graph(Level.KERNEL, tuple(nodes), outputs)
    return MuGraph(program.name, dict(program.axes), program.inputs, kernel, program.outputs, program.dtype, origin)


def _fills(value: Value, dims: AxisDims) -> bool:
    """Whether a value has all axes of these dims, so that the kernel can write the result as it is."""
    return {a for d in dims for a in d} == set(value.axes)


def _block(
    choice: Choice,
    plan: KernelPlan,
    inputs: Sequence[str],
    kernel_nodes: Sequence[Node],
    where: dict[Value, Ref],
    reads: list[Ref],
) -> Graph:
    nodes: list[Node] = []
    index: dict[Value, Ref] = {}
    reduced: set[str] = set()
    for v in topological(choice):
        if v in choice.chosen:
            d = choice.chosen[v]
            reduced.update(d.reduce)
            operands = tuple(index[u] for u in d.operands)
            nodes.append(Node(d.op, operands, (single_dims(v.axes),), d.attrs, d.reduce, d.joined))
        elif isinstance(v.source, AxisNode) and v.source.op != "input":
            nodes.append(Node(v.source.op, (), ((),), v.source.attrs))
        else:
            ref = where[v.source] if isinstance(v.source, Value) else Ref(inputs.index(v.source.attr["name"]))  # type: ignore[union-attr]
            nodes.append(Node("input", (), (kernel_nodes[ref.node].dims[ref.out],), (("index", len(reads)),)))
            reads.append(ref)
        index[v] = Ref(len(nodes) - 1)
    outputs = tuple(index[v] for v in choice.goals)
    everywhere = set(choice.goals[0].axes).intersection(*(v.axes for v in choice.goals))
    joined = {a for n in nodes if n.joined for a in (n.joined[0], *n.joined[1])}
    axes = dict.fromkeys(a for n in nodes for a in (*n.axes(), *n.reduce))
    roles: list[tuple[str, Role]] = []
    for a in axes:
        if a == plan.loop:
            roles.append((a, Role.SPLIT if plan.split else Role.LOOP))
        elif a in everywhere and a not in reduced and a not in joined:
            roles.append((a, Role.PARALLEL))
        else:
            roles.append((a, Role.WHOLE))
    return Graph(Level.BLOCK, tuple(nodes), outputs, tuple(roles))
