"""Abstract expressions in normal form, and a decision procedure for the subexpression relation.

Mirage, section 4.3 and Table 2. Under the axioms A_eq a term is a polynomial: a multiset of monomials, each
one a product of factors over one optional denominator, itself a polynomial:

    sum  S ::= M + ... + M                     a multiset: x + x is not x
    mono M ::= F * ... * F  |  F * ... * F / S    at least one factor is not an axis
    fac  F ::= axis part | tensor | constant | dim | function(S)

`add` is union, `mul` distributes, `sum` over an axis part multiplies by that part, and `div` multiplies the
denominators (`x / y / z = x / (y * z)`). Nothing cancels, constants do not fold, and `x / (y / z)` keeps its
inner denominator: else an operand would no longer be a subexpression of the result.

Denominators are stored expanded, so `x / (a * (b + c))` and `x / (a * b + a * c)` are one object; whether one
denominator is a factor of another is exact polynomial division.

    sum(d, Q * K)                      Σd·K·Q
    exp(s) * V / sum(t, exp(s))        V·e^(Σd·K·Q) / (Σt·e^(Σd·K·Q))
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy

from mirage.errors import TermTooLarge
from mirage.ir.functions import ScalarFunction

EXPANSION_LIMIT = 4096  # monomials of one product


@dataclass(frozen=True, eq=False, slots=True)
class Axis:
    """A summed axis part."""

    serial: int
    name: str

    def text(self) -> str:
        return f"Σ{self.name}"


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """An input tensor."""

    serial: int
    name: str

    def text(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, slots=True)
class Constant:
    """A number; 2 * 3 stays a product of two factors."""

    serial: int
    value: Fraction

    def text(self) -> str:
        return str(self.value) if self.value >= 0 and self.value.denominator == 1 else f"({self.value})"


@dataclass(frozen=True, eq=False, slots=True)
class Dim:
    """The size of an axis as a scalar."""

    serial: int
    size: sympy.Expr

    def text(self) -> str:
        return f"|{self.size}|"


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A scalar function of a polynomial; the function's name, the parameters and the argument identify it."""

    serial: int
    fn: ScalarFunction
    params: tuple[Fraction, ...]
    argument: Poly

    def text(self) -> str:
        inner = self.argument.text()
        if self.fn.name == "exp":
            return f"e^({inner})"
        return f"{self.fn.name}({', '.join([inner, *map(str, self.params)])})"


Factor = Axis | Tensor | Constant | Dim | Call
Factors = tuple[Factor, ...]  # a multiset: sorted by descending serial
# A monomial that need not be an expression: it may have no factor at all (one), or axes only.
Scale = tuple[Factors, "Poly | None"]


def _serial(factor: Factor) -> int:
    return factor.serial


def _join(x: Factors, y: Factors) -> Factors:
    """The union of two multisets."""
    return tuple(sorted(x + y, key=_serial, reverse=True))


def _remove(x: Factors, y: Factors) -> Factors | None:
    """The multiset x without y; None if y is not a sub-multiset of x."""
    rest = []
    i = 0
    for factor in x:
        if i < len(y) and factor is y[i]:
            i += 1
        else:
            rest.append(factor)
    return tuple(rest) if i == len(y) else None


class Monomial:
    """A product of factors over an optional denominator. Interned by the AbstractAlgebra: equal is identical.

    `order` compares as the pure lexicographic monomial order of the factors, which products respect.
    """

    __slots__ = ("denominator", "distinct", "factors", "order")

    def __init__(self, factors: Factors, denominator: Poly | None) -> None:
        self.factors = factors
        self.denominator = denominator
        self.distinct = frozenset(factors)
        self.order = tuple(factor.serial for factor in factors)

    def text(self) -> str:
        axes = sorted(f.text() for f in self.factors if isinstance(f, Axis))
        atoms = sorted(f.text() for f in self.factors if not isinstance(f, Axis))
        numerator = "·".join(axes + atoms)
        if self.denominator is None:
            return numerator
        inner = self.denominator.text()
        single = self.denominator.total == 1 and not any(mark in inner for mark in "·/")
        return f"{numerator} / {inner}" if single else f"{numerator} / ({inner})"


