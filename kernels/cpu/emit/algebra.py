"""Elementwise C code: the algebra of C expressions over vectors of lanes (`mi_vec` of mirage_vec.h)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

import sympy

from mirage.errors import GraphError
from mirage.ir.functions import EXP, ScalarFunction
from mirage.kernels.algebra import InfixAlgebra


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


class CAlgebra(InfixAlgebra):
    """Operators as C expressions of type mi_vec; `shifts` are those of the node's exps.

    `dims` maps a dim to the C variable that holds it. `divisors` maps a divisor to the variable of type mi_divisor that
    holds its factors: products take a fraction of the time of a quotient.
    """

    def __init__(
        self,
        functions: FunctionSources,
        dims: Mapping[sympy.Expr, str],
        shifts: Sequence[str] = (),
        divisors: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(shifts)
        self.functions = functions
        self.dims = dims
        self.divisors = divisors or {}

    def constant(self, value: Fraction) -> str:
        return f"mi_broadcast({literal(value)})"

    def dim(self, size: sympy.Expr) -> str:
        return f"mi_broadcast((mi_real){self.dims[size]})"

    def div(self, x: str, y: str) -> str:
        return f"mi_quotient({x}, {self.divisors[y]})" if y in self.divisors else super().div(x, y)

    def function(self, fn: ScalarFunction, x: str, *params: Fraction) -> str:
        if fn is EXP and (falling := self.shifted(x)) is not None:
            return f"mi_exp_falling({falling})"
        more = "".join(f", mi_broadcast({literal(p)})" for p in params)
        return f"{self.functions.use(fn)}({x}{more})"
