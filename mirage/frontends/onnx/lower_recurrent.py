"""Lowerings of recurrent networks: a loop over time, whose step has one product; those of the inputs are made before, as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mirage.frontends import array_ops, control, graph_ops, ops
from mirage.frontends.effects import scatter_
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.table import Call, lowers
from mirage.frontends.products import product
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import as_shape, sliced
from mirage.ir.dims import to_dim

Function = Callable[[Any], Any]
#: activations, of their alpha and beta, which have these defaults
_ACTIVATIONS: dict[str, tuple[float, float, Callable[[Any, float, float], Any]]] = {
    "sigmoid": (0.0, 0.0, lambda x, a, b: ops.sigmoid(x)),
    "tanh": (0.0, 0.0, lambda x, a, b: ops.tanh(x)),
    "relu": (0.0, 0.0, lambda x, a, b: ops.relu(x)),
    "affine": (1.0, 0.0, lambda x, a, b: x * a + b),
    "leakyrelu": (0.01, 0.0, lambda x, a, b: graph_ops.where(graph_ops.greater(x, 0), x, x * a)),
    "thresholdedrelu": (1.0, 0.0, lambda x, a, b: graph_ops.where(graph_ops.greater(x, a), x, 0)),
    "scaledtanh": (1.0, 1.0, lambda x, a, b: ops.tanh(x * b) * a),
    "hardsigmoid": (0.2, 0.5, lambda x, a, b: ops.clamp(x * a + b, 0, 1)),
    "elu": (1.0, 0.0, lambda x, a, b: graph_ops.where(graph_ops.greater(x, 0), x, apply("expm1", x) * a)),
    "softsign": (0.0, 0.0, lambda x, a, b: x / (1 + ops.abs(x))),
    "softplus": (0.0, 0.0, lambda x, a, b: ops.relu(x) + apply("log1p", ops.exp(-ops.abs(x)))),
}


def _activations(c: Call, defaults: Sequence[str], directions: int) -> list[list[Function]]:
    """The activations of each direction."""
    names = [n.decode() if isinstance(n, bytes) else n for n in c.attr("activations") or list(defaults) * directions]
    alphas, betas = iter(c.attr("activation_alpha") or ()), iter(c.attr("activation_beta") or ())
    clip = c.attr("clip")
    found: list[Function] = []
    for name in map(str.lower, names):
        if name not in _ACTIVATIONS:
            unsupported(f"the activation {name}")
        alpha, beta, fn = _ACTIVATIONS[name]
        # only those that have an alpha, or a beta, read the next one
        a = (
            next(alphas, alpha)
            if name in ("affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu")
            else alpha
        )
        b = next(betas, beta) if name in ("affine", "scaledtanh", "hardsigmoid") else beta

        def activation(x: Any, fn: Any = fn, a: float = a, b: float = b) -> Any:
            return fn(x if clip is None else ops.clamp(x, -clip, clip), a, b)

        found.append(activation)
    size = len(defaults)
    return [found[k * size : (k + 1) * size] for k in range(directions)]


@dataclass(frozen=True)
class Cell:
    """A network's operands of one direction.

    `inputs` are the products of the inputs of all steps, `[t, b, gates * h]`; `weights` `[h, gates * h]` those of the state.
    """

    inputs: Any
    weights: Any
    bias: Any
    peepholes: Any
    functions: Sequence[Function]
    size: Any

    def gates(self, x: Any) -> list[Any]:
        """The parts of each gate along the last dim."""
        count = self.weights.shape[1] // self.size
        return [sliced(x, {x.ndim - 1: (k * self.size, (k + 1) * self.size)}) for k in range(count)]


Step = Callable[[Cell, Any, Sequence[Any]], tuple[Any, ...]]


def _simple(cell: Cell, x: Any, state: Sequence[Any]) -> tuple[Any, ...]:
    (h,) = state
    return (cell.functions[0](x + product(h, cell.weights)),)


def _lstm(cell: Cell, x: Any, state: Sequence[Any]) -> tuple[Any, ...]:
    h, memory = state
    f, g, out = cell.functions
    i, o, forget, new = cell.gates(x + product(h, cell.weights))
    if cell.peepholes is not None:
        first, last, middle = (sliced(cell.peepholes, {0: (k * cell.size, (k + 1) * cell.size)}) for k in range(3))
        i, forget = i + first * memory, forget + middle * memory
    memory = f(forget) * memory + f(i) * g(new)
    if cell.peepholes is not None:
        o = o + last * memory
    return f(o) * out(memory), memory


def _gru(linear_before_reset: bool) -> Step:
    def step(cell: Cell, x: Any, state: Sequence[Any]) -> tuple[Any, ...]:
        (h,) = state
        f, g = cell.functions
        z, r, new = cell.gates(x)
        size = cell.size
        if linear_before_reset:
            hidden = product(h, cell.weights)
            hidden = hidden if cell.bias is None else hidden + cell.bias
            hz, hr, hn = cell.gates(hidden)
            z, r = f(z + hz), f(r + hr)
            candidate = g(new + r * hn)
        else:
            both = product(h, sliced(cell.weights, {1: (0, 2 * size)}))
            z, r = (f(v + sliced(both, {1: (k * size, (k + 1) * size)})) for k, v in enumerate((z, r)))
            candidate = g(new + product(r * h, sliced(cell.weights, {1: (2 * size, 3 * size)})))
        return (candidate + z * (h - candidate),)

    return step


def _row(x: Any, at: int) -> Any:
    """The part of an operand that belongs to a direction."""
    return None if x is None else sliced(x, {0: (at, at + 1)}).reshape(x.shape[1:])


def _reversed(x: Any, lengths: Any) -> Any:
    """The steps in reverse order, each sequence up to its length."""
    if lengths is None:
        return array_ops.flip(x, 0)
    at = array_ops.arange(x.shape[0]).reshape((x.shape[0], 1))
    end = lengths.reshape((1, lengths.shape[0]))
    places = graph_ops.where(graph_ops.less(at, end), end - 1 - at, at)
    return array_ops.take_along_axis(x, array_ops.broadcast_to(places.reshape((*places.shape, 1)), x.shape), 0)


def _run(cell: Cell, step: Step, state: Sequence[Any], lengths: Any) -> tuple[Any, tuple[Any, ...]]:
    """The states of all steps, `[t, b, h]`, and the last."""
    steps = cell.inputs.shape[0]
    first = state[0]
    outputs = array_ops.zeros((steps, *first.shape), first.dtype)

    def body(i: Any, *carried: Any) -> Any:
        *before, rows = carried
        after = step(cell, array_ops.take(cell.inputs, i, 0), before)
        after = tuple(as_shape(a, b.shape) for a, b in zip(after, before, strict=True))
        row = after[0]
        if lengths is not None:
            on = graph_ops.less(i, lengths).reshape((lengths.shape[0], 1))
            row = graph_ops.where(on, row, 0)
            after = tuple(graph_ops.where(on, a, b) for a, b in zip(after, before, strict=True))
        scatter_(rows, i, row, 0)
        return (*after, rows)

    *last, rows = control.loop(to_dim(steps), body, *state, outputs)
    return rows, tuple(last)


def _network(
    c: Call, x: Any, weights: Any, recurrence: Any, bias: Any, lengths: Any, state: Sequence[Any], peepholes: Any,
    step: Step, defaults: Sequence[str], separate: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """All directions of a network; with `separate` the recurrent bias is added by the step."""
    if c.attr("layout", 0):
        x = x.swapaxes(0, 1)
        state = [None if s is None else s.swapaxes(0, 1) for s in state]
    direction = c.attr("direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    functions = _activations(c, defaults, count)
    steps, batch, size = x.shape[0], x.shape[1], recurrence.shape[2]
    if lengths is not None:
        lengths = c.cast(as_shape(lengths, (batch,)), "int64")
    rows, lasts = [], []
    for k in range(count):
        backwards = direction == "reverse" or k == 1
        here = _reversed(x, lengths) if backwards else x
        inputs = product(here.reshape((steps * batch, x.shape[2])), _row(weights, k).swapaxes(0, 1))
        wide = recurrence.shape[1]
        own = _row(bias, k)
        rest = None
        if own is not None:
            first, rest = (sliced(own, {0: (at, at + wide)}) for at in (0, wide))
            # one row, that of constants is made once
            inputs = inputs + (first if separate else first + rest)
        given = [_row(s, k) for s in state]
        begin = [array_ops.zeros((batch, size), x.dtype) if s is None else as_shape(s, (batch, size)) for s in given]
        cell = Cell(
            inputs.reshape((steps, batch, wide)), _row(recurrence, k).swapaxes(0, 1), rest if separate else None,
            _row(peepholes, k), functions[k], size,
        )  # fmt: skip
        found, last = _run(cell, step, begin, lengths)
        rows.append(_reversed(found, lengths) if backwards else found)
        lasts.append(last)
    every = ops.concat([r.reshape((steps, 1, batch, size)) for r in rows], 1)
    ends = [ops.concat([v.reshape((1, batch, size)) for v in values], 0) for values in zip(*lasts, strict=True)]
    if c.attr("layout", 0):
        every, ends = ops.transpose(every, (2, 0, 1, 3)), [e.swapaxes(0, 1) for e in ends]
    return (every, *ends)


@lowers("RNN")
def _rnn(c: Call, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, h: Any = None) -> Any:
    return _network(c, x, w, r, bias, lengths, [h], None, _simple, ("Tanh",))


@lowers("GRU")
def _gru_network(c: Call, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, h: Any = None) -> Any:
    before = bool(c.attr("linear_before_reset", 0))
    return _network(c, x, w, r, bias, lengths, [h], None, _gru(before), ("Sigmoid", "Tanh"), before)


@lowers("LSTM")
def _lstm_network(
    c: Call,
    x: Any,
    w: Any,
    r: Any,
    bias: Any = None,
    lengths: Any = None,
    h: Any = None,
    memory: Any = None,
    peepholes: Any = None,
) -> Any:
    if c.attr("input_forget", 0):
        unsupported("its gates of input and of forgetting are one")
    return _network(c, x, w, r, bias, lengths, [h, memory], peepholes, _lstm, ("Sigmoid", "Tanh", "Tanh"))
