"""How many elements of an axis random tests need, so that they speak for all its sizes.

What two graphs differ by is, along one axis, a polynomial in sums over that axis and in its size. Sums of linearly
independent functions of an element, up to L of them multiplied with one another, are linearly independent over L elements
with free weights: the part of such a product with the weights of L different elements is the symmetric product of the
functions. So a difference with products of up to L sums that vanishes for all values and weights of L elements is zero in
every coefficient, and the two graphs are equal at all sizes. Where the size of the axis is a number, or is used elsewhere, the
weights have to add up to it: one more element, whose weight is what is missing, leaves the others free. (A size that is not a
number is a random value itself, see `mirage.verify.measure`.)

`L` is read off the operators' definitions. A result of a function counts as an input, whose argument is compared by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import reduce as fold
from typing import TypeAlias

import sympy

from mirage.errors import GraphError
from mirage.ir.dims import Dim, symbols_of
from mirage.ir.functions import ScalarFunction
from mirage.ir.operator import PRODUCTS, REDUCTIONS, Elementwise, get_operator, reduced_axes
from mirage.mugraph.graph import Graph, MuGraph, Node

#: sums over an axis that are multiplied in one term: at most so many where the term also has an element of the axis, and where
#: it has none; -1 where there are no such terms
Counts: TypeAlias = tuple[int, int]
#: by axis; an axis that is missing has `_CONSTANT`
Sums: TypeAlias = Mapping[str, Counts]

_CONSTANT: Counts = (-1, 0)
_ELEMENT: Counts = (0, -1)


def _plus(m: int, n: int) -> int:
    return -1 if m < 0 or n < 0 else m + n


def _product(x: Sums, y: Sums) -> Sums:
    found: dict[str, Counts] = {}
    for a in {**x, **y}:
        (e, f), (g, h) = x.get(a, _CONSTANT), y.get(a, _CONSTANT)
        found[a] = (max(_plus(e, g), _plus(e, h), _plus(f, g)), _plus(f, h))
    return found


def _either(x: Sums, y: Sums) -> Sums:
    found: dict[str, Counts] = {}
    for a in {**x, **y}:
        (e, f), (g, h) = x.get(a, _CONSTANT), y.get(a, _CONSTANT)
        found[a] = (max(e, g), max(f, h))
    return found


@dataclass(frozen=True)
class Value:
    """A quotient: its numerator, and powers of denominators by their numbers."""

    above: Sums
    below: Mapping[int, int] = field(default_factory=dict)


class SumAlgebra:
    """The algebra of such values. `arguments` are bounds on numerators and denominators of what functions are applied to."""

    def __init__(self) -> None:
        self.denominators: list[Sums] = []
        self.arguments: tuple[Sums, Sums] = {}, {}
        self.summed: set[str] = set()
        self.symbols: set[str] = set()

    def constant(self, value: Fraction) -> Value:
        return Value({})

    def dim(self, size: sympy.Expr) -> Value:
        self.symbols.update(symbols_of(size))
        return Value({})

    def neg(self, x: Value) -> Value:
        return x

    def add(self, x: Value, y: Value) -> Value:
        below = {f: max(x.below.get(f, 0), y.below.get(f, 0)) for f in (*x.below, *y.below)}
        sides = [self.expanded(v.above, {f: n - v.below.get(f, 0) for f, n in below.items()}) for v in (x, y)]
        return Value(_either(*sides), below)

    sub = add

    def mul(self, x: Value, y: Value) -> Value:
        below = {f: x.below.get(f, 0) + y.below.get(f, 0) for f in (*x.below, *y.below)}
        return Value(_product(x.above, y.above), below)

    def div(self, x: Value, y: Value) -> Value:
        below = dict(x.below)
        if y.above:
            self.denominators.append(y.above)
            below[len(self.denominators) - 1] = 1
        return Value(self.expanded(x.above, y.below), below)

    def expanded(self, above: Sums, below: Mapping[int, int]) -> Sums:
        """A numerator times powers of denominators."""
        for f, n in below.items():
            for _ in range(n):
                above = _product(above, self.denominators[f])
        return above

    def function(self, fn: ScalarFunction, x: Value, *params: Fraction) -> Value:
        below = self.expanded({}, x.below)
        self.arguments = _either(self.arguments[0], x.above), _either(self.arguments[1], below)
        return Value({a: _ELEMENT for a in self.axes(x)})

    def axes(self, x: Value) -> set[str]:
        """The axes on whose elements a value depends."""
        parts = (x.above, *(self.denominators[f] for f in x.below))
        return {a for sums in parts for a, (e, _) in sums.items() if e >= 0}

    def sum(self, x: Value, axes: Sequence[str]) -> Value:
        """The sum over axes. A denominator that varies along them is a function of the element, and of the sums in it."""
        above, below = x.above, dict(x.below)
        for f, n in x.below.items():
            if any(self.denominators[f].get(a, _CONSTANT)[0] >= 0 for a in axes):
                above = self.expanded(above, {f: n})
                self.denominators.append(self.summed_over(self.denominators[f], axes))
                below[len(self.denominators) - 1] = below.pop(f)
        self.summed.update(axes)
        return Value(self.summed_over(above, axes), below)

    @staticmethod
    def summed_over(sums: Sums, axes: Sequence[str]) -> Sums:
        found = dict(sums)
        for a in axes:
            e, f = sums.get(a, _CONSTANT)
            found[a] = (-1, max(e + 1 if e >= 0 else -1, f))
        return found


@dataclass(frozen=True)
class GraphSums:
    """What was read of a graph: numerators and denominators of its outputs and of the arguments of functions.

    `summed` are the axes that it sums over, `symbols` the dim symbols whose sizes are values in it, `joins` what it puts side by
    side.
    """

    outputs: tuple[tuple[Sums, Sums], ...]
    arguments: tuple[Sums, Sums]
    summed: frozenset[str]
    symbols: frozenset[str]
    joins: tuple[tuple[str, tuple[str, ...]], ...]


class _Reading:
    def __init__(self, graph: MuGraph) -> None:
        self.algebra = SumAlgebra()
        self.joins: dict[tuple[str, tuple[str, ...]], None] = {}
        inputs = [Value({a: _ELEMENT for a in x.axes}) for x in graph.inputs]
        self.outputs = self.graph(graph.kernel, inputs)

    def graph(self, graph: Graph, inputs: Sequence[Value]) -> list[Value]:
        """The outputs of a kernel, block or thread graph. Its tiles, loops and blocks together are each sum once."""
        values: dict[tuple[int, int], Value] = {}
        for i, n in enumerate(graph.nodes):
            args = [values[r.node, r.out] for r in n.operands]
            if n.op == "input":
                values[i, 0] = inputs[n.attr["index"]]
            elif n.op == "accumulator":
                values[i, 0] = args[0]
            elif n.graph is not None:
                for k, v in enumerate(self.graph(n.graph, args)):
                    values[i, k] = v
            else:
                values[i, 0] = self.operator(graph, n, args)
        return [values[r.node, r.out] for r in graph.outputs]

    def operator(self, graph: Graph, n: Node, args: list[Value]) -> Value:
        al = self.algebra
        if n.op in REDUCTIONS:
            products = [al.mul(args[i], args[j]) for i, j in PRODUCTS.get(n.op, ())] or args
            groups = reduced_axes(n.op, [graph.nodes[r.node].axes(r.out) for r in n.operands], n.reduce)
            return fold(al.add, [al.sum(x, g) for x, g in zip(products, groups, strict=True)])
        if n.op == "concat":
            assert n.joined is not None
            self.joins[n.joined] = None
            total = fold(al.add, args)
            return al.add(total, Value({n.joined[0]: _ELEMENT}))
        op = get_operator(n.op)
        if not isinstance(op, Elementwise):
            raise GraphError(f"{n.op}: not an operator of a muGraph; expand the program first")
        found: Value = op.apply(al, args, n.attr)
        return found


def read_sums(graph: MuGraph) -> GraphSums:
    """The sums in a graph's outputs, and in what its functions are applied to."""
    r = _Reading(graph)
    al = r.algebra
    outputs = tuple((v.above, al.expanded({}, v.below)) for v in r.outputs)
    return GraphSums(outputs, al.arguments, frozenset(al.summed & graph.axes.keys()), frozenset(al.symbols), tuple(r.joins))


def elements_needed(a: GraphSums, b: GraphSums, axes: Mapping[str, Dim]) -> dict[str, int]:
    """By axis that either graph sums over, the elements that tests of two graphs need; at least 2. `axes` are their sizes."""
    pairs = list(zip(a.outputs, b.outputs, strict=True))
    either = tuple(_either(x, y) for x, y in zip(a.arguments, b.arguments, strict=True))
    pairs.append((either, either))  # type: ignore[arg-type]
    found = dict.fromkeys(a.summed | b.summed, 2)
    used = Counter([*a.symbols, *b.symbols, *(s for axis in found for s in symbols_of(axes[axis]))])
    free = {axis for axis in found if (own := symbols_of(axes[axis])) and all(used[s] == 1 for s in own)}
    for (above, below), (other_above, other_below) in pairs:
        difference = _either(_product(above, other_below), _product(other_above, below))
        for axis, (e, f) in difference.items():
            if axis in found:
                found[axis] = max(found[axis], max(e + 1, f) + (axis not in free))
    for joined, parts in {*a.joins, *b.joins}:
        for part in parts:
            found[part] = max(found.get(part, 2), found.get(joined, 2))
    return found
