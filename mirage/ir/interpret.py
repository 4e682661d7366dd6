"""The meaning of a program: its operators evaluated in order over any arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np

from mirage.ir.arithmetic import Arithmetic, FloatArithmetic, Floats
from mirage.ir.operator import get_operator
from mirage.ir.program import Node, Program

A = TypeVar("A")

#: a way to run a program: its results for arrays, at sizes (dim symbol -> elements)
Runner: TypeAlias = Callable[[Sequence[np.ndarray], Mapping[str, int]], list[np.ndarray]]


def evaluate_nodes(
    nodes: Sequence[Node], inputs: Sequence[A], ar: Arithmetic[A], inside: bool = False
) -> list[A]:
    """The value of every node, given those of the input nodes in order.

    Results are what a tensor of the arithmetic's type stores, but for the operators `inside` another one.
    """
    given = iter(inputs)
    values: list[A] = []
    shapes: list[tuple[int, ...]] = []
    for n in nodes:
        if n.op == "input":
            values.append(next(given))
        else:
            op = get_operator(n.op)
            value = op.evaluate(ar, [values[i] for i in n.inputs], n.attr, [shapes[i] for i in n.inputs])
            # a constant has no type of its own until it meets a tensor
            values.append(value if inside or n.type.dtype == "scalar" else ar.stored(value))
        shapes.append(n.type.bind(ar.sizes))
    return values


def evaluate(program: Program, inputs: Sequence[A], ar: Arithmetic[A]) -> list[A]:
    """The outputs of a program over an arithmetic, for inputs of the shapes that `ar.sizes` binds."""
    values = evaluate_nodes(program.nodes, inputs, ar)
    return [values[i] for i in program.outputs]


def run_reference(
    program: Program,
    inputs: Sequence[Any],
    sizes: Mapping[str, int],
    dtype: str | None = None,
    arithmetic: Floats = FloatArithmetic,
) -> list[Any]:
    """The outputs with NumPy, in the program's dtype or another; the yardstick for every kernel.

    A 16-bit type is what each operator's result is rounded to; the operator itself computes in float32.
    """
    ar = arithmetic(sizes, dtype or program.dtype)
    with np.errstate(all="ignore"):
        found = evaluate(program, [ar.xp.asarray(x, dtype=ar.dtype) for x in inputs], ar)
        return [y.astype(ar.storage, copy=False) for y in found]
