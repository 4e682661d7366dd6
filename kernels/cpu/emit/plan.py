"""The plan of one kernel: where each block tensor lives, in which order, and how each operator runs.

Decided in topological order, since the best plan of an operator depends on the layout of its operands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import sympy

from mirage.errors import GraphError, ScheduleError
from mirage.ir.dims import Dim
from mirage.ir.operator import FOLDS, PRODUCTS, reduced_axes
from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.emit.algebra import FunctionSources, literal
from mirage.kernels.cpu.emit.bounds import TileBounds
from mirage.kernels.cpu.emit.group import GroupEmitter, GroupPlan, plan_group
from mirage.kernels.cpu.emit.hidden import Terms, find_terms
from mirage.kernels.cpu.emit.layout import BlockAxes, Buffer, View, element_type
from mirage.kernels.cpu.emit.loops import vector_axis
from mirage.kernels.cpu.emit.matmul import MatmulPlan, Product, plan_products
from mirage.kernels.cpu.emit.maximum import Block, Companion
from mirage.kernels.cpu.schedules.decisions import Decisions
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import Role, partial_axis
from mirage.mugraph.schedule import KernelSchedule
from mirage.mugraph.thread import is_elementwise, thread_groups, unit_order

# What vectors hold on the machine is a matter of the C compiler; plans assume 64 bytes.
VECTOR_BYTES = 64


@dataclass(frozen=True)
class Tensor:
    """A kernel-level tensor: its place in the arguments, that of its strides, and its axes; the stride of the last is `step`,
    which is 1 but for windows that are so many places apart.

    Of a `packed` one, stored tile after tile of the last axis, so it is within a tile; the stride in the arguments is that
    from tile to tile, per element of the axis. `narrow`: the type that it is stored in, "" where it is that which is computed in;
    `result`: whether the muGraph returns it.
    """

    index: int
    offset: int
    axes: tuple[str, ...]
    packed: bool = False
    narrow: str = ""
    result: bool = False
    step: int = 1

    @property
    def unit(self) -> str | None:
        """The axis along which it is contiguous."""
        return self.axes[-1] if self.axes and self.step == 1 else None

    @property
    def pointer(self) -> str:
        """C expression: its first element."""
        return f"{f'({element_type(self.narrow)} *)' if self.narrow else ''}args->tensors[{self.index}]"


@dataclass(frozen=True)
class Program:
    """What the kernels of one muGraph share in C; `itemsize` is that of the type that is computed in."""

    names: Mapping[str, str]
    sizes: Mapping[str, Dim]
    hints: Mapping[str, int]
    dims: Mapping[sympy.Expr, str]
    functions: FunctionSources
    maximum: RunningMaximum
    itemsize: int


@dataclass(frozen=True)
class Memory:
    """Where a node's result is: a buffer, or the kernel's output; `along` is the axis of a concat accumulator."""

    view: View
    axes: tuple[str, ...]
    along: str | None = None


@dataclass(frozen=True)
class HiddenTiles:
    """The terms of an exp's exponent, the loops over those that may hide it, and per row the largest of what hides tiles that are
    passed over, and of what hides the tile at hand; and the bounds of the terms in a tile, if there are any.
    """

    terms: Terms
    plan: GroupPlan
    hidden: Buffer
    tile: Buffer
    bounds: TileBounds | None


class BlockPlan:
    """One planned kernel; `scratch` are its buffers, `order` its groups and other nodes as they run."""

    def __init__(
        self,
        number: int,
        kernel: int,
        block: Block,
        schedule: KernelSchedule,
        program: Program,
        inputs: list[Tensor],
        outputs: list[Tensor],
        companions: Mapping[int, tuple[Companion, Tensor]],
    ) -> None:
        self.number = number
        self.kernel = kernel
        self.block = block
        self.graph = block.graph
        self.schedule = schedule
        self.program = program
        self.inputs = inputs
        self.outputs = outputs
        self.companions = companions
        self._readers: dict[int, list[int]] = {}
        for j, n in enumerate(self.graph.nodes):
            # an input that the kernel computes comes after what it names, without reading it
            for i in {r.node for r in n.operands if n.op != "input"}:
                self._readers.setdefault(i, []).append(j)
        self.axes = BlockAxes(self.graph, schedule, program.sizes, program.hints, program.names)
        self.names = program.names
        self.scratch: list[Buffer] = []
        self.memory: dict[int, Memory] = {}
        #: one plan per product
        self.matmuls: dict[int, tuple[MatmulPlan, ...]] = {}
        self.groups: dict[tuple[int, ...], GroupPlan] = {}
        #: nodes whose memory a later one has taken
        self.overwritten: set[int] = set()
        self.packs: dict[tuple[int, str], Buffer] = {}
        #: those of tensors that do not change with the loop, which read them
        self.packed_before: dict[tuple[int, str], None] = {}
        self.sites = block.sites(program.maximum, kernel)
        self.decisions = Decisions(number, schedule, block.old)
        #: per site its loops, and its rows' maxima, shifts and, in the for-loop, factors of growth
        self.states: dict[int, tuple[GroupPlan, tuple[Buffer, ...]]] = {}
        #: what is computed from companion tensors: factors of partial results, and what other kernels shifted exponents by
        self.factors: dict[int, Buffer] = {}
        self.shifts = {x.node: x for x in block.shifts}
        #: per site, if tiles may be passed over that are hidden for all: what hides them
        self.hidden: dict[int, HiddenTiles] = {}
        self.emitter = GroupEmitter(self.graph, self.axes, program.functions, program.dims)
        groups = thread_groups(self.graph, frozenset(self.sites))
        self.order = unit_order(self.graph, groups)
        self.depth = self._depths()
        self._plan()
        self.hidden = self._plan_hidden()
        self.decisions.check()
        if schedule.halved is not None and self.companions.keys() & self.states.keys():
            raise ScheduleError(
                f"kernel {number}: it leaves the maxima of exps beside its results, which are not halved; compute all of it"
            )

    def with_schedule(self, schedule: KernelSchedule) -> Self:
        """The kernel planned with another schedule, of the same inputs and outputs: one that packs as this one does."""
        given = self.number, self.kernel, self.block, schedule, self.program, self.inputs, self.outputs, self.companions
        return type(self)(*given)

    # facts about the graph

    def _depths(self) -> dict[int, int]:
        """Node -> in how many of the loops, outermost first, it runs; the nodes of a group run together."""
        found: dict[int, int] = {}
        for unit in self.order:
            after = unit[0] in self.graph.after_loop
            operands = {r.node for i in unit for r in self.graph.nodes[i].operands} - set(unit)
            depths = [*(self.graph.depth[i] for i in unit), *(found[j] for j in operands if not after)]
            found.update(dict.fromkeys(unit, max(depths)))
        return found

    def looping(self, i: int) -> bool:
        return i in self.graph.in_loop

    def phase(self, i: int) -> str:
        return "after" if i in self.graph.after_loop else "loop" if self.looping(i) else "before"

    def readers(self, i: int) -> list[int]:
        """The nodes that read i's result, in order."""
        return self._readers.get(i, [])

    def is_output(self, i: int) -> bool:
        return any(r.node == i for r in self.graph.outputs)

    def accumulator(self, i: int) -> int | None:
        """The accumulator that i's result goes straight into.

        Others may read it there if it is put beside earlier tiles, but not if it is added to them.
        """
        readers = self.readers(i)
        found = [j for j in readers if self.graph.nodes[j].op == "accumulator"]
        if len(found) != 1 or self.is_output(i) or (len(readers) > 1 and self.adds(found[0])):
            return None
        return found[0]

    def final(self, i: int) -> int:
        """The node whose memory i is computed in."""
        a = self.accumulator(i)
        return i if a is None else a

    def degree(self, i: int, site: int) -> int:
        if i not in self.block.old:
            return 0
        return self.program.maximum.degree.get(((self.kernel, self.block.old[i]), 0), {}).get(site, 0)

    # memory

    def _buffer(self, name: str, axes: tuple[str, ...], looping: bool, padded: bool = False) -> Buffer:
        room = tuple(self.axes.room(a, looping) for a in axes)
        buffer = Buffer(name, axes, room, padded or self.schedule.padded)
        self.scratch.append(buffer)
        return buffer

    def _output_unit(self, i: int) -> str | None:
        """The axis along which the kernel's output that i becomes is contiguous."""
        found = [t.unit for t, r in zip(self.outputs, self.graph.outputs, strict=True) if r.node == self.final(i)]
        return found[0] if found else None

    def _place(self, i: int, order: tuple[str, ...], strided: bool, over: int | None = None) -> None:
        """Give node i memory in this storage order, where the schedule gives it no other: a result that may be `strided` goes
        straight to an output, others may overwrite the node `over`.
        """
        t = self.final(i)
        layout, own = self.decisions.layout(t), self._last(i, order, strided)
        if t not in self.memory and self.graph.nodes[i].op not in PRODUCTS:
            self.decisions.may_be_last(t, own, order)
        if layout is not None and (layout.padded or layout.last != own):
            over, strided = None, False
            order = _with_last(order, layout.last)
        if over is not None:
            self.memory[t] = self.memory[over]
            self.overwritten.add(over)
        if t not in self.memory:
            along = self.graph.nodes[t].attr["axis"] if self._is_concat(t) else None
            padded = layout is not None and layout.padded
            home = None if padded else self._output(i, order, strided)
            if home is not None:
                self.memory[t] = Memory(self.output_view(home), order, along)
            else:
                buffer = self._buffer(f"m{t}", order, self.looping(t), padded)
                self.memory[t] = Memory(buffer.view(self.names), order, along)
        self.memory[i] = self.memory[t]

    def _last(self, i: int, order: tuple[str, ...], strided: bool) -> str | None:
        """The axis along which node i is contiguous that is stored in this order, or goes straight to an output."""
        home = self._output(i, order, strided)
        return self.outputs[home].unit if home is not None else order[-1] if order else None

    def _output(self, i: int, order: tuple[str, ...], strided: bool) -> int | None:
        """The kernel's output that node i may be computed in, in this order or, if `strided`, in any."""
        for k, (tensor, r) in enumerate(zip(self.outputs, self.graph.outputs, strict=True)):
            own = set(tensor.axes) & set(order)
            if tensor.narrow and not self._written_once(i):
                continue
            if r.node == self.final(i) and own == set(order) and order and (strided or tensor.unit == order[-1]):
                return k
        return None

    def _written_once(self, i: int) -> bool:
        """Whether i's elements are stored once, each, with their final value."""
        t = self.final(i)
        if self.graph.nodes[t].op == "accumulator" and (
            self.adds(t) or any(self.degree(t, s) for s in range(len(self.program.maximum.sites)))
        ):
            return False
        return self.graph.nodes[i].op not in PRODUCTS

    def _overwritten(self, i: int, plan: GroupPlan, order: tuple[str, ...]) -> int | None:
        """An operand of the group that nobody else reads, and whose elements member i may replace one by one."""
        if self.final(i) != i or self.is_output(i) or order != plan.order:
            return None
        operands = {r.node for j in plan.members for r in self.graph.nodes[j].operands} - set(plan.members)
        for j in sorted(operands - self.overwritten):
            memory = self.memory.get(j)
            own = memory is not None and memory.axes == order and self.graph.nodes[j].op != "accumulator"
            passing = self.final(j) == j and not self.is_output(j) and set(self.readers(j)) <= set(plan.members)
            if own and passing and (self.phase(i), self.depth[i]) == (self.phase(j), self.depth[j]):
                return j
        return None

    def adds(self, accumulator: int) -> bool:
        """Whether an accumulator adds up iterations: it starts at zero, and its memory holds sums."""
        return bool(self.graph.summed_loops(accumulator))

    def _is_concat(self, i: int) -> bool:
        n = self.graph.nodes[i]
        return n.op == "accumulator" and n.attr["mode"] == "concat"

    def output_view(self, k: int) -> View:
        """The block's part of an output; C variables are declared by `_declare_tensors`."""
        tensor = self.outputs[k]
        partial = {partial_axis(a) for a in self.graph.grid if self.graph.role[a] is Role.SPLIT}
        return View(f"o{k}", self._strides(tensor, f"o{k}", partial), tensor.unit, narrow=tensor.narrow)

    def _strides(self, tensor: Tensor, name: str, without: set[str] | frozenset[str] = frozenset()) -> dict[str, str]:
        found = {a: f"{name}_{self.names[a]}" for a in tensor.axes if a not in without}
        if tensor.axes and tensor.axes[-1] in found:
            found[tensor.axes[-1]] = str(tensor.step)
        return found

    def _input_view(self, i: int, looping: bool) -> View:
        shift = self.shifts.get(i)
        if shift is not None and shift.own:
            return self.states[shift.site][1][1].view(self.names)
        inner = looping and bool(set(self.graph.nodes[i].axes()) & set(self.graph.loop))
        pointer = f"{'t' if inner else 'p'}{i}"
        if i in self.factors:
            view = self.factors[i].view(self.names)
            return View(pointer if inner else view.pointer, view.strides, view.unit)
        tensor = self.inputs[self.graph.nodes[i].attr["index"]]
        return View(pointer, self._strides(tensor, f"p{i}"), tensor.unit, narrow=tensor.narrow)

    def view(self, i: int, looping: bool) -> View:
        """A node's result, as seen in an iteration or outside the loop."""
        n = self.graph.nodes[i]
        if n.op == "constant":
            return View("", scalar=literal(n.attr["value"]))
        if n.op == "size":
            return View("", scalar=f"((mi_real){self.program.dims[n.attr['dim']]})")
        if n.op == "input":
            return self._input_view(i, looping)
        memory = self.memory[i]
        if looping and memory.along is not None and self.looping(i):
            return self._inside_concat(memory)
        return memory.view

    def _inside_concat(self, memory: Memory) -> View:
        a = str(memory.along)
        done = f"done_{self.names[a]}"
        return replace(memory.view, pointer=memory.view.at({a: done}))

    def unit(self, i: int) -> str | None:
        return self.view(i, self.looping(i)).unit

    # plan

    def _plan(self) -> None:
        for r in self.block.rescales:
            order = self._rows_order([a for a in r.axes if a in self.graph.role], False)
            self.factors[r.node] = self._buffer(f"factor{r.site}", order, False)
        for x in self.block.shifts:
            if not x.own:
                order = self._rows_order(self.program.maximum.sites[x.site].rows, False)
                self.factors[x.node] = self._buffer(f"shift{x.site}_{x.node}", order, False)
        for unit in self.order:
            n = self.graph.nodes[unit[0]]
            if n.op in ("input", "constant", "size"):
                continue
            if n.op in FOLDS or is_elementwise(n):
                self._plan_group(unit)
            elif n.op in PRODUCTS:
                self._plan_matmul(unit[0])
            elif n.op == "concat":
                self._place(unit[0], self._concat_order(unit[0]), strided=True)
            elif n.op == "accumulator":
                if unit[0] not in self.memory:
                    source = n.operands[0].node
                    order = self.memory[source].axes if source in self.memory else n.axes()
                    self._place(unit[0], order, strided=True)
            else:
                raise GraphError(
                    f"{n.op}: a block graph for the CPU has no such operator; print the block graph itself"
                )

    def _plan_group(self, unit: tuple[int, ...]) -> None:
        members = set(unit)
        looping = self.looping(unit[0])
        outside = {r.node for i in unit for r in self.graph.nodes[i].operands} - members
        kept = [i for i in unit if self._is_stored(i, members)]
        units = [(j, self.unit(j)) for j in sorted(outside)] + [(i, self._output_unit(i)) for i in kept]
        plan = plan_group(self.axes, self.graph, unit, looping, units)
        self.decisions.may_have_vectors(unit[0], plan.vector, [a for a in self.graph.role if a in plan.order])
        plan = self.groups[unit] = self._decided(unit[0], plan)
        for i in kept:
            n = self.graph.nodes[i]
            if n.op not in FOLDS or plan.vector in n.axes():
                order = tuple(a for a in plan.order if a in n.axes())
            else:
                order = self._rows_order(n.axes(), looping)
            self._place(i, order, strided=True, over=self._overwritten(i, plan, order))
        for i in unit:
            for s in self.sites.get(i, ()):
                self._plan_site(i, s, looping)

    def _plan_site(self, i: int, site: int, looping: bool) -> None:
        rows = self.program.maximum.sites[site].rows
        n = self.graph.nodes[i]
        plan = plan_group(self.axes, self.graph, (i,), looping, [(r.node, self.unit(r.node)) for r in n.operands])
        plan = self._decided(i, plan)
        order = tuple(a for a in plan.order if a in rows) if plan.vector in rows else self._rows_order(rows, looping)
        kept = ("maximum", "shift", "growth") if looping else ("maximum", "shift")
        self.states[site] = plan, tuple(self._buffer(f"{what}{site}", order, False) for what in kept)

    def _plan_hidden(self) -> dict[int, HiddenTiles]:
        """What hides tiles of every exp in the for-loop; nothing unless all that is added up there is 0 where these are."""
        sites = {s: i for i, found in self.sites.items() for s in found if self.looping(i)}
        kept = [i for i, n in enumerate(self.graph.nodes) if n.op == "accumulator"]
        if len(self.graph.loop) != 1 or not all(
            self.adds(i) and any(self.degree(i, s) > 0 for s in sites) for i in kept
        ):
            return {}
        found: dict[int, HiddenTiles] = {}
        for s, i in sites.items():
            n = self.graph.nodes[i]
            terms = find_terms(self.graph, n.operands[0].node) if n.op == "exp" else None
            if terms is None:
                return {}
            rows = [a for a in self.program.maximum.sites[s].rows if a in terms.axes]
            space = [a for a in self.graph.role if a in terms.axes]
            votes = {str(self.unit(k)): 1.0 for k in terms.inputs}
            vector = vector_axis(self.axes, True, space, votes)
            outer = tuple(a for a in space if a in rows and a != vector)
            plan = GroupPlan(terms.members, outer, tuple(a for a in space if a not in rows), vector)
            order = tuple(a for a in plan.order if a in rows) if vector in rows else self._rows_order(rows, False)
            hidden, tile = (self._buffer(f"{what}{s}", order, False) for what in ("hidden", "hiding"))
            bounds = TileBounds.find(self.graph, terms, self.program.functions, self.program.dims)
            found[s] = HiddenTiles(terms, plan, hidden, tile, bounds)
        return found

    def _decided(self, first: int, plan: GroupPlan) -> GroupPlan:
        """The plan with the vector axis that the schedule gives the group of this first member, if any."""
        vector = self.decisions.vector(first)
        if vector is None:
            return plan
        outer = tuple(a for a in self.graph.role if a in plan.order and a not in plan.reduce and a != vector)
        return replace(plan, outer=outer, vector=vector)

    def _rows_order(self, axes: tuple[str, ...] | list[str], looping: bool) -> tuple[str, ...]:
        """Storage order of a tensor that is written element by element: the longest axis, which is padded, last."""
        return _with_last(axes, vector_axis(self.axes, looping, axes, {}))

    def _is_stored(self, i: int, members: set[int]) -> bool:
        return self.is_output(i) or any(j not in members for j in self.readers(i))

    def _plan_matmul(self, i: int) -> None:
        n = self.graph.nodes[i]
        looping = self.looping(i)
        operands = [self.graph.nodes[r.node].axes() for r in n.operands]
        units = [self.unit(r.node) for r in n.operands]
        narrow = [self.view(r.node, looping).narrow for r in n.operands]
        of_bytes = [bool(t) and ELEMENTS[t].itemsize == 1 for t in narrow]
        lanes = VECTOR_BYTES // self.program.itemsize
        summed = reduced_axes(n.op, operands, n.reduce)
        products = [
            Product(
                (operands[x], operands[y]),
                (units[x], units[y]),
                over,
                (bool(narrow[x]), bool(narrow[y])),
                of_bytes[x] and of_bytes[y],
            )
            for (x, y), over in zip(PRODUCTS[n.op], summed, strict=True)
        ]
        plans = self._product_plans(i, products, looping, lanes)
        self.matmuls[i] = plans
        for pair, plan in zip(PRODUCTS[n.op], plans, strict=True):
            for which, a in plan.pack:
                source = n.operands[pair[which]].node
                if (source, a) not in self.packs:
                    order = (*(b for b in self.graph.nodes[source].axes() if b != a), a)
                    self.packs[source, a] = self._buffer(f"pack{source}_{self.names[a]}", order, looping)
                if looping and not self.looping(source):
                    self.packed_before[source, a] = None
        self._place(i, *self._product_order(i, plans, looping))

    def _product_plans(
        self, i: int, products: Sequence[Product], looping: bool, lanes: int
    ) -> tuple[MatmulPlan, ...]:
        """The plans of a product as the schedule wants them: the axis that its result has last is the one of its columns, and
        vectors along the columns are of sums, those along a contracted axis of terms.
        """
        out = self.graph.nodes[i].axes()
        columns = [*dict.fromkeys(a for p in products for _, _, cols in p.choices(out) for a in cols)]
        summed = [*dict.fromkeys(a for p in products for a in p.reduce)]

        def plans(last: str | None, vector: str | None) -> tuple[MatmulPlan, ...]:
            wanted = [] if last is None else [last if last in columns else None]
            return plan_products(self.axes, out, products, looping, self._output_unit(i), lanes, wanted, vector)

        layout, vector = self.decisions.layout(self.final(i)), self.decisions.vector(i)
        last = layout.last if layout is not None else None
        possible = [a for a in columns if a is not None]
        own = self._product_order(i, plans(None, vector), looping)
        # without columns, results are stored one by one
        lasts = [vector] if vector in possible else [a for a in out if None in columns or a in possible]
        self.decisions.may_be_last(self.final(i), self._last(i, *own), lasts)
        first = plans(last, None)[0]
        vectors = [a for a in possible if last in (None, a) or last not in possible]
        self.decisions.may_have_vectors(i, first.k if first.dot else first.n, [*vectors, *summed])
        return plans(last, vector)

    def _product_order(
        self, i: int, plans: Sequence[MatmulPlan], looping: bool
    ) -> tuple[tuple[str, ...], bool]:
        """The storage order of a product's result, and whether it is stored element by element."""
        columns, axes = next((p.n for p in plans if p.n is not None), None), self.graph.nodes[i].axes()
        if columns is None:
            return self._rows_order(axes, looping), True
        return _with_last(axes, columns), False

    def _concat_order(self, i: int) -> tuple[str, ...]:
        n = self.graph.nodes[i]
        assert n.joined is not None
        back = dict.fromkeys(n.joined[1], n.joined[0])
        found = [back.get(u, u) for u in (self.unit(r.node) for r in n.operands) if u is not None]
        last = max(n.axes(), key=lambda a: (found.count(a), n.axes().index(a)))
        return _with_last(n.axes(), last)


def _with_last(axes: Sequence[str], last: str | None) -> tuple[str, ...]:
    """The axes with this one last."""
    return (*(a for a in axes if a != last), *([last] if last is not None else []))
