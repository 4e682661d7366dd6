"""One customized kernel of a candidate as a block graph: partitions become roles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mirage.errors import FormatError, GraphError
from mirage.frontends.upstream.constants import Constants
from mirage.frontends.upstream.names import Name, parse_name
from mirage.frontends.upstream.partition import Cut, Partition
from mirage.frontends.upstream.read import BlockOperator, KernelOperator, Tensor
from mirage.frontends.upstream.values import Nodes, Value
from mirage.ir.axes import AxisDims, AxisProgram
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, Role, partial_axis
from mirage.mugraph.schedule import KernelSchedule


@dataclass(frozen=True)
class BlockResult:
    """A block graph, the dims of its outputs at the kernel level, the tensors that it reads, and its sizes."""

    graph: Graph
    outputs: tuple[tuple[Tensor, AxisDims], ...]
    reads: tuple[int, ...]
    schedule: KernelSchedule


class BlockBuilder:
    """Builds the block graph of a customized kernel that reads `tensors` (guid -> dims).

    `partial` are axes of which every output has partial results: those that the grid divides and some output lacks.
    """

    def __init__(
        self,
        op: KernelOperator,
        tensors: Mapping[int, AxisDims],
        sizes: Mapping[str, int],
        program: AxisProgram,
        constants: Constants,
        partial: frozenset[str] = frozenset(),
    ) -> None:
        assert op.block is not None
        self.op = op
        self.block = op.block
        self.tensors = tensors
        self.sizes = sizes
        self.partial = partial
        self.partition = Partition(op.block, op.where)
        self.nodes = Nodes(program, constants, self.partition.extent)
        self.values: dict[int, tuple[Value, tuple[int, ...]]] = {}
        self.reads: list[int] = []
        self.stored: list[tuple[BlockOperator, Value]] = []

    def run(self) -> BlockResult:
        """The graph; raises FormatError, GraphError, or Cut where an axis has to be two."""
        names = [parse_name(o.op, "tb", o.where) for o in self.block.operators]
        for o, name in zip(self.block.operators, names, strict=True):
            if name.kind == "input":
                self.partition.read(o, self.read(o), self.sizes)
        self.partition.check()
        for n in self.nodes.program.nodes:
            if n.joined is not None:
                # a block that joins parts sees all of them
                self.partition.tile.setdefault(n.joined[0], self.sizes[n.joined[0]])
        for o, name in zip(self.block.operators, names, strict=True):
            if name.kind == "output":
                self.store(o)
            else:
                self.define(o, self.compute(o, name))
        return self.result()

    def read(self, o: BlockOperator) -> AxisDims:
        assert o.tensor is not None
        if o.tensor.guid not in self.tensors:
            raise FormatError(f"{o.where}: reads tensor {o.tensor.guid}, which no operator before makes")
        if o.tensor.guid not in (t.guid for t in self.op.inputs):
            raise FormatError(
                f"{o.where}: reads tensor {o.tensor.guid}, which is no input of the kernel; list it there"
            )
        return self.tensors[o.tensor.guid]

    def compute(self, o: BlockOperator, name: Name) -> Value:
        operands = [self.operand(t, o) for t in o.inputs]
        if name.kind == "input":
            if operands:
                raise FormatError(f"{o.where}: has input tensors; an input iterator reads its dtensor")
            assert o.tensor is not None
            self.reads.append(o.tensor.guid)
            dims = self.tensors[o.tensor.guid]
            return self.nodes.read(len(self.reads) - 1, dims)
        if name.kind == "accumulator":
            return self.accumulate(o, name.detail, operands)
        if len({v.after for v in operands}) > 1:
            raise FormatError(f"{o.where}: combines tensors from before and after the end of the loop")
        return self.nodes.apply(name, operands, self.block.reduction_dimx, o.where)

    def operand(self, t: Tensor, o: BlockOperator) -> Value:
        if t.guid not in self.values:
            raise FormatError(f"{o.where}: uses tensor {t.guid}, which no operator before makes")
        value, shape = self.values[t.guid]
        _check_shape(t, shape, o.where)
        _check_side(t, value, o.where)
        return value

    def define(self, o: BlockOperator, value: Value) -> None:
        if len(o.outputs) != 1:
            raise FormatError(f"{o.where}: {len(o.outputs)} output tensors; it has one")
        t = o.outputs[0]
        if t.guid in self.values:
            raise FormatError(f"{o.where}: makes tensor {t.guid} a second time; give each its own guid")
        shape = tuple(self.partition.extent(d) for d in value.dims)
        _check_shape(t, shape, o.where)
        _check_side(t, value, o.where)
        self.values[t.guid] = value, shape

    def accumulate(self, o: BlockOperator, mode: str, operands: list[Value]) -> Value:
        """The sum over the loop of a tensor, or of its sum over the last dim."""
        if len(operands) != 1 or operands[0].after:
            raise FormatError(f"{o.where}: takes one tensor from inside the loop")
        (x,) = operands
        last = x.dims[-1]
        n, where = self.nodes, o.where
        if mode == "red_ld_rms":
            x = n.add("square", (x,), x.dims)
        if mode != "nored":
            x = n.sum(x, len(x.dims) - 1, self.block.reduction_dimx if mode == "redtox_ld_sum" else 1, where)
        x = self.sum_parts(x, where)
        if loops := [*self.partition.loop, *(a for a in self.partition.blocks if a in self.partial)]:
            x = n.add("accumulator", (x,), x.dims, attrs=(("mode", "sum"), ("axis", loops[0])))
        x = Value(x.ref, x.dims, True)
        if mode in ("red_ld_mean", "red_ld_rms"):
            self.check_mean(last, where)
            x = n.mean(x, last, where) if mode == "red_ld_mean" else n.root_mean(x, last, where)
        return Value(x.ref, x.dims, True)

    def sum_parts(self, x: Value, where: str) -> Value:
        """An accumulator adds up equal places of tiles: only axes of which a tile has one element are summed so."""
        over = [a for d in x.dims for a in d if a in self.partition.loop or a in self.partial]
        for a in over:
            if self.partition.tile[a] > 1:
                raise Cut(a, self.partition.tile[a], where)
        return self.nodes.reduce(x, tuple(over), tuple(tuple(a for a in d if a not in over) for d in x.dims))

    def check_mean(self, axes: tuple[str, ...], where: str) -> None:
        """A mean divides by the elements of a tile times the iterations: these have to be the whole axes."""
        counted = self.partition.extent(axes) * self.block.loop
        whole = _product(self.sizes, axes)
        if counted != whole:
            raise GraphError(
                f"{where}: the mean divides by {counted}, but its dim has {whole} elements; loop over all of it"
            )

    def store(self, o: BlockOperator) -> None:
        if len(o.inputs) != 1:
            raise FormatError(f"{o.where}: {len(o.inputs)} input tensors; it stores one")
        value = self.operand(o.inputs[0], o)
        if not value.after:
            raise FormatError(f"{o.where}: stores a tensor from inside the loop; accumulate it first")
        self.stored.append((o, value))

    def result(self) -> BlockResult:
        if not self.stored:
            raise FormatError(f"{self.op.where}: stores nothing; add an output operator")
        seen = [{a for d in v.dims for a in d} for _, v in self.stored]
        partial = frozenset(a for a in self.partition.blocks if not all(a in s for s in seen))
        if partial != self.partial:
            return BlockBuilder(
                self.op, self.tensors, self.sizes, self.nodes.program, self.nodes.constants, partial
            ).run()
        outputs: list[tuple[Tensor, AxisDims]] = []
        for o, v in self.stored:
            assert o.tensor is not None
            dims = self.kernel_dims(o, v)
            sizes = {**self.sizes, **{partial_axis(a): n for a, n in self.partition.blocks.items()}}
            _check_shape(o.tensor, tuple(_product(sizes, d) for d in dims), o.where)
            outputs.append((o.tensor, dims))
        if [t.guid for t, _ in outputs] != [t.guid for t in self.op.outputs]:
            raise FormatError(f"{self.op.where}: its output tensors are not those that its graph stores, in order")
        refs = tuple(v.ref for _, v in self.stored)
        graph = Graph(Level.BLOCK, tuple(self.nodes.nodes), refs, self.roles())
        return BlockResult(graph, tuple(outputs), tuple(self.reads), self.schedule())

    def kernel_dims(self, o: BlockOperator, value: Value) -> AxisDims:
        """The dims of a stored tensor: blocks side by side along the dims of the output map."""
        dims = list(value.dims)
        mapped: set[int] = set()
        for k, d in zip("xyz", o.map, strict=True):
            if k not in self.partition.letters:
                continue
            axes = tuple(self.partition.grid[k])
            if d < 0:
                raise GraphError(f"{o.where}: all blocks along {k} store the same elements; map {k} to a dim")
            if d >= len(dims):
                raise FormatError(f"{o.where}: output_map.{k} is {d}, but the stored tensor has {len(dims)} dims")
            if d in mapped:
                raise GraphError(
                    f"{o.where}: two grid dims are mapped to dim {d}; which is outermost is not stored, use one"
                )
            mapped.add(d)
            if all(a in self.partial for a in axes):
                dims[d] = (*map(partial_axis, axes), *dims[d])
            elif dims[d][: len(axes)] != axes or any(self.partition.tile[a] > 1 for a in axes[:-1]):
                raise GraphError(
                    f"{o.where}: blocks along {k}, which divide {'*'.join(axes)}, are put side by side along dim {d}, which is "
                    f"{'*'.join(dims[d]) or '1'}: no product of the program's axes; map {k} to the dim that it divides"
                )
        return tuple(dims)

    def roles(self) -> tuple[tuple[str, Role], ...]:
        used = dict.fromkeys(a for n in self.nodes.nodes for a in (*n.axes(), *n.reduce))
        for n in self.nodes.nodes:
            if n.joined is not None:
                used.update(dict.fromkeys((n.joined[0], *n.joined[1])))
        return tuple((a, self.role(a)) for a in used)

    def role(self, axis: str) -> Role:
        if axis in self.partial:
            return Role.SPLIT
        if axis in self.partition.loop:
            return Role.LOOP
        return Role.PARALLEL if axis in self.partition.blocks else Role.WHOLE

    def schedule(self) -> KernelSchedule:
        divided = [(a, r) for a, r in self.roles() if r is not Role.WHOLE]
        splits = tuple((a, self.partition.blocks[a]) for a, r in divided if r is Role.SPLIT)
        return KernelSchedule(tuple((a, self.partition.tile[a]) for a, _ in divided), splits)


def _product(sizes: Mapping[str, int], axes: tuple[str, ...]) -> int:
    return math.prod(sizes[a] for a in axes)


def _check_shape(t: Tensor, shape: tuple[int, ...], where: str) -> None:
    if t.shape != shape:
        raise FormatError(f"{where}: tensor {t.guid} has shape {list(t.shape)}, but its operator makes {list(shape)}")


def _check_side(t: Tensor, value: Value, where: str) -> None:
    if t.after is not None and t.after != value.after:
        side = "after" if value.after else "inside"
        raise FormatError(f"{where}: after_accum of tensor {t.guid} is {t.after}, but it is made {side} the loop")
