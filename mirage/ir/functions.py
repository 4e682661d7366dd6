"""Scalar functions: the nonlinear atoms from which operators are defined.

`exp` is the only one that the algebra knows more about (paper, section 5: q-th roots of unity); every other function is
one consistent random function to the finite-field tests, and known to proofs by its identities alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np

from mirage.errors import DuplicateOperator

Array = Any


class Range(Enum):
    """What is known of a set of real numbers."""

    ANY = "any"
    NONNEGATIVE = "nonnegative"
    POSITIVE = "positive"


#: from an algebra, an argument and parameters to a value of the algebra; None where nothing is known for these parameters
Identity = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class ScalarFunction:
    """A real function of one variable and constant parameters: all that is known of it.

    `numpy(x, *params)` evaluates it elementwise. `c` names the vector function that generated C calls with the same
    arguments (see `kernels/cpu/csrc/mirage_vec.h`), and `c_source` defines it where that header does not. `triton` is the
    expression of Triton code over `{x}` and the parameters `{0}`, `{1}`, "" where there is none, and `triton_source` defines the
    functions that it calls, where `kernels/cuda/emit/algebra.py` does not.

    `domain` are the arguments for which it is defined, but for poles, `range` holds its results, and `increasing` says that it
    never decreases. `limits(*params)` is the domain where that depends on the parameters.
    Proofs know it by identities, which hold wherever f(x) is defined: `written` is f(x) in terms of other functions, `turned` is
    f(-x) in terms of x, and `inverse` names a g with f(g(x)) = x.

    `backward(b, g, x, y, *params)` is the cotangent of x, from the cotangent g of y = f(x): g times the derivative, or None where
    that is 0 everywhere. `b` is an algebra that has operators of graphs, too (`mirage.ir.gradient.Emitter`).

    `least(*params)` is a number that no result is below, where that depends on the parameters.
    """

    name: str
    numpy: Callable[..., Array]
    c: str = ""
    c_source: str = ""
    triton: str = ""
    triton_source: str = ""
    flops: int = 10
    domain: Range = Range.ANY
    range: Range = Range.ANY
    increasing: bool = False
    written: Identity | None = None
    turned: Identity | None = None
    inverse: str = ""
    backward: Callable[..., Any] | None = None
    least: Callable[..., Fraction] | None = None
    limits: Callable[..., Range] | None = None

    def domain_of(self, *params: Fraction) -> Range:
        """The arguments for which it is defined with these parameters."""
        return self.domain if self.limits is None else self.limits(*params)

    def range_of(self, *params: Fraction) -> Range:
        """What holds its results with these parameters."""
        if self.least is None:
            return self.range
        least = self.least(*params)
        return Range.ANY if least < 0 else Range.POSITIVE if least else Range.NONNEGATIVE


FUNCTIONS: dict[str, ScalarFunction] = {}


def register_function(name: str, numpy: Callable[..., Array], *, c: str | None = None, **facts: Any) -> ScalarFunction:
    """Add a scalar function to the table, with the fields of `ScalarFunction`; raises DuplicateOperator if the name is taken."""
    if name in FUNCTIONS:
        raise DuplicateOperator(f"scalar function {name!r} is registered already; choose another name")
    fn = FUNCTIONS[name] = ScalarFunction(name, numpy, c or f"mi_fn_{name}", **facts)
    return fn


def _sigmoid(x: Array) -> Array:
    # exp of a negative number only, so that large magnitudes do not overflow
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e)).astype(np.asarray(x).dtype)


def _special(name: str) -> Callable[[Array], Array]:
    """A function of SciPy, in double precision."""

    def evaluate(x: Array) -> Array:
        # its import takes longer than NumPy's, and few programs use it
        from scipy import special

        x = np.asarray(x)
        return getattr(special, name)(x.astype(np.float64)).astype(x.dtype)

    return evaluate


def _number(al: Any, value: int | Fraction) -> Any:
    return al.constant(Fraction(value))


def _relu(al: Any, x: Any, above: int | Fraction = 0) -> Any:
    """relu(x - above)."""
    return al.function(RELU, al.sub(x, _number(al, above)) if above else x)


def _odd(fn: str) -> Identity:
    return lambda al, x: al.neg(al.function(FUNCTIONS[fn], x))


def _one_less(fn: str) -> Identity:
    """f(-x) = 1 - f(x)."""
    return lambda al, x: al.sub(_number(al, 1), al.function(FUNCTIONS[fn], x))


def _passed(condition: str, bound: int | Fraction, g: Any, x: Any, al: Any) -> Any:
    """The cotangent where x is in that relation to a bound, else 0, whatever the cotangent is there."""
    return al.where(al.op(condition, x, bound), g)


def _no_slope(al: Any, g: Any, x: Any, y: Any) -> None:
    return None


_NAN = "propagate_nan=tl.PropagateNan.ALL"

EXP = register_function(
    "exp", np.exp, triton="tl.exp({x})", flops=16, range=Range.POSITIVE, increasing=True, inverse="log",
    backward=lambda al, g, x, y: al.mul(g, y),
)  # fmt: skip
SQRT = register_function(
    "sqrt", np.sqrt, triton="tl.sqrt_rn({x})", flops=8, domain=Range.NONNEGATIVE, range=Range.NONNEGATIVE, increasing=True,
    backward=lambda al, g, x, y: al.div(g, al.mul(2, y)),
)  # fmt: skip
SIGMOID = register_function(
    "sigmoid", _sigmoid, triton="(1 / (1 + tl.exp(-({x}))))", flops=24, range=Range.POSITIVE, increasing=True,
    turned=_one_less("sigmoid"),
    backward=lambda al, g, x, y: al.mul(g, al.mul(y, al.sub(1, y))),
)  # fmt: skip
TANH = register_function(
    "tanh", np.tanh, triton="tanh({x})", flops=24, increasing=True,
    # 2 sigmoid(2x) - 1
    written=lambda al, x: al.sub(al.mul(_number(al, 2), al.function(SIGMOID, al.mul(_number(al, 2), x))), _number(al, 1)),
    backward=lambda al, g, x, y: al.mul(g, al.sub(1, al.mul(y, y))),
)  # fmt: skip
ERF = register_function(
    "erf", _special("erf"), triton="tl.erf({x})", flops=24, increasing=True, turned=_odd("erf"),
    backward=lambda al, g, x, y: al.mul(g, al.mul(2 / math.sqrt(math.pi), al.function(EXP, al.neg(al.mul(x, x))))),
)  # fmt: skip
# accurate in the left tail, too
GAUSS_CDF = register_function(
    "gauss_cdf", _special("ndtr"), triton="gauss_cdf({x})", flops=26, range=Range.POSITIVE, increasing=True,
    turned=_one_less("gauss_cdf"),
    backward=lambda al, g, x, y: al.mul(g, al.mul(1 / math.sqrt(2 * math.pi), al.function(EXP, al.mul(-0.5, al.mul(x, x))))),
)  # fmt: skip
LOG = register_function(
    "log", np.log, triton="tl.log({x})", flops=16, domain=Range.POSITIVE, increasing=True, inverse="exp",
    backward=lambda al, g, x, y: al.div(g, x),
)  # fmt: skip
RELU = register_function(
    "relu", lambda x: np.maximum(x, np.asarray(x).dtype.type(0)), triton=f"tl.maximum({{x}}, 0.0, {_NAN})", flops=1,
    range=Range.NONNEGATIVE, increasing=True, turned=lambda al, x: al.sub(_relu(al, x), x),
    backward=lambda al, g, x, y: _passed("greater", 0, g, x, al),
)  # fmt: skip
MAXIMUM = register_function(
    "maximum", lambda x, c: np.maximum(x, np.asarray(x).dtype.type(c)), triton=f"tl.maximum({{x}}, {{0}}, {_NAN})", flops=1,
    increasing=True, written=lambda al, x, c: al.add(_relu(al, x, c), _number(al, c)),
    backward=lambda al, g, x, y, c: _passed("greater_equal", c, g, x, al), least=lambda c: c,
)  # fmt: skip
CLAMP = register_function(
    "clamp", lambda x, lo, hi: np.clip(x, np.asarray(x).dtype.type(lo), np.asarray(x).dtype.type(hi)),
    triton=f"tl.minimum(tl.maximum({{x}}, {{0}}, {_NAN}), {{1}}, {_NAN})", flops=2, increasing=True,
    written=lambda al, x, lo, hi: al.sub(al.add(_number(al, lo), _relu(al, x, lo)), _relu(al, x, hi)),
    backward=lambda al, g, x, y, lo, hi: _passed("greater_equal", lo, _passed("less_equal", hi, g, x, al), x, al), least=min,
)  # fmt: skip
# of Heaviside's step, 1 above 0 and else 0: what is added to scores to hide some
LOG_STEP = register_function(
    "log_step", lambda x: np.where(np.asarray(x) > 0, 0, -np.inf).astype(np.asarray(x).dtype),
    triton='tl.where({x} > 0, 0.0, float("-inf"))', flops=1, increasing=True,
    backward=_no_slope,
)  # fmt: skip
ABS = register_function(
    "abs", np.abs, triton="tl.abs({x})", flops=1, range=Range.NONNEGATIVE,
    written=lambda al, x: al.add(_relu(al, x), _relu(al, al.neg(x))),
    backward=lambda al, g, x, y: al.mul(g, al.op("sign", x)),
)  # fmt: skip
FLOOR = register_function(
    "floor", np.floor, triton="tl.floor({x})", flops=1, increasing=True,
    backward=_no_slope,
)  # fmt: skip
CEIL = register_function(
    "ceil", np.ceil, triton="tl.ceil({x})", flops=1, increasing=True,
    written=lambda al, x: al.neg(al.function(FLOOR, al.neg(x))),
    backward=_no_slope,
)  # fmt: skip
ROUND = register_function(
    "round", np.rint, triton="round_half_even({x})", flops=1, increasing=True, turned=_odd("round"),
    backward=_no_slope,
)  # fmt: skip
SIN = register_function(
    "sin", np.sin, triton="tl.sin({x})", flops=30, turned=_odd("sin"),
    backward=lambda al, g, x, y: al.mul(g, al.function(FUNCTIONS["cos"], x)),
)  # fmt: skip
COS = register_function(
    "cos", np.cos, triton="tl.cos({x})", flops=30, turned=lambda al, x: al.function(FUNCTIONS["cos"], x),
    backward=lambda al, g, x, y: al.neg(al.mul(g, al.function(SIN, x))),
)  # fmt: skip
POW = register_function(
    "pow", lambda x, p: np.power(x, np.asarray(x).dtype.type(p)), triton="real_power({x}, {0})", flops=40,
    limits=lambda p: Range.ANY if p.denominator == 1 else Range.NONNEGATIVE,
    written=lambda al, x, p: _number(al, 1) if p == 0 else None,
    backward=lambda al, g, x, y, p: al.mul(g, al.mul(p, al.function(FUNCTIONS["pow"], x, p - 1))) if p else None,
)  # fmt: skip

# A maximum is, to algebras, MAX_OUT of a sum of MAX_IN of the elements. Nothing is known of these two, and what is equal for any
# two functions is equal for maxima: take exp(k x) and log(y) / k, and let k grow.
MAX_IN, MAX_OUT = ScalarFunction("max_in", lambda x: x), ScalarFunction("max_out", lambda x: x)


def largest(al: Any, x: Any, total: Callable[[Any], Any]) -> Any:
    """The maximum of a value of an algebra along what `total` sums."""
    return al.function(MAX_OUT, total(al.function(MAX_IN, x)))
