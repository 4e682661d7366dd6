"""Exact forms as text, for messages: `x`, `relu(-1*x)`, `sum(x*y) + 1`. Indices are left out."""

from __future__ import annotations

from fractions import Fraction

from mirage.mugraph.exact import ExactAlgebra, Form


def form_text(al: ExactAlgebra, form: Form) -> str:
    """A form of an algebra in words."""
    # the constant, which comes first in forms, is read last
    ordered = sorted(form.terms, key=lambda t: not t[0][1])
    texts = [_monomial(al, bool(bound), factors, c) for (bound, factors), c in ordered]
    return " + ".join(texts).replace("+ -", "- ") or "0"


def _monomial(al: ExactAlgebra, summed: bool, factors: tuple[tuple[int, object, int], ...], c: Fraction) -> str:
    if not factors:
        return str(c)
    product = "*".join(_factor(al, number) + ("" if power == 1 else f"^{power}") for number, _, power in factors)
    if summed:
        product = f"sum({product})"
    return product if c == 1 else f"-{product}" if c == -1 else f"{c}*{product}"


def _factor(al: ExactAlgebra, number: int) -> str:
    match al.key(number):
        case ("input" | "size" | "part size", name):
            return str(name)
        case ("function", name, tuple() as params, Form() as x):
            return f"{name}({', '.join([form_text(al, x), *map(str, params)])})"
        case ("sum", Form() as x):
            return f"({form_text(al, x)})"
        case ("concat", _, tuple() as xs):
            return f"concat({', '.join(form_text(al, x) for x in xs)})"
        case ("inverse of zero",):
            return "(1/0)"
    return "(...)"