class Poly:
    """A multiset of monomials. Immutable, interned by the AbstractAlgebra that made it: equal is identical.

    terms: count of each monomial.
    total: number of monomials, with multiplicity.
    factors: the distinct factors of all numerators.
    """

    __slots__ = ("_by_factors", "_sites", "factors", "has_denominator", "serial", "terms", "total")

    def __init__(self, serial: int, terms: dict[Monomial, int]) -> None:
        self.serial = serial
        self.terms: Mapping[Monomial, int] = terms
        self.total = sum(terms.values())
        self.factors: frozenset[Factor] = frozenset().union(*(m.distinct for m in terms))
        self.has_denominator = any(m.denominator is not None for m in terms)
        self._by_factors: dict[Factors, list[Monomial]] | None = None
        self._sites: tuple[Poly, ...] | None = None

    def __repr__(self) -> str:
        return f"Poly({self.text()})"

    def text(self) -> str:
        """The polynomial for people, in an order that does not depend on how it was built."""
        return " + ".join(
            text if count == 1 else f"{count}×{text}"
            for text, count in sorted((m.text(), count) for m, count in self.terms.items())
        )

    @property
    def by_factors(self) -> dict[Factors, list[Monomial]]:
        """The monomials by numerator."""
        if self._by_factors is None:
            self._by_factors = {}
            for monomial in self.terms:
                self._by_factors.setdefault(monomial.factors, []).append(monomial)
        return self._by_factors

    @property
    def sites(self) -> tuple[Poly, ...]:
        """This polynomial and all that are nested in it: function arguments and denominators."""
        if self._sites is None:
            found: dict[Poly, None] = {self: None}
            for monomial in self.terms:
                if monomial.denominator is not None:
                    found.update(dict.fromkeys(monomial.denominator.sites))
                for factor in monomial.distinct:
                    if isinstance(factor, Call):
                        found.update(dict.fromkeys(factor.argument.sites))
            self._sites = tuple(sorted(found, key=lambda poly: poly.serial))
        return self._sites


