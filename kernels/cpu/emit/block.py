"""One graph-defined kernel as a C function that computes one cell of its grid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from mirage.ir.operator import PRODUCTS
from mirage.kernels.cpu.emit.bounds import TileBounds, declare_bounds
from mirage.kernels.cpu.emit.declarations import BlockDeclarations
from mirage.kernels.cpu.emit.group import Target
from mirage.kernels.cpu.emit.layout import View, element_type
from mirage.kernels.cpu.emit.loops import Nest, copy, fill, update
from mirage.kernels.cpu.emit.matmul import emit_matmul
from mirage.kernels.cpu.emit.writer import Writer
from mirage.mugraph.graph import Node, Role, partial_axis


class BlockEmitter(BlockDeclarations):
    """A planned kernel that prints its function, `cell()`."""

    def cell(self, w: Writer) -> None:
        """Print the function of one grid cell."""
        roles = ", ".join(f"{a} {r.value}" for a, r in self.graph.roles)
        w.comment(f"Kernel {self.number}, one cell of the grid: {roles}.")
        w.line(f"static void cell_{self.number}(void *arguments, long cell, int thread, void *scratch)")
        with w.block():
            if self.stream is None:
                w.line("const mirage_args *const args = arguments;")
            else:
                w.line("const mirage_launch *const launch = arguments;")
                w.line("const mirage_args *const args = launch->args;")
                w.line("const int past = launch->past;")
            w.line("(void)thread, (void)scratch, (void)cell;")
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
            for x in self.block.shifts:
                if not x.own:
                    self._shifts(w, x.node, x.site)
            if not self.hidden:
                self._start(w)
            self._phase(w, "before")
            if self.graph.loop:
                for source, a in self.packed_before:
                    w.line()
                    self._pack(w, source, a, False)
                w.line()
                w.comment("the for-loop")
                if self.hidden:
                    self._loop_over_seen(w)
                else:
                    self._loop(w, 0)
                self._phase(w, "after")
            self._finish(w)
            if self.schedule.halved is not None:
                self._mirror(w, *self.schedule.halved)
            if self.stream is not None:
                w.line("if (past) mi_flush_stream();")

    def _factors(self, w: Writer, i: int, site: int) -> None:
        """Factors that bring partial results to a common maximum: exp(own maximum - largest of all)."""
        w.line()
        w.comment(f"factors of the partial results of exp {site}: exp(own maximum - largest maximum)")
        target = self.factors[i].view(self.names)
        with w.block(), self._largest(w, site) as (nest, own, at):
            partial = [a for a in self.companions[site][0].axes if a not in at]
            with nest.over(partial):
                at |= {a: self._position(nest, a) for a in partial}
                w.line(f"*({target.at(nest.index)}) = mi_fn_exp(mi_broadcast(*({own.at(at)}) - shift))[0];")

    def _shifts(self, w: Writer, i: int, site: int) -> None:
        """What another kernel shifted exponents by."""
        w.line()
        w.comment(f"largest maxima of exp {site}")
        target = self.factors[i].view(self.names)
        with w.block(), self._largest(w, site) as (nest, _, _):
            w.line(f"*({target.at(nest.index)}) = shift;")

    @contextmanager
    def _largest(self, w: Writer, site: int) -> Iterator[tuple[Nest, View, dict[str, str]]]:
        """Loops over the rows of another kernel's exp, in which the C variable `shift` is the largest maximum of all parts, or 0:
        the nest, the companion tensor, and where the row is in it.
        """
        companion, tensor = self.companions[site]
        rows = self.program.maximum.sites[site].rows
        self._declare_tensor(w, tensor, "own", "const ", {}, whole=True)
        own = View("own", self._strides(tensor, "own"), tensor.unit)
        nest = Nest(w, self.axes, False)
        with nest.over(rows):
            at = {a: self._position(nest, a) for a in rows}
            w.line("mi_real largest = -MI_INFINITY;")
            whole = {a: f"k_{self.names[a]}" for a in companion.axes if a not in rows}
            heads = [f"for (long {v} = 0; {v} < n_{self.names[a]}; {v}++)" for a, v in whole.items()]
            element = own.at({**at, **whole})
            w.add([" ".join(heads)] if heads else [])
            w.line(f"{'    ' if heads else ''}if (*({element}) > largest) largest = *({element});")
            w.line("const mi_real shift = largest == -MI_INFINITY ? 0 : largest;")
            yield nest, own, at

    def _position(self, nest: Nest, a: str) -> str:
        """Where an iteration is along an axis of a whole tensor."""
        offset = f"b_{self.names[a]}" if self.graph.role[a] in (Role.PARALLEL, Role.SPLIT) else ""
        return f"({offset} + {nest.index[a]})" if offset else nest.index[a]

    def _start(self, w: Writer) -> None:
        """Accumulators start at zero, maxima at -inf."""
        for i, n in enumerate(self.graph.nodes):
            if n.op == "accumulator" and self.adds(i):
                w.line()
                w.comment(f"v{i} = 0")
                fill(w, self.axes, False, self.memory[i].view, "0", self.memory[i].axes)
        for site, (_, (maximum, *others)) in self.states.items():
            if len(others) > 1:
                w.line()
                w.comment(f"maxima of exp {site}")
                fill(w, self.axes, False, maximum.view(self.names), "(-MI_INFINITY)", maximum.axes)
                if any(x.own and x.site == site for x in self.block.shifts):
                    # read after a loop without iterations, too
                    fill(w, self.axes, False, others[0].view(self.names), "0", maximum.axes)

    def _loop(self, w: Writer, outside: int) -> None:
        """The loops inside the first `outside` ones; what varies with the outer loops only is not computed again."""
        a, depth = self.graph.loop[outside], outside + 1
        name, tile, extent = self.names[a], self.axes.tile(a), self.axes.extent(a, False)
        with w.block(f"for (long done_{name} = 0; done_{name} < {extent}; done_{name} += {tile})"):
            if self.axes.constant(a, True) is None:
                w.line(f"const long e_{name} = least({tile}, {extent} - done_{name});")
            self._tiles(w, depth)
            if self.hidden:
                self._pass_over_hidden(w)
            self._phase(w, "loop", depth)
            if depth < len(self.graph.loop):
                self._loop(w, depth)

    def _loop_over_seen(self, w: Writer) -> None:
        """The for-loop without tiles that are hidden, and once more with them if what hides them may count."""
        with w.block("for (int pass_over = 1;; pass_over = 0)"):
            self._start(w)
            for h in self.hidden.values():
                fill(w, self.axes, False, h.hidden.view(self.names), "(-MI_INFINITY)", h.hidden.axes)
            self._bounds_of_inputs(w, False)
            self._loop(w, 0)
            w.line("if (!pass_over) break;")
            w.line()
            w.comment("once more with all tiles if a row has nothing that is larger than what was passed over")
            w.line("int near = 0;")
            for site, h in self.hidden.items():
                maximum, nest = self.states[site][1][0], Nest(w, self.axes, False)
                last = maximum.axes[-1] if maximum.axes else None
                views = maximum.view(self.names), h.hidden.view(self.names)
                with nest.over(maximum.axes[:-1]):
                    nest.vectors(last, partial(_compare, nest, views, last))
            w.line("if (!near) break;")

    def _pass_over_hidden(self, w: Writer) -> None:
        """Go on with the next tile where this one is hidden."""
        w.line()
        w.comment("a tile that is hidden is passed over")
        with w.block("if (pass_over)"):
            if self.bounds:
                self._pass_over_bounded(w)
            for h in self.hidden.values():
                with w.block():
                    tile = h.tile.view(self.names)
                    self.emitter.hidden(w, h.terms, h.tile.axes, lambda i: self.view(i, True), tile, h.plan)
            for h in self.hidden.values():
                hidden, tile = h.hidden.view(self.names), h.tile.view(self.names)
                update(w, self.axes, False, hidden, tile, h.tile.axes, lambda x, y: f"mi_max({x}, {y})")
            w.line("continue;")
        w.line("seen:;")

    @property
    def bounds(self) -> dict[int, TileBounds]:
        """Per site, the bounds of what may hide a tile; nothing unless all sites have them."""
        found = {site: h.bounds for site, h in self.hidden.items() if h.bounds is not None}
        return found if len(found) == len(self.hidden) else {}

    def _bounds_of_inputs(self, w: Writer, looping: bool) -> None:
        """Bounds of what exponents are computed from that varies with the for-loop, over an iteration, or of what does not."""
        for i in dict.fromkeys(i for b in self.bounds.values() for i in b.inputs(looping)):
            declare_bounds(Nest(w, self.axes, looping), i, self.view(i, looping))

    def _pass_over_bounded(self, w: Writer) -> None:
        """Go on with the next tile where bounds tell that this one is hidden."""
        self._bounds_of_inputs(w, True)
        members = {i: b.member(i) for b in self.bounds.values() for i in b.terms.members}
        w.add([f"const bounds bounds{i} = {value};" for i, value in members.items()])
        for site, b in self.bounds.items():
            w.line(f"const bounds added{site} = {b.added()};")
        with w.block(f"if ({' && '.join(b.hides(f'added{site}') for site, b in self.bounds.items())})"):
            for site, h in self.hidden.items():
                largest, hidden = View("", scalar=f"added{site}.high"), h.hidden.view(self.names)
                update(w, self.axes, False, hidden, largest, h.hidden.axes, lambda x, y: f"mi_max({x}, {y})")
            w.line("continue;")

    def _tiles(self, w: Writer, depth: int) -> None:
        """Pointers to this iteration's tiles of the inputs that vary with as many loops."""
        for i in self.graph.inputs:
            if self.depth[i] == depth:
                moved = {a: f"done_{self.names[a]}" for a in self.graph.nodes[i].axes() if a in self.graph.loop}
                view = self._input_view(i, False)
                w.line(f"const {element_type(view.narrow)} *const t{i} = {view.at(moved)};")

    def _phase(self, w: Writer, phase: str, depth: int = 0) -> None:
        """The operators before, in (those that vary with `depth` loops) or after the loops."""
        looping = depth > 0
        for unit in self.order:
            i = unit[0]
            n = self.graph.nodes[i]
            if n.op == "accumulator":
                if depth and self.depth[n.operands[0].node] == depth:
                    self._accumulate(w, i, n)
            elif self.phase(i) == phase and self.depth[i] == depth and n.op not in ("input", "constant", "size"):
                if n.op in PRODUCTS:
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
        a, view = self.accumulator(i), self.view(i, looping)
        if self.stream is not None and i in self.stream.results:
            view = replace(view, past="past")
        return Target(view, accumulate=a is not None and self.adds(a))

    def _group(self, w: Writer, unit: tuple[int, ...], looping: bool) -> None:
        members = set(unit)
        targets = {i: self._target(i, looping) for i in unit if self._is_stored(i, members)}
        shifts: dict[int, list[View]] = {}
        for i in unit:
            for k, site in enumerate(self.sites.get(i, ())):
                self._maximum(w, i, k, site, looping, shifts.setdefault(i, []))
        self._title(w, unit)
        with w.block():
            fetched = None
            if self.stream is not None and self.stream.fetched is not None and members & self.stream.results.keys():
                fetched = replace(self.view(self.stream.fetched[0], False), pointer="next", past="past")
            self.emitter.group(w, self.groups[unit], looping, lambda j: self.view(j, looping), targets, shifts, fetched)

    def _maximum(self, w: Writer, i: int, k: int, site: int, looping: bool, shifts: list[View]) -> None:
        """The maxima of the k-th exp of node i, and the rescaling of what was accumulated before they grew."""
        plan, buffers = self.states[site]
        views = [b.view(self.names) for b in buffers]
        rows = buffers[0].axes
        w.line()
        w.comment(f"maxima of the rows [{', '.join(rows)}] of exp {site} (v{i})")
        with w.block():
            if looping:
                w.line("int grown = 0;")
            self.emitter.maximum(
                w,
                i,
                k,
                rows,
                looping,
                lambda j: self.view(j, looping),
                views,
                shifts,
                plan,
            )
            held = [j for j, n in enumerate(self.graph.nodes) if n.op == "accumulator" and self.degree(j, site)]
            if looping and held:
                with w.block("if (grown)"):
                    for j in held:
                        w.comment(f"v{j} relative to the new maxima")
                        self._rescale(w, j, views[2])
            elif looping:
                w.line("(void)grown;")
        shifts.append(views[1])

    def _rescale(self, w: Writer, j: int, growth: View) -> None:
        memory = self.memory[j]

        def scaled(value: str, factor: str) -> str:
            return f"{value} * {factor}"

        if memory.along is None or self.adds(j):
            update(w, self.axes, False, memory.view, growth, memory.axes, scaled)
            return
        # of a concatenation, only what earlier iterations wrote
        step = f"{memory.view.stride(memory.along)}"
        name = self.names[memory.along]
        with w.block(f"for (long c_{name} = 0; c_{name} < done_{name}; c_{name}++)"):
            strides = {a: s for a, s in memory.view.strides.items() if a != memory.along}
            unit = memory.view.unit if memory.view.unit != memory.along else None
            row = View(f"({memory.view.pointer} + c_{name} * {step})", strides, unit)
            update(w, self.axes, False, row, growth, [a for a in memory.axes if a != memory.along], scaled)

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
                accumulate=self.adds(i),
            )

    def _pack(self, w: Writer, source: int, a: str, looping: bool) -> None:
        """A copy of a matmul's operand that is contiguous along an axis."""
        buffer = self.packs[source, a]
        w.comment(f"v{source} made contiguous along {a}")
        copy(w, self.axes, looping, self.view(source, looping), buffer.view(self.names), buffer.axes)

    def _matmul(self, w: Writer, i: int, n: Node, looping: bool) -> None:
        self._title(w, (i,))
        target = self._target(i, looping)
        packed = set(self.packed_before) if self.phase(i) != "before" else set()
        for k, (pair, plan) in enumerate(zip(PRODUCTS[n.op], self.matmuls[i], strict=True)):
            sources = [n.operands[which].node for which in pair]
            views = [self.view(source, looping) for source in sources]
            with w.block():
                for which, a in plan.pack:
                    key = sources[which], a
                    if key not in packed:
                        packed.add(key)
                        self._pack(w, *key, looping)
                    views[which] = self.packs[key].view(self.names)
                emit_matmul(
                    w,
                    self.axes,
                    plan,
                    looping,
                    views[0],
                    views[1],
                    target.view,
                    # later products are added to the first
                    target.accumulate or k > 0,
                    [self.graph.nodes[source].op == "input" for source in sources],
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
            unit = part if view.unit == joined else view.unit
            own = View(view.at({joined: offset}), strides, unit, narrow=view.narrow)
            space = [part if a == joined else a for a in n.axes()]
            with w.block():
                copy(w, self.axes, looping, self.view(r.node, looping), own, space, target.accumulate)
            before.append(self.axes.extent(part, looping))

    def _finish(self, w: Writer) -> None:
        """Store outputs that were not computed in place, and the maxima of partial results."""
        for k, r in enumerate(self.graph.outputs):
            view = self.output_view(k)
            if r.node in self.memory and self.memory[r.node].view == view:
                continue
            w.line()
            w.comment(f"output {k} = v{r.node}")
            with w.block():
                copy(w, self.axes, False, self.view(r.node, False), view, list(view.strides))
        for site, (companion, tensor) in self.companions.items():
            if site not in self.states:
                continue
            maximum = self.states[site][1][0]
            rows = [a for a in companion.axes if a in maximum.axes]
            at = {partial_axis(a): f"g_{self.names[a]}" for a in self.graph.grid if self.graph.role[a] is Role.SPLIT}
            w.line()
            w.comment(f"maxima of the rows of exp {site}")
            with w.block():
                self._declare_tensor(w, tensor, "own", "", at)
                own = View("own", self._strides(tensor, "own", set(at)), tensor.unit)
                copy(w, self.axes, False, maximum.view(self.names), own, rows)

    def _mirror(self, w: Writer, rows: str, columns: str) -> None:
        """Store what lies below the diagonal of the results above it, too."""
        r, c = f"b_{self.names[rows]}", f"b_{self.names[columns]}"
        w.line()
        w.comment(f"the same with {rows} and {columns} exchanged")
        with w.block(f"if ({c} < {r})"):
            w.line(f"const long below = least({self.axes.extent(columns, False)}, {r} - {c});")
            axes = self.axes.with_extent(columns, "below")
            for k in range(len(self.outputs)):
                view = self.output_view(k)
                exchanged = {**view.strides, rows: view.strides[columns], columns: view.strides[rows]}
                pointer = f"o{k} + ({c} - {r}) * ({view.strides[rows]} - {view.strides[columns]})"
                unit = {rows: columns, columns: rows}.get(str(view.unit), view.unit)
                target = replace(view, pointer=pointer, strides=exchanged, unit=unit)
                with w.block():
                    copy(w, axes, False, view, target, list(view.strides))


def _compare(nest: Nest, views: tuple[View, View], axis: str | None, lanes: str) -> None:
    maximum, hidden = (nest.load(v, axis, lanes) for v in views)
    nest.w.line(f"near |= counts({maximum}, {hidden}, {lanes or 'MI_W'});")
