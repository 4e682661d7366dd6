"""Elementwise C code: the algebra of C expressions over vectors of lanes (`mi_vec` of mirage_vec.h)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

import sympy

from mirage.errors import GraphError
from mirage.ir.functions import EXP, ScalarFunction


class FunctionSources:
    """C text of functions that the header does not have, each once, in order of first use."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}

    def use(self, fn: ScalarFunction) -> str:
        """The name to call."""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", fn.c, flags=re.ASCII):
            raise GraphError(f"function {fn.name}: {fn.c!r} is not the name of a C function; pass c='my_function'")
        if fn.c_source:
            self.sources.setdefault(fn.c, fn.c_source)
        return fn.c


def literal(value: Fraction) -> str:
    """A constant as C text of type mi_real."""
    try:
        number = float(value)
    except OverflowError:
        return "MI_INFINITY" if value > 0 else "(-MI_INFINITY)"
    return f"((mi_real){number!r})"


class CAlgebra:
    """Operators as C expressions of type mi_vec.

    `dims` maps a dim to the C variable that holds it. `shifts` are subtracted from the arguments of the
    node's exps, in order; `arguments` records these arguments. `inverses` maps a divisor to the variable that holds 1
    over it: a product takes a tenth of the time of a quotient.
    """

    def __init__(
        self,
        functions: FunctionSources,
        dims: Mapping[sympy.Expr, str],
        shifts: Sequence[str] = (),
        inverses: Mapping[str, str] | None = None,
    ) -> None:
        self.functions = functions
        self.dims = dims
        self.shifts = list(shifts)
        self.arguments: list[str] = []
        self.inverses = inverses or {}

    def constant(self, value: Fraction) -> str:
        return f"mi_broadcast({literal(value)})"

    def dim(self, size: sympy.Expr) -> str:
        return f"mi_broadcast((mi_real){self.dims[size]})"

    def add(self, x: str, y: str) -> str:
        return f"({x} + {y})"

    def sub(self, x: str, y: str) -> str:
        return f"({x} - {y})"

    def mul(self, x: str, y: str) -> str:
        return f"({x} * {y})"

    def div(self, x: str, y: str) -> str:
        if y in self.inverses:
            return f"({x} * {self.inverses[y]})"
        return f"({x} / {y})"

    def neg(self, x: str) -> str:
        return f"(-{x})"

    def function(self, fn: ScalarFunction, x: str, *params: Fraction) -> str:
        if fn is EXP:
            if len(self.arguments) < len(self.shifts):
                shift = self.shifts[len(self.arguments)]
                self.arguments.append(x)
                return f"mi_exp_falling({x} - {shift})"
            self.arguments.append(x)
        more = "".join(f", mi_broadcast({literal(p)})" for p in params)
        return f"{self.functions.use(fn)}({x}{more})"
