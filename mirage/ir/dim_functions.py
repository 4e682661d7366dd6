"""The functions of dims beside sums and products: `a // b`, `a % b`, `min(...)`, `max(...)`, rounding down as in Python.

Each is a sympy function that simplifies itself whenever it is built, also by `subs` and `xreplace`, so that equal dims
are mostly equal objects: exact quotients, whole multiples and common factors leave `//` and `%`, nested ones merge,
and operands that others dominate for every size leave `min` and `max`. A divisor is never 0: where one is at run time,
evaluation says so, unless it was cancelled, as in (n*m) // m = n.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy.core.sorting import default_sort_key
from sympy.printing.precedence import PRECEDENCE

from mirage.errors import DimError
from mirage.ir.dim_bounds import (
    floor_div_interval,
    interval,
    maximum_interval,
    minimum_interval,
    modulo_interval,
)
from mirage.ir.polynomials import cancelled, common_monomial, content, divide, divide_term, terms

_ZERO, _ONE = sympy.Integer(0), sympy.Integer(1)


class DimFunction(sympy.Function):  # type: ignore[misc]
    """A function of integers to an integer."""

    is_integer = True


class _Infix(DimFunction):
    """A function of two operands, printed between them, in parentheses wherever it is a factor."""

    precedence = PRECEDENCE["Add"]
    sign: str

    def _sympystr(self, printer: Any) -> str:
        left = printer.parenthesize(self.args[0], PRECEDENCE["Mul"], strict=True)
        return f"{left} {self.sign} {printer.parenthesize(self.args[1], PRECEDENCE['Mul'])}"


class FloorDiv(_Infix):
    """a // b."""

    sign = "//"
    interval = staticmethod(floor_div_interval)

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        whole, factor, x, y = _floor_div(sympy.expand(a), sympy.expand(b))
        return whole if x == 0 else None if (x, y) == (a, b) else whole + factor * cls(x, y)


class Modulo(_Infix):
    """a % b, of the sign of b."""

    sign = "%"
    interval = staticmethod(modulo_interval)

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        factor, x, y, rest = _modulo(sympy.expand(a), sympy.expand(b))
        return rest if x == 0 else None if (x, y) == (a, b) else sympy.expand(factor * cls(x, y)) + rest


class _Extremum(DimFunction):
    """A function of any number of operands in any order, printed as a call."""

    name_in_text: str

    @classmethod
    def eval(cls, *args: sympy.Expr) -> sympy.Expr | None:
        kept = _undominated(cls, args)
        return kept[0] if len(kept) == 1 else None if kept == args else cls(*kept)

    def _sympystr(self, printer: Any) -> str:
        return f"{self.name_in_text}({', '.join(printer.doprint(x) for x in self.args)})"


class Minimum(_Extremum):
    """min(a, b, ...)."""

    name_in_text = "min"
    interval = staticmethod(minimum_interval)


class Maximum(_Extremum):
    """max(a, b, ...)."""

    name_in_text = "max"
    interval = staticmethod(maximum_interval)


def _positive_divisor(a: sympy.Expr, b: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr, int]:
    """The operands with the signs of both changed where every term of b is negative, and the sign."""
    if b == 0:
        raise DimError(f"{a} is divided by 0; use a divisor of 1 or more")
    return (-a, -b, -1) if all(c < 0 for c, _ in terms(b)) else (a, b, 1)


def _whole(a: sympy.Expr, b: sympy.Expr, down: bool) -> tuple[sympy.Expr, sympy.Expr]:
    """Quotient and rest, term by term; the coefficients of the rest are rounded down, or, but for constants, to 0."""
    if b.is_Add:
        return _ZERO, a
    k, base = terms(b)[0]
    quotient, rest = [], []
    for c, monomial in terms(a):
        over = divide_term(monomial, base)
        if over is None:
            rest.append(c * monomial)
            continue
        q = c // k if down or over == 1 or c >= 0 else -(-c // k)
        quotient.append(q * over)
        rest.append((c - q * k) * monomial)
    return sympy.Add(*quotient), sympy.Add(*rest)


def _without_factor(a: sympy.Expr, b: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr, int]:
    """(x, y, g, r) with a = g*x + r, b = g*y, 0 <= r < g, for the greatest factor g that allows it."""
    if b.is_Add:
        x, y = cancelled(a, b)
        if y != b and (factor := divide(b, y)) is not None:
            return x, y, factor, 0
    monomial = common_monomial(a, b)
    constant = sum(c for c, m in terms(a) if m == 1)
    g = int(sympy.gcd(content(a - constant), content(b)))
    if constant % g and not _not_negative(b):
        g = int(sympy.gcd(constant, g))
    factor = g * monomial
    x, y = divide(a - constant % g, factor), divide(b, factor)
    assert x is not None and y is not None
    return x, y, factor, constant % g


def _not_negative(dim: sympy.Expr) -> bool:
    low = interval(dim).low
    return low is not None and low >= 0


