"""Lowerings of control flow: branches, and loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage.frontends import array_ops, control
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.table import Call, lowers
from mirage.frontends.shapes import axis_of, joined, sliced
from mirage.ir.types import TensorType

#: rounds of a loop that are written out one by one
_ROUNDS = 64


@lowers("If")
def _if(c: Call, condition: Any) -> Any:
    known = c.known(0)
    then, orelse = c.attrs["then_branch"], c.attrs["else_branch"]
    if known is not None:
        return tuple(c.values_of(then if bool(known.item()) else orelse, ()))
    if condition.ndim:
        condition = condition.reshape(())
    found = control.cond(condition, lambda: _packed(c.run(then, ())), lambda: _packed(c.run(orelse, ())))
    return found if isinstance(found, tuple) else (found,)


def _packed(values: list[Any]) -> Any:
    return tuple(values) if len(values) != 1 else values[0]


def _row(x: Any, axis: int, at: int) -> Any:
    """The slice at a position along an axis, without it."""
    return sliced(x, {axis: (at, at + 1)}).reshape(tuple(d for k, d in enumerate(x.shape) if k != axis))


def _stacked(rows: list[Any], axis: int) -> Any:
    at = axis_of(axis, rows[0].ndim + 1)
    return joined([array_ops.expand_dims(r, at) for r in rows], at)


def _rounds(
    c: Call, states: Sequence[Any], rows: Sequence[Any], axes: Sequence[int], backwards: Sequence[int]
) -> tuple[list[Any], list[list[Any]]]:
    """The last states of a scan, and what each round gives beside them."""
    length = rows[0].shape[axes[0]]
    if not isinstance(length, int) or not 0 < length <= _ROUNDS:
        unsupported("its length is only known at a call, or large")
    held, outs = list(states), list[list[Any]]()
    for k in range(length):
        places = [length - 1 - k if back else k for back in backwards]
        parts = [_row(x, a, at) for x, a, at in zip(rows, axes, places, strict=True)]
        found = c.run(c.attrs["body"], (*held, *parts))
        held, now = found[: len(held)], found[len(held) :]
        outs = outs or [[] for _ in now]
        for kept, x in zip(outs, now, strict=True):
            kept.append(x)
    return held, outs


@lowers("Scan", since=8)
def _scan(c: Call, *given: Any) -> Any:
    count = c.attrs["num_scan_inputs"]
    if c.version < 9:
        return _batches(c, given, count)
    states, rows = given[: len(given) - count], given[len(given) - count :]
    axes = [axis_of(a, x.ndim) for a, x in zip(c.attr("scan_input_axes", [0] * count), rows, strict=True)]
    held, outs = _rounds(c, states, rows, axes, c.attr("scan_input_directions", [0] * count))
    out_axes = c.attr("scan_output_axes", [0] * len(outs))
    reverse = c.attr("scan_output_directions", [0] * len(outs))
    stacked = [_stacked(r[::-1] if back else r, a) for r, a, back in zip(outs, out_axes, reverse, strict=True)]
    return (*held, *stacked)


def _batches(c: Call, given: Sequence[Any], count: int) -> tuple[Any, ...]:
    """A scan of opset 8, whose operands have a dim of batches before all others."""
    lengths, *operands = given
    batch = operands[0].shape[0]
    if lengths is not None or not isinstance(batch, int) or not 0 < batch <= _ROUNDS:
        unsupported("its sequences are of lengths, or as many, as only a call tells")
    results = []
    for k in range(batch):
        own = [_row(x, 0, k) for x in operands]
        states, rows = own[: len(own) - count], own[len(own) - count :]
        held, outs = _rounds(c, states, rows, [0] * count, c.attr("directions", [0] * count))
        results.append([*held, *(_stacked(r, 0) for r in outs)])
    return tuple(_stacked(list(parts), 0) for parts in zip(*results, strict=True))


@lowers("Loop", static=(0, 1))
def _loop(c: Call, trips: Any, condition: Any, *states: Any) -> Any:
    if trips is None or (condition is not None and not bool(np.asarray(condition).item())):
        unsupported("its number of rounds is what it computes")
    length = np.asarray(trips).item()
    if not isinstance(length, int) or not 0 < length <= _ROUNDS:
        unsupported("its length is only known at a call, or large")
    body, held = c.attrs["body"], list(states)
    outs: list[list[Any]] = []
    for k in range(length):
        found = c.values_of(body, (np.asarray(k, np.int64), np.asarray(True), *held))
        going = found[0].known
        if going is None or found[0].is_symbolic:
            unsupported("its number of rounds is what it computes")
        tensors = [v.tensor(c.trace) for v in found[1:]]
        held, now = tensors[: len(states)], tensors[len(states) :]
        outs = outs or [[] for _ in now]
        for kept, x in zip(outs, now, strict=True):
            kept.append(x)
        if not bool(going.item()):
            break
    if not all(isinstance(x.annotation, TensorType) for r in outs for x in r):
        unsupported("of a result of it not even the rank is known")
    return (*held, *(_stacked(r, 0) for r in outs))
