"""One graph-defined kernel as a C function that computes one cell of its grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from mirage.errors import GraphError
from mirage.ir.dims import Dim
from mirage.kernels.cpu.emit_algebra import FunctionSources, literal
from mirage.kernels.cpu.emit_group import GroupEmitter, GroupPlan, Target, plan_group
from mirage.kernels.cpu.emit_loops import Nest, copy, fill, scale, vector_axis
from mirage.kernels.cpu.emit_matmul import MatmulPlan, emit_matmul, plan_matmul
from mirage.kernels.cpu.emit_maximum import Block, Companion
from mirage.kernels.cpu.layout import BlockAxes, Buffer, View
from mirage.kernels.cpu.writer import Writer
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import Node, Role, partial_axis
from mirage.mugraph.schedule import KernelSchedule
from mirage.mugraph.thread import is_elementwise, thread_groups, unit_order

# What vectors hold on the machine is a matter of the C compiler; plans assume 64 bytes.
VECTOR_BYTES = 64


@dataclass(frozen=True)
class Tensor:
    """A kernel-level tensor: its place in the arguments, that of its strides, and its axes; the last has stride 1."""

    index: int
    offset: int
    axes: tuple[str, ...]

    @property
    def unit(self) -> str | None:
        return self.axes[-1] if self.axes else None


@dataclass(frozen=True)
class Program:
    """What the kernels of one muGraph share in C."""

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


class BlockEmitter:
    """Plans one kernel; `cell()` prints its function, `scratch` are its buffers."""

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
        self.axes = BlockAxes(self.graph, schedule, program.sizes, program.hints, program.names)
        self.names = program.names
        self.scratch: list[Buffer] = []
        self.memory: dict[int, Memory] = {}
        self.matmuls: dict[int, MatmulPlan] = {}
        self.groups: dict[tuple[int, ...], GroupPlan] = {}
        self.packs: dict[tuple[int, str], Buffer] = {}
        self.sites = self._sites()
        self.states: dict[int, tuple[GroupPlan, Buffer, Buffer, Buffer]] = {}
        self.factors: dict[int, Buffer] = {}
        self.emitter = GroupEmitter(self.graph, self.axes, program.functions, program.dims)
        groups = thread_groups(self.graph, frozenset(self.sites))
        self.order = unit_order(self.graph, groups)
        self._plan()

    # ---- facts about the graph

    def _sites(self) -> dict[int, list[int]]:
        """Node -> its sites, where a maximum may be subtracted."""
        new = {o: n for n, o in self.block.old.items() if not any(r.node == n for r in self.block.rescales)}
        found: dict[int, list[int]] = {}
        if self.program.maximum.safe:
            for s, site in enumerate(self.program.maximum.sites):
                if site.path[0] == self.kernel:
                    found.setdefault(new[site.path[1]], []).append(s)
        return found

    def looping(self, i: int) -> bool:
        return i in self.graph.in_loop

    def phase(self, i: int) -> str:
        return "after" if i in self.graph.after_loop else "loop" if self.looping(i) else "before"

    def readers(self, i: int) -> list[int]:
        return [j for j, n in enumerate(self.graph.nodes) if any(r.node == i for r in n.operands)]

    def is_output(self, i: int) -> bool:
        return any(r.node == i for r in self.graph.outputs)

    def accumulator(self, i: int) -> int | None:
        """The accumulator that i's result goes straight into, where nothing else reads it."""
        readers = self.readers(i)
        if len(readers) == 1 and self.graph.nodes[readers[0]].op == "accumulator" and not self.is_output(i):
            return readers[0]
        return None

    def final(self, i: int) -> int:
        """The node whose memory i is computed in."""
        a = self.accumulator(i)
        return i if a is None else a

    def degree(self, i: int, site: int) -> int:
        if i not in self.block.old:
            return 0
        return self.program.maximum.degree.get(((self.kernel, self.block.old[i]), 0), {}).get(site, 0)

    # ---- memory

    def _buffer(self, name: str, axes: tuple[str, ...], looping: bool) -> Buffer:
        buffer = Buffer(name, axes, tuple(self.axes.room(a, looping) for a in axes))
        self.scratch.append(buffer)
        return buffer

    def _output_unit(self, i: int) -> str | None:
        """The axis along which the kernel's output that i becomes is contiguous."""
        found = [t.unit for t, r in zip(self.outputs, self.graph.outputs, strict=True) if r.node == self.final(i)]
        return found[0] if found else None

    def _place(self, i: int, order: tuple[str, ...], strided: bool) -> None:
        """Give node i memory in this storage order; a result that may be `strided` goes straight to an output."""
        t = self.final(i)
        if t not in self.memory:
            along = self.graph.nodes[t].attr["axis"] if self._is_concat(t) else None
            for k, (tensor, r) in enumerate(zip(self.outputs, self.graph.outputs, strict=True)):
                own = set(tensor.axes) & set(order)
                if r.node == t and own == set(order) and order and (strided or tensor.unit == order[-1]):
                    self.memory[t] = Memory(self._output_view(k), order, along)
                    break
            else:
                self.memory[t] = Memory(self._buffer(f"m{t}", order, self.looping(t)).view(self.names), order, along)
        self.memory[i] = self.memory[t]

    def _is_concat(self, i: int) -> bool:
        n = self.graph.nodes[i]
        return n.op == "accumulator" and n.attr["mode"] == "concat"

    def _output_view(self, k: int) -> View:
        """The block's part of an output; C variables are declared by `_declare_tensors`."""
        tensor = self.outputs[k]
        partial = {partial_axis(a) for a in self.graph.grid if self.graph.role[a] is Role.SPLIT}
        return View(f"o{k}", self._strides(tensor, f"o{k}", partial), tensor.unit)

    def _strides(self, tensor: Tensor, name: str, without: set[str] | frozenset[str] = frozenset()) -> dict[str, str]:
        found = {a: f"{name}_{self.names[a]}" for a in tensor.axes if a not in without}
        if tensor.unit in found:
            found[str(tensor.unit)] = "1"
        return found

    def _input_view(self, i: int, looping: bool) -> View:
        factor = next((r for r in self.block.rescales if r.node == i), None)
        inner = looping and bool(set(self.graph.nodes[i].axes()) & set(self.graph.loop))
        pointer = f"{'t' if inner else 'p'}{i}"
        if factor is not None:
            view = self.factors[i].view(self.names)
            return View(pointer if inner else view.pointer, view.strides, view.unit)
        tensor = self.inputs[self.graph.nodes[i].attr["index"]]
        return View(pointer, self._strides(tensor, f"p{i}"), tensor.unit)

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
        return View(memory.view.at({a: done}), memory.view.strides, memory.view.unit)

    def unit(self, i: int) -> str | None:
        return self.view(i, self.looping(i)).unit

    # ---- plan

    def _plan(self) -> None:
        for r in self.block.rescales:
            order = self._rows_order([a for a in r.axes if a in self.graph.role], False)
            self.factors[r.node] = self._buffer(f"factor{r.site}", order, False)
        for unit in self.order:
            n = self.graph.nodes[unit[0]]
            if n.op in ("input", "constant", "size"):
                continue
            if n.op == "sum" or is_elementwise(n):
                self._plan_group(unit)
            elif n.op == "matmul":
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
        units = [self.unit(j) for j in sorted(outside)] + [self._output_unit(i) for i in kept]
        plan = self.groups[unit] = plan_group(self.axes, self.graph, unit, looping, units)
        for i in kept:
            n = self.graph.nodes[i]
            if n.op != "sum" or plan.vector in n.axes():
                order = tuple(a for a in plan.order if a in n.axes())
            else:
                order = self._rows_order(n.axes(), looping)
            self._place(i, order, strided=True)
        for i in unit:
            for s in self.sites.get(i, ()):
                self._plan_site(i, s, looping)

    def _plan_site(self, i: int, site: int, looping: bool) -> None:
        rows = self.program.maximum.sites[site].rows
        n = self.graph.nodes[i]
        plan = plan_group(self.axes, self.graph, (i,), looping, [self.unit(r.node) for r in n.operands])
        order = tuple(a for a in plan.order if a in rows) if plan.vector in rows else self._rows_order(rows, looping)
        buffers = [self._buffer(f"{what}{site}", order, False) for what in ("maximum", "shift", "growth")]
        self.states[site] = (plan, buffers[0], buffers[1], buffers[2])

    def _rows_order(self, axes: tuple[str, ...] | list[str], looping: bool) -> tuple[str, ...]:
        """Storage order of a tensor that is written element by element: the longest axis, which is padded, last."""
        last = vector_axis(self.axes, looping, axes, [])
        return (*(a for a in axes if a != last), *([last] if last is not None else []))

    def _is_stored(self, i: int, members: set[int]) -> bool:
        return self.is_output(i) or any(j not in members for j in self.readers(i))

    def _plan_matmul(self, i: int) -> None:
        n = self.graph.nodes[i]
        looping = self.looping(i)
        operands = [self.graph.nodes[r.node].axes() for r in n.operands]
        units = [self.unit(r.node) for r in n.operands]
        lanes = VECTOR_BYTES // self.program.itemsize
        plan = plan_matmul(self.axes, n, operands, units, looping, self._output_unit(i), lanes)
        self.matmuls[i] = plan
        for which, a in plan.pack:
            source = n.operands[which].node
            key = (source, a)
            if key not in self.packs:
                order = (*(b for b in self.graph.nodes[source].axes() if b != a), a)
                self.packs[key] = self._buffer(f"pack{source}_{self.names[a]}", order, looping)
        last = plan.n if plan.n is not None else vector_axis(self.axes, looping, n.axes(), [])
        order = (*(a for a in n.axes() if a != last), *([last] if last is not None else []))
        self._place(i, order, strided=plan.n is None)

    def _concat_order(self, i: int) -> tuple[str, ...]:
        n = self.graph.nodes[i]
        assert n.joined is not None
        back = dict.fromkeys(n.joined[1], n.joined[0])
        found = [back.get(u, u) for u in (self.unit(r.node) for r in n.operands) if u is not None]
        last = max(n.axes(), key=lambda a: (found.count(a), n.axes().index(a)))
        return (*(a for a in n.axes() if a != last), last)

    # ---- print

    def cell(self, w: Writer) -> None:
        """Print the function of one grid cell."""
        roles = ", ".join(f"{a} {r.value}" for a, r in self.graph.roles)
        w.comment(f"Kernel {self.number}, one cell of the grid: {roles}.")
        w.line(f"static void cell_{self.number}(void *arguments, long cell, int thread, void *scratch)")
        with w.block():
            w.add(["const mirage_args *const args = arguments;", "(void)thread, (void)scratch, (void)cell;"])
            self.declare_sizes(w)
            self._declare_grid(w)
            self._declare_tensors(w)
            if self.scratch:
                w.line()
                w.comment("scratch: block tensors that are stored")
                w.line("mi_real *at = scratch;")
                for b in self.scratch:
                    w.add(b.declare(self.names))
                w.line("(void)at;")
            for r in self.block.rescales:
                self._factors(w, r.node, r.site)
            self._start(w)
            self._phase(w, "before", False)
            if self.graph.loop:
                self._loop(w)
                self._phase(w, "after", False)
            self._finish(w)

    def declare_sizes(self, w: Writer) -> None:
        """Sizes of the axes, and the room that they need in a block."""
        for a, role in self.graph.roles:
            name = self.names[a]
            if a not in self.axes.literal:
                w.line(f"const long n_{name} = args->sizes[{self._size_index(a)}];")
            if role is Role.SPLIT:
                splits, tile = self.schedule.split[a], self.axes.tile(a)
                w.line(f"const long room_{name} = blocks(blocks(n_{name}, {tile}), {splits}) * {tile};")
            elif self.axes.room(a, False) == a:
                w.line(f"const long room_{name} = n_{name};")

    def _size_index(self, a: str) -> int:
        return list(self.program.sizes).index(a)

    def cells(self) -> str:
        """C expression: the number of grid cells."""
        return " * ".join(self._blocks(a) for a in self.graph.grid) or "1"

    def _blocks(self, a: str) -> str:
        if self.graph.role[a] is Role.SPLIT:
            return str(self.schedule.split[a])
        return f"blocks(n_{self.names[a]}, {self.axes.tile(a)})"

    def _declare_grid(self, w: Writer) -> None:
        w.line()
        grid = self.graph.grid
        for k, a in reversed(list(enumerate(grid))):
            name = self.names[a]
            if k > 0:
                w.line(f"const long g_{name} = cell % {self._blocks(a)};")
                w.line(f"cell /= {self._blocks(a)};")
            else:
                w.line(f"const long g_{name} = cell;")
        for a, role in self.graph.roles:
            name = self.names[a]
            if role is Role.PARALLEL:
                tile = self.axes.tile(a)
                w.line(f"const long b_{name} = g_{name} * {tile};")
                extent = f"least({tile}, n_{name} - b_{name})"
            elif role is Role.SPLIT:
                w.line(f"const long b_{name} = least(g_{name} * room_{name}, n_{name});")
                extent = f"least(room_{name}, n_{name} - b_{name})"
            else:
                extent = f"n_{name}"
            if self.axes.constant(a, False) is None:
                w.line(f"const long x_{name} = {extent};")

    def _declare_tensors(self, w: Writer) -> None:
        w.line()
        for i in self.graph.inputs:
            if i in self.factors:
                continue
            tensor = self.inputs[self.graph.nodes[i].attr["index"]]
            self._declare_tensor(w, tensor, f"p{i}", "const mi_real *const", {})
        for k, tensor in enumerate(self.outputs):
            partial = {
                partial_axis(a): f"g_{self.names[a]}" for a in self.graph.grid if self.graph.role[a] is Role.SPLIT
            }
            self._declare_tensor(w, tensor, f"o{k}", "mi_real *const", partial)

    def _declare_tensor(
        self, w: Writer, tensor: Tensor, name: str, kind: str, at: Mapping[str, str], whole: bool = False
    ) -> None:
        """Strides of a kernel-level tensor and the pointer to this block's part of it (or to all of it)."""
        strides = self._strides(tensor, name)
        index = dict(at)
        for k, a in enumerate(tensor.axes):
            if strides[a] != "1":
                w.line(f"const long {strides[a]} = args->strides[{tensor.offset + k}];")
            if a not in at and not whole and self.graph.role.get(a) in (Role.PARALLEL, Role.SPLIT):
                index[a] = f"b_{self.names[a]}"
        w.line(f"{kind} {name} = {View(f'args->tensors[{tensor.index}]', strides, tensor.unit).at(index)};")

    def _factors(self, w: Writer, i: int, site: int) -> None:
        """Factors that bring partial results to a common maximum: exp(own maximum - largest of all)."""
        companion, tensor = self.companions[site]
        partial = [a for a in tensor.axes if a not in self.program.maximum.sites[site].rows]
        w.line()
        w.comment(f"factors of the partial results of exp {site}: exp(own maximum - largest maximum)")
        with w.block():
            self._declare_tensor(w, tensor, "own", "const mi_real *const", {}, whole=True)
            strides = self._strides(tensor, "own")
            own = View("own", strides, tensor.unit)
            at: dict[str, str] = {}
            target = self.factors[i].view(self.names)
            rows = [a for a in companion.axes if a not in partial]
            nest = Nest(w, self.axes, False)
            index = nest.index
            with nest.over(rows):
                for a in rows:
                    offset = f"b_{self.names[a]}" if self.graph.role[a] in (Role.PARALLEL, Role.SPLIT) else ""
                    at[a] = f"({offset} + {index[a]})" if offset else index[a]
                w.line("mi_real largest = -MI_INFINITY;")
                whole = {a: f"k_{self.names[a]}" for a in partial}
                heads = [f"for (long {v} = 0; {v} < n_{self.names[a]}; {v}++)" for a, v in whole.items()]
                element = own.at({**at, **whole})
                w.line(" ".join(heads))
                w.line(f"    if (*({element}) > largest) largest = *({element});")
                w.line("const mi_real shift = largest == -MI_INFINITY ? 0 : largest;")
                with nest.over(partial):
                    for a in partial:
                        offset = f"b_{self.names[a]}" if self.graph.role[a] in (Role.PARALLEL, Role.SPLIT) else ""
                        at[a] = f"({offset} + {index[a]})" if offset else index[a]
                    w.line(f"*({target.at(index)}) = mi_fn_exp(mi_broadcast(*({own.at(at)}) - shift))[0];")

    def _start(self, w: Writer) -> None:
        """Accumulators start at zero, maxima at -inf."""
        for i, n in enumerate(self.graph.nodes):
            if n.op == "accumulator" and n.attr["mode"] == "sum":
                w.line()
                w.comment(f"v{i} = 0")
                fill(w, self.axes, False, self.memory[i].view, "0", self.memory[i].axes)
        for site, (_, maximum, *_rest) in self.states.items():
            w.line()
            w.comment(f"maxima of exp {site}")
            fill(w, self.axes, False, maximum.view(self.names), "(-MI_INFINITY)", maximum.axes)

    def _loop(self, w: Writer) -> None:
        w.line()
        w.comment("the for-loop")
        self._loop_over(w, list(self.graph.loop))

    def _loop_over(self, w: Writer, rest: list[str]) -> None:
        if not rest:
            self._tiles(w)
            self._phase(w, "loop", True)
            return
        a = rest[0]
        name, tile, extent = self.names[a], self.axes.tile(a), self.axes.extent(a, False)
        with w.block(f"for (long done_{name} = 0; done_{name} < {extent}; done_{name} += {tile})"):
            if self.axes.constant(a, True) is None:
                w.line(f"const long e_{name} = least({tile}, {extent} - done_{name});")
            self._loop_over(w, rest[1:])

    def _tiles(self, w: Writer) -> None:
        """Pointers to this iteration's tiles of the inputs."""
        for i in self.graph.inputs:
            moved = {a: f"done_{self.names[a]}" for a in self.graph.nodes[i].axes() if a in self.graph.loop}
            if moved:
                w.line(f"const mi_real *const t{i} = {self._input_view(i, False).at(moved)};")

    def _phase(self, w: Writer, phase: str, looping: bool) -> None:
        for unit in self.order:
            i = unit[0]
            n = self.graph.nodes[i]
            if n.op == "accumulator":
                if phase == "loop":
                    self._accumulate(w, i, n)
            elif self.phase(i) == phase and n.op not in ("input", "constant", "size"):
                if n.op == "matmul":
                    self._matmul(w, i, n, looping)
                elif n.op == "concat":
                    self._concat(w, i, n, looping)
                else:
                    self._group(w, unit, looping)

    def _title(self, w: Writer, members: tuple[int, ...]) -> None:
        w.line()
        for i in members:
            n = self.graph.nodes[i]
            over = f" over {', '.join(n.reduce)}" if n.reduce else ""
            w.comment(f"v{i}[{', '.join(n.axes())}] = {n.op}({', '.join(f'v{r.node}' for r in n.operands)}){over}")

    def _target(self, i: int, looping: bool) -> Target:
        a = self.accumulator(i)
        sums = a is not None and self.graph.nodes[a].attr["mode"] == "sum"
        return Target(self.view(i, looping), accumulate=sums)

    def _group(self, w: Writer, unit: tuple[int, ...], looping: bool) -> None:
        members = set(unit)
        targets = {i: self._target(i, looping) for i in unit if self._is_stored(i, members)}
        shifts: dict[int, list[View]] = {}
        for i in unit:
            for k, site in enumerate(self.sites.get(i, ())):
                self._maximum(w, i, k, site, looping, shifts.setdefault(i, []))
        self._title(w, unit)
        with w.block():
            self.emitter.group(w, self.groups[unit], looping, lambda j: self.view(j, looping), targets, shifts)

    def _maximum(self, w: Writer, i: int, k: int, site: int, looping: bool, shifts: list[View]) -> None:
        """The maxima of the k-th exp of node i, and the rescaling of what was accumulated before they grew."""
        plan, *buffers = self.states[site]
        maximum, shift, growth = (b.view(self.names) for b in buffers)
        rows = buffers[0].axes
        w.line()
        w.comment(f"maxima of the rows [{', '.join(rows)}] of exp {site} (v{i})")
        with w.block():
            w.line("int grown = 0;")
            self.emitter.maximum(
                w,
                i,
                k,
                rows,
                looping,
                lambda j: self.view(j, looping),
                (maximum, shift, growth),
                shifts,
                plan,
            )
            held = [j for j, n in enumerate(self.graph.nodes) if n.op == "accumulator" and self.degree(j, site)]
            if looping and held:
                with w.block("if (grown)"):
                    for j in held:
                        w.comment(f"v{j} relative to the new maxima")
                        self._rescale(w, j, growth)
            else:
                w.line("(void)grown;")
        shifts.append(shift)

    def _rescale(self, w: Writer, j: int, growth: View) -> None:
        memory = self.memory[j]
        if memory.along is None:
            scale(w, self.axes, False, memory.view, growth, memory.axes)
            return
        # of a concatenation, only what earlier iterations wrote
        step = f"{memory.view.stride(memory.along)}"
        name = self.names[memory.along]
        with w.block(f"for (long c_{name} = 0; c_{name} < done_{name}; c_{name}++)"):
            strides = {a: s for a, s in memory.view.strides.items() if a != memory.along}
            unit = memory.view.unit if memory.view.unit != memory.along else None
            row = View(f"({memory.view.pointer} + c_{name} * {step})", strides, unit)
            scale(w, self.axes, False, row, growth, [a for a in memory.axes if a != memory.along])

    def _accumulate(self, w: Writer, i: int, n: Node) -> None:
        """Add (or append) a result that others read too."""
        source = n.operands[0].node
        if self.accumulator(source) == i and source in self.memory:
            return
        memory = self.memory[i]
        self._title(w, (i,))
        with w.block():
            target = memory.view if memory.along is None else self._inside_concat(memory)
            copy(
                w,
                self.axes,
                True,
                self.view(source, True),
                target,
                memory.axes,
                accumulate=memory.along is None,
            )

    def _matmul(self, w: Writer, i: int, n: Node, looping: bool) -> None:
        plan = self.matmuls[i]
        self._title(w, (i,))
        with w.block():
            views = [self.view(r.node, looping) for r in n.operands]
            for which, a in plan.pack:
                source = n.operands[which].node
                buffer = self.packs[source, a]
                w.comment(f"v{source} made contiguous along {a}")
                copy(w, self.axes, looping, views[which], buffer.view(self.names), buffer.axes)
                views[which] = buffer.view(self.names)
            target = self._target(i, looping)
            emit_matmul(
                w,
                self.axes,
                plan,
                looping,
                views[0],
                views[1],
                target.view,
                target.accumulate,
                lambda which: self.graph.nodes[n.operands[which].node].op == "input",
            )

    def _concat(self, w: Writer, i: int, n: Node, looping: bool) -> None:
        assert n.joined is not None
        joined, parts = n.joined
        target = self._target(i, looping)
        self._title(w, (i,))
        before: list[str] = []
        for r, part in zip(n.operands, parts, strict=True):
            view = target.view
            strides = {part if a == joined else a: s for a, s in view.strides.items()}
            offset = f"({' + '.join(before)})" if before else "0"
            own = View(view.at({joined: offset}), strides, part if view.unit == joined else view.unit)
            space = [part if a == joined else a for a in n.axes()]
            with w.block():
                copy(w, self.axes, looping, self.view(r.node, looping), own, space, target.accumulate)
            before.append(self.axes.extent(part, looping))

    def _finish(self, w: Writer) -> None:
        """Store outputs that were not computed in place, and the maxima of partial results."""
        for k, r in enumerate(self.graph.outputs):
            view = self._output_view(k)
            if r.node in self.memory and self.memory[r.node].view == view:
                continue
            w.line()
            w.comment(f"output {k} = v{r.node}")
            with w.block():
                copy(w, self.axes, False, self.view(r.node, False), view, list(view.strides))
        for site, (companion, tensor) in self.companions.items():
            if site not in self.states:
                continue
            rows = [a for a in companion.axes if a in self.states[site][1].axes]
            at = {partial_axis(a): f"g_{self.names[a]}" for a in self.graph.grid if self.graph.role[a] is Role.SPLIT}
            w.line()
            w.comment(f"maxima of the rows of exp {site}")
            with w.block():
                self._declare_tensor(w, tensor, "own", "mi_real *const", at)
                own = View("own", self._strides(tensor, "own", set(at)), tensor.unit)
                copy(w, self.axes, False, self.states[site][1].view(self.names), own, rows)
