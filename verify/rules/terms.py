"""Terms: the values of programs over named axes as trees of few operators, each tree stored once.

Operators are read by their definitions, so that `silu` is a product and a sigmoid here, and a matmul a sum of products. A
difference is a sum with a product by -1. Operands of sums and products have no order. Constants are folded, sums of sums are
one, a sum over an axis on which its operand does not depend is a product with the axis's size, and a power of a small whole or
half exponent is a product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import sympy

from mirage.ir.axes import AxisNode, AxisProgram
from mirage.ir.decimals import as_written
from mirage.ir.functions import ABS, CLAMP, FUNCTIONS, MAXIMUM, POW, RELU, ScalarFunction
from mirage.ir.operator import read_operator
from mirage.mugraph.exact import read_node

#: operators whose operands have no order
COMMUTATIVE = frozenset({"add", "mul"})
#: functions that are rational numbers of these
RATIONAL: dict[ScalarFunction, Callable[..., Fraction]] = {
    RELU: lambda x: max(x, Fraction(0)),
    MAXIMUM: max,
    ABS: abs,
    CLAMP: lambda x, lo, hi: min(max(x, lo), hi),
}


class Node(NamedTuple):
    """A term: its operator ("input", "constant", "size", "add", "mul", "div", "sum", "concat" or "function"), what else tells
    it from others, and the terms that it is applied to.
    """

    op: str
    data: Any
    args: tuple[int, ...]


class Terms:
    """Terms by number, over some axes with their sizes. It is the algebra in which `read` reads programs."""

    def __init__(self, axes: Mapping[str, sympy.Expr]) -> None:
        self.sizes = dict(axes)
        self.nodes: list[Node] = []
        #: per term, the axes that it depends on
        self.axes: list[frozenset[str]] = []
        #: per term, how many operators it has, as a tree
        self.count: list[int] = []
        self._numbers: dict[Node, int] = {}

    def intern(self, op: str, data: Any, args: tuple[int, ...]) -> int:
        """The number of exactly this term; nothing is simplified."""
        if op in COMMUTATIVE and args[0] > args[1]:
            args = args[::-1]
        node = Node(op, data, args)
        found = self._numbers.get(node)
        if found is None:
            found = self._numbers[node] = len(self.nodes)
            self.nodes.append(node)
            self.axes.append(self._axes(node))
            self.count.append(1 + sum([self.count[x] for x in args]))
        return found

    def _axes(self, node: Node) -> frozenset[str]:
        if node.op == "input":
            return frozenset(node.data[1])
        below = frozenset[str]().union(*[self.axes[x] for x in node.args])
        if node.op == "sum":
            return below - frozenset(node.data)
        if node.op == "concat":
            whole, pieces = node.data
            return (below - frozenset(pieces)) | {whole}
        return below

    def make(self, op: str, data: Any, args: tuple[int, ...]) -> int:
        """A term of this operator, simplified as all are when they are made."""
        match op:
            case "add":
                return self.add(*args)
            case "mul":
                return self.mul(*args)
            case "div":
                return self.div(*args)
            case "sum":
                return self.sum(args[0], frozenset(data))
            case "function" if data[0] == POW.name:
                power: int = read_operator(self, POW.name, {"exponent": data[1][0]}, args, frozenset())
                return power
            case "function":
                return self.function(FUNCTIONS[data[0]], args[0], *data[1])
        return self.intern(op, data, args)

    def number(self, x: int) -> Fraction | None:
        """The value of a constant; None of other terms."""
        node = self.nodes[x]
        return node.data if node.op == "constant" else None

    # -- the algebra

    def tensor(self, name: str, axes: tuple[str, ...]) -> int:
        return self.intern("input", (name, axes), ())

    def constant(self, value: Fraction) -> int:
        return self.intern("constant", value, ())

    def dim(self, size: sympy.Expr) -> int:
        return self.intern("size", size, ())

    def add(self, x: int, y: int) -> int:
        a, b = self.number(x), self.number(y)
        if a is not None and b is not None:
            return self.constant(a + b)
        if a == 0:
            return y
        return x if b == 0 else self.intern("add", None, (x, y))

    def neg(self, x: int) -> int:
        return self.mul(self.constant(Fraction(-1)), x)

    def sub(self, x: int, y: int) -> int:
        return self.add(x, self.neg(y))

    def mul(self, x: int, y: int) -> int:
        a, b = self.number(x), self.number(y)
        if a is not None and b is not None:
            return self.constant(a * b)
        if a == 1:
            return y
        return x if b == 1 else self.intern("mul", None, (x, y))

    def div(self, x: int, y: int) -> int:
        a, b = self.number(x), self.number(y)
        if a is not None and b:
            return self.constant(a / b)
        return x if b == 1 else self.intern("div", None, (x, y))

    def function(self, fn: ScalarFunction, x: int, *params: Fraction) -> int:
        number = self.number(x)
        if number is not None and fn in RATIONAL:
            return self.constant(RATIONAL[fn](number, *params))
        return self.intern("function", (fn.name, params), (x,))

    def sum(self, x: int, parts: frozenset[str]) -> int:
        for a in sorted(parts - self.axes[x]):
            x = self.mul(x, self.dim(self.sizes[a]))
        over = parts & self.axes[x]
        node = self.nodes[x]
        if over and node.op == "sum":
            return self.intern("sum", tuple(sorted({*over, *node.data})), node.args)
        return self.intern("sum", tuple(sorted(over)), (x,)) if over else x

    def concat(self, xs: Sequence[int], joined: tuple[str, tuple[str, ...]]) -> int:
        return self.intern("concat", joined, tuple(xs))

    # -- as text

    def text(self, x: int) -> str:
        """A term for people; indices are left out."""
        op, data, args = self.nodes[x]
        match op:
            case "input":
                return str(data[0])
            case "constant":
                number = as_written(data)
                return str(number) if number >= 0 and number.denominator == 1 else f"({number})"
            case "size":
                return f"|{data}|"
            case "function":
                return f"{data[0]}({', '.join([self.text(args[0]), *map(str, data[1])])})"
            case "sum":
                return f"sum[{','.join(data)}]({self.text(args[0])})"
            case "concat":
                return f"concat({', '.join(map(self.text, args))})"
        sign = {"add": " + ", "mul": " * ", "div": " / "}[op]
        return f"({sign.join(map(self.text, args))})"


@dataclass(frozen=True)
class Read:
    """A program read as terms: the number of every value."""

    program: AxisProgram
    values: tuple[int, ...]

    @property
    def outputs(self) -> tuple[int, ...]:
        """The terms of the results."""
        return tuple(self.values[o.value] for o in self.program.outputs)


def read(terms: Terms, program: AxisProgram) -> Read:
    """A program over the axes of these terms."""
    values: list[int] = []
    for n in program.nodes:
        if n.op == "input":
            values.append(terms.tensor(n.attr["name"], n.axes))
        else:
            values.append(read_node(terms, n, [values[i] for i in n.operands], frozenset(n.reduce)))
    return Read(program, tuple(values))


def own_operators(program: AxisProgram) -> list[AxisNode]:
    """The distinct elementwise operators of a program with one operand, by name and attributes."""
    found: dict[tuple[str, Any], AxisNode] = {}
    for n in program.nodes:
        if len(n.operands) == 1 and not n.reduce and n.joined is None:
            found.setdefault((n.op, n.attrs), n)
    return list(found.values())
