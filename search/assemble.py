"""From chosen derivations to a muGraph: nodes, roles and kernel-level tensors."""

from __future__ import annotations

from collections.abc import Sequence

from mirage.ir.axes import AxisDims, AxisNode, AxisProgram
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.search.closure import Value
from mirage.search.compose import Kernel
from mirage.search.extract import topological
from mirage.search.tensors import KernelTensor, Tensors


def single_dims(axes: Sequence[str]) -> AxisDims:
    """One dim per axis."""
    return tuple((a,) for a in axes)


def assemble(tensors: Tensors, kernels: Sequence[Kernel]) -> MuGraph:
    """The muGraph of kernels in order of execution."""
    program = tensors.program
    nodes = [Node("input", (), (x.dims,), (("index", k),)) for k, x in enumerate(program.inputs)]
    where: dict[KernelTensor, Ref] = {}
    names = [x.name for x in program.inputs]
    for kernel in kernels:
        reads: list[Ref] = []
        graph = _block(kernel, names, nodes, where, reads)
        dims = [_stored_dims(program, t) for t in kernel.tensors]
        nodes.append(Node("graph", tuple(reads), tuple(dims), graph=graph))
        for out, t in enumerate(kernel.tensors):
            where[t] = Ref(len(nodes) - 1, out)
    outputs: list[Ref] = []
    for trivial, tensor in zip(tensors.trivial, tensors.outputs(), strict=True):
        if tensor is not None:
            outputs.append(where[tensor])
        elif trivial is not None and trivial.op == "input":
            outputs.append(Ref(names.index(trivial.attr["name"])))
        else:
            assert trivial is not None
            nodes.append(Node(trivial.op, (), ((),), trivial.attrs))
            outputs.append(Ref(len(nodes) - 1))
    kernel_graph = Graph(Level.KERNEL, tuple(nodes), tuple(outputs))
    origin = "; ".join(str(k.plan) for k in kernels)
    return MuGraph(
        program.name, dict(program.axes), program.inputs, kernel_graph, program.outputs, program.dtype, origin
    )


def _stored_dims(program: AxisProgram, tensor: KernelTensor) -> AxisDims:
    """The program's own dims, where a tensor has all axes of an output and can be written as it is."""
    for k in tensor.outputs:
        dims = program.outputs[k].dims
        if {a for d in dims for a in d} == set(tensor.axes):
            return dims
    return single_dims(tensor.axes)


def _block(
    kernel: Kernel,
    inputs: Sequence[str],
    kernel_nodes: Sequence[Node],
    where: dict[KernelTensor, Ref],
    reads: list[Ref],
) -> Graph:
    nodes: list[Node] = []
    index: dict[Value, Ref] = {}
    reduced: set[str] = set()
    choice, plan = kernel.choice, kernel.plan
    for v in topological(choice):
        if v in choice.chosen:
            d = choice.chosen[v]
            reduced.update(d.reduce)
            operands = tuple(index[u] for u in d.operands)
            nodes.append(Node(d.op, operands, (single_dims(v.axes),), d.attrs, d.reduce, d.joined))
        elif isinstance(v.source, AxisNode) and v.source.op != "input":
            nodes.append(Node(v.source.op, (), ((),), v.source.attrs))
        else:
            if isinstance(v.source, KernelTensor):
                ref = where[v.source]
            else:
                assert isinstance(v.source, AxisNode)
                ref = Ref(inputs.index(v.source.attr["name"]))
            nodes.append(Node("input", (), (kernel_nodes[ref.node].dims[ref.out],), (("index", len(reads)),)))
            reads.append(ref)
        index[v] = Ref(len(nodes) - 1)
    outputs = tuple(index[v] for v in choice.goals)
    everywhere = set(choice.goals[0].axes).intersection(*(v.axes for v in choice.goals))
    joined = {a for n in nodes if n.joined for a in (n.joined[0], *n.joined[1])}
    axes = dict.fromkeys(a for n in nodes for a in (*n.axes(), *n.reduce))
    roles: list[tuple[str, Role]] = []
    for a in axes:
        if a in plan.loops:
            roles.append((a, Role.SPLIT if a == plan.split else Role.LOOP))
        elif a in everywhere and a not in reduced and a not in joined:
            roles.append((a, Role.PARALLEL))
        else:
            roles.append((a, Role.WHOLE))
    return Graph(Level.BLOCK, tuple(nodes), outputs, tuple(roles))
