"""What combines the elements of block tensors: sums, products, running maxima, and the accumulators of the loops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirage.ir.operator import PRODUCTS
from mirage.kernels.cuda.emit.memory import HALF, BlockMemory
from mirage.kernels.cuda.emit.product import Product, dot_text, plan_product
from mirage.kernels.cuda.emit.values import Dims, Group, Value, bare, expand, reduced
from mirage.mugraph.graph import Node, Role

INFINITE = 'float("-inf")'


class BlockSums(BlockMemory):
    """A planned kernel that prints reductions. `values` are those of the nodes so far, `totals` the accumulators, which are
    complete only after the loops; `unsummed` are the dims over which they are summed then.
    """

    values: dict[int, Value]
    totals: dict[int, Value]
    unsummed: dict[int, list[Group]]

    def _maximum(self, i: int, site: int, argument: str, dims: Dims) -> str:
        """The maxima of an exp's rows, and the rescaling of what was accumulated before they grew; the shift to subtract."""
        w, rows = self.w, self._rows(site)
        gone = [g for d in dims for g in d if (g,) not in rows]
        w.comment(f"the largest exponent of every row [{', '.join(self.program.maximum.sites[site].rows)}]")
        mask = self.mask(gone, dims)
        high = f'tl.where({mask}, {bare(argument)}, float("-inf"))' if mask else argument
        high = bare(reduced("tl.max", high, dims, gone))
        looping = i in self.graph.in_loop
        w.line(f"high{site} = {f'tl.maximum(max{site}, {high})' if looping else high}")
        w.line(f'shift{site} = tl.where(high{site} == float("-inf"), 0.0, high{site})')
        if looping:
            w.line(f"growth{site} = tl.exp(max{site} - shift{site})")
            growth = Value(f"growth{site}", rows)
            for j, total in self.totals.items():
                if self.degree(j, site):
                    w.line(f"{total.text} = {total.text} * {self.space.arrange(growth, total.dims)}")
        w.line(f"max{site} = high{site}")
        return self.space.arrange(Value(f"shift{site}", rows), dims)

    def _zeroed(self, v: Value, groups: Iterable[Group]) -> Value:
        """The value with 0 past the ends of these groups' axes."""
        need = [g for d in v.dims for g in d if g in groups and self.masked(g) and g not in v.zero]
        if not need:
            return v
        v = self._separate(v)
        return Value(f"tl.where({self.mask(need, v.dims)}, {v.text}, 0.0)", v.dims, v.zero | set(need))

    def _max(self, i: int, n: Node) -> None:
        v = self._separate(self.values[n.operands[0].node])
        gone = [g for d in v.dims for g in d if set(g.axes) <= set(n.reduce)]
        text = v.text
        if need := [g for g in gone if self.masked(g)]:
            text = f"tl.where({self.mask(need, v.dims)}, {text}, {INFINITE})"
        dims = self.space.dims({g for d in v.dims for g in d} - set(gone))
        self.w.line(f"v{i} = {bare(reduced(self.program.functions.row_maximum(), text, v.dims, gone))}")
        # past the ends of other axes 0 stays 0
        self.values[i] = Value(f"v{i}", dims, v.zero - set(gone))

    def _sum(self, i: int, n: Node) -> None:
        v = self._separate(self.values[n.operands[0].node])
        gone = [g for d in v.dims for g in d if set(g.axes) <= set(n.reduce)]
        v = self._zeroed(v, gone)
        if (total := self.total_of(i)) is not None:
            self.w.line(f"v{total} = v{total} + {v.text}")
            self.values[i] = self.totals[total]
            return
        dims = self.space.dims({g for d in v.dims for g in d} - set(gone))
        self.w.line(f"v{i} = {bare(reduced('tl.sum', v.text, v.dims, gone))}")
        self.values[i] = Value(f"v{i}", dims, v.zero - set(gone))

    # products

    def _plans(self, i: int, values: Sequence[Value]) -> list[Product]:
        """How each product of a node is computed, for operands of these dims."""
        n = self.graph.nodes[i]
        plans = []
        for (x, y), axes in zip(PRODUCTS[n.op], self.summed(n), strict=True):
            groups = {g for v in (values[x], values[y]) for d in v.dims for g in d}
            over = [g for g in groups if set(g.axes) <= set(axes)]
            plans.append(plan_product(self.space, (values[x], values[y]), over, self.schedule))
        return plans

    def _product(self, i: int, n: Node) -> None:
        values = [self.values[r.node] for r in n.operands]
        plans = self._plans(i, values)
        total = self.total_of(i)
        name, dims = (f"v{i}", plans[0].dims) if total is None else (self.totals[total].text, self.totals[total].dims)
        started = total is not None
        for (x, y), plan in zip(PRODUCTS[n.op], plans, strict=True):
            operands = [self._zeroed(values[k], plan.over) for k in ((y, x) if plan.swapped else (x, y))]
            before = name if started else ""
            if plan.dot and (plan.dims == dims or not before):
                text = self._dot(i, operands, plan, before)
            else:
                if plan.dot:
                    text = self.space.arrange(Value(self._dot(i, operands, plan, ""), plan.dims), dims)
                else:
                    text = self._multiplied(i, operands, plan)
                    if total not in self.unsummed:
                        text = self.space.arrange(Value(reduced("tl.sum", text, plan.left, plan.over), plan.dims), dims)
                text = f"{before} + {text}" if before else text
            self.w.line(f"{name} = {bare(text)}")
            started = True
        self.values[i] = Value(name, dims)

    def _multiplied(self, i: int, operands: Sequence[Value], plan: Product) -> str:
        """The elementwise product of two operands, of which sums are left to do."""
        self.space.check(plan.left, self._what(i))
        left, right = (self.space.arrange(self._separate(v), plan.left) for v in operands)
        return f"{left} * {right}"

    def _dot(self, i: int, operands: Sequence[Value], plan: Product, before: str) -> str:
        half = HALF.get(self.program.storage)
        if half is not None and (self.schedule.rounded or all(v.stored for v in operands)):
            texts = [v.stored or f"{v.text}.to({half})" for v in operands]
        else:
            texts, half = [v.text for v in operands], None
        dims = (plan.left, plan.right)
        for d in dims:
            self.space.check(d, self._what(i))
        left, right = (self.space.arrange(v, d, t) for v, d, t in zip(operands, dims, texts, strict=True))
        return dot_text(left, right, before, exact=half is None)

    # accumulators

    def total_of(self, i: int) -> int | None:
        """The accumulator that a product or sum is added to as it is computed: its only reader.

        In kernels without tl.dot sums over the elements of a tile are left to the end of the loops; in others they take
        registers from it.
        """
        readers = self.readers(i)
        n = self.graph.nodes[i]
        if len(readers) != 1 or any(r.node == i for r in self.graph.outputs):
            return None
        if n.op not in PRODUCTS and (n.op != "sum" or self.uses_dot):
            return None
        n = self.graph.nodes[readers[0]]
        return readers[0] if n.op == "accumulator" and n.attr["mode"] == "sum" else None

    def _start(self) -> None:
        """Accumulators start at zero, maxima at -inf."""
        for i, n in enumerate(self.graph.nodes):
            if n.op == "accumulator" and not self.stored_in_loop(i):
                dims = self.space.dims(self.space.of(n.axes(), full=self.held(i)))
                if self.total_of(n.operands[0].node) == i:
                    dims = self._total_dims(i, self.graph.nodes[n.operands[0].node], n.operands[0].node)
                self.space.check(dims, self._what(i))
                self.totals[i] = Value(f"v{i}", dims)
                self.w.line(f"v{i} = {self._filled(dims, '0.0')}")
        for i, sites in self.sites.items():
            for site in sites if i in self.graph.in_loop else ():
                self.w.line(f"max{site} = {self._filled(self._rows(site), INFINITE)}")

    def _total_dims(self, i: int, source: Node, at: int) -> Dims:
        """The dims of accumulator i, to which node `at` is added: its own, with those to sum over at the end."""
        operands = [self.space.dims(self.space.of(self.graph.nodes[r.node].axes())) for r in source.operands]
        if source.op == "sum":
            self.unsummed[i] = [g for d in operands[0] for g in d if set(g.axes) <= set(source.reduce)]
            return operands[0]
        plans = self._plans(at, [Value("", d) for d in operands])
        if any(p.dot for p in plans) or len({p.left for p in plans}) > 1:
            return plans[0].dims
        self.unsummed[i] = list(plans[0].over)
        return plans[0].left

    def _complete(self, i: int) -> Value:
        """An accumulator's value after the loops."""
        total = self.totals[i]
        if not (over := self.unsummed.get(i)):
            return total
        self.w.line(f"{total.text} = {bare(reduced('tl.sum', total.text, total.dims, over))}")
        return Value(total.text, tuple(d for d in total.dims if d[0] not in over))

    def _filled(self, dims: Dims, value: str) -> str:
        return f"tl.full({self.space.shape(dims)}, {value}, tl.float32)"

    def _accumulate(self, i: int, n: Node) -> None:
        """Add a result, or put it beside the earlier ones."""
        source = n.operands[0].node
        v = self._separate(self.values[source])
        self._title(i, n)
        if self.stored_in_loop(i):
            for k, r in enumerate(self.graph.outputs):
                if r.node == i:
                    self._store(k, v)
            return
        total = self.totals[i]
        if n.attr["mode"] == "sum":
            if self.total_of(source) != i:
                self.w.line(f"{total.text} = {total.text} + {self.space.arrange(v, total.dims)}")
            return
        a = n.attr["axis"]
        at = next(k for k, d in enumerate(total.dims) if d == (Group((a,), True),))
        tile, room = self.space.size_name(a), self.space.size_name(a, True)
        shape = [self.space.text(d) for d in total.dims]
        apart = [*shape[:at], f"{room} // {tile}", tile, *shape[at + 1 :]]
        done = f"done_{self.names[a]}"
        if self.graph.role[a] is Role.SPLIT:
            done = f"({done} - start_{self.names[a]})"
        here = f"(tl.arange(0, {room} // {tile}) == {done} // {tile})"
        here += expand([k == at for k in range(len(apart))])
        dims = self.space.dims(Group(g.axes) for d in total.dims for g in d)
        piece = self.space.arrange(v, dims) + expand([k != at for k in range(len(apart))])
        before = f"tl.reshape({total.text}, [{', '.join(apart)}])"
        if self.graph.summed_loops(i):
            text = f"{before} + tl.where({here}, {piece}, 0.0)"
        else:
            text = f"tl.where({here}, {piece}, {before})"
        self.w.line(f"{total.text} = tl.reshape({text}, [{', '.join(shape)}])")
