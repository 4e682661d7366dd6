"""Random programs over vectors, lists, trees, options and functions as values: traced Python functions."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import mirage as mi
from mirage.ir.graph.nodes import Module

VECTOR = mi.tensor("n")
SPECS = {"v": VECTOR, "xs": mi.List(VECTOR), "t": mi.Tree(VECTOR), "o": mi.Option(VECTOR)}


@mi.function(t=mi.Tree(VECTOR), v=VECTOR)
def total(t: Any, v: Any) -> Any:
    """The sum of a tree, and of `v` for each leaf."""
    return mi.match(
        t,
        {mi.Leaf: lambda x: x + v, mi.Rose: lambda x, below: mi.fold(lambda s, c: s + total(c, v), x, below)},
    )


@mi.function(t=mi.Tree(VECTOR), f=mi.function_type([VECTOR], VECTOR))
def changed(t: Any, f: Any) -> Any:
    """A tree of the values of a function."""
    return mi.match(
        t, {mi.Leaf: lambda x: mi.Leaf(f(x)), mi.Rose: lambda x, below: mi.Rose(f(x), mi.map(lambda c: changed(c, f), below))}
    )


A, B = mi.type_variable("a"), mi.type_variable("b")


@mi.function(f=mi.function_type([A], B), xs=mi.List(A))
def every(f: Any, xs: Any) -> Any:
    """The list of the values of a function, of any types."""
    return mi.match(xs, {mi.Nil: mi.Nil, mi.Cons: lambda x, rest: mi.Cons(f(x), every(f, rest))})


class Writer:
    """Writes values of each kind, from those that are there."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def vector(self, depth: int, env: dict[str, list[Any]]) -> Any:
        rng, d = self.rng, depth - 1
        if depth <= 0:
            return rng.choice(env["v"])

        def here(*more: Any) -> Any:
            return self.vector(d, {**env, "v": [*env["v"], *more]})

        forms: list[Callable[[], Any]] = [
            lambda: self.vector(d, env) + self.vector(d, env),
            lambda: mi.tanh(self.vector(d, env) * self.vector(d, env)),
            lambda: mi.fold(lambda s, x: mi.tanh(here(s, x)), self.vector(d, env), self.listed(d, env)),
            lambda: mi.match(self.listed(d, env), {mi.Nil: lambda: here(), mi.Cons: lambda x, xs: here(x)}),
            lambda: mi.match(self.option(d, env), {mi.Some: lambda x: here(x), mi.ignored: lambda: here()}),
            lambda: mi.match(self.tree(d, env), {mi.Leaf: lambda x: here(x), mi.Rose: lambda x, below: here(x)}),
            lambda: mi.cond(self.vector(d, env).sum() > 0, lambda: here(), lambda: here()),
            lambda: mi.tanh(total(self.tree(d, env), self.vector(d, env))),
            lambda: self.function(d, env)(self.vector(d, env)),
        ]
        return rng.choice(forms)()

    def listed(self, depth: int, env: dict[str, list[Any]]) -> Any:
        rng, d = self.rng, depth - 1
        if depth <= 0:
            return rng.choice(env["l"])

        def here(*more: Any) -> Any:
            return self.vector(d, {**env, "v": [*env["v"], *more]})

        forms: list[Callable[[], Any]] = [
            lambda: mi.map(lambda x: here(x), self.listed(d, env)),
            lambda: mi.scan(lambda s, x: mi.tanh(here(s, x)), self.vector(d, env), self.listed(d, env)),
            lambda: mi.Cons(self.vector(d, env), self.listed(d, env)),
            lambda: every(lambda p: p[0] * p[1].sum(), every(lambda x: (x, here(x)), self.listed(d, env))),
            lambda: mi.fold(lambda s, x: mi.Cons(here(x), s), rng.choice(env["l"]), self.listed(d, env)),
        ]
        return rng.choice(forms)()

    def tree(self, depth: int, env: dict[str, list[Any]]) -> Any:
        rng, d = self.rng, depth - 1
        if depth <= 0:
            return rng.choice(env["t"])
        forms: list[Callable[[], Any]] = [
            lambda: mi.Leaf(self.vector(d, env)),
            lambda: mi.Rose(self.vector(d, env), [self.tree(d, env) for _ in range(rng.randint(0, 2))]),
            lambda: changed(self.tree(d, env), self.function(d, env)),
        ]
        return rng.choice(forms)()

    def option(self, depth: int, env: dict[str, list[Any]]) -> Any:
        if depth <= 0 or self.rng.random() < 0.3:
            return self.rng.choice(env["o"])
        return mi.Some(self.vector(depth - 1, env)) if self.rng.random() < 0.8 else mi.Nothing()

    def function(self, depth: int, env: dict[str, list[Any]]) -> Any:
        return mi.closure(lambda x: self.vector(depth - 1, {**env, "v": [*env["v"], x]}), VECTOR)


def random_functional(seed: int, depth: int) -> Module:
    """The module of a random program."""
    writer = Writer(Random(seed))

    def program(v: Any, xs: Any, t: Any, o: Any) -> Any:
        env = {"v": [v], "l": [xs], "t": [t], "o": [o]}
        return writer.vector(depth, env), writer.listed(depth, env), writer.tree(depth, env)

    return mi.trace_module(program, SPECS)


def random_loss(seed: int, depth: int) -> Callable[..., Any]:
    """A random program that returns a number, of the parameters in `SPECS`."""

    def loss(v: Any, xs: Any, t: Any, o: Any) -> Any:
        # the same program whenever it is traced
        writer = Writer(Random(seed))
        env = {"v": [v], "l": [xs], "t": [t], "o": [o]}
        both = writer.vector(depth, env), mi.fold(lambda s, x: mi.tanh(s + x), v, writer.listed(depth, env))
        return (both[0] * both[1]).sum()

    return loss


def random_arguments(seed: int) -> list[Any]:
    """Arguments of a random program."""
    rng = np.random.default_rng(seed)

    def vector() -> np.ndarray:
        return rng.standard_normal(3).astype(np.float32)

    def tree(d: int) -> Any:
        return mi.Rose(vector(), [tree(d - 1) for _ in range(rng.integers(0, 3))]) if d else mi.Leaf(vector())

    some = mi.Some(vector()) if rng.random() < 0.5 else mi.Nothing()
    return [vector(), [vector() for _ in range(rng.integers(0, 4))], tree(2), some]


def flat(x: Any) -> list[Any]:
    """The arrays of a result, and the names of what they are in."""
    match x:
        case list() | tuple():
            return [type(x).__name__, *(a for v in x for a in flat(v))]
        case mi.Leaf(v):
            return ["Leaf", v]
        case mi.Rose(v, below):
            return ["Rose", v, *flat(below)]
    return [x]
