"""From chosen derivations to a muGraph: nodes, roles and kernel-level tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage.ir.axes import AxisDims, AxisNode, AxisProgram
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, Role
from mirage.search.closure import Value
from mirage.search.compose import Kernel
from mirage.search.extract import topological
from mirage.search.tensors import KernelTensor


def single_dims(axes: Sequence[str]) -> AxisDims:
    """One dim per axis."""
    return tuple((a,) for a in axes)


@dataclass(frozen=True)
class _Block:
    """The block graph of a kernel, what it reads (an input's number, or a tensor), and the dims of its results.

    `kernel` is kept alive, as it is known by the identity of its choice.
    """

    kernel: Kernel
    graph: Graph
    reads: tuple[int | KernelTensor, ...]
    dims: tuple[AxisDims, ...]


class Assembler:
    """Assembles the muGraphs of a program; block graphs are made once, and shared by all graphs that have their kernels."""

    def __init__(self, program: AxisProgram) -> None:
        self.program = program
        self._inputs = {x.name: k for k, x in enumerate(program.inputs)}
        self._blocks: dict[tuple[int, tuple[KernelTensor, ...]], _Block] = {}

    def graph(self, kernels: Sequence[Kernel], outputs: Sequence[KernelTensor | None]) -> MuGraph:
        """The muGraph of kernels in order of execution; `outputs` are the program's, None for those that need no kernel."""
        program = self.program
        nodes = [Node("input", (), (x.dims,), (("index", k),)) for k, x in enumerate(program.inputs)]
        where: dict[int | KernelTensor, Ref] = {k: Ref(k) for k in range(len(nodes))}
        for kernel in kernels:
            block = self._block(kernel)
            nodes.append(Node("graph", tuple(where[r] for r in block.reads), block.dims, graph=block.graph))
            for out, t in enumerate(kernel.tensors):
                where[t] = Ref(len(nodes) - 1, out)
        found: list[Ref] = []
        for output, tensor in zip(program.outputs, outputs, strict=True):
            source = program.nodes[output.value]
            if tensor is not None:
                found.append(where[tensor])
            elif source.op == "input":
                found.append(where[self._inputs[source.attr["name"]]])
            else:
                nodes.append(Node(source.op, (), ((),), source.attrs))
                found.append(Ref(len(nodes) - 1))
        kernel_graph = Graph(Level.KERNEL, tuple(nodes), tuple(found))
        origin = "; ".join(str(k.plan) for k in kernels)
        return MuGraph(
            program.name, dict(program.axes), program.inputs, kernel_graph, program.outputs, program.dtype, origin
        )

    def _block(self, kernel: Kernel) -> _Block:
        key = id(kernel.choice), kernel.tensors
        found = self._blocks.get(key)
        if found is None:
            reads: list[int | KernelTensor] = []
            graph = self._block_graph(kernel, reads)
            dims = tuple(self._stored_dims(t) for t in kernel.tensors)
            found = self._blocks[key] = _Block(kernel, graph, tuple(reads), dims)
        return found

    def _stored_dims(self, tensor: KernelTensor) -> AxisDims:
        """The program's own dims, where a tensor has all axes of an output and can be written as it is."""
        for k in tensor.outputs:
            dims = self.program.outputs[k].dims
            if {a for d in dims for a in d} == set(tensor.axes):
                return dims
        return single_dims(tensor.axes)

    def _read(self, value: Value) -> tuple[int | KernelTensor, AxisDims]:
        """What a leaf reads, and its dims."""
        if isinstance(value.source, KernelTensor):
            return value.source, self._stored_dims(value.source)
        assert isinstance(value.source, AxisNode)
        number = self._inputs[value.source.attr["name"]]
        return number, self.program.inputs[number].dims

    def _block_graph(self, kernel: Kernel, reads: list[int | KernelTensor]) -> Graph:
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
                source, dims = self._read(v)
                nodes.append(Node("input", (), (dims,), (("index", len(reads)),)))
                reads.append(source)
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
