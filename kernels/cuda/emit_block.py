"""One graph-defined kernel as a Triton function that computes one cell of its grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import sympy

from mirage.errors import GraphError
from mirage.ir.operator import PRODUCTS, Elementwise, get_operator
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.emit_algebra import TritonAlgebra, literal
from mirage.kernels.cuda.emit_plan import BlockPlan, Tensor
from mirage.kernels.cuda.emit_product import Product, dot_text, plan_product
from mirage.kernels.cuda.emit_values import Dims, Group, Value, expand
from mirage.kernels.cuda.writer import Writer
from mirage.mugraph.graph import Node, Role

INFINITE = 'float("-inf")'
#: Triton's names of the 16-bit types
_TRITON = {DTYPES["float16"]: "tl.float16", DTYPES["bfloat16"]: "tl.bfloat16"}


class BlockEmitter(BlockPlan):
    """A planned kernel that prints the body of its function.

    Raises GraphError for operators that no block graph has, and ScheduleError for tensors that no block can hold.
    """

    def body(self, w: Writer) -> None:
        """Print the function's body."""
        self.w = w
        self.values: dict[int, Value] = {}
        #: accumulators, complete only after the loops
        self.totals: dict[int, Value] = {}
        #: the dims over which they are summed then
        self.unsummed: dict[int, list[Group]] = {}
        self.uses_dot = self.schedule.dot and any(n.op in PRODUCTS for n in self.graph.nodes)
        self._grid()
        self._indices(0)
        self._start()
        self._nodes(0)
        self._loop(1)
        self._nodes(0, after=True)
        self._finish()

    def _loop(self, depth: int) -> None:
        """The loops inside the first `depth - 1` ones; what varies with the outer ones only is not computed again."""
        if depth > len(self.graph.loop):
            return
        a = self.graph.loop[depth - 1]
        name, tile = self.names[a], self.space.size_name(a)
        split = self.graph.role[a] is Role.SPLIT
        bounds = f"start_{name}, stop_{name}" if split else f"0, {self.size(a)}"
        # the compiler fetches ahead for tl.dot by itself, for other loops where it is told
        run, ahead = ("range", "") if self.uses_dot else ("tl.range", f", num_stages={self.schedule.num_stages}")
        with self.w.block(f"for done_{name} in {run}({bounds}, {tile}{ahead})"):
            self._indices(depth)
            self._nodes(depth)
            self._loop(depth + 1)

    # indices and masks

    def size(self, a: str) -> str:
        size = self.literal(a)
        return f"n_{self.names[a]}" if size is None else str(size)

    def blocks(self, a: str) -> str:
        """The number of blocks along a grid axis."""
        if self.graph.role[a] is Role.SPLIT:
            return f"SPLIT_{self.names[a]}"
        return f"tl.cdiv({self.size(a)}, {self.space.size_name(a)})"

    def _grid(self) -> None:
        w, grid = self.w, self.schedule.grid(self.graph)
        if grid:
            w.line("cell = tl.program_id(0)")
        for k, a in reversed(list(enumerate(grid))):
            name = self.names[a]
            w.line(f"g_{name} = cell % {self.blocks(a)}" if k else f"g_{name} = cell")
            if k:
                w.line(f"cell = cell // {self.blocks(a)}")
        for a, role in self.graph.roles:
            name, tile = self.names[a], self.space.size_name(a)
            if role is Role.SPLIT:
                w.line(f"room_{name} = tl.cdiv(tl.cdiv({self.size(a)}, {tile}), SPLIT_{name}) * {tile}")
                w.line(f"start_{name} = g_{name} * room_{name}")
                w.line(f"stop_{name} = tl.minimum(start_{name} + room_{name}, {self.size(a)})")

    def _base(self, a: str) -> str:
        """Where a block, or iteration, begins along an axis; "" for the axis' own beginning."""
        name = self.names[a]
        match self.graph.role[a]:
            case Role.PARALLEL:
                tile = self.space.tiles[a]
                return f"g_{name}" if tile == 1 else f"g_{name} * {self.space.size_name(a)}"
            case Role.LOOP | Role.SPLIT:
                return f"done_{name}"
        return ""

    def index(self, a: str, full: bool = False) -> str:
        """The name of the position along an axis; "0" for an axis of literal size 1."""
        if not self._base(a) and not any(a in g for g in self.space.groups):
            return "0"
        return f"i_{self.names[a]}{'_all' if full else ''}"

    def _indices(self, depth: int) -> None:
        """The positions along axes that are known inside `depth` loops, and which are within the axis."""
        w, space = self.w, self.space
        grouped = {a for g in space.groups for a in g}
        loop = self.graph.loop
        for a, _ in self.graph.roles:
            known = loop.index(a) + 1 if a in loop else 0
            if a not in grouped and known == depth and (base := self._base(a)):
                w.line(f"{self.index(a)} = {base}")
        groups = [g for g in self._all_groups() if self.loop_depth(g) == depth]
        for g in groups:
            name = space.name(g)
            w.line(f"r_{name} = tl.arange(0, {space.text((g,))})")
            masks = []
            for k, a in enumerate(g.axes):
                inner = [Group((b,), g.full) for b in g.axes[k + 1 :]]
                local = f"r_{name} // {parenthesized(space.text(inner))}" if inner else f"r_{name}"
                if len(g.axes) > 1 and k:
                    local = (
                        f"{local} % {space.size_name(a, g.full)}"
                        if inner
                        else f"r_{name} % {space.size_name(a, g.full)}"
                    )
                split = g.full and self.graph.role[a] is Role.SPLIT
                base = f"start_{self.names[a]}" if split else "" if g.full else self._base(a)
                w.line(f"{self.index(a, g.full)} = {f'{base} + ' if base else ''}{local}")
                if not self.divides(a, g.full):
                    end = f"stop_{self.names[a]}" if split else self.size(a)
                    masks.append(f"{self.index(a, g.full)} < {end}")
            if masks:
                w.line(f"m_{name} = {' & '.join(f'({m})' for m in masks) if len(masks) > 1 else masks[0]}")

    def _all_groups(self) -> list[Group]:
        found = [Group(g) for g in self.space.groups]
        return found + [Group(g, True) for g in self.space.groups if any(a in self.space.rooms for a in g)]

    def masked(self, g: Group) -> bool:
        return any(not self.divides(a, g.full) for a in g.axes)

    def mask(self, groups: Iterable[Group], dims: Dims) -> str:
        """Which elements of a tensor of these dims are within the axes of the groups; "" for all."""
        terms = []
        for k, d in enumerate(dims):
            for g in d:
                if g in groups and self.masked(g):
                    terms.append(f"m_{self.space.name(g)}" + expand([j == k for j in range(len(dims))]))
        return " & ".join(terms)

    # memory

    def offset(self, tensor: Tensor, pointer: str, dims: Dims, fixed: Mapping[str, str], full: bool = False) -> str:
        """The addresses of a tensor's elements under these dims; `fixed` gives the position along other axes."""
        terms = [pointer]
        for a in tensor.axes:
            k = next((k for k, d in enumerate(dims) for g in d if a in g.axes), None)
            index = fixed.get(a) or self.index(a, full and a in self.space.rooms)
            if index == "0":
                continue
            spread = expand([j == k for j in range(len(dims))]) if k is not None and a not in fixed else ""
            terms.append(self._times_stride(tensor, pointer, a, index, spread))
        return " + ".join(terms)

    def _times_stride(self, tensor: Tensor, pointer: str, a: str, index: str, spread: str) -> str:
        """The offset of positions along an axis, put under the dims of a block tensor by `spread`."""
        if tensor.unit >= 0 and tensor.dims[tensor.unit][-1] == a:
            return index + spread
        if a in tensor.strides:
            # a literal would leave the product in 32 bits
            return f"{index}.to(tl.int64){spread} * {tensor.strides[a]}"
        return f"{index}{spread} * {pointer}_{self.names[a]}"

    def _input(self, i: int, n: Node) -> Value:
        if i in self.rescales:
            return self._factors(i)
        tensor = self.inputs[n.attr["index"]]
        dims = self.space.dims(self.space.of(n.axes()))
        groups = [g for d in dims for g in d]
        self.space.check(dims, self._what(i))
        mask = self.mask(groups, dims)
        more = f", mask={mask}, other=0.0" if mask else ""
        self.w.line(f"x{i} = tl.load({self.offset(tensor, f'p{i}', dims, {})}{more})")
        zero = frozenset(g for g in groups if self.masked(g))
        # intermediate results of 16-bit programs may be float32
        stored = f"x{i}" if tensor.dtype == self.program.storage else ""
        if tensor.dtype not in _TRITON:
            return Value(f"x{i}", dims, zero, stored)
        self.w.line(f"v{i} = x{i}.to(tl.float32)")
        return Value(f"v{i}", dims, zero, stored)

    def _factors(self, i: int) -> Value:
        """Factors that bring partial results to a common maximum: exp(own maximum - largest of all)."""
        site = self.rescales[i].site
        companion, tensor = self.companions[site]
        rows = self.program.maximum.sites[site].rows
        partial = [a for a in companion.axes if a not in rows]
        row_dims = self.space.dims(self.space.of(rows))
        row_groups = [g for d in row_dims for g in d]
        # all parts of the rows, one dim more
        fixed: dict[str, str] = {}
        count = 1
        for a in reversed(partial):
            fixed[a] = (
                f"(all_parts // {count} % {self.literal(a)})" if count > 1 else f"(all_parts % {self.literal(a)})"
            )
            count *= self.literal(a) or 1
        w = self.w
        w.line(f"all_parts = tl.arange(0, {1 << (count - 1).bit_length()})")
        lead = expand([True, *(False for _ in row_dims)]) if row_dims else ""
        terms = [f"q{site}"]
        for a in tensor.axes:
            if a in fixed:
                terms.append(self._times_stride(tensor, f"q{site}", a, fixed[a], lead))
            elif (at := self.index(a)) != "0":
                k = next((k for k, d in enumerate(row_dims) for g in d if a in g.axes), None)
                spread = "" if k is None else expand([False, *(j == k for j in range(len(row_dims)))])
                terms.append(self._times_stride(tensor, f"q{site}", a, at, spread))
        masks = [f"(all_parts < {count}){lead}"]
        for k, g in enumerate(row_groups):
            if self.masked(g):
                masks.append(f"m_{self.space.name(g)}" + expand([False, *(j == k for j in range(len(row_dims)))]))
        text = f'tl.load({" + ".join(terms)}, mask={" & ".join(masks)}, other=float("-inf"))'
        w.line(f"largest{i} = tl.max({text}, axis=0)")
        w.line(f'shift{i} = tl.where(largest{i} == float("-inf"), 0.0, largest{i})')
        dims = self.space.dims(self.space.of(self.graph.nodes[i].axes()))
        mask = self.mask([g for d in dims for g in d], dims)
        more = f', mask={mask}, other=float("-inf")' if mask else ""
        own = f"tl.load({self.offset(tensor, f'q{site}', dims, {})}{more})"
        shift = self.space.arrange(Value(f"shift{i}", row_dims), dims)
        w.line(f"v{i} = tl.exp({own} - {shift})")
        return Value(f"v{i}", dims)

    # nodes

    def _what(self, i: int) -> str:
        n = self.graph.nodes[i]
        return f"kernel {self.number}, node {i} ({n.op} [{', '.join(n.axes())}])"

    def _nodes(self, depth: int, after: bool = False) -> None:
        """The nodes that run inside so many loops; 0 is before the loops, or `after` them."""
        for i, n in enumerate(self.graph.nodes):
            if n.op == "accumulator":
                if after and i in self.totals:
                    self.values[i] = self._complete(i)
                elif depth and self.graph.depth[n.operands[0].node] == depth:
                    self._accumulate(i, n)
            elif (i in self.graph.after_loop) is after and (after or self.graph.depth[i] == depth):
                self._node(i, n)

    def _node(self, i: int, n: Node) -> None:
        if n.op not in ("input", "constant", "size"):
            self._title(i, n)
        if n.op == "input":
            if self._is_read(i):
                self.values[i] = self._input(i, n)
        elif n.op == "constant":
            self.w.line(f"v{i} = tl.full([], {literal(n.attr['value'])}, tl.float32)")
            self.values[i] = Value(f"v{i}")
        elif n.op == "size":
            self.w.line(f"v{i} = {self._dim(n.attr['dim'])}")
            self.values[i] = Value(f"v{i}")
        elif n.op in PRODUCTS:
            self._product(i, n)
        elif n.op == "sum":
            self._sum(i, n)
        elif n.op == "concat":
            self._concat(i, n)
        elif isinstance(get_operator(n.op), Elementwise):
            self._elementwise(i, n)
        else:
            raise GraphError(
                f"{self._what(i)}: a block graph for CUDA has no such operator; print the block graph itself"
            )

    def _is_read(self, i: int) -> bool:
        return bool(self.readers(i)) or any(r.node == i for r in self.graph.outputs)

    def _title(self, i: int, n: Node) -> None:
        over = f" over {', '.join(n.reduce)}" if n.reduce else ""
        self.w.comment(f"v{i}[{', '.join(n.axes())}] = {n.op}({', '.join(f'v{r.node}' for r in n.operands)}){over}")

    def _dim(self, dim: sympy.Expr) -> str:
        if dim.is_Integer:
            return f"tl.full([], {int(dim)}, tl.float32)"
        return f"{self.program.dims[dim]}.to(tl.float32)"

    def _separate(self, v: Value) -> Value:
        """The value under one dim per group."""
        dims = self.space.dims(g for d in v.dims for g in d)
        return v if dims == v.dims else Value(self.space.arrange(v, dims), dims, v.zero)

    def _elementwise(self, i: int, n: Node) -> None:
        op = get_operator(n.op)
        assert isinstance(op, Elementwise)
        args = [self._separate(self.values[r.node]) for r in n.operands]
        dims = self.space.dims(g for v in args for d in v.dims for g in d)
        self.space.check(dims, self._what(i))
        texts = [self.space.arrange(v, dims) for v in args]
        shifts: list[str] = []
        for site in self.sites.get(i, ()):
            algebra = TritonAlgebra(self.program.functions, shifts)
            op.apply(algebra, texts, n.attr)
            shifts.append(self._maximum(i, site, algebra.arguments[len(shifts)], dims))
        text = op.apply(TritonAlgebra(self.program.functions, shifts), texts, n.attr)
        self.w.line(f"v{i} = {bare(text)}")
        self.values[i] = Value(f"v{i}", dims)

    def _rows(self, site: int) -> Dims:
        return self.space.dims(self.space.of(self.program.maximum.sites[site].rows))

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
        half = _TRITON.get(self.program.storage)
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

    def _concat(self, i: int, n: Node) -> None:
        assert n.joined is not None
        joined, parts = n.joined
        result = self.space.of((joined,))[0]
        values = [self._separate(self.values[r.node]) for r in n.operands]
        pieces: list[Value] = []
        before: list[str] = []
        ends: list[str] = []
        for v, part in zip(values, parts, strict=True):
            at = next(k for k, d in enumerate(v.dims) if part in d[0].axes)
            dims = (*v.dims[:at], (result,), *v.dims[at + 1 :])
            first = " + ".join(before) or "0"
            index = f"tl.minimum(tl.maximum({self.index(joined)} - ({first}), 0), {self.space.text(v.dims[at])} - 1)"
            index = f"({index}){expand([k == at for k in range(len(dims))])}"
            pieces.append(Value(f"tl.gather({v.text}, tl.broadcast_to({index}, {self.space.shape(dims)}), {at})", dims))
            before.append(self.size(part))
            ends.append(" + ".join(before))
        dims = self.space.dims(g for v in pieces for d in v.dims for g in d)
        self.space.check(dims, self._what(i))
        inside = expand([d == (result,) for d in dims])
        text = self.space.arrange(pieces[-1], dims)
        for piece, end in reversed(list(zip(pieces[:-1], ends[:-1], strict=True))):
            text = f"tl.where(({self.index(joined)} < {end}){inside}, {self.space.arrange(piece, dims)}, {text})"
        self.w.line(f"v{i} = {text}")
        self.values[i] = Value(f"v{i}", dims)

    # results

    def _store(self, k: int, v: Value) -> None:
        """Store a value to the k-th output."""
        tensor = self.outputs[k]
        full = any(g.full for d in v.dims for g in d)
        dims = self.space.dims(self.space.of(tensor.axes, full))
        self._store_to(tensor, f"o{k}", self.space.arrange(v, dims), dims, full)

    def _store_to(self, tensor: Tensor, pointer: str, text: str, dims: Dims, full: bool) -> None:
        fixed = {p: f"g_{self.names[a]}" for p, a in self.partial().items() if p in tensor.axes}
        mask = self.mask([g for d in dims for g in d], dims)
        more = f", mask={mask}" if mask else ""
        self.w.line(f"tl.store({self.offset(tensor, pointer, dims, fixed, full)}, {bare(text)}{more})")

    def _finish(self) -> None:
        """Store the outputs, and the maxima of partial results."""
        for k, r in enumerate(self.graph.outputs):
            if not self.stored_in_loop(r.node):
                self.w.comment(f"output {k} = v{r.node}")
                self._store(k, self._separate(self.values[r.node]))
        for found in self.sites.values():
            for site in found:
                if site in self.companions:
                    self.w.comment(f"the largest exponents of exp {site}")
                    rows = self._rows(site)
                    self._store_to(self.companions[site][1], f"q{site}", f"max{site}", rows, False)


def reduced(function: str, text: str, dims: Dims, gone: Iterable[Group]) -> str:
    """The text of a tensor reduced along the dims of these groups."""
    left = [g for d in dims for g in d]
    for g in gone:
        text = f"{function}({bare(text)}, axis={left.index(g)})"
        left.remove(g)
    return text


def parenthesized(text: str) -> str:
    return f"({text})" if " " in text else text


def bare(text: str) -> str:
    """An expression without parentheses around the whole of it."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text
