"""Where a block's tensors are: positions along axes, masks for what is past their ends, and addresses in global memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mirage.ir.types import DTYPES
from mirage.kernels.cuda.emit.descriptors import Descriptor, check_descriptor, plan_operand, plan_result
from mirage.kernels.cuda.emit.plan import BlockPlan, Tensor
from mirage.kernels.cuda.emit.values import Dims, Group, Value, bare, expand, parenthesized
from mirage.kernels.cuda.emit.writer import Writer
from mirage.mugraph.graph import Node, Role

#: Triton's names of the 16-bit types
HALF = {DTYPES["float16"]: "tl.float16", DTYPES["bfloat16"]: "tl.bfloat16"}


class BlockMemory(BlockPlan):
    """A planned kernel that prints indices, loads and stores to the writer `w`."""

    w: Writer
    #: by the name of its pointer
    described: dict[str, tuple[Tensor, Descriptor]]

    # what the other parts print with, too

    def _what(self, i: int) -> str:
        n = self.graph.nodes[i]
        return f"kernel {self.number}, node {i} ({n.op} [{', '.join(n.axes())}])"

    def _title(self, i: int, n: Node) -> None:
        over = f" over {', '.join(n.reduce)}" if n.reduce else ""
        self.w.comment(f"v{i}[{', '.join(n.axes())}] = {n.op}({', '.join(f'v{r.node}' for r in n.operands)}){over}")

    def _rows(self, site: int) -> Dims:
        return self.space.dims(self.space.of(self.program.maximum.sites[site].rows))

    def _separate(self, v: Value) -> Value:
        """The value under one dim per group."""
        dims = self.space.dims(g for d in v.dims for g in d)
        return v if dims == v.dims else Value(self.space.arrange(v, dims), dims, v.zero)

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
        if self.schedule.group > 1:
            grid = self._grouped(grid)
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

    def _grouped(self, grid: tuple[str, ...]) -> tuple[str, ...]:
        """The last two axes of the grid, of which tiles of the first take turns in groups; the axes before these."""
        *before, outer, inner = grid
        w, x, y, group = self.w, self.names[outer], self.names[inner], self.schedule.group
        w.comment(f"{group} tiles along {outer} take turns: neighbours in time share tiles, which stay in the L2 cache")
        w.line(f"count_{x} = {self.blocks(outer)}")
        w.line(f"count_{y} = {self.blocks(inner)}")
        w.line(f"turn = cell % (count_{x} * count_{y})" if before else "turn = cell")
        if before:
            w.line(f"cell = cell // (count_{x} * count_{y})")
        w.line(f"first_{x} = turn // ({group} * count_{y}) * {group}")
        w.line(f"group_{x} = tl.minimum(count_{x} - first_{x}, {group})")
        w.line(f"g_{x} = first_{x} + turn % ({group} * count_{y}) % group_{x}")
        w.line(f"g_{y} = turn % ({group} * count_{y}) // group_{x}")
        return tuple(before)

    def _descriptors(self) -> None:
        """Make the descriptors of the schedule."""
        self.described = {}
        wanted = set(self.schedule.descriptors)
        for i, n in enumerate(self.graph.nodes):
            if n.op == "input" and i not in self.block.computed and n.attr["index"] in wanted:
                k = n.attr["index"]
                self._describe(f"p{i}", self.inputs[k], plan_operand(self, k), f"operand {k}")
        for k, tensor in enumerate(self.outputs):
            if len(self.inputs) + k in wanted:
                self._describe(f"o{k}", tensor, plan_result(self, k), f"result {k}")

    def _describe(self, pointer: str, tensor: Tensor, found: Descriptor | str, what: str) -> None:
        d = check_descriptor(self, found, what)
        self.described[pointer] = tensor, d
        base = [pointer]
        for a, at in d.fixed.items():
            if (index := at or self.index(a)) != "0":
                base.append(self._times_stride(tensor, pointer, a, index, ""))
        strides = [self._stride(tensor, pointer, a) for a in d.axes]
        sizes = [self.size(a) for a in d.axes]
        tiles = [self.space.size_name(a) for a in d.axes]
        shape, steps, block = (f"[{', '.join(x)}]" for x in (sizes, strides, tiles))
        self.w.line(f"t{pointer} = tl.make_tensor_descriptor({' + '.join(base)}, {shape}, {steps}, {block})")

    def _stride(self, tensor: Tensor, pointer: str, a: str) -> str:
        if tensor.dims[tensor.unit][-1] == a:
            return "1"
        return str(tensor.strides[a]) if a in tensor.strides else f"{pointer}_{self.names[a]}"

    def _corner(self, d: Descriptor) -> str:
        """Where the block begins along the axes of a descriptor."""
        return f"[{', '.join(self._base(a) or '0' for a in d.axes)}]"

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
        if i in self.shifts:
            return self._shift(i)
        tensor = self.inputs[n.attr["index"]]
        dims = self.space.dims(self.space.of(n.axes()))
        groups = [g for d in dims for g in d]
        self.space.check(dims, self._what(i))
        if f"p{i}" in self.described:
            _, d = self.described[f"p{i}"]
            apart = all(len(g.axes) == 1 for x in d.dims for g in x)
            text = f"tp{i}.load({self._corner(d)})"
            text = text if apart else f"tl.reshape({text}, {self.space.shape(d.dims)})"
            self.w.line(f"x{i} = {self.space.arrange(Value(text, d.dims), dims)}")
        else:
            mask = self.mask(groups, dims)
            more = f", mask={mask}, other=0.0" if mask else ""
            self.w.line(f"x{i} = tl.load({self.offset(tensor, f'p{i}', dims, {})}{more})")
        zero = frozenset(g for g in groups if self.masked(g))
        # intermediate results of 16-bit programs may be float32
        stored = f"x{i}" if tensor.dtype == self.program.storage else ""
        if tensor.dtype.itemsize == 4:
            return Value(f"x{i}", dims, zero, stored)
        self.w.line(f"v{i} = x{i}.to(tl.float32)")
        return Value(f"v{i}", dims, zero, stored)

    def _factors(self, i: int) -> Value:
        """Factors that bring partial results to a common maximum: exp(own maximum - largest of all)."""
        site, w = self.rescales[i].site, self.w
        _, tensor = self.companions[site]
        self._largest(i, site)
        dims = self.space.dims(self.space.of(self.graph.nodes[i].axes()))
        mask = self.mask([g for d in dims for g in d], dims)
        more = f', mask={mask}, other=float("-inf")' if mask else ""
        own = f"tl.load({self.offset(tensor, f'q{site}', dims, {})}{more})"
        shift = self.space.arrange(Value(f"shift{i}", self._rows(site)), dims)
        w.line(f"v{i} = tl.exp({own} - {shift})")
        return Value(f"v{i}", dims)

    def _shift(self, i: int) -> Value:
        """What was subtracted from exponents, to be added to the log of their sum."""
        shift = self.shifts[i]
        rows = self._rows(shift.site)
        if not shift.own:
            self._largest(i, shift.site)
            return Value(f"shift{i}", rows)
        self.w.line(f'v{i} = tl.where(max{shift.site} == float("-inf"), 0.0, max{shift.site})')
        return Value(f"v{i}", rows)

    def _largest(self, i: int, site: int) -> None:
        """Name the largest maximum of all parts of each row of another kernel's exp, or 0, for node i."""
        companion, tensor = self.companions[site]
        rows = self.program.maximum.sites[site].rows
        partial = [a for a in companion.axes if a not in rows]
        row_dims = self._rows(site)
        row_groups = [g for d in row_dims for g in d]
        w = self.w
        if not partial:
            mask = self.mask(row_groups, row_dims)
            more = f', mask={mask}, other=float("-inf")' if mask else ""
            w.line(f"largest{i} = tl.load({self.offset(tensor, f'q{site}', row_dims, {})}{more})")
            w.line(f'shift{i} = tl.where(largest{i} == float("-inf"), 0.0, largest{i})')
            return
        # all parts of the rows, one dim more
        fixed: dict[str, str] = {}
        count = 1
        for a in reversed(partial):
            fixed[a] = (
                f"(all_parts // {count} % {self.literal(a)})" if count > 1 else f"(all_parts % {self.literal(a)})"
            )
            count *= self.literal(a) or 1
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

    def _store(self, k: int, v: Value) -> None:
        """Store a value to the k-th output."""
        tensor = self.outputs[k]
        full = any(g.full for d in v.dims for g in d)
        if f"o{k}" in self.described:
            _, to = self.described[f"o{k}"]
            have = {g for d in v.dims for g in d}
            text = self.space.arrange(v, to.dims)
            if {g for d in to.dims for g in d} != have:
                text = f"tl.broadcast_to({text}, {self.space.shape(to.dims)})"
            if any(len(g.axes) > 1 for d in to.dims for g in d):
                text = f"tl.reshape({text}, [{', '.join(map(self.space.size_name, to.axes))}])"
            kind = HALF.get(tensor.dtype, "tl.float32")
            self.w.line(f"to{k}.store({self._corner(to)}, {parenthesized(text)}.to({kind}))")
            return
        dims = self.space.dims(self.space.of(tensor.axes, full))
        self._store_to(tensor, f"o{k}", self.space.arrange(v, dims), dims, full)

    def _store_to(self, tensor: Tensor, pointer: str, text: str, dims: Dims, full: bool) -> None:
        fixed = {p: f"g_{self.names[a]}" for p, a in self.partial().items() if p in tensor.axes}
        mask = self.mask([g for d in dims for g in d], dims)
        more = f", mask={mask}" if mask else ""
        self.w.line(f"tl.store({self.offset(tensor, pointer, dims, fixed, full)}, {bare(text)}{more})")
