"""Lowerings of control flow: branches, and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import sympy

from mirage.frontends import array_ops, control, ops
from mirage.frontends.effects import scatter_
from mirage.frontends.graph import graph_trace
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.table import Call, lowers
from mirage.frontends.shapes import as_shape, axis_of, joined, sliced
from mirage.ir.dims import maximum, to_dim
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


#: one round of a loop: from its number, a tensor, and the states to the states, and what it gives beside them
Round: TypeAlias = Callable[[Any, Sequence[Any]], Sequence[Any]]


def _looped(c: Call, length: Any, states: Sequence[Any], step: Round, backwards: Sequence[int] = ()) -> list[Any]:
    """The last states of a loop, and what all rounds give beside them, stacked: in reverse order where `backwards` says so.

    It is one loop of the graph IR, whose states keep their types; raises UnsupportedNode where they do not.
    """
    kept: list[Any] = []

    def trial(i: Any, *given: Any) -> Any:
        found = step(i, given)
        kept[:] = [x.annotation for x in found[len(states) :]]
        return tuple(found)

    outer = graph_trace(c.node.op_type)
    restore = outer.module.snapshot()
    try:
        types = [TensorType((), "int64"), *(x.annotation for x in states)]
        # what a round gives has to be known before there is memory for that of all rounds
        outer.inner("round", trial, {f"arg{k}": t for k, t in enumerate(types)})
    finally:
        restore()
    if not all(isinstance(t, TensorType) and t.symbols() <= outer.scope for t in kept):
        unsupported("what its rounds give is of shapes that only the run tells")
    rows = [array_ops.zeros((length, *t.shape), t.dtype) for t in kept]
    flipped = [*backwards, *[0] * (len(rows) - len(backwards))]
    end = array_ops.dim_value(length) - 1

    def body(i: Any, *carried: Any) -> Any:
        before, held = carried[: len(states)], carried[len(states) :]
        found = list(step(i, before))
        after = [_alike(x, y) for x, y in zip(found, before, strict=False)]
        for all_rows, row, back in zip(held, found[len(states) :], flipped, strict=True):
            scatter_(all_rows, end - i if back else i, row, 0)
        return (*after, *held) if len(carried) > 1 else after[0]

    if not states and not rows:
        return []
    found = control.loop(to_dim(length), body, *states, *rows)
    return list(found) if len(states) + len(rows) > 1 else [found]


def _alike(x: Any, before: Any) -> Any:
    """A state after a round, as one of the type that it had before."""
    if x.dtype != before.dtype or x.ndim != before.ndim:
        unsupported("its states change their types")
    return as_shape(x, before.shape)


def _written_out(length: Any) -> bool:
    """Whether a loop is so short that its rounds are written out one by one."""
    return isinstance(length, int) and 0 < length <= _ROUNDS


def _scanned(
    c: Call, states: Sequence[Any], rows: Sequence[Any], axes: Sequence[int], backwards: Sequence[int],
    reverse: Sequence[int] = (),
) -> tuple[list[Any], list[Any]]:  # fmt: skip
    """The last states of a scan, and what its rounds give beside them, stacked: in reverse order where `reverse` says so."""
    length = rows[0].shape[axes[0]]
    body = c.attrs["body"]
    if not _written_out(length):
        end = array_ops.dim_value(length) - 1

        def step(i: Any, given: Sequence[Any]) -> Sequence[Any]:
            places = [end - i if back else i for back in backwards]
            return c.run(body, (*given, *(array_ops.take(x, k, a) for x, a, k in zip(rows, axes, places, strict=True))))

        found = _looped(c, length, states, step, reverse)
        return found[: len(states)], found[len(states) :]
    held, outs = list(states), list[list[Any]]()
    for k in range(length):
        places = [length - 1 - k if back else k for back in backwards]
        parts = [_row(x, a, at) for x, a, at in zip(rows, axes, places, strict=True)]
        found = c.run(body, (*held, *parts))
        held, now = found[: len(held)], found[len(held) :]
        outs = outs or [[] for _ in now]
        for kept, x in zip(outs, now, strict=True):
            kept.append(x)
    return held, [_stacked(r[::-1] if k < len(reverse) and reverse[k] else r, 0) for k, r in enumerate(outs)]


@lowers("Scan", since=8)
def _scan(c: Call, *given: Any) -> Any:
    count = c.attrs["num_scan_inputs"]
    if c.version < 9:
        return _batches(c, given, count)
    states, rows = given[: len(given) - count], given[len(given) - count :]
    axes = [axis_of(a, x.ndim) for a, x in zip(c.attr("scan_input_axes", [0] * count), rows, strict=True)]
    backwards = c.attr("scan_input_directions", [0] * count)
    held, outs = _scanned(c, states, rows, axes, backwards, c.attr("scan_output_directions", ()))
    out_axes = c.attr("scan_output_axes", [0] * len(outs))
    return (*held, *(_first_moved(x, axis_of(a, x.ndim)) for x, a in zip(outs, out_axes, strict=True)))


def _first_moved(x: Any, axis: int) -> Any:
    """The tensor with its first dim at a position."""
    order = list(range(1, x.ndim))
    order.insert(axis, 0)
    return ops.transpose(x, tuple(order)) if axis else x


def _batches(c: Call, given: Sequence[Any], count: int) -> tuple[Any, ...]:
    """A scan of opset 8, whose operands have a dim of batches before all others."""
    lengths, *operands = given
    batch = operands[0].shape[0]
    if lengths is not None or not _written_out(batch):
        unsupported("its sequences are of lengths, or as many, as only a call tells")
    results = []
    for k in range(batch):
        own = [_row(x, 0, k) for x in operands]
        states, rows = own[: len(own) - count], own[len(own) - count :]
        held, outs = _scanned(c, states, rows, [0] * count, c.attr("directions", [0] * count))
        results.append([*held, *outs])
    return tuple(_stacked(list(parts), 0) for parts in zip(*results, strict=True))


@lowers("Loop", static=(0, 1))
def _loop(c: Call, trips: Any, condition: Any, *states: Any) -> Any:
    body, width = c.attrs["body"], len(states)
    if trips is None:
        unsupported("its number of rounds is what it computes")
    length = np.asarray(trips).item()
    if condition is not None and not bool(np.asarray(condition).item()):
        length = 0
    if not _written_out(length):
        length = maximum(to_dim(length), sympy.Integer(0))

        def step(i: Any, given: Sequence[Any]) -> Sequence[Any]:
            going, *found = c.values_of(body, (i, np.asarray(True), *given))
            if going.known is None or not bool(going.known.item()):
                unsupported("its number of rounds is what it computes")
            return [v.tensor(graph_trace("Loop")) for v in found]

        return tuple(_looped(c, length, states, step))
    held = list(states)
    outs: list[list[Any]] = []
    for k in range(length):
        going, *found = c.values_of(body, (np.asarray(k, np.int64), np.asarray(True), *held))
        if going.known is None or going.is_symbolic:
            unsupported("its number of rounds is what it computes")
        tensors = [v.tensor(c.trace) for v in found]
        held, now = tensors[:width], tensors[width:]
        outs = outs or [[] for _ in now]
        for kept, x in zip(outs, now, strict=True):
            kept.append(x)
        if not bool(going.known.item()):
            break
    if not all(isinstance(x.annotation, TensorType) for r in outs for x in r):
        unsupported("of a result of it not even the rank is known")
    return (*held, *(_stacked(r, 0) for r in outs))
