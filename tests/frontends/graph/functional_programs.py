"""Programs over lists and trees, each with what it computes in NumPy: the models of Relay's evaluation, small."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any

import numpy as np

import mirage as mi


@dataclass(frozen=True)
class Number:
    value: Annotated[Any, mi.tensor(2)]


@dataclass(frozen=True)
class Sum:
    left: Annotated[Any, "Expr"]
    right: Annotated[Any, "Expr"]


@dataclass(frozen=True)
class Product:
    factors: Annotated[Any, list[Expr]]


Expr = mi.data("Expr", Number, Sum, Product)


@mi.function(e=Expr)
def value(e: Any) -> Any:
    """The value of an expression: recursion, and a fold within."""
    return mi.match(
        e,
        {
            Number: lambda v: v,
            Sum: lambda left, right: value(left) + value(right),
            Product: lambda factors: mi.fold(lambda p, f: p * value(f), mi.full((2,), 1), factors),
        },
    )


@mi.function(n=mi.tensor(dtype="int64"))
def factorial(n: Any) -> Any:
    return mi.cond(n <= 1, lambda: mi.full((), 1, "int64"), lambda: n * factorial(n - 1))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


SEQUENCE, STATE = mi.List(mi.tensor("b", "d")), mi.tensor("b", "k")

RNN = {"xs": SEQUENCE, "h": STATE, "w": mi.tensor("d", "k"), "u": mi.tensor("k", "k")}


def rnn(xs: Any, h: Any, w: Any, u: Any) -> Any:
    return mi.fold(lambda h, x: mi.tanh(x @ w + h @ u), h, xs)


def rnn_numpy(xs: Any, h: Any, w: Any, u: Any) -> Any:
    for x in xs:
        h = np.tanh(x @ w + h @ u)
    return h


GRU = {"xs": SEQUENCE, "h": STATE, "w": mi.tensor(3, "d", "k"), "u": mi.tensor(3, "k", "k")}


def gru(xs: Any, h: Any, w: Any, u: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        r = mi.sigmoid(x @ w[0] + h @ u[0])
        z = mi.sigmoid(x @ w[1] + h @ u[1])
        new = mi.tanh(x @ w[2] + (r * h) @ u[2])
        return (1 - z) * new + z * h

    return mi.fold(step, h, xs)


def gru_numpy(xs: Any, h: Any, w: Any, u: Any) -> Any:
    for x in xs:
        r, z = (sigmoid(x @ w[k] + h @ u[k]) for k in (0, 1))
        h = (1 - z) * np.tanh(x @ w[2] + (r * h) @ u[2]) + z * h
    return h


LSTM = {"xs": SEQUENCE, "h": STATE, "c": STATE, "w": mi.tensor(4, "d", "k"), "u": mi.tensor(4, "k", "k")}


def lstm(xs: Any, h: Any, c: Any, w: Any, u: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        i, f, o = (mi.sigmoid(x @ w[k] + h @ u[k]) for k in range(3))
        c = f * c + i * mi.tanh(x @ w[3] + h @ u[3])
        return o * mi.tanh(c), c

    return mi.fold(step, (h, c), xs)


def lstm_numpy(xs: Any, h: Any, c: Any, w: Any, u: Any) -> Any:
    for x in xs:
        i, f, o = (sigmoid(x @ w[k] + h @ u[k]) for k in range(3))
        c = f * c + i * np.tanh(x @ w[3] + h @ u[3])
        h = o * np.tanh(c)
    return h, c


MLP = {"layers": mi.List((mi.tensor("k", "k"), mi.tensor("k"))), "x": STATE}


def mlp(layers: Any, x: Any) -> Any:
    def layer(x: Any, weights: Any) -> Any:
        w, b = weights
        return mi.relu(x @ w + b)

    return mi.fold(layer, x, layers)


def mlp_numpy(layers: Any, x: Any) -> Any:
    for w, b in layers:
        x = np.maximum(x @ w + b, 0)
    return x


CHAR_RNN = {
    "x": mi.tensor(1, "c"), "h": mi.tensor(1, "k"), "ticks": mi.List(mi.tensor(dtype="float32")),
    "w": mi.tensor("c", "k"), "u": mi.tensor("k", "k"), "v": mi.tensor("k", "c"),
}  # fmt: skip


def char_rnn(x: Any, h: Any, ticks: Any, w: Any, u: Any, v: Any) -> Any:
    """A character from the last one, over and over: each is the output before."""

    def step(state: Any, tick: Any) -> Any:
        x, h = state
        h = mi.tanh(x @ w + h @ u)
        return mi.softmax(h @ v * tick), h

    return mi.map(lambda state: state[0], mi.scan(step, (x, h), ticks))


def char_rnn_numpy(x: Any, h: Any, ticks: Any, w: Any, u: Any, v: Any) -> Any:
    found = []
    for tick in ticks:
        h = np.tanh(x @ w + h @ u)
        e = np.exp(h @ v * tick)
        x = e / e.sum(-1, keepdims=True)
        found.append(x)
    return found


TREE_LSTM: dict[str, Any] = {
    "t": mi.Tree(mi.tensor(1, "d")), "w": mi.tensor(4, "d", "k"), "u": mi.tensor(4, "k", "k"), "zero": mi.tensor(1, "k"),
}  # fmt: skip


@mi.function(**TREE_LSTM)
def tree_lstm(t: Any, w: Any, u: Any, zero: Any) -> Any:
    """The child-sum TreeLSTM of Tai and others, 2015: its cell and state at the root."""

    def cell(x: Any, h: Any, c: Any) -> Any:
        i, o = mi.sigmoid(x @ w[0] + h @ u[0]), mi.sigmoid(x @ w[1] + h @ u[1])
        c = i * mi.tanh(x @ w[2] + h @ u[2]) + c
        return o * mi.tanh(c), c

    def node(x: Any, children: Any) -> Any:
        def add(state: Any, child: Any) -> Any:
            h, c = tree_lstm(child, w, u, zero)
            f = mi.sigmoid(x @ w[3] + h @ u[3])
            return state[0] + h, state[1] + f * c

        return cell(x, *mi.fold(add, (zero, zero), children))

    return mi.match(t, {mi.Leaf: lambda x: cell(x, zero, zero), mi.Rose: node})


def tree_lstm_numpy(t: Any, w: Any, u: Any, zero: Any) -> Any:
    h, c = zero, zero
    for child in getattr(t, "children", ()):
        hk, ck = tree_lstm_numpy(child, w, u, zero)
        h, c = h + hk, c + sigmoid(t.value @ w[3] + hk @ u[3]) * ck
    i, o = sigmoid(t.value @ w[0] + h @ u[0]), sigmoid(t.value @ w[1] + h @ u[1])
    c = i * np.tanh(t.value @ w[2] + h @ u[2]) + c
    return o * np.tanh(c), c


def random_tree(rng: np.random.Generator, size: int, width: int) -> Any:
    """A tree of so many vectors."""
    x = rng.standard_normal((1, width)).astype(np.float32)
    if size == 1:
        return mi.Leaf(x)
    children, left = [], size - 1
    while left:
        part = int(rng.integers(1, left + 1))
        children.append(random_tree(rng, part, width))
        left -= part
    return mi.Rose(x, children)


def arguments(rng: np.random.Generator, name: str, steps: int = 5, b: int = 2, d: int = 3, k: int = 4) -> list[Any]:
    """Arguments of a model."""

    def some(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / 2

    xs = [some(b, d) for _ in range(steps)]
    return {
        "rnn": lambda: [xs, some(b, k), some(d, k), some(k, k)],
        "gru": lambda: [xs, some(b, k), some(3, d, k), some(3, k, k)],
        "lstm": lambda: [xs, some(b, k), some(b, k), some(4, d, k), some(4, k, k)],
        "mlp": lambda: [[(some(k, k), some(k)) for _ in range(steps)], some(b, k)],
        "char_rnn": lambda: [some(1, d), some(1, k), [some() for _ in range(steps)], some(d, k), some(k, k), some(k, d)],
        "tree_lstm": lambda: [random_tree(rng, 3 * steps, d), some(4, d, k), some(4, k, k), np.zeros((1, k), np.float32)],
    }[name]()


#: the function, the types of its parameters, and the same in NumPy
MODELS: dict[str, tuple[Any, Any, Any]] = {
    "rnn": (rnn, RNN, rnn_numpy),
    "gru": (gru, GRU, gru_numpy),
    "lstm": (lstm, LSTM, lstm_numpy),
    "mlp": (mlp, MLP, mlp_numpy),
    "char_rnn": (char_rnn, CHAR_RNN, char_rnn_numpy),
    "tree_lstm": (tree_lstm, None, tree_lstm_numpy),
}


def mapped(fn: Callable[..., Any], *values: Any) -> Any:
    """Values of one form, with what a function gives for the arrays that stand in the same place."""
    first = values[0]
    if isinstance(first, list | tuple):
        return type(first)(mapped(fn, *v) for v in zip(*values, strict=True))
    if is_dataclass(first):
        return type(first)(*(mapped(fn, *(getattr(v, f.name) for v in values)) for f in fields(first)))  # type: ignore[misc]
    return fn(*values)


def in_float64(x: Any) -> Any:
    """Arguments in float64."""
    return mapped(lambda a: a.astype(np.float64) if a.dtype == np.float32 else a, x)


def flat(x: Any) -> list[np.ndarray]:
    """The arrays of a result."""
    return [a for v in x for a in flat(v)] if isinstance(x, list | tuple) else [np.asarray(x)]