def _below(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether 0 <= a < b for all sizes for which b is not 0."""
    if not _not_negative(a) or not _not_negative(b):
        return False
    highest, lowest = interval(a).high, interval(b).low
    return highest is not None and lowest is not None and highest < max(lowest, 1)


def _floor_div(a: sympy.Expr, b: sympy.Expr) -> tuple[sympy.Expr, int, sympy.Expr, sympy.Expr]:
    """(q, f, x, y) with a // b = q + f * (x // y), simplified, f = 1 or -1; x is 0 where nothing is left."""
    whole, sign = _ZERO, 1
    while True:
        a, b, _ = _positive_divisor(a, b)
        exact = _ZERO if a == 0 else divide(a, b)
        if exact is not None:
            return whole + sign * exact, 1, _ZERO, _ONE
        quotient, rest = _whole(a, b, down=False)
        if quotient != 0:
            whole, a = whole + sign * quotient, rest
            continue
        x, y, factor, _ = _without_factor(a, b)
        if factor != 1:
            a, b = x, y
            continue
        if _not_negative(b):
            if all(c < 0 for c, monomial in terms(a) if monomial != 1) and not a.is_Integer:
                # floor(-x / b) = -floor((x + b - 1) / b): one form for what is rounded up
                a, sign = b - 1 - a, -sign
                continue
            inner, *others = sorted(sympy.Add.make_args(a), key=lambda t: not isinstance(t, FloorDiv))
            if isinstance(inner, FloorDiv) and all(t.is_Integer for t in others):
                # floor((x // y + c) / b) = floor((x + c*y) / (y*b))
                n, d = inner.args
                a, b = sympy.expand(n + sympy.Add(*others) * d), sympy.expand(d * b)
                continue
        return (whole, 1, _ZERO, _ONE) if _below(a, b) else (whole, sign, a, b)


def _modulo(a: sympy.Expr, b: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr, sympy.Expr]:
    """(f, x, y, r) with a % b = f * (x % y) + r, simplified; x is 0 where only r is left."""
    outer, rest = _ONE, _ZERO
    while True:
        a, b, sign = _positive_divisor(a, b)
        outer = sign * outer
        if a == 0 or divide(a, b) is not None:
            return _ONE, _ZERO, _ONE, rest
        reduced = _whole(a, b, down=True)[1]
        reduced = sympy.expand(sympy.Add(*(_without_modulo(t, b) for t in sympy.Add.make_args(reduced))))
        if reduced != a:
            a = reduced
            continue
        if _below(a, b):
            return _ONE, _ZERO, _ONE, sympy.expand(rest + outer * a)
        x, y, factor, constant = _without_factor(a, b)
        if factor == 1:
            return outer, a, b, rest
        rest, outer, a, b = sympy.expand(rest + outer * constant), sympy.expand(outer * factor), x, y


def _without_modulo(t: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """c*x for a term c*(x % k) where b divides c*k: the two differ by a multiple of b."""
    for factor in sympy.Mul.make_args(t):
        if isinstance(factor, Modulo):
            x, k = factor.args
            others = t / factor
            if divide(sympy.expand(others * k), b) is not None:
                return others * x
    return t


def rounded_up(dim: sympy.Expr) -> sympy.Expr:
    """An expanded dim with c*k*ceil(x / k) for each c*x + c*(-x % k), as sizes are written that are padded to a multiple of k."""
    for t in sympy.Add.make_args(dim):
        for factor in sympy.Mul.make_args(t):
            if not isinstance(factor, Modulo) or not factor.args[1].is_Integer:
                continue
            x, k = factor.args
            cofactor = sympy.Mul(*(f for f in sympy.Mul.make_args(t) if f is not factor))
            others = [o for o in sympy.Add.make_args(dim) if o is not t]
            multiples = {o: q for o in others if (q := divide_term(o, cofactor)) is not None}
            padded = sympy.Add(*multiples.values())
            if Modulo(x + padded, k) == 0:
                rest = sympy.Add(*(o for o in others if o not in multiples))
                return rounded_up(sympy.expand(rest - cofactor * k * FloorDiv(-padded, k)))
    return dim


def _undominated(cls: type[_Extremum], args: tuple[sympy.Expr, ...]) -> tuple[sympy.Expr, ...]:
    """The operands, those of nested calls among them, in canonical order, without those that another dominates."""
    flat: dict[sympy.Expr, None] = {}
    for x in map(sympy.expand, args):
        flat.update(dict.fromkeys(x.args if isinstance(x, cls) else (x,)))
    ordered = sorted(flat, key=lambda x: (x.is_Integer, default_sort_key(x)))
    kept: list[sympy.Expr] = []
    for x in ordered:
        if not any(_dominated(cls, x, y) for y in kept):
            kept = [y for y in kept if not _dominated(cls, y, x)] + [x]
    return tuple(kept)


def _dominated(cls: type[_Extremum], x: sympy.Expr, y: sympy.Expr) -> bool:
    """Whether an operand x changes nothing beside y: in a minimum, x >= y for every size."""
    if isinstance(x, _Extremum) and not isinstance(x, cls) and y in x.args:
        return True
    return _not_negative(sympy.expand(x - y if cls is Minimum else y - x))
