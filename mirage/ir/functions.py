"""Scalar functions: the nonlinear atoms from which operators are defined.

`exp` is the only one that the algebra knows more about (paper, section 5: q-th roots of unity); every other function is
opaque to proofs, and one consistent random function to the finite-field tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from mirage.errors import DuplicateOperator

Array = Any


class Range(Enum):
    """What is known of a set of real numbers."""

    ANY = "any"
    NONNEGATIVE = "nonnegative"
    POSITIVE = "positive"


@dataclass(frozen=True, eq=False)
class ScalarFunction:
    """A real function of one variable and constant parameters.

    `numpy(x, *params)` evaluates it elementwise; `c` names the vector function that generated C calls with the same
    arguments (see `kernels/cpu/csrc/mirage_vec.h`), and `c_source` defines it where that header does not. `domain` are the
    arguments for which it is defined, `range` holds its results, and `increasing` says that it never decreases.
    """

    name: str
    numpy: Callable[..., Array]
    c: str
    c_source: str = ""
    flops: int = 10
    domain: Range = Range.ANY
    range: Range = Range.ANY
    increasing: bool = False


FUNCTIONS: dict[str, ScalarFunction] = {}


def register_function(
    name: str,
    numpy: Callable[..., Array],
    *,
    c: str | None = None,
    c_source: str = "",
    flops: int = 10,
    domain: Range = Range.ANY,
    range: Range = Range.ANY,
    increasing: bool = False,
) -> ScalarFunction:
    """Add a scalar function to the table (see `ScalarFunction`); raises DuplicateOperator if the name is taken."""
    if name in FUNCTIONS:
        raise DuplicateOperator(f"scalar function {name!r} is registered already; choose another name")
    fn = ScalarFunction(name, numpy, c or f"mi_fn_{name}", c_source, flops, domain, range, increasing)
    FUNCTIONS[name] = fn
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


EXP = register_function("exp", np.exp, flops=16, range=Range.POSITIVE, increasing=True)
SQRT = register_function(
    "sqrt", np.sqrt, flops=8, domain=Range.NONNEGATIVE, range=Range.NONNEGATIVE, increasing=True
)
SIGMOID = register_function("sigmoid", _sigmoid, flops=24, range=Range.POSITIVE, increasing=True)
TANH = register_function("tanh", np.tanh, flops=24, increasing=True)
ERF = register_function("erf", _special("erf"), flops=24, increasing=True)
# accurate in the left tail, too
GAUSS_CDF = register_function("gauss_cdf", _special("ndtr"), flops=26, range=Range.POSITIVE, increasing=True)
LOG = register_function("log", np.log, flops=16, domain=Range.POSITIVE, increasing=True)
RELU = register_function(
    "relu", lambda x: np.maximum(x, np.asarray(x).dtype.type(0)), flops=1, range=Range.NONNEGATIVE, increasing=True
)
MAXIMUM = register_function(
    "maximum", lambda x, c: np.maximum(x, np.asarray(x).dtype.type(c)), flops=1, increasing=True
)
CLAMP = register_function(
    "clamp",
    lambda x, lo, hi: np.clip(x, np.asarray(x).dtype.type(lo), np.asarray(x).dtype.type(hi)),
    flops=2,
    increasing=True,
)
ABS = register_function("abs", np.abs, flops=1, range=Range.NONNEGATIVE)
FLOOR = register_function("floor", np.floor, flops=1, increasing=True)
CEIL = register_function("ceil", np.ceil, flops=1, increasing=True)
ROUND = register_function("round", np.rint, flops=1, increasing=True)
SIN = register_function("sin", np.sin, flops=30)
COS = register_function("cos", np.cos, flops=30)
# where its exponent is no positive integer, its domain depends on it
POW = register_function("pow", lambda x, p: np.power(x, np.asarray(x).dtype.type(p)), flops=40)
