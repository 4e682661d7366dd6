"""Exact division of dims, as polynomials over their symbols and functions (`mirage.ir.dim_functions`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import sympy

_ONE = sympy.Integer(1)


def terms(dim: sympy.Expr) -> list[tuple[int, sympy.Expr]]:
    """Coefficient and monomial of every term of an expanded dim; the monomial of a constant is 1."""
    split = (t.as_coeff_Mul() for t in sympy.Add.make_args(dim))
    return [(int(c), monomial) for c, monomial in split]


@lru_cache(maxsize=4096)
def divide(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """a / b where that is an integer polynomial for every size, else None."""
    if a == b:
        return _ONE
    if a == 0 or b == 0:
        return sympy.Integer(0) if b != 0 and b.is_Integer else None
    if b.is_Integer:
        parts = terms(sympy.expand(a))
        k = int(b)
        return sympy.Add(*(c // k * m for c, m in parts)) if all(c % k == 0 for c, _ in parts) else None
    if not b.is_Add:
        quotients = [divide_term(t, b) for t in sympy.Add.make_args(sympy.expand(a))]
        return None if None in quotients else sympy.Add(*quotients)
    quotient = sympy.expand(sympy.cancel(a / b))
    if quotient.as_numer_denom()[1] != 1 or any(not c.is_Integer for c in quotient.as_coefficients_dict().values()):
        return None
    return quotient


def divide_term(t: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
    """t / b for two monomials with coefficients, where that is one, too; else None."""
    # not t / b: where SymPy adds up exponents, it imports a fifth of itself first
    (c, monomial), (d, divisor) = t.as_coeff_Mul(), b.as_coeff_Mul()
    if c % d != 0:
        return None
    powers = _powers(monomial)
    for factor, p in _powers(divisor).items():
        powers[factor] = powers.get(factor, 0) - p
    return c // d * _product(powers) if all(p >= 0 for p in powers.values()) else None


def _powers(monomial: sympy.Expr) -> dict[sympy.Expr, int]:
    """The exponents of the factors of a monomial without a coefficient."""
    pairs = (f.as_base_exp() for f in sympy.Mul.make_args(monomial) if f != 1)
    return {base: int(p) for base, p in pairs}


def _product(powers: Mapping[sympy.Expr, int]) -> sympy.Expr:
    return sympy.Mul(*(x**p for x, p in powers.items()))


def content(dim: sympy.Expr) -> int:
    """The greatest integer that divides every coefficient of an expanded dim; 0 for the dim 0."""
    return int(sympy.gcd_list([c for c, _ in terms(dim)]))


def common_monomial(*dims: sympy.Expr) -> sympy.Expr:
    """The greatest product of symbols and functions that divides every term of some expanded dims, none of them 0."""
    common: dict[sympy.Expr, int] | None = None
    for dim in dims:
        for _, monomial in terms(dim):
            powers = _powers(monomial)
            common = powers if common is None else {x: min(p, powers[x]) for x, p in common.items() if x in powers}
    return _product(common or {})


def cancelled(a: sympy.Expr, b: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """Expanded a and b without their common polynomial factor."""
    numerator, denominator = sympy.fraction(sympy.cancel(a / b))
    return sympy.expand(numerator), sympy.expand(denominator)
