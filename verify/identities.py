"""What is known of scalar functions: identities, one line each, over any algebra.

An identity is read from left to right, and holds wherever its left side is defined. `mirage.verify.simplify` applies them to
exact forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from mirage.ir.functions import (
    ABS,
    CEIL,
    CLAMP,
    COS,
    ERF,
    EXP,
    FLOOR,
    GAUSS_CDF,
    LOG,
    MAXIMUM,
    POW,
    RELU,
    ROUND,
    SIGMOID,
    SIN,
    TANH,
    ScalarFunction,
)

#: from an algebra, an argument and parameters to a value of the algebra
Identity = Callable[..., Any]


def _number(al: Any, value: int | Fraction) -> Any:
    return al.constant(Fraction(value))


def _of(fn: ScalarFunction) -> Identity:
    return lambda al, x, *params: al.function(fn, x, *params)


_exp, _relu, _sigmoid, _floor = map(_of, (EXP, RELU, SIGMOID, FLOOR))


#: f(x, parameters), or None where nothing is known for these parameters
ALWAYS: Mapping[ScalarFunction, Identity] = {
    ABS: lambda al, x: al.add(_relu(al, x), _relu(al, al.neg(x))),
    MAXIMUM: lambda al, x, c: al.add(_relu(al, al.sub(x, al.constant(c))), al.constant(c)),
    CLAMP: lambda al, x, lo, hi: al.sub(
        al.add(al.constant(lo), _relu(al, al.sub(x, al.constant(lo)))), _relu(al, al.sub(x, al.constant(hi)))
    ),
    POW: lambda al, x, p: _number(al, 1) if p == 0 else None,
    CEIL: lambda al, x: al.neg(_floor(al, al.neg(x))),
    TANH: lambda al, x: al.sub(al.mul(_number(al, 2), _sigmoid(al, al.mul(_number(al, 2), x))), _number(al, 1)),
}

#: f(-x), of x
TURNED: Mapping[ScalarFunction, Identity] = {
    RELU: lambda al, x: al.sub(_relu(al, x), x),
    SIGMOID: lambda al, x: al.sub(_number(al, 1), _sigmoid(al, x)),
    GAUSS_CDF: lambda al, x: al.sub(_number(al, 1), al.function(GAUSS_CDF, x)),
    ERF: lambda al, x: al.neg(al.function(ERF, x)),
    SIN: lambda al, x: al.neg(al.function(SIN, x)),
    COS: lambda al, x: al.function(COS, x),
    ROUND: lambda al, x: al.neg(al.function(ROUND, x)),
}

#: f(g(x)) = x
INVERSES: Mapping[ScalarFunction, ScalarFunction] = {EXP: LOG, LOG: EXP}

#: 1 / (1 + f(x)), of x
INVERSE_OF_ONE_MORE: Mapping[ScalarFunction, Identity] = {EXP: lambda al, x: _sigmoid(al, al.neg(x))}
