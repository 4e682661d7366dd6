"""The two readings of every value of a search: its exact form and its abstract expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mirage.ir.axes import AxisNode, AxisProgram
from mirage.ir.functions import ScalarFunction
from mirage.ir.operator import Over, read_operator
from mirage.mugraph.exact import ExactAlgebra, Form, read_node
from mirage.search.abstract import AbstractAlgebra, Poly


class Algebras:
    """Both algebras over the axis parts of one plan, and the program's own values (`targets`, one per node) in them."""

    def __init__(self, program: AxisProgram, parts: Mapping[str, tuple[str, ...]]) -> None:
        self.exact = ExactAlgebra(parts)
        self.abstract = AbstractAlgebra()
        self.parts = parts
        self._concats: dict[object, ScalarFunction] = {}
        self._abstract_results: dict[tuple[Any, ...], Poly] = {}
        self.targets = self.read(program)

    def read(self, program: AxisProgram) -> list[tuple[Form, Poly]]:
        """The values of a program over the same axes in both algebras, one per node; raises TermTooLarge."""
        values: list[tuple[Form, Poly]] = []
        for n in program.nodes:
            if n.op == "input":
                name = n.attr["name"]
                values.append((self.exact.tensor(name, n.axes), self.abstract.tensor(name)))
            else:
                args = [values[k] for k in n.operands]
                over = self.all_parts(n.reduce)
                exact = self.exact_of(n, [f for f, _ in args], over)
                values.append((exact, self.abstract_of(n, [a for _, a in args], over)))
        return values

    def all_parts(self, axes: Sequence[str]) -> frozenset[str]:
        """The parts of these axes."""
        return frozenset(p for a in axes for p in self.parts.get(a, (a,)))

    def abstract_of(self, n: AxisNode, args: Sequence[Poly], over: Over) -> Poly:
        """The abstract expression of an operator's result; memoised."""
        key = (n.op, n.attrs, n.joined, over, *args)
        found = self._abstract_results.get(key)
        if found is None:
            if n.op == "concat":
                total = args[0]
                for x in args[1:]:
                    total = self.abstract.add(total, x)
                found = self.abstract.function(self._concat(n.joined), total)
            else:
                found = read_operator(self.abstract, n.op, n.attr, args, over)
            self._abstract_results[key] = found
        return found

    def exact_of(self, n: AxisNode, args: Sequence[Form], over: Over) -> Form:
        """The exact form of an operator's result."""
        return read_node(self.exact, n, args, over)

    def _concat(self, joined: object) -> ScalarFunction:
        """The abstract atom of a concat: a function of the sum of what it joins, so that each is a subexpression."""
        if joined not in self._concats:
            self._concats[joined] = ScalarFunction(f"concat {joined}", lambda x: x, "")
        return self._concats[joined]
