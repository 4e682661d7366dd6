"""Products of sums, and values that leave them whole.

In normal form a product of two sums is multiplied out, and every part of what results may be a prefix of some graph. A
square of a sum of n terms so has up to 3^(n(n+1)/2) prefixes that hardly any graph uses. Where a search grows too
large, it admits only values that take such a product as a whole, or that are parts of its factors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import sympy

from mirage.ir.axes import AxisProgram
from mirage.ir.functions import ScalarFunction
from mirage.ir.operator import read_operator
from mirage.search.abstract import AbstractAlgebra, Monomial, Poly
from mirage.search.algebras import Algebras

#: monomials with multiplicities that belong together
Group = frozenset[tuple[Monomial, int]]


@dataclass(frozen=True)
class Grouped:
    """An abstract expression, and those of its monomials that are products of sums, multiplied out."""

    poly: Poly
    groups: tuple[Group, ...] = ()


class GroupedAlgebra:
    """The abstract algebra that remembers products of sums. `sites` collects what functions, divisions and such products
    are applied to.
    """

    def __init__(self, algebra: AbstractAlgebra) -> None:
        self.al = algebra
        self.sites: dict[Poly, tuple[Group, ...]] = {}

    def site(self, x: Grouped) -> None:
        """Values may be parts of this expression."""
        self.sites.setdefault(x.poly, x.groups)

    def constant(self, value: Fraction) -> Grouped:
        return Grouped(self.al.constant(value))

    def dim(self, size: sympy.Expr) -> Grouped:
        return Grouped(self.al.dim(size))

    def add(self, x: Grouped, y: Grouped) -> Grouped:
        return Grouped(self.al.add(x.poly, y.poly), x.groups + y.groups)

    def neg(self, x: Grouped) -> Grouped:
        return self.mul(self.constant(Fraction(-1)), x)

    def sub(self, x: Grouped, y: Grouped) -> Grouped:
        return self.add(x, self.neg(y))

    def _map(self, x: Grouped, result: Poly, change: Callable[[Poly], Poly]) -> Grouped:
        """`result` with the groups of `x`, each changed as a polynomial of its own."""
        groups = tuple(frozenset(change(self.al.of_terms(g)).terms.items()) for g in x.groups)
        return Grouped(result, groups)

    def mul(self, x: Grouped, y: Grouped) -> Grouped:
        product = self.al.mul(x.poly, y.poly)
        if x.poly.total > 1 and y.poly.total > 1:
            self.site(x)
            self.site(y)
            return Grouped(product, (frozenset(product.terms.items()),))
        if x.poly.total > 1:
            x, y = y, x
        if y.groups:
            # whatever multiplies a product that is left whole is no part of it
            self.site(x)
        return self._map(y, product, lambda g: self.al.mul(x.poly, g))

    def div(self, x: Grouped, y: Grouped) -> Grouped:
        self.site(y)
        return self._map(x, self.al.div(x.poly, y.poly), lambda g: self.al.div(g, y.poly))

    def sum(self, x: Grouped, parts: frozenset[str]) -> Grouped:
        return self._map(x, self.al.sum(x.poly, parts), lambda g: self.al.sum(g, parts))

    def function(self, fn: ScalarFunction, x: Grouped, *params: Fraction) -> Grouped:
        self.site(x)
        return Grouped(self.al.function(fn, x.poly, *params))


def whole_products(program: AxisProgram, algebras: Algebras) -> dict[Poly, tuple[Group, ...]]:
    """The sites of a program's outputs for a search that leaves products of sums whole, each with those products."""
    al = GroupedAlgebra(algebras.abstract)
    values: list[Grouped] = []
    for n, (_, poly) in zip(program.nodes, algebras.targets, strict=True):
        if n.op in ("input", "concat"):
            for i in n.operands:
                al.site(values[i])
            values.append(Grouped(poly))
        else:
            values.append(
                read_operator(al, n.op, n.attr, [values[i] for i in n.operands], algebras.all_parts(n.reduce))
            )
    for o in program.outputs:
        al.site(values[o.value])
    return al.sites


def takes_whole(taken: Mapping[Monomial, int], groups: Sequence[Group]) -> bool:
    """Whether these monomials of a site take each of its groups wholly or not at all."""
    return all(all(taken.get(m, 0) >= n for m, n in group) or not any(m in taken for m, _ in group) for group in groups)
