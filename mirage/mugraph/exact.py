"""Proof for all sizes: the exact normal form of a value over named axes.

A form is a polynomial: rational coefficients times monomials, a monomial being a product of powers of *indexed* factors
under a set of summed (bound) indices. Where the abstract expression (paper, section 4.3) forgets indices, a factor here
keeps one index per axis part, bound indices are scoped to their monomial and renamed apart when monomials are multiplied,
and monomials are compared up to renaming. Equal forms are equal functions at every size, wherever both are defined.
Unequal forms prove nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import sympy

from mirage.errors import TermTooLarge
from mirage.ir.axes import AxisNode
from mirage.ir.decimals import as_written
from mirage.ir.functions import ScalarFunction
from mirage.ir.operator import Over, read_operator
from mirage.mugraph.graph import Node

Value = TypeVar("Value")

#: (part, id): id 0 is a free index, positive ids are bound in the monomial
Index = tuple[tuple[str, int], ...]
#: (payload number, indices, exponent)
Factor = tuple[int, Index, int]
#: (bound parts with their counts, factors)
Monomial = tuple[tuple[tuple[str, int], ...], tuple[Factor, ...]]

#: monomials of one form, beyond which it is given up
MAX_MONOMIALS = 512
#: renamings of bound indices tried for one monomial
MAX_RENAMINGS = 5040


class Form:
    """An interned normal form: equality is identity within one `ExactAlgebra`."""

    __slots__ = ("bound", "free", "terms")

    def __init__(
        self, terms: tuple[tuple[Monomial, Fraction], ...], free: frozenset[str], bound: frozenset[str]
    ) -> None:
        self.terms = terms
        #: parts on which the value depends
        self.free = free
        #: parts that are summed somewhere inside
        self.bound = bound


class ExactAlgebra:
    """The algebra of exact forms over the axis parts of one search or proof.

    `parts` maps an axis to the parts into which it is divided (one part if it is not); all forms that are to be compared
    must come from one instance. With the `sizes` of axes that are not divided, a size that is a number counts as that number;
    without, equal forms are equal even where such an axis has another size, as it has in random tests. Operations
    raise TermTooLarge beyond `limit` monomials.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[str, ...]],
        *,
        sizes: Mapping[str, sympy.Expr] | None = None,
        limit: int = MAX_MONOMIALS,
    ) -> None:
        self.parts = dict(parts)
        self.sizes = sizes
        self.limit = limit
        self._forms: dict[tuple[tuple[Monomial, Fraction], ...], Form] = {}
        self._payloads: dict[object, int] = {}
        self._keys: list[object] = []
        self._payload_bound: list[frozenset[str]] = []
        self._insides: list[list[Form]] = []
        self._products: dict[tuple[Form, Form], Form] = {}

    # -- interning

    def _payload(self, key: object, inside: Sequence[Form] = ()) -> int:
        number = self._payloads.get(key)
        if number is None:
            number = self._payloads[key] = len(self._payload_bound)
            self._keys.append(key)
            self._payload_bound.append(frozenset().union(*(f.bound for f in inside)))
            self._insides.append(list(inside))
        return number

    def inside(self, payload: int) -> list[Form]:
        """The forms inside a factor: a function's argument, a denominator, the parts of a concat."""
        return self._insides[payload]

    def key(self, payload: int) -> object:
        """What a factor is: a tuple of its kind, such as "input" or "function", and what tells it from others of this kind."""
        return self._keys[payload]

    def _form(self, terms: Mapping[Monomial, Fraction]) -> Form:
        if len(terms) > self.limit:
            raise TermTooLarge(f"a value has {len(terms)} monomials, more than {self.limit}; split the program")
        key = tuple(sorted((m, c) for m, c in terms.items() if c != 0))
        form = self._forms.get(key)
        if form is None:
            free: set[str] = set()
            bound: set[str] = set()
            for (bs, factors), _ in key:
                bound.update(p for p, _ in bs)
                for number, index, _ in factors:
                    free.update(p for p, i in index if i == 0)
                    bound |= self._payload_bound[number]
            form = self._forms[key] = Form(key, frozenset(free), frozenset(bound))
        return form

    def _atom(self, key: object, free: frozenset[str], inside: Sequence[Form] = (), power: int = 1) -> Form:
        index = tuple((p, 0) for p in sorted(free))
        return self._form({((), ((self._payload(key, inside), index, power),)): Fraction(1)})

    # -- monomials

    def _multiply(self, a: Monomial, b: Monomial) -> Monomial:
        counts = dict(a[0])
        factors: dict[tuple[int, Index], int] = {(n, ix): e for n, ix, e in a[1]}
        for number, index, power in b[1]:
            moved = tuple((p, i + counts.get(p, 0) if i else 0) for p, i in index)
            factors[number, moved] = factors.get((number, moved), 0) + power
        for p, n in b[0]:
            counts[p] = counts.get(p, 0) + n
        return self._canonical(counts, [(n, ix, e) for (n, ix), e in factors.items() if e])

    def _canonical(self, counts: dict[str, int], factors: list[Factor]) -> Monomial:
        bound = tuple(sorted(counts.items()))
        several = [(p, n) for p, n in bound if n > 1]
        if not several:
            return bound, tuple(sorted(factors))
        if math.prod(math.factorial(n) for _, n in several) > MAX_RENAMINGS:
            return bound, tuple(sorted(factors))  # equal monomials may look different: sound, less complete
        best: tuple[Factor, ...] | None = None
        names = [p for p, _ in several]
        for choice in itertools.product(*(itertools.permutations(range(1, n + 1)) for _, n in several)):
            to = dict(zip(names, choice, strict=True))
            renamed = tuple(
                sorted((f, tuple((p, to[p][i - 1] if i and p in to else i) for p, i in ix), e) for f, ix, e in factors)
            )
            if best is None or renamed < best:
                best = renamed
        assert best is not None
        return bound, best

    # -- the algebra

    def tensor(self, name: str, axes: tuple[str, ...]) -> Form:
        """An input with a free index per part of its axes."""
        return self._atom(("input", name), frozenset(p for a in axes for p in self.parts.get(a, (a,))))

    def constant(self, value: Fraction) -> Form:
        return self._form({((), ()): as_written(value)})

    def dim(self, size: sympy.Expr) -> Form:
        if size.is_Integer and self.sizes is not None:
            return self.constant(Fraction(int(size)))
        return self._atom(("size", str(size)), frozenset())

    def add(self, x: Form, y: Form) -> Form:
        terms = dict(x.terms)
        for m, c in y.terms:
            terms[m] = terms.get(m, Fraction(0)) + c
        return self._form(terms)

    def neg(self, x: Form) -> Form:
        return self._form({m: -c for m, c in x.terms})

    def sub(self, x: Form, y: Form) -> Form:
        return self.add(x, self.neg(y))

    def mul(self, x: Form, y: Form) -> Form:
        found = self._products.get((x, y))
        if found is not None:
            return found
        if len(x.terms) * len(y.terms) > self.limit:
            raise TermTooLarge(
                f"a product of {len(x.terms)} by {len(y.terms)} monomials exceeds {self.limit}; split the program"
            )
        terms: dict[Monomial, Fraction] = {}
        for m, c in x.terms:
            for n, d in y.terms:
                product = self._multiply(m, n)
                terms[product] = terms.get(product, Fraction(0)) + c * d
        result = self._products[x, y] = self._products[y, x] = self._form(terms)
        return result

    def div(self, x: Form, y: Form) -> Form:
        return self.mul(x, self.inverse(y))

    def inverse(self, y: Form) -> Form:
        if len(y.terms) == 1:
            ((bound, factors), c) = y.terms[0]
            if not bound:
                inverted = tuple(sorted((n, ix, -e) for n, ix, e in factors))
                return self._form({((), inverted): 1 / c})
        if not y.terms:
            return self._atom(("inverse of zero",), frozenset())
        # a sum is inverted as one factor, with its first coefficient moved out
        monic = self.monic(y)
        inverse = self._atom(("sum", monic), monic.free, [monic], -1)
        return self._scaled(inverse, 1 / y.terms[0][1])

    def _scaled(self, x: Form, by: Fraction) -> Form:
        return self._form({m: c * by for m, c in x.terms})

    def monic(self, x: Form, of: Callable[[Fraction], Fraction] = lambda c: c) -> Form:
        """A form over its first coefficient, or over what `of` makes of it; 0 is left as it is."""
        return self._scaled(x, 1 / of(x.terms[0][1])) if x.terms else x

    def factor(self, payload: int, index: Index, power: int = 1) -> Form:
        """One factor as a form."""
        return self._form({((), ((payload, index, power),)): Fraction(1)})

    def unknown(self, op: str, x: Form, y: Form) -> Form:
        """A symmetric function of two forms, of which nothing else is known."""
        return self._atom((op, frozenset((x, y))), x.free | y.free, [x, y])

    def common_factors(self, x: Form) -> tuple[list[Factor], Form]:
        """The factors that do not depend on summed indices, in the least powers in which monomials have them, and the rest."""
        powers = [{(n, ix): e for n, ix, e in factors if all(i == 0 for _, i in ix)} for (_, factors), _ in x.terms]
        keys = dict.fromkeys(k for p in powers for k in p)
        common = [(n, ix, e) for n, ix in keys if (e := min(p.get((n, ix), 0) for p in powers))]
        if not common:
            return [], x
        inverse = self._form({((), tuple(sorted((n, ix, -e) for n, ix, e in common))): Fraction(1)})
        return common, self.mul(x, inverse)

    def function(self, fn: ScalarFunction, x: Form, *params: Fraction) -> Form:
        return self._atom(("function", fn.name, params, x), x.free, [x])

    def sum(self, x: Form, parts: frozenset[str]) -> Form:
        terms: dict[Monomial, Fraction] = {}
        for (bound, factors), c in x.terms:
            counts = dict(bound)
            depends = {p for _, ix, _ in factors for p, i in ix if i == 0}
            found = list(factors)
            for p in sorted(parts):
                if p in depends:
                    counts[p] = counts.get(p, 0) + 1
                    new = counts[p]
                    found = [(n, tuple((q, new if q == p and i == 0 else i) for q, i in ix), e) for n, ix, e in found]
                else:
                    (((_, size), times),) = self._part_size(p).terms
                    c *= times
                    for factor in size:
                        found = self._times(found, factor)
            m = self._canonical(counts, found)
            terms[m] = terms.get(m, Fraction(0)) + c
        return self._form(terms)

    def _part_size(self, part: str) -> Form:
        if self.sizes is not None and part in self.sizes:
            return self.dim(self.sizes[part])
        return self._atom(("part size", part), frozenset())

    @staticmethod
    def _times(factors: list[Factor], new: Factor) -> list[Factor]:
        merged = {(n, ix): e for n, ix, e in factors}
        merged[new[0], new[1]] = merged.get((new[0], new[1]), 0) + new[2]
        return [(n, ix, e) for (n, ix), e in merged.items() if e]

    def concat(self, xs: Sequence[Form], joined: tuple[str, tuple[str, ...]]) -> Form:
        """Values joined along one axis: opaque, because it's linear only in all of them together."""
        free = frozenset().union(*(x.free for x in xs)) - {p for a in joined[1] for p in self.parts.get(a, (a,))}
        free |= frozenset(self.parts.get(joined[0], (joined[0],)))
        return self._atom(("concat", joined, tuple(xs)), free, xs)


def read_node(al: Any, n: Node | AxisNode, args: Sequence[Value], over: Over) -> Value:
    """The result of an axis-level operator in an algebra of forms or terms; `over` are the parts that it sums (see
    `read_operator`).
    """
    if n.op == "concat":
        assert n.joined is not None
        joined: Value = al.concat(args, n.joined)
        return joined
    value: Value = read_operator(al, n.op, n.attr, args, over)
    return value