class AbstractAlgebra:
    """The `TensorAlgebra` of abstract expressions. It owns its intern tables: a search's terms die with it.

    Operations raise TermTooLarge where a sum has more than `limit` distinct monomials, or a product would
    have before equal ones are merged. Values of two AbstractAlgebras do not mix.
    """

    def __init__(self, limit: int = EXPANSION_LIMIT) -> None:
        self.limit = limit
        self._factors: dict[tuple[object, ...], Factor] = {}
        self._monomials: dict[Scale, Monomial] = {}
        self._polys: dict[frozenset[tuple[Monomial, int]], Poly] = {}
        self._sums: dict[tuple[Poly, Poly], Poly] = {}
        self._products: dict[tuple[Poly, Poly], Poly] = {}
        self._ratios: dict[tuple[Poly, Poly], Poly] = {}
        self._reductions: dict[tuple[Poly, frozenset[str]], Poly] = {}
        self._quotients: dict[tuple[Poly, Poly], Poly | None] = {}
        self._answers: dict[Poly, dict[Poly, bool]] = {}
        self._reachable: dict[Poly, frozenset[Factor]] = {}

    # --- construction ----------------------------------------------------------------------------------

    def tensor(self, name: str) -> Poly:
        key = (Tensor, name)
        return self._atom(self._factors.get(key) or self._intern(key, Tensor(len(self._factors), name)))

    def constant(self, value: Fraction) -> Poly:
        key = (Constant, value)
        return self._atom(self._factors.get(key) or self._intern(key, Constant(len(self._factors), value)))

    def dim(self, size: sympy.Expr) -> Poly:
        key = (Dim, size)
        return self._atom(self._factors.get(key) or self._intern(key, Dim(len(self._factors), size)))

    def function(self, fn: ScalarFunction, x: Poly, *params: Fraction) -> Poly:
        key = (Call, fn.name, params, x)
        return self._atom(self._factors.get(key) or self._intern(key, Call(len(self._factors), fn, params, x)))

    def add(self, x: Poly, y: Poly) -> Poly:
        key = (x, y) if x.serial <= y.serial else (y, x)
        result = self._sums.get(key)
        if result is None:
            terms = dict(x.terms)
            for monomial, count in y.terms.items():
                terms[monomial] = terms.get(monomial, 0) + count
            self._guard(len(terms))
            result = self._sums[key] = self._poly(terms)
        return result

    def neg(self, x: Poly) -> Poly:
        return self.mul(self.constant(Fraction(-1)), x)

    def sub(self, x: Poly, y: Poly) -> Poly:
        return self.add(x, self.neg(y))

    def mul(self, x: Poly, y: Poly) -> Poly:
        key = (x, y) if x.serial <= y.serial else (y, x)
        result = self._products.get(key)
        if result is None:
            self._guard(len(x.terms) * len(y.terms))
            result = self._products[key] = self._poly_of(
                (self._scaled(a, (b.factors, b.denominator)), m * n)
                for a, m in x.terms.items()
                for b, n in y.terms.items()
            )
        return result

    def div(self, x: Poly, y: Poly) -> Poly:
        key = (x, y)
        result = self._ratios.get(key)
        if result is None:
            scale: Scale = ((), y)
            result = self._ratios[key] = self._poly_of((self._scaled(m, scale), n) for m, n in x.terms.items())
        return result

    def sum(self, x: Poly, parts: frozenset[str]) -> Poly:
        """The sum of x over axis parts; equal to one sum over each part in turn."""
        key = (x, parts)
        result = self._reductions.get(key)
        if result is None:
            axes = [self._axis(name) for name in sorted(parts)]
            scale: Scale = (tuple(sorted(axes, key=_serial, reverse=True)), None)
            result = self._reductions[key] = self._poly_of((self._scaled(m, scale), n) for m, n in x.terms.items())
        return result

    def _intern(self, key: tuple[object, ...], factor: Factor) -> Factor:
        self._factors[key] = factor
        return factor

    def _axis(self, name: str) -> Factor:
        key = (Axis, name)
        return self._factors.get(key) or self._intern(key, Axis(len(self._factors), name))

    def _atom(self, factor: Factor) -> Poly:
        return self._poly({self._monomial((factor,), None): 1})

    def _monomial(self, factors: Factors, denominator: Poly | None) -> Monomial:
        key = (factors, denominator)
        monomial = self._monomials.get(key)
        if monomial is None:
            monomial = self._monomials[key] = Monomial(factors, denominator)
        return monomial

    def _poly(self, terms: dict[Monomial, int]) -> Poly:
        key = frozenset(terms.items())
        poly = self._polys.get(key)
        if poly is None:
            poly = self._polys[key] = Poly(len(self._polys), terms)
        return poly

    def _poly_of(self, monomials: Iterable[tuple[Monomial, int]]) -> Poly:
        terms: dict[Monomial, int] = {}
        for monomial, count in monomials:
            terms[monomial] = terms.get(monomial, 0) + count
        return self._poly(terms)

    def _scaled(self, monomial: Monomial, scale: Scale) -> Monomial:
        factors, denominator = scale
        if monomial.denominator is not None:
            denominator = monomial.denominator if denominator is None else self.mul(monomial.denominator, denominator)
        return self._monomial(_join(monomial.factors, factors), denominator)

    def _guard(self, monomials: int) -> None:
        if monomials > self.limit:
            raise TermTooLarge(
                f"an abstract expression expands to {monomials} monomials, more than the limit of "
                f"{self.limit}; split the program"
            )

    # --- subexpressions --------------------------------------------------------------------------------

    def is_subexpression(self, e: Poly, t: Poly) -> bool:
        """Whether A_eq and A_sub entail subexpr(e, t): some chain of operators leads from e to t.

        Between two functions or denominators such a chain is linear, e -> c * e + r. A single monomial
        suffices for c, because the other monomials of c * e can move into r. So e is a subexpression of t iff
        e times a monomial is a sub-multiset of t, of a function's argument or of a denominator inside t.
        """
        answers = self._answers.get(t)
        if answers is None:
            answers = self._answers[t] = {}
            self._reachable[t] = frozenset().union(*(site.factors for site in t.sites))
        answer = answers.get(e)
        if answer is None:
            answer = answers[e] = e.factors <= self._reachable[t] and any(
                next(self.images(e, site), None) is not None for site in t.sites
            )
        return answer

    def of_terms(self, terms: Iterable[tuple[Monomial, int]]) -> Poly:
        """The sum of these monomials of the algebra, with their counts."""
        return self._poly(dict(terms))

    def images(self, e: Poly, t: Poly) -> Iterator[tuple[Scale, Mapping[Monomial, int]]]:
        """Every monomial m such that m * e is a sub-multiset of t, with that sub-multiset; m may be one, or have axes
        only.
        """
        if len(e.terms) > len(t.terms) or e.total > t.total or not e.factors <= t.factors:
            return
        if e.has_denominator and not t.has_denominator:
            return
        pivot = max(e.terms, key=lambda monomial: len(monomial.factors))
        for monomial in t.terms:
            scale = self._monomial_quotient(monomial, pivot)
            image = None if scale is None else self._image(e, scale, t, t.terms)
            if scale is not None and image is not None:
                yield scale, image

    def divides(self, monomial: Monomial, scale: Scale) -> bool:
        """Whether a scale is the monomial times another scale."""
        factors = scale[0]
        if len(monomial.factors) > len(factors) or _remove(factors, monomial.factors) is None:
            return False
        return monomial.denominator is None or self.divides_denominator(monomial.denominator, scale)

    def divides_denominator(self, e: Poly, scale: Scale) -> bool:
        """Whether a scale is another scale over the expression."""
        denominator = scale[1]
        return denominator is not None and (denominator is e or self._quotient(denominator, e) is not None)

    def _monomial_quotient(self, x: Monomial, y: Monomial) -> Scale | None:
        """The only m with m * y = x, if there is one."""
        if not y.distinct <= x.distinct:
            return None
        factors = _remove(x.factors, y.factors)
        if factors is None:
            return None
        if y.denominator is None or x.denominator is y.denominator:
            return factors, (x.denominator if y.denominator is None else None)
        if x.denominator is None:
            return None
        denominator = self._quotient(x.denominator, y.denominator)
        return None if denominator is None else (factors, denominator)

    def _image(self, e: Poly, scale: Scale, t: Poly, counts: Mapping[Monomial, int]) -> dict[Monomial, int] | None:
        """The monomials of scale * e, found among those of t; None if `counts` has too few of one.

        Looks the products up by numerator and divides denominators, rather than expand their products.
        """
        image: dict[Monomial, int] = {}
        for monomial, count in e.terms.items():
            for candidate in t.by_factors.get(_join(monomial.factors, scale[0]), ()):
                if counts.get(candidate, 0) >= count and self._monomial_quotient(candidate, monomial) == scale:
                    image[candidate] = count
                    break
            else:
                return None
        return image

    def _quotient(self, x: Poly, y: Poly) -> Poly | None:
        """The only expression q with q * y = x, if there is one. One is not an expression: None if x is y."""
        key = (x, y)
        if key not in self._quotients:
            self._quotients[key] = self._divide(x, y)
        return self._quotients[key]

    def _divide(self, x: Poly, y: Poly) -> Poly | None:
        """Exact division with natural coefficients.

        The greatest numerator of x is the product of the greatest of y and of the quotient. Monomials that
        differ in the denominator only have the same numerator, hence the stack of alternatives.
        """
        if x.total % y.total or not y.factors <= x.factors or (y.has_denominator and not x.has_denominator):
            return None
        ordered = sorted(x.terms, key=lambda monomial: monomial.order, reverse=True)
        greatest = max(monomial.order for monomial in y.terms)
        leading = [monomial for monomial in y.terms if monomial.order == greatest]
        stack: list[tuple[dict[Monomial, int], list[Scale]]] = [(dict(x.terms), [])]
        while stack:
            rest, quotient = stack.pop()
            if not rest:
                return self._poly_of((self._monomial(*scale), 1) for scale in quotient)
            head = next(monomial for monomial in ordered if monomial in rest)
            for lead in leading:
                scale = self._monomial_quotient(head, lead)
                if scale is None or all(isinstance(factor, Axis) for factor in scale[0]):
                    continue  # an axis alone is not an expression
                image = self._image(y, scale, x, rest)
                if image is not None:
                    remaining = {m: n - image.get(m, 0) for m, n in rest.items() if n > image.get(m, 0)}
                    stack.append((remaining, [*quotient, scale]))
        return None
