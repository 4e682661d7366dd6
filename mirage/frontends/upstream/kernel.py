"""The kernel graph of a candidate: inputs, predefined kernels, customized kernels, results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mirage.errors import FormatError, GraphError
from mirage.frontends.upstream.block import BlockBuilder
from mirage.frontends.upstream.constants import Constants
from mirage.frontends.upstream.names import parse_name
from mirage.frontends.upstream.read import Candidate, KernelOperator, Tensor
from mirage.frontends.upstream.values import Nodes, Value
from mirage.ir.axes import AxisDims, AxisProgram
from mirage.ir.dims import evaluate
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref, partial_axis
from mirage.mugraph.schedule import KernelSchedule, Schedule


class KernelBuilder:
    """Builds the kernel graph of a candidate over the axes of a program, at the sizes of the file."""

    def __init__(self, candidate: Candidate, program: AxisProgram, sizes: Mapping[str, int]) -> None:
        self.candidate = candidate
        self.program = program
        self.sizes = {a: evaluate(d, sizes) for a, d in program.axes.items()}
        self.constants = Constants.of(program)
        self.nodes = Nodes(program, self.constants, self.extent)
        self.values: dict[int, Value] = {}
        self.schedules: list[KernelSchedule] = []
        self.outputs: list[Value] = []
        self.inputs = 0

    def extent(self, axes: Sequence[str]) -> int:
        """Elements of a dim."""
        return math.prod(self.sizes[a] for a in axes)

    def run(self) -> tuple[MuGraph, Schedule]:
        """The graph and the file's sizes for it; raises FormatError, GraphError, or Cut where an axis has to be two."""
        for o in self.candidate.operators:
            name = parse_name(o.op, "kn", o.where)
            operands = [self.operand(t, o) for t in o.inputs]
            if name.kind == "input":
                self.define(o, [self.nodes.read(self.inputs, self.program.inputs[self.inputs].dims)])
                self.inputs += 1
            elif name.kind == "output":
                if len(operands) != 1:
                    raise FormatError(f"{o.where}: {len(operands)} input tensors; it marks one result")
                self.outputs.append(operands[0])
            elif name.kind == "customized":
                self.define(o, self.customized(o))
            else:
                self.define(o, [self.nodes.apply(name, operands, None, o.where)])
        self.check_outputs()
        p = self.program
        kernel = Graph(Level.KERNEL, tuple(self.nodes.nodes), tuple(v.ref for v in self.outputs))
        origin = f"upstream candidate {self.candidate.index}"
        graph = MuGraph(p.name, dict(p.axes), p.inputs, kernel, p.outputs, p.dtype, origin)
        return graph, Schedule(tuple(self.schedules))

    def operand(self, t: Tensor, o: KernelOperator) -> Value:
        if t.guid not in self.values:
            raise FormatError(f"{o.where}: uses tensor {t.guid}, which no operator before makes")
        value = self.values[t.guid]
        self.check_shape(t, value.dims, o)
        return value

    def define(self, o: KernelOperator, values: list[Value]) -> None:
        if len(o.outputs) != len(values):
            raise FormatError(f"{o.where}: {len(o.outputs)} output tensors; it makes {len(values)}")
        for t, value in zip(o.outputs, values, strict=True):
            if t.guid in self.values:
                raise FormatError(f"{o.where}: makes tensor {t.guid} a second time; give each its own guid")
            self.check_shape(t, value.dims, o)
            self.values[t.guid] = value

    def check_shape(self, t: Tensor, dims: AxisDims, o: KernelOperator) -> None:
        shape = [self.extent(d) for d in dims]
        if list(t.shape) != shape:
            raise FormatError(f"{o.where}: tensor {t.guid} has shape {list(t.shape)}, but it is made as {shape}")

    def customized(self, o: KernelOperator) -> list[Value]:
        dims = {guid: v.dims for guid, v in self.values.items()}
        found = BlockBuilder(o, dims, self.sizes, self.program, self.constants).run()
        for a, n in found.schedule.splits:
            if self.sizes.setdefault(partial_axis(a), n) != n:
                raise GraphError(f"{o.where}: divides axis {a} into {n} parts, an earlier kernel into another number")
        reads = tuple(self.values[guid].ref for guid in found.reads)
        self.nodes.nodes.append(Node("graph", reads, tuple(d for _, d in found.outputs), graph=found.graph))
        self.schedules.append(found.schedule)
        made = len(self.nodes.nodes) - 1
        return [Value(Ref(made, k), d) for k, (_, d) in enumerate(found.outputs)]

    def check_outputs(self) -> None:
        wanted = [o.dims for o in self.program.outputs]
        if len(self.outputs) != len(wanted):
            raise FormatError(
                f"{self.candidate.where}: marks {len(self.outputs)} results with kn_output_op, but program "
                f"{self.program.name} has {len(wanted)}"
            )
        for k, (value, dims) in enumerate(zip(self.outputs, wanted, strict=True)):
            if value.dims != dims:
                found, needed = (", ".join("*".join(d) or "1" for d in x) for x in (value.dims, dims))
                raise GraphError(
                    f"{self.candidate.where}: result {k} has dims [{found}], that of program {self.program.name} [{needed}]; "
                    "sum and map its axes as the program does"
                )
