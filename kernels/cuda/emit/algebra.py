"""Elementwise Triton code: the algebra of Triton expressions over float32 tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import isinf

import sympy

from mirage.errors import GraphError
from mirage.ir import functions as fns
from mirage.ir.functions import ScalarFunction
from mirage.kernels.algebra import InfixAlgebra

# Plain arithmetic only: it compiles without libdevice, and the interpreter runs it.
_TANH = """\
@triton.jit
def tanh(x):
    # a short series near 0, where 1 - exp(-2|x|) cancels
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    s = x * x
    near = x * (1 + s * (-0.33333333 + s * (0.13333333 + s * (-0.053968254 + s * 0.021869488))))
    return tl.where(tl.abs(x) < 0.25, near, tl.where(x < 0, -far, far))
"""
#: the logarithm p of what exp(-z * z) is multiplied with for the tail of the normal distribution
GAUSS_TAIL = """\
    # erfc(z) / 2 for z = |x| / sqrt(2), to a relative error of 1.2e-7 (Press et al., Numerical Recipes, section 6.2)
    z = tl.abs(x) * 0.70710678
    t = 1 / (1 + 0.5 * z)
    p = -0.18628806 + t * (0.27886807 + t * (-1.13520398 + t * (1.48851587 + t * (-0.82215223 + t * 0.17087277))))
    p = -1.26551223 + t * (1.00002368 + t * (0.37409196 + t * (0.09678418 + t * p)))
"""
_GAUSS_CDF = f"""\
@triton.jit
def gauss_cdf(x):
{GAUSS_TAIL}\
    tail = 0.5 * t * tl.exp(p - z * z)
    return tl.where(x < 0, tail, 1 - tail)
"""
#: `whole` is the size from which on all numbers of the type are integers
ROUND = """\
@triton.jit
def {name}(x):
    # numbers of this size and more are integers
    up = tl.floor(x + 0.5)
    odd = up - 2 * tl.floor(up * 0.5)
    near = tl.where(x + 0.5 == up, up - odd, up)
    return tl.where(tl.abs(x) < {whole}, near, x)
"""
_POW = """\
@triton.jit
def real_power(x, p):
    return tl.where(x < 0, float("nan"), tl.exp2(p * tl.log2(tl.abs(x))))
"""

#: the larger of two elements, NaN where one is
NAN_MAX = """\
@triton.jit
def nan_max(a, b):
    return tl.where((a > b) | (a != a), a, b)
"""
_ROW_MAXIMUM = f"""\
{NAN_MAX}

@triton.jit
def row_maximum(x, axis: tl.constexpr):
    return tl.reduce(x, axis, nan_max)
"""

#: the functions that expressions of scalar functions call
_SOURCES: Mapping[str, str] = {
    "tanh": _TANH,
    "gauss_cdf": _GAUSS_CDF,
    "round_half_even": ROUND.format(name="round_half_even", whole="8388608.0"),
    "real_power": _POW,
}


class FunctionSources:
    """Triton functions that kernels call, each once, in order of first use."""

    def __init__(self) -> None:
        self.sources: dict[str, None] = {}

    def row_maximum(self) -> str:
        """The name of the function of a tensor and one of its dims that has the largest elements along it."""
        self.sources.setdefault(_ROW_MAXIMUM)
        return "row_maximum"

    def call(self, fn: ScalarFunction, x: str, params: Sequence[Fraction]) -> str:
        """The expression of fn at x; raises GraphError for a function that Triton code does not have."""
        if not fn.triton:
            raise GraphError(f"function {fn.name}: there is no Triton code for it; register it with triton=, or target a CPU")
        if fn is fns.POW and params[0].denominator == 1:
            name, source = _whole_power(int(params[0]))
            self.sources.setdefault(source)
            return f"{name}({x})"
        if source := fn.triton_source or _SOURCES.get(fn.triton.partition("(")[0], ""):
            self.sources.setdefault(source)
        return fn.triton.format(*(literal(p) for p in params), x=x)


def _whole_power(p: int) -> tuple[str, str]:
    """The name and source of a function that raises to a whole power, by squaring."""
    name = f"power_minus_{-p}" if p < 0 else f"power_{p}"
    lines = ["@triton.jit", f"def {name}(x):"]
    factors = []
    for k in range(abs(p).bit_length()):
        if k:
            lines.append(f"    x{1 << k} = {_power_name(k - 1)} * {_power_name(k - 1)}")
        if abs(p) >> k & 1:
            factors.append(_power_name(k))
    product = " * ".join(factors) or "tl.zeros_like(x) + 1.0"
    lines.append(f"    return 1 / ({product})" if p < 0 else f"    return {product}")
    return name, "\n".join(lines) + "\n"


def _power_name(k: int) -> str:
    return f"x{1 << k}" if k else "x"


def literal(value: Fraction) -> str:
    """A constant as Triton text."""
    try:
        number = float(value)
    except OverflowError:
        number = float("inf") if value > 0 else float("-inf")
    return f'float("{number}")' if isinf(number) else repr(number)


class TritonAlgebra(InfixAlgebra):
    """Operators as Triton expressions of float32; `shifts` are those of the node's exps."""

    def __init__(self, functions: FunctionSources, shifts: Sequence[str] = ()) -> None:
        super().__init__(shifts)
        self.functions = functions

    def constant(self, value: Fraction) -> str:
        return literal(value)

    def dim(self, size: sympy.Expr) -> str:
        raise GraphError(f"size {size} inside an operator: Triton code has sizes as nodes of their own")

    def function(self, fn: ScalarFunction, x: str, *params: Fraction) -> str:
        if fn is fns.EXP:
            x = self.shifted(x) or x
        return self.functions.call(fn, x, params)
