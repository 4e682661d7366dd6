"""Pairs of programs of which it is known whether they are equal: named ones, and ones that are made at random.

A random pair is an identity, a change or a condition around random functions of two inputs of shape [n, 4], all of them defined
everywhere; what is known follows from how it is made, not from running it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Literal

import mirage as mi
from mirage.ir.program import Program
from mirage.verify.primes import draw_primes

#: equal everywhere; different somewhere at some size; equal wherever both are defined, which is not in the same places
Expected = Literal["equal", "different", "equal where defined"]

Tensor = Any
#: of two tensors of shape [n, 4]
Function = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pair:
    """Two programs, as functions of x and y; `kind` is what they test, `seed` that of their verification."""

    name: str
    kind: str
    a: Function
    b: Function
    expected: Expected
    seed: int = 0

    def programs(self) -> tuple[Program, Program]:
        types = {"x": mi.tensor("n", 4), "y": mi.tensor("n", 4)}
        return mi.trace(self.a, "a", **types), mi.trace(self.b, "b", **types)


def size(x: Tensor) -> Tensor:
    """The size of the first dim, as a sum of ones."""
    return mi.sum(x * 0 + 1, axis=0, keepdims=True)


def vanishing(x: Tensor, *sizes: int) -> Tensor:
    """A polynomial in the size of the first dim that is zero at these sizes only."""
    return math.prod((size(x) - k for k in sizes), start=size(x) * 0 + 1)


def power_sum(x: Tensor, k: int) -> Tensor:
    return mi.sum(x**k, axis=0, keepdims=True)


def third(x: Tensor) -> Tensor:
    """A polynomial of power sums that is zero for all inputs with fewer than three rows (Newton's identities)."""
    one, two, three = (power_sum(x, k) for k in (1, 2, 3))
    return one**3 - 3 * one * two + 2 * three


def centred(x: Tensor) -> Tensor:
    return x - mi.mean(x, axis=0, keepdims=True)


#: known primes: those of a plain seed
KNOWN = draw_primes(0)

SIZES: Mapping[str, tuple[Function, Function]] = {
    "equal at 2 and 3": (lambda x, y: x + y, lambda x, y: x + y + vanishing(x, 2, 3) * x),
    "equal at 1 to 3": (lambda x, y: x + y, lambda x, y: x + y + vanishing(x, 1, 2, 3) * x),
    "mean of 2": (lambda x, y: mi.mean(x, axis=0), lambda x, y: mi.sum(x, axis=0) / 2),
    "mean of 3": (lambda x, y: mi.mean(x, axis=0), lambda x, y: mi.sum(x, axis=0) / 3),
    "fewer than three rows": (lambda x, y: x, lambda x, y: x + third(x)),
}
CONSTANTS: Mapping[str, tuple[Function, Function]] = {
    "multiple of known primes": (lambda x, y: x * (KNOWN.p * KNOWN.q) + y, lambda x, y: x * 0 + y),
    "sum that is a known prime": (lambda x, y: x * (KNOWN.p - 3) + x * 3 + y, lambda x, y: x * 0 + y),
    "exponent of a known prime": (lambda x, y: mi.exp(x * KNOWN.q) + y, lambda x, y: mi.exp(x * 0) + y),
    "logarithms": (
        lambda x, y: mi.log(0 * x + 6543) * mi.exp(y),
        lambda x, y: mi.log(0 * x + 126692) * mi.exp(y),
    ),
    "a part in 2^40": (lambda x, y: x + y, lambda x, y: x * (1 + 2.0**-40) + y),
}
PARTIAL: Mapping[str, tuple[Function, Function]] = {
    "defined nowhere": (
        lambda x, y: y / (mi.relu(x) * mi.relu(-x)) * (mi.relu(x) * mi.relu(-x)) + x,
        lambda x, y: y + x,
    ),
    "x / x": (lambda x, y: x / x * y + x, lambda x, y: y + x),
    "log - log": (lambda x, y: mi.log(x) - mi.log(x) + y + x, lambda x, y: y + x),
    "rsqrt sqrt": (lambda x, y: mi.rsqrt(x) * mi.sqrt(x) * y + x, lambda x, y: y + x),
    "a floor": (lambda x, y: y / mi.floor(x) * mi.floor(x) + x, lambda x, y: y + x),
    "exp of log": (lambda x, y: mi.exp(mi.log(x)) + y, lambda x, y: x + y),
}
SAME: Mapping[str, tuple[Function, Function]] = {
    "abs of -x": (lambda x, y: mi.abs(x) + y, lambda x, y: mi.abs(-x) + y),
    "relu of relu": (lambda x, y: mi.relu(mi.relu(x)) + y, lambda x, y: mi.relu(x) + y),
    "maximum with 0": (lambda x, y: mi.maximum(x, 0) + y, lambda x, y: mi.relu(x) + y),
    "sigmoid": (lambda x, y: mi.sigmoid(x) + y, lambda x, y: 1 / (1 + mi.exp(-x)) + y),
    "tanh": (lambda x, y: mi.tanh(x) + y, lambda x, y: 2 * mi.sigmoid(2 * x) - 1 + y),
    "parts of x": (lambda x, y: mi.relu(x) - mi.relu(-x) + y, lambda x, y: x + y),
    "power of 0": (lambda x, y: x**0 + y, lambda x, y: 1 + 0 * x + y),
    "nested clamps": (lambda x, y: mi.clamp(mi.clamp(x, -1, 1), -2, 2) + y, lambda x, y: mi.clamp(x, -1, 1) + y),
    "decimal fractions": (lambda x, y: 0.1 * x + 0.2 * x + y, lambda x, y: 0.3 * x + y),
    "literal mean": (lambda x, y: mi.mean(x, axis=1), lambda x, y: mi.sum(x, axis=1) / 4),
}


def named() -> Iterator[Pair]:
    """The pairs that have names; those of sizes and constants with several seeds."""
    for kind, pairs, expected, seeds in (
        ("sizes", SIZES, "different", (0, 1, 7, 11)),
        ("constants", CONSTANTS, "different", (0, 1)),
        ("partial", PARTIAL, "equal where defined", (0,)),
        ("functions", SAME, "equal", (0,)),
    ):
        for name, (a, b) in pairs.items():
            for seed in seeds:
                yield Pair(name, kind, a, b, expected, seed)  # type: ignore[arg-type]


# -- random functions

_LEAVES: list[Function] = [lambda x, y: x, lambda x, y: y, lambda x, y: x + y, lambda x, y: x * y, lambda x, y: 2 * x - y]
_UNARY: list[Callable[[Tensor], Tensor]] = [
    mi.relu,
    mi.sigmoid,
    mi.tanh,
    mi.square,
    lambda u: -u,
    lambda u: 3 * u + 1,
    lambda u: u / 8,
    lambda u: mi.exp(mi.tanh(u)),
    mi.softmax,
    centred,
    lambda u: mi.mean(u, axis=0, keepdims=True) + u,
    lambda u: mi.sqrt(1 + u * u),
]
_BINARY: list[Function] = [
    lambda u, v: u + v,
    lambda u, v: u - v,
    lambda u, v: u * v,
    lambda u, v: u / (1 + mi.exp(mi.tanh(v))),
    lambda u, v: u / mi.sqrt(1 + v * v),
]


def function(rng: Random, operators: int) -> Function:
    """A random function that is defined everywhere, of so many operators at most."""
    if operators == 0:
        return rng.choice(_LEAVES)
    if rng.random() < 0.5:
        f, u = rng.choice(_UNARY), function(rng, operators - 1)
        return lambda x, y: f(u(x, y))
    g, u, v = rng.choice(_BINARY), function(rng, operators // 2), function(rng, (operators - 1) // 2)
    return lambda x, y: g(u(x, y), v(x, y))


# -- identities, of two functions u and v

IDENTITIES: Mapping[str, tuple[Function, Function]] = {
    "distributes": (lambda u, v: u * (v + 1), lambda u, v: u * v + u),
    "sums add": (lambda u, v: mi.sum(u + v, axis=0), lambda u, v: mi.sum(u, axis=0) + mi.sum(v, axis=0)),
    "exponents add": (
        lambda u, v: mi.exp(mi.tanh(u) + mi.tanh(v)),
        lambda u, v: mi.exp(mi.tanh(u)) * mi.exp(mi.tanh(v)),
    ),
    "parts": (lambda u, v: mi.relu(u) - mi.relu(-u) + v, lambda u, v: u + v),
    "absolute value": (lambda u, v: mi.abs(u) * v, lambda u, v: (mi.relu(u) + mi.relu(-u)) * v),
    "silu": (lambda u, v: mi.silu(u) + v, lambda u, v: u * mi.sigmoid(u) + v),
    "sigmoid of -u": (lambda u, v: mi.sigmoid(-u) * v, lambda u, v: v - mi.sigmoid(u) * v),
    "tanh": (lambda u, v: mi.tanh(u) * v, lambda u, v: (2 * mi.sigmoid(2 * u) - 1) * v),
    "mean times size": (lambda u, v: mi.mean(u, axis=0, keepdims=True) * size(v), lambda u, v: power_sum(u, 1)),
    "variance": (
        lambda u, v: mi.sum(centred(u) ** 2, axis=0) + mi.sum(v, axis=0),
        lambda u, v: mi.sum(u * u, axis=0) - mi.sum(u, axis=0) * mi.mean(u, axis=0) + mi.sum(v, axis=0),
    ),
    "centred": (lambda u, v: mi.sum(centred(u) + v, axis=0), lambda u, v: mi.sum(v, axis=0)),
    "softmax": (
        lambda u, v: mi.softmax(mi.tanh(u)) * v,
        lambda u, v: mi.exp(mi.tanh(u)) * v / mi.sum(mi.exp(mi.tanh(u)), axis=1, keepdims=True),
    ),
    "a row's shift": (lambda u, v: mi.softmax(u + mi.mean(v, axis=1, keepdims=True)), lambda u, v: mi.softmax(u)),
    "products": (lambda u, v: (u @ mi.transpose(u)) @ v, lambda u, v: u @ (mi.transpose(u) @ v)),
    "literal mean": (
        lambda u, v: mi.mean(u * v, axis=1, keepdims=True),
        lambda u, v: mi.sum(u * v, axis=1, keepdims=True) / 4,
    ),
    "maximum": (lambda u, v: mi.relu(u - 1) + 1 + v, lambda u, v: mi.maximum(u, 1) + v),
    "cube": (lambda u, v: u**3 - v**3, lambda u, v: (u - v) * (u * u + u * v + v * v)),
    "roots that cancel": (lambda u, v: mi.rsqrt(1 + u * u) * mi.sqrt(1 + u * u) * v, lambda u, v: v + 0 * u),
    "vanishing size": (lambda u, v: u * vanishing(v, 2) + 2 * u, lambda u, v: u * size(u)),
}

# -- what is added to a function so that it becomes another one: not zero somewhere, at some sizes

_NONZERO: list[Function] = [
    lambda x, y: x,
    lambda x, y: y,
    lambda x, y: x * y,
    lambda x, y: 1 + x * x,
    lambda x, y: mi.exp(mi.tanh(x)),
]


def _at_sizes(rng: Random) -> Function:
    sizes = rng.sample(range(1, 6), rng.randint(1, 4))
    what = rng.choice([*_NONZERO, lambda x, y: third(x) + 0 * y])
    return lambda x, y: vanishing(x, *sizes) * what(x, y)


def _at_signs(rng: Random) -> Function:
    s, t = rng.choice((1, -1)), rng.choice((1, -1))
    return rng.choice(
        [
            lambda x, y: mi.relu(s * x) * mi.relu(t * y),
            lambda x, y: mi.abs(x) - s * x + 0 * y,
            lambda x, y: mi.relu(s * x) - mi.relu(s * x - t * y * y) * mi.relu(s * x),
            lambda x, y: mi.relu(s * x * y) * mi.relu(t * (x + y)),
        ]
    )


def _at_magnitudes(rng: Random) -> Function:
    far, near = rng.choice((2, 10, 100, 1000)), rng.choice((1, 0.5, 0.25, 0.125))
    return rng.choice(
        [
            lambda x, y: mi.relu(x - far) + 0 * y,
            lambda x, y: mi.clamp(y, -far, far) - y + 0 * x,
            lambda x, y: mi.relu(near - mi.abs(x)) * (1 + y * y),
            lambda x, y: mi.floor(mi.sigmoid(x) + near / 2) + 0 * y,
        ]
    )


def _by_constants(rng: Random) -> Function:
    known = draw_primes(rng.randrange(4))
    tiny = rng.choice((2.0**-10, 2.0**-20, 2.0**-30))
    return rng.choice(
        [
            lambda x, y: x * (known.p * known.q) + 0 * y,
            lambda x, y: x * y * tiny,
            lambda x, y: mi.exp(y * known.q) - mi.exp(0 * y) + 0 * x,
        ]
    )


def _by_structure(rng: Random) -> Function:
    return rng.choice(
        [
            lambda x, y: mi.sum(x, axis=0, keepdims=True) - mi.sum(x, axis=1, keepdims=True) + 0 * y,
            lambda x, y: mi.sigmoid(x) - mi.tanh(x) + 0 * y,
            lambda x, y: (x - y) * x,
            lambda x, y: mi.mean(x * y, axis=0, keepdims=True)
            - mi.mean(x, axis=0, keepdims=True) * mi.mean(y, axis=0, keepdims=True),
        ]
    )


CHANGES: Mapping[str, Callable[[Random], Function]] = {
    "at some sizes": _at_sizes,
    "at some signs": _at_signs,
    "at some magnitudes": _at_magnitudes,
    "by constants": _by_constants,
    "by structure": _by_structure,
}

# -- what cancels, but where it is not defined: of a function q, which stays

_NOT_ALWAYS: list[Function] = [
    lambda x, y: x,
    lambda x, y: x - y,
    lambda x, y: mi.relu(x),
    lambda x, y: mi.floor(y),
    lambda x, y: mi.relu(x) * mi.relu(-x),
    lambda x, y: mi.sum(x, axis=0, keepdims=True),
]
CANCELLED: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "quotient": lambda q, d: q / d * d,
    "logarithms": lambda q, d: mi.log(d) - mi.log(d) + q,
    "roots": lambda q, d: mi.rsqrt(d) * mi.sqrt(d) * q,
    "zero": lambda q, d: q + 0 / d,
}


def identity(rng: Random, name: str, kind: str, a: Function, b: Function, seed: int) -> Pair:
    u, v, w = (function(rng, rng.randint(0, 3)) for _ in range(3))

    def of(f: Function, x: Tensor, y: Tensor) -> Tensor:
        return f(u(x, y), v(x, y)) * mi.mean(w(x, y), axis=0)

    return Pair(name, kind, partial(of, a), partial(of, b), "equal", seed)


def generated(count: int, seed: int = 0) -> Iterator[Pair]:
    """So many random pairs: identities, changes and conditions in turn, each of one kind after the other."""
    for i in range(count):
        rng = Random(f"pair {i} {seed}")
        turn, own = i // 3, i % 7
        w = function(rng, rng.randint(0, 4))
        match i % 3:
            case 0:
                name = list(IDENTITIES)[turn % len(IDENTITIES)]
                yield identity(rng, name, "random identity", *IDENTITIES[name], own)
            case 1:
                name = list(CHANGES)[turn % len(CHANGES)]
                change = CHANGES[name](rng)
                yield Pair(name, "random change", w, _sum(w, change), "different", own)
            case _:
                name = list(CANCELLED)[turn % len(CANCELLED)]
                q, d = rng.choice(_NONZERO), rng.choice(_NOT_ALWAYS)
                yield Pair(
                    name, "random condition", _sum(_of(CANCELLED[name], q, d), w), _sum(q, w), "equal where defined", own
                )


def _sum(f: Function, g: Function) -> Function:
    return lambda x, y: f(x, y) + g(x, y)


def _of(f: Function, u: Function, v: Function) -> Function:
    return lambda x, y: f(u(x, y), v(x, y))
