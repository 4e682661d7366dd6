"""Recurrent networks: a loop over time, whose step has one product; those of the inputs of all steps are made before, as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from mirage.frontends import array_ops, control, graph_ops
from mirage.frontends.effects import scatter_
from mirage.frontends.products import product
from mirage.frontends.shapes import as_shape, sliced
from mirage.ir.dims import to_dim

Function = Callable[[Any], Any]


@dataclass(frozen=True)
class Cell:
    """A network's operands of one direction.

    `inputs` are the products of the inputs of all steps, `[t, b, gates * h]`; `weights` `[h, gates * h]` those of the state.
    `order` says where each gate of a step is among those of the weights.
    """

    inputs: Any
    weights: Any
    bias: Any
    peepholes: Any
    functions: Sequence[Function]
    size: Any
    order: Sequence[int]

    def gates(self, x: Any, count: int | None = None) -> list[Any]:
        """The parts of each gate along the last dim."""
        order = self.order if count is None else range(count)
        return [sliced(x, {x.ndim - 1: (k * self.size, (k + 1) * self.size)}) for k in order]


Step: TypeAlias = Callable[[Cell, Any, Sequence[Any]], tuple[Any, ...]]


def simple(cell: Cell, x: Any, state: Sequence[Any]) -> tuple[Any, ...]:
    """A step of a network without gates."""
    (h,) = state
    return (cell.functions[0](x + product(h, cell.weights)),)


def lstm(cell: Cell, x: Any, state: Sequence[Any]) -> tuple[Any, ...]:
    """A step of a long short-term memory: gates of the input, of the output and of forgetting, and what is new."""
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


def gru(*, linear_before_reset: bool) -> Step:
    """A step of a gated recurrent unit: gates of updating and of resetting, and what is new.

    The weights have these in this order, where it is the state that is reset, and not its product.
    """

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
            z, r = (f(v + w) for v, w in zip((z, r), cell.gates(both, 2), strict=True))
            candidate = g(new + product(r * h, sliced(cell.weights, {1: (2 * size, 3 * size)})))
        return (candidate + z * (h - candidate),)

    return step


def _run(cell: Cell, step: Step, state: Sequence[Any], lengths: Any, backwards: bool) -> tuple[Any, tuple[Any, ...]]:
    """The states of all steps, `[t, b, h]`, and that of the step that comes last: the first one where these go `backwards`."""
    steps = cell.inputs.shape[0]
    first = state[0]
    outputs = array_ops.zeros((steps, *first.shape), first.dtype)
    end = array_ops.dim_value(steps) - 1

    def body(i: Any, *carried: Any) -> Any:
        *before, rows = carried
        at = end - i if backwards else i
        after = step(cell, array_ops.take(cell.inputs, at, 0), before)
        after = tuple(as_shape(a, b.shape) for a, b in zip(after, before, strict=True))
        row = after[0]
        if lengths is not None:
            on = graph_ops.less(at, lengths).reshape((lengths.shape[0], 1))
            row = graph_ops.where(on, row, 0)
            after = tuple(graph_ops.where(on, a, b) for a, b in zip(after, before, strict=True))
        scatter_(rows, at, row, 0)
        return (*after, rows)

    *last, rows = control.loop(to_dim(steps), body, *state, outputs)
    return rows, tuple(last)


def one_direction(
    x: Any, weights: Any, recurrence: Any, biases: tuple[Any, Any] | None, state: Sequence[Any], step: Step,
    functions: Sequence[Function], order: Sequence[int], *, backwards: bool = False, lengths: Any = None, peepholes: Any = None,
    separate: bool = False,
) -> tuple[Any, tuple[Any, ...]]:  # fmt: skip
    """The states of all steps of a layer in one direction, `[t, b, h]`, and the last of each.

    `x` is `[t, b, features]`, `weights` `[gates * h, features]` and `recurrence` `[gates * h, h]`, each with a bias; `separate`
    if the step adds that of the recurrence. Sequences have their first `lengths` steps, and are read from the last of these
    where they are read `backwards`.
    """
    steps, batch, wide = x.shape[0], x.shape[1], recurrence.shape[0]
    inputs = product(x.reshape((steps * batch, x.shape[2])), weights.swapaxes(0, 1))
    rest = None
    if biases is not None:
        first, rest = biases
        # one row, that of constants is made once
        inputs = inputs + (first if separate else first + rest)
    cell = Cell(
        inputs.reshape((steps, batch, wide)), recurrence.swapaxes(0, 1), rest if separate else None, peepholes, functions,
        recurrence.shape[1], order,
    )  # fmt: skip
    return _run(cell, step, state, lengths, backwards)
