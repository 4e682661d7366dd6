"""Programs over named axes from terms: as the program that the terms came from has them, or at least with its operators, wherever
one of them fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from mirage.errors import AxisError
from mirage.ir.axes import AxisNode, AxisOutput, AxisProgram
from mirage.ir.operator import REGISTRY, Elementwise, read_operator
from mirage.verify.rules.terms import Terms, own_operators, read


def lowered(terms: Terms, program: AxisProgram, outputs: Sequence[int]) -> AxisProgram:
    """The program with these terms as its outputs. Raises AxisError where a function has no operator."""
    low = _Lowering(terms, program)
    found = tuple(AxisOutput(low.value(x), o.dims) for x, o in zip(outputs, program.outputs, strict=True))
    return replace(program, nodes=tuple(low.nodes), outputs=found)


class _Lowering:
    def __init__(self, terms: Terms, program: AxisProgram) -> None:
        self.terms = terms
        self.program = program
        self.nodes: list[AxisNode] = []
        self._values: dict[int, int] = {}
        self._index: dict[AxisNode, int] = {}
        self._own = own_operators(program)
        self._read = read(terms, program).values
        #: the program's own values, by the terms that they are
        self._written = {x: i for i, x in reversed(list(enumerate(self._read)))}
        for n in program.nodes:
            if n.op == "input":
                self.nodes.append(n)
                self._values[terms.tensor(n.attr["name"], n.axes)] = len(self.nodes) - 1

    def value(self, x: int) -> int:
        """The value of a term."""
        if x not in self._values:
            self._values[x] = self._lower(x)
        return self._values[x]

    def _add(
        self,
        op: str,
        args: Sequence[int],
        attrs: dict[str, Any] | None = None,
        reduce: Sequence[str] = (),
        joined: tuple[str, tuple[str, ...]] | None = None,
    ) -> int:
        operands = tuple(self.value(x) for x in args)
        axes: set[str] = {a for v in operands for a in self.nodes[v].axes} - set(reduce)
        if joined is not None:
            axes = (axes - set(joined[1])) | {joined[0]}
        order = self.program.order
        node = AxisNode(op, operands, tuple((attrs or {}).items()), order(axes), order(set(reduce)), joined)
        if node not in self._index:
            self.nodes.append(node)
            self._index[node] = len(self.nodes) - 1
        return self._index[node]

    def _lower(self, x: int) -> int:
        op, data, args = self.terms.nodes[x]
        known = self._as_written(x)
        if known is None:
            known = self._fused(x)
        if known is not None:
            return known
        match op:
            case "constant":
                return self._add("constant", (), {"value": data})
            case "size":
                return self._add("size", (), {"dim": data})
            case "sum":
                return self._sum(data, args[0])
            case "concat":
                return self._add("concat", args, joined=data)
            case "function":
                return self._function(data[0], data[1], args[0])
            case "add":
                for u, v in (args, args[::-1]):
                    if (y := self._negated(v)) is not None:
                        return self._add("sub", (u, y))
                return self._add("add", args)
            case "mul":
                negative = self._negated(x)
                return self._add("mul", args) if negative is None else self._add("neg", (negative,))
        return self._add(op, args)

    def _as_written(self, x: int) -> int | None:
        """The value of a term that the program has, so that what rules leave as it is stays so."""
        if x not in self._written:
            return None
        node = self.program.nodes[self._written[x]]
        read = [self._read[j] for j in node.operands]
        # what cancels has lost its axes
        whole = all(self.terms.axes[y] == {*self.program.nodes[j].axes} for y, j in zip(read, node.operands, strict=True))
        return self._add(node.op, read, node.attr, node.reduce, node.joined) if whole else None

    def _fused(self, x: int) -> int | None:
        """The value of a term by an operator of the program that does several at once, such as `silu` or `square`."""
        node = self.terms.nodes[x]
        inside = dict.fromkeys((*node.args, *(b for a in node.args for b in self.terms.nodes[a].args)))
        below = [b for a in inside for b in self.terms.nodes[a].args]
        for y in dict.fromkeys((*inside, *below)):
            if self.terms.number(y) is not None:
                continue
            for n in self._own:
                if read_operator(self.terms, n.op, n.attr, [y], frozenset()) == x:
                    return self._add(n.op, (y,), n.attr)
        return None

    def _sum(self, over: Sequence[str], x: int) -> int:
        node = self.terms.nodes[x]
        if node.op == "mul" and all(set(over) <= self.terms.axes[y] for y in node.args):
            return self._add("matmul", node.args, reduce=over)
        return self._add("sum", (x,), reduce=over)

    def _negated(self, x: int) -> int | None:
        """The y of a term that is -y."""
        node = self.terms.nodes[x]
        if node.op != "mul":
            return None
        for a, b in (node.args, node.args[::-1]):
            if self.terms.number(a) == Fraction(-1):
                return b
        return None

    def _function(self, name: str, params: tuple[Fraction, ...], x: int) -> int:
        definition = REGISTRY.get(name)
        if not isinstance(definition, Elementwise) or len(definition.attributes) != len(params):
            raise AxisError(f"function {name} has no operator")
        attrs = definition.check_attrs({a.name: p for a, p in zip(definition.attributes, params, strict=True)})
        if read_operator(self.terms, name, attrs, [x], frozenset()) != self.terms.intern("function", (name, params), (x,)):
            raise AxisError(f"operator {name} is more than the function {name}")
        return self._add(name, (x,), attrs)
