"""Lowerings of recurrent networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mirage.frontends import array_ops, graph_ops, ops
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.table import Call, lowers
from mirage.frontends.proxy import apply
from mirage.frontends.recurrent import Function, Step, gru, lstm, one_direction, simple
from mirage.frontends.shapes import as_shape, sliced

#: how many directions there are, by the attribute
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
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


def _row(x: Any, at: int) -> Any:
    """The part of an operand that belongs to a direction."""
    return None if x is None else sliced(x, {0: (at, at + 1)}).reshape(x.shape[1:])


def _network(
    c: Call, x: Any, weights: Any, recurrence: Any, bias: Any, lengths: Any, state: Sequence[Any], peepholes: Any,
    step: Step, defaults: Sequence[str], gates: int, separate: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """All directions of a network; with `separate` the recurrent bias is added by the step."""
    if c.attr("layout", 0):
        x = x.swapaxes(0, 1)
        state = [None if s is None else s.swapaxes(0, 1) for s in state]
    direction = c.attr("direction", "forward")
    if direction not in _DIRECTIONS:
        unsupported(f"its direction is {direction!r}; it may be {', '.join(_DIRECTIONS)}")
    count = _DIRECTIONS[direction]
    functions = _activations(c, defaults, count)
    steps, batch, size, order = x.shape[0], x.shape[1], recurrence.shape[2], range(gates)
    expected = {"W": (weights, (count, gates * size, x.shape[2])), "R": (recurrence, (count, gates * size, size))}
    for name, (found, shape) in expected.items():
        # of dims that are known
        if any(isinstance(d, int) and isinstance(e, int) and d != e for d, e in zip(found.shape, shape, strict=True)):
            unsupported(f"{name} has shape {list(found.shape)}, not {list(shape)}")
    if lengths is not None:
        lengths = c.cast(as_shape(lengths, (batch,)), "int64")
    rows, lasts = [], []
    for k in range(count):
        own = _row(bias, k)
        wide = recurrence.shape[1]
        biases = None if own is None else (sliced(own, {0: (0, wide)}), sliced(own, {0: (wide, 2 * wide)}))
        given = [_row(s, k) for s in state]
        begin = [array_ops.zeros((batch, size), x.dtype) if s is None else as_shape(s, (batch, size)) for s in given]
        found, last = one_direction(
            x, _row(weights, k), _row(recurrence, k), biases, begin, step, functions[k], order,
            backwards=direction == "reverse" or k == 1, lengths=lengths, peepholes=_row(peepholes, k), separate=separate,
        )  # fmt: skip
        rows.append(found)
        lasts.append(last)
    every = ops.concat([r.reshape((steps, 1, batch, size)) for r in rows], 1)
    ends = [ops.concat([v.reshape((1, batch, size)) for v in values], 0) for values in zip(*lasts, strict=True)]
    if c.attr("layout", 0):
        every, ends = ops.transpose(every, (2, 0, 1, 3)), [e.swapaxes(0, 1) for e in ends]
    return (every, *ends)


@lowers("RNN")
def _rnn(c: Call, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, h: Any = None) -> Any:
    return _network(c, x, w, r, bias, lengths, [h], None, simple, ("Tanh",), 1)


@lowers("GRU")
def _gru_network(c: Call, x: Any, w: Any, r: Any, bias: Any = None, lengths: Any = None, h: Any = None) -> Any:
    before = bool(c.attr("linear_before_reset", 0))
    return _network(c, x, w, r, bias, lengths, [h], None, gru(linear_before_reset=before), ("Sigmoid", "Tanh"), 3, before)


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
    return _network(c, x, w, r, bias, lengths, [h, memory], peepholes, lstm, ("Sigmoid", "Tanh", "Tanh"), 4)
