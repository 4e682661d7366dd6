"""One graph-defined kernel as a Triton function that computes one cell of its grid."""

from __future__ import annotations

import sympy

from mirage.errors import GraphError
from mirage.ir.operator import PRODUCTS, Elementwise, get_operator
from mirage.kernels.cuda.emit.algebra import TritonAlgebra, literal
from mirage.kernels.cuda.emit.sums import BlockSums
from mirage.kernels.cuda.emit.values import Value, bare, expand
from mirage.kernels.cuda.emit.writer import Writer
from mirage.mugraph.graph import Node, Role


class BlockEmitter(BlockSums):
    """A planned kernel that prints the body of its function.

    Raises GraphError for operators that no block graph has, and ScheduleError for tensors that no block can hold.
    """

    def body(self, w: Writer) -> None:
        """Print the function's body."""
        self.w = w
        self.values = {}
        self.totals = {}
        self.unsummed = {}
        self._grid()
        self._indices(0)
        self._descriptors()
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

    # nodes

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
        elif n.op == "max":
            self._max(i, n)
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

    def _dim(self, dim: sympy.Expr) -> str:
        if dim.is_Integer:
            return f"tl.full([], {int(dim)}, tl.float32)"
        return f"{self.program.dims[dim]}.to(tl.float32)"

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
