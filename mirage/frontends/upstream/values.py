"""Builds the nodes of a graph over axes from operators over dims, at the kernel and at the block level."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from mirage.errors import FormatError, GraphError
from mirage.frontends.upstream.constants import Constants
from mirage.frontends.upstream.names import BINARY, ELEMENTWISE, Name
from mirage.frontends.upstream.partition import Cut
from mirage.ir.axes import AxisDims, AxisProgram
from mirage.mugraph.graph import Node, Ref


@dataclass(frozen=True)
class Value:
    """A tensor of the graph: its node, its dims as products of axes, and whether the loop is over."""

    ref: Ref
    dims: AxisDims
    after: bool = False


@dataclass
class Nodes:
    """The nodes of a graph; `extent` gives the elements of a product of axes there."""

    program: AxisProgram
    constants: Constants
    extent: Callable[[Sequence[str]], int]
    nodes: list[Node] = field(default_factory=list)

    def add(self, op: str, operands: Sequence[Value], dims: AxisDims, **more: Any) -> Value:
        """A node whose tensor has one dim per axis, under dims that may be products."""
        own = tuple((a,) for d in dims for a in d)
        self.nodes.append(Node(op, tuple(v.ref for v in operands), (own,), **more))
        return Value(Ref(len(self.nodes) - 1), dims, any(v.after for v in operands) or op == "accumulator")

    def read(self, index: int, dims: AxisDims) -> Value:
        """The node that reads an input, under the dims that the input has."""
        self.nodes.append(Node("input", (), (dims,), (("index", index),)))
        return Value(Ref(len(self.nodes) - 1), dims)

    def scalar(self, op: str, **attrs: Any) -> Value:
        return self.add(op, (), (), attrs=tuple(attrs.items()))

    def apply(self, name: Name, operands: Sequence[Value], dimx: int | None, where: str) -> Value:
        """A predefined operator of either level."""
        kind = name.kind
        if kind == "concat":
            return self.concat(operands, name.dim, where)
        arity = 2 if kind == "matmul" or kind in BINARY else 4 if kind == "concat_then_matmul" else 1
        if len(operands) != arity:
            raise FormatError(f"{where}: {len(operands)} inputs; it takes {arity}")
        if kind == "matmul":
            return self.matmul(operands[0], operands[1], where)
        if kind == "concat_then_matmul":
            return self.concat_matmul(operands, where)
        if kind == "rms_norm":
            return self.broadcast("div", (operands[0], self.norm(operands[0], where)), where)
        if kind.startswith("reduction"):
            if not name.dim < len(operands[0].dims):
                raise FormatError(f"{where}: reduces dim {name.dim} of a tensor of rank {len(operands[0].dims)}")
            return self.sum(operands[0], name.dim, dimx if kind == "reduction_to_dimx" else 1, where)
        assert kind in ELEMENTWISE
        if kind == "clamp":
            return self.add("clamp", operands, operands[0].dims, attrs=self.constants.clamp(where))
        if kind == "mul_scalar":
            operands = (operands[0], self.scalar("constant", value=self.constants.scale(where)))
        return self.broadcast(ELEMENTWISE[kind], operands, where)

    def broadcast(self, op: str, operands: Sequence[Value], where: str) -> Value:
        return self.add(op, operands, self.common([v.dims for v in operands], where))

    def common(self, shapes: Sequence[AxisDims], where: str) -> AxisDims:
        """The dims of an elementwise operator, aligned at the last one; a dim without axes is broadcast."""
        rank = max(map(len, shapes))
        dims: list[tuple[str, ...]] = []
        for i in range(-rank, 0):
            found = list(dict.fromkeys(s[i] for s in shapes if -i <= len(s) and s[i]))
            if len(found) > 1:
                raise GraphError(
                    f"{where}: dim {rank + i} is {_dim(found[0])} in one input and {_dim(found[1])} in another"
                )
            dims.append(found[0] if found else ())
        return tuple(dims)

    def matmul(self, x: Value, y: Value, where: str) -> Value:
        dims, reduce = self.product(x, y, where)
        return self.add("matmul" if reduce else "mul", (x, y), dims, reduce=reduce)

    def product(self, x: Value, y: Value, where: str) -> tuple[AxisDims, tuple[str, ...]]:
        """The dims of a matmul and the axes that it sums."""
        if len(x.dims) < 2 or len(y.dims) < 2:
            raise FormatError(f"{where}: inputs of ranks {len(x.dims)} and {len(y.dims)}; a matmul needs 2 or more")
        if x.dims[-1] != y.dims[-2]:
            raise GraphError(f"{where}: sums over {_dim(x.dims[-1])} of one input and {_dim(y.dims[-2])} of the other")
        return (*self.common([x.dims[:-2], y.dims[:-2]], where), x.dims[-2], y.dims[-1]), x.dims[-1]

    def concat_matmul(self, operands: Sequence[Value], where: str) -> Value:
        """(a || b) @ (c || d), which is a @ c + b @ d."""
        a, b, c, d = operands
        (first, over), (second, also) = self.product(a, c, where), self.product(b, d, where)
        if first != second:
            raise GraphError(f"{where}: adds products with dims {_dims(first)} and {_dims(second)}")
        if over and also:
            return self.add("concat_matmul", operands, first, reduce=tuple(dict.fromkeys((*over, *also))))
        return self.broadcast("add", (self.matmul(a, c, where), self.matmul(b, d, where)), where)

    def concat(self, operands: Sequence[Value], dim: int, where: str) -> Value:
        """The concat whose joined axis is that of a concat of the program."""
        ranks = {len(v.dims) for v in operands}
        if len(operands) < 2 or len(ranks) > 1 or not dim < min(ranks):
            raise FormatError(f"{where}: joins dim {dim} of {len(operands)} inputs of ranks {sorted(ranks)}")
        parts = [v.dims[dim] for v in operands]
        for n in self.program.nodes:
            if n.joined is not None and [(a,) for a in n.joined[1]] == parts:
                rest = self.common([(*v.dims[:dim], (), *v.dims[dim + 1 :]) for v in operands], where)
                dims = (*rest[:dim], (n.joined[0],), *rest[dim + 1 :])
                return self.add("concat", operands, dims, joined=n.joined)
        raise GraphError(f"{where}: joins {' and '.join(map(_dim, parts))}, which no concat of the program joins")

    def sum(self, x: Value, dim: int, kept: int | None, where: str) -> Value:
        """The sum over a dim, down to its inner `kept` elements."""
        if kept is None:
            raise FormatError(f"{where}: reduction_dimx is missing; write the number of elements that the sum keeps")
        inner = list(x.dims[dim]) if kept > 1 else []
        outer = list(x.dims[dim]) if kept == 1 else []
        while self.extent(inner) > kept > 1:
            outer.append(inner.pop(0))
        if (rest := self.extent(x.dims[dim])) % kept:
            raise FormatError(f"{where}: a dim of {rest} elements is summed down to {kept}; use a divisor")
        if kept % self.extent(inner):
            raise GraphError(f"{where}: keeps {kept} elements of {_dim(x.dims[dim])}, which follow none of its axes")
        if self.extent(inner) != kept > 1:
            raise Cut(outer[-1], kept // self.extent(inner), where)
        dims = (*x.dims[:dim], tuple(inner), *x.dims[dim + 1 :])
        return self.reduce(x, tuple(outer), dims)

    def reduce(self, x: Value, axes: tuple[str, ...], dims: AxisDims) -> Value:
        """The sum over these axes; the value itself where there are none."""
        return self.add("sum", (x,), dims, reduce=axes) if axes else Value(x.ref, dims, x.after)

    def norm(self, x: Value, where: str) -> Value:
        """The root mean square of the last dim, which stays with size 1."""
        square = self.add("square", (x,), x.dims)
        return self.root_mean(self.sum(square, len(x.dims) - 1, 1, where), x.dims[-1], where)

    def mean(self, total: Value, axes: Sequence[str], where: str) -> Value:
        """A sum over whole axes divided by their sizes."""
        if missing := [a for a in axes if a not in self.program.axes]:
            raise GraphError(f"{where}: the mean over partial results along {missing[0]} depends on their number")
        size = sympy.expand(sympy.prod([self.program.axes[a] for a in axes]))
        return self.add("div", (total, self.scalar("size", dim=size)), total.dims)

    def root_mean(self, total: Value, axes: Sequence[str], where: str) -> Value:
        """The square root of a mean, with the constant that the program's norms add."""
        mean = self.mean(total, axes, where)
        if eps := self.constants.norm_eps(where):
            mean = self.add("add", (mean, self.scalar("constant", value=eps)), mean.dims)
        return self.add("sqrt", (mean,), mean.dims)


def _dim(axes: Sequence[str]) -> str:
    return "*".join(axes) or "1"


def _dims(dims: AxisDims) -> str:
    return f"[{', '.join(map(_dim, dims))}]"
