"""The models over sequences, lists of layers and trees of Relay's evaluation: plain functions of ours, and the same in PyTorch.

Gates share a product: their weights are the columns of one matrix. Sources: Relay, section 5; the child-sum TreeLSTM of Tai and
others, 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mirage as mi

_SEQUENCE, _STATE = mi.List(mi.tensor(1, "d")), mi.tensor(1, "k")


def _rnn(xs: Any, h: Any, w: Any, u: Any) -> Any:
    return mi.fold(lambda h, x: mi.tanh(x @ w + h @ u), h, xs)


def _gru(xs: Any, h: Any, w: Any, u: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        k = h.shape[1]
        a, b = x @ w, h @ u
        r, z = mi.sigmoid(a[:, :k] + b[:, :k]), mi.sigmoid(a[:, k : 2 * k] + b[:, k : 2 * k])
        return (1 - z) * mi.tanh(a[:, 2 * k :] + r * b[:, 2 * k :]) + z * h

    return mi.fold(step, h, xs)


def _lstm(xs: Any, h: Any, c: Any, w: Any, u: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        h, c = state
        k = h.shape[1]
        g = x @ w + h @ u
        i, f, o = (mi.sigmoid(g[:, n * k : (n + 1) * k]) for n in range(3))
        c = f * c + i * mi.tanh(g[:, 3 * k :])
        return o * mi.tanh(c), c

    return mi.fold(step, (h, c), xs)


def _mlp(layers: Any, x: Any) -> Any:
    def layer(x: Any, weights: Any) -> Any:
        w, b = weights
        return mi.relu(x @ w + b)

    return mi.fold(layer, x, layers)


def _char_rnn(x: Any, h: Any, ticks: Any, w: Any, u: Any, v: Any) -> Any:
    def step(state: Any, tick: Any) -> Any:
        x, h = state
        h = mi.tanh(x @ w + h @ u)
        return mi.softmax(h @ v * tick), h

    return mi.map(lambda state: state[0], mi.scan(step, (x, h), ticks))


_TREE: dict[str, Any] = {
    "t": mi.Tree(mi.tensor(1, "d")), "w": mi.tensor("d", "4*k"), "u": mi.tensor("k", "3*k"), "v": mi.tensor("k", "k"),
    "zero": mi.tensor(1, "k"),
}  # fmt: skip


@mi.function(**_TREE)
def tree_lstm(t: Any, w: Any, u: Any, v: Any, zero: Any) -> Any:
    """Cell and state of a tree's root; `u` are weights of the children's sum, `v` those of the gate of each."""
    k = zero.shape[1]

    def cell(a: Any, h: Any, c: Any) -> Any:
        g = a[:, : 3 * k] + h @ u
        c = mi.sigmoid(g[:, :k]) * mi.tanh(g[:, 2 * k :]) + c
        return mi.sigmoid(g[:, k : 2 * k]) * mi.tanh(c), c

    def node(x: Any, children: Any) -> Any:
        a = x @ w

        def add(state: Any, child: Any) -> Any:
            h, c = tree_lstm(child, w, u, v, zero)
            f = mi.sigmoid(a[:, 3 * k :] + h @ v)
            return state[0] + h, state[1] + f * c

        return cell(a, *mi.fold(add, (zero, zero), children))

    return mi.match(t, {mi.Leaf: lambda x: cell(x @ w, zero, zero), mi.Rose: node})


def _forest(trees: Any, w: Any, u: Any, v: Any, zero: Any) -> Any:
    return mi.map(lambda t: tree_lstm(t, w, u, v, zero)[0], trees)


def _torch_rnn(xs: Sequence[Tensor], h: Tensor, w: Tensor, u: Tensor) -> Tensor:
    for x in xs:
        h = torch.addmm(x @ w, h, u).tanh_()
    return h


def _torch_gru(xs: Sequence[Tensor], h: Tensor, w: Tensor, u: Tensor) -> Tensor:
    for x in xs:
        ar, az, an = (x @ w).chunk(3, 1)
        br, bz, bn = (h @ u).chunk(3, 1)
        z = torch.sigmoid(az + bz)
        new = torch.tanh(an + torch.sigmoid(ar + br) * bn)
        h = torch.lerp(new, h, z)
    return h


def _torch_lstm(xs: Sequence[Tensor], h: Tensor, c: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    k = h.shape[1]
    for x in xs:
        g = torch.addmm(x @ w, h, u)
        i, f, o = torch.sigmoid(g[:, : 3 * k]).chunk(3, 1)
        c = torch.addcmul(f * c, i, torch.tanh(g[:, 3 * k :]))
        h = o * torch.tanh(c)
    return h, c


def _torch_mlp(layers: Sequence[tuple[Tensor, Tensor]], x: Tensor) -> Tensor:
    for w, b in layers:
        x = torch.addmm(b, x, w).relu_()
    return x


def _torch_char_rnn(x: Tensor, h: Tensor, ticks: Sequence[Tensor], w: Tensor, u: Tensor, v: Tensor) -> list[Tensor]:
    found = []
    for tick in ticks:
        h = torch.addmm(x @ w, h, u).tanh()
        x = torch.softmax(h @ v * tick, -1)
        found.append(x)
    return found


def _torch_cell(a: Tensor, h: Tensor, c: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    i, o, new = torch.addmm(a[:, : 3 * u.shape[0]], h, u).chunk(3, 1)
    c = torch.addcmul(c, torch.sigmoid(i), torch.tanh(new))
    return torch.sigmoid(o) * torch.tanh(c), c


def torch_leaf(x: Tensor, w: Tensor, u: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
    """Cell and state of a tree without children."""
    return _torch_cell(x @ w, zero, zero, u)


def torch_node(x: Tensor, h: Tensor, c: Tensor, w: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Cell and state of a node; `h` and `c` have a row per child, so that these share a product."""
    a = x @ w
    f = torch.sigmoid(torch.addmm(a[:, 3 * u.shape[0] :], h, v))
    return _torch_cell(a, h.sum(0, keepdim=True), (f * c).sum(0, keepdim=True), u)


