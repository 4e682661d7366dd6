"""Lowerings of recurrent networks; packed sequences, and projections of the state, are left to ATen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage.frontends import ops
from mirage.frontends.aten.table import Call, lowers
from mirage.frontends.imported import unsupported
from mirage.frontends.recurrent import Step, gru, lstm, one_direction, simple
from mirage.frontends.shapes import as_shape, joined, sliced


def _network(
    c: Call, x: Any, states: Sequence[Any], weights: Sequence[Any], has_biases: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool, step: Step, functions: Sequence[Any], order: Sequence[int], separate: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """All layers; the weights of each direction are those of the input and of the state, then their biases."""
    each, directions = 4 if has_biases else 2, 2 if bidirectional else 1
    if len(weights) != each * layers * directions or (train and dropout):
        unsupported("it projects its state, or drops elements at random")
    if x.ndim != 3:
        unsupported("its input has no batch")
    results = c.results
    if batch_first:
        x = x.swapaxes(0, 1)
    lasts: list[tuple[Any, ...]] = []
    for layer in range(layers):
        rows = []
        for backwards in range(directions):
            k = layer * directions + backwards
            w, r, *biases = weights[k * each : (k + 1) * each]
            begin = [sliced(s, {0: (k, k + 1)}).reshape(s.shape[1:]) for s in states]
            begin = [as_shape(s, (x.shape[1], r.shape[1])) for s in begin]
            found, last = one_direction(
                x, w, r, (biases[0], biases[1]) if has_biases else None, begin, step, functions, order,
                backwards=bool(backwards), separate=separate,
            )  # fmt: skip
            rows.append(found)
            lasts.append(last)
        x = joined(rows, 2)
    ends = [ops.concat([s.reshape((1, *s.shape)) for s in values], 0) for values in zip(*lasts, strict=True)]
    every = x.swapaxes(0, 1) if batch_first else x
    return tuple(as_shape(v, t.shape) for v, t in zip((every, *ends), results, strict=True))


@lowers("lstm.input")
def _lstm(
    c: Call, x: Any, states: Sequence[Any], weights: Sequence[Any], has_biases: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    functions = (ops.sigmoid, ops.tanh, ops.tanh)
    return _network(
        c, x, states, weights, has_biases, layers, dropout, train, bidirectional, batch_first, lstm, functions, (0, 3, 1, 2)
    )


@lowers("gru.input")
def _gru(
    c: Call, x: Any, state: Any, weights: Sequence[Any], has_biases: bool, layers: int, dropout: float, train: bool,
    bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    return _network(
        c, x, [state], weights, has_biases, layers, dropout, train, bidirectional, batch_first, gru(linear_before_reset=True),
        (ops.sigmoid, ops.tanh), (1, 0, 2), separate=True,
    )  # fmt: skip


def _simple(function: Any) -> Any:
    def lowering(
        c: Call, x: Any, state: Any, weights: Sequence[Any], has_biases: bool, layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        return _network(
            c, x, [state], weights, has_biases, layers, dropout, train, bidirectional, batch_first, simple, (function,), (0,)
        )

    return lowering


lowers("rnn_tanh.input")(_simple(ops.tanh))
lowers("rnn_relu.input")(_simple(ops.relu))