def torch_tree(
    leaf: Callable[..., Any], node: Callable[..., Any]
) -> Callable[[Any, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """A recursion in Python with these for what is computed."""

    def recur(t: Any, w: Tensor, u: Tensor, v: Tensor, zero: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(t, mi.Leaf):
            found: tuple[Tensor, Tensor] = leaf(t.value, w, u, zero)
            return found
        hs, cs = zip(*(recur(child, w, u, v, zero) for child in t.children), strict=True)
        found = node(t.value, torch.cat(hs), torch.cat(cs), w, u, v)
        return found

    return recur


def _torch_forest(leaf: Callable[..., Any], node: Callable[..., Any]) -> Callable[..., list[Tensor]]:
    tree = torch_tree(leaf, node)
    return lambda trees, *weights: [tree(t, *weights)[0] for t in trees]


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


@dataclass(frozen=True)
class Model:
    """A model: our function with the types of its parameters, PyTorch's, its arguments, and what a call works through.

    `compiled` makes PyTorch's function from what `torch.compile` makes of a function; without, it compiles `torch` whole.
    """

    name: str
    ours: Callable[..., Any]
    specs: Mapping[str, Any] | None
    torch: Callable[..., Any]
    arguments: Callable[[np.random.Generator], list[Any]]
    about: str
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None


def _some(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) / (shape[-2] if len(shape) > 1 else 4) ** 0.5).astype(np.float32)


def _recurrent(gates: int, states: int, steps: int, d: int, k: int) -> Callable[[np.random.Generator], list[Any]]:
    return lambda rng: [
        [_some(rng, 1, d) for _ in range(steps)], *(_some(rng, 1, k) for _ in range(states)),
        _some(rng, d, gates * k), _some(rng, k, gates * k),
    ]  # fmt: skip


def _layers(rng: np.random.Generator) -> list[Any]:
    return [[(_some(rng, 256, 256), _some(rng, 256)) for _ in range(8)], _some(rng, 1, 256)]


def _characters(rng: np.random.Generator) -> list[Any]:
    c, k = 58, 128
    ticks = [np.asarray(rng.uniform(0.5, 2), np.float32) for _ in range(20)]
    return [_some(rng, 1, c), _some(rng, 1, k), ticks, _some(rng, c, k), _some(rng, k, k), _some(rng, k, c)]


def _tree_weights(rng: np.random.Generator, d: int = 300, k: int = 150) -> list[Any]:
    return [_some(rng, d, 4 * k), _some(rng, k, 3 * k), _some(rng, k, k), np.zeros((1, k), np.float32)]


def _trees(rng: np.random.Generator, count: int) -> list[Any]:
    return [random_tree(rng, int(rng.integers(10, 41)), 300) for _ in range(count)]


def _compiled_cells(make: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return lambda compiled: make(compiled(torch_leaf), compiled(torch_node))


_MODELS = (
    Model(
        "CharRNN", _char_rnn, {
            "x": mi.tensor(1, "c"), "h": _STATE, "ticks": mi.List(mi.tensor(dtype="float32")), "w": mi.tensor("c", "k"),
            "u": mi.tensor("k", "k"), "v": mi.tensor("k", "c"),
        }, _torch_char_rnn, _characters, "20 characters of 58, 128 states",
    ),
    Model(
        "TreeLSTM", tree_lstm, None, torch_tree(torch_leaf, torch_node),
        lambda rng: [random_tree(rng, 25, 300), *_tree_weights(rng)], "a tree of 25 nodes, widths 300 and 150",
        _compiled_cells(torch_tree),
    ),
    Model(
        "TreeLSTM, 32 trees", _forest, {**{"trees": mi.List(_TREE["t"])}, **{n: s for n, s in _TREE.items() if n != "t"}},
        _torch_forest(torch_leaf, torch_node), lambda rng: [_trees(rng, 32), *_tree_weights(rng)],
        "trees of 10 to 40 nodes, widths 300 and 150", _compiled_cells(_torch_forest),
    ),
    Model(
        "RNN", _rnn, {"xs": _SEQUENCE, "h": _STATE, "w": mi.tensor("d", "k"), "u": mi.tensor("k", "k")}, _torch_rnn,
        _recurrent(1, 1, 32, 64, 128), "32 steps, widths 64 and 128",
    ),
    Model(
        "GRU", _gru, {"xs": _SEQUENCE, "h": _STATE, "w": mi.tensor("d", "3*k"), "u": mi.tensor("k", "3*k")}, _torch_gru,
        _recurrent(3, 1, 32, 64, 128), "32 steps, widths 64 and 128",
    ),
    Model(
        "LSTM", _lstm, {"xs": _SEQUENCE, "h": _STATE, "c": _STATE, "w": mi.tensor("d", "4*k"), "u": mi.tensor("k", "4*k")},
        _torch_lstm, _recurrent(4, 2, 32, 64, 128), "32 steps, widths 64 and 128",
    ),
    Model(
        "MLP", _mlp, {"layers": mi.List((mi.tensor("k", "k"), mi.tensor("k"))), "x": _STATE}, _torch_mlp, _layers,
        "8 layers of 256 in a list",
    ),
)  # fmt: skip
#: what is measured, by name
MODELS: Mapping[str, Model] = {m.name: m for m in _MODELS}


def arrays_of(value: Any) -> list[np.ndarray]:
    """The arrays in an argument, of which one is in several places."""
    match value:
        case np.ndarray():
            return [value]
        case list() | tuple():
            return [a for v in value for a in arrays_of(v)]
        case mi.Leaf(v):
            return arrays_of(v)
        case mi.Rose(v, children):
            return [*arrays_of(v), *arrays_of(children)]
    raise TypeError(f"{type(value).__name__} is no argument of a model")


def with_arrays(value: Any, make: Callable[[np.ndarray], Any]) -> Any:
    """An argument with `make(array)` in the place of each array."""
    match value:
        case np.ndarray():
            return make(value)
        case list() | tuple():
            return type(value)(with_arrays(v, make) for v in value)
        case mi.Leaf(v):
            return mi.Leaf(make(v))
        case mi.Rose(v, children):
            return mi.Rose(make(v), with_arrays(children, make))
    raise TypeError(f"{type(value).__name__} is no argument of a model")
