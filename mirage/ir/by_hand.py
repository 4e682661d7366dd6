"""Softmaxes as they are written by hand: the greatest element of each row is subtracted before `exp`, and cancels.

As operators of their own they are sums and products to a search, which finds running maxima itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class Made(NamedTuple, Generic[Value]):
    """An operator's operands and attributes."""

    args: Sequence[Value]
    attrs: Mapping[str, Any]


class ByHand(NamedTuple, Generic[Value]):
    """The operator that a value is the result of, its operand and the axis."""

    op: str
    x: Value
    axis: int


def softmax_by_hand(
    op: str, args: Sequence[Value], rank: int, made_by: Callable[[Value, str], Made[Value] | None]
) -> ByHand[Value] | None:
    """The softmax or log_softmax that an application of an operator to these operands is, if any.

    `rank` is that of its result; `made_by(value, op)` is the application of `op` that makes a value, None if another one does.
    With z = x - max(x), they are exp(z) / sum(exp(z)) and z - log(sum(exp(z))), both reductions along one axis that stays.
    """

    def axis_of(reduced: Made[Value] | None) -> int | None:
        if reduced is None or len(reduced.attrs["axes"]) != 1 or not reduced.attrs["keepdims"]:
            return None
        return int(reduced.attrs["axes"][0] % rank)

    log = made_by(args[1], "log") if op == "sub" else None
    if op != "div" and log is None:
        return None
    total = made_by(args[1] if log is None else log.args[0], "sum")
    exp = made_by(total.args[0], "exp") if total is not None else None
    shifted = made_by(exp.args[0], "sub") if exp is not None else None
    greatest = made_by(shifted.args[1], "max") if shifted is not None else None
    if total is None or exp is None or shifted is None or greatest is None:
        return None
    x, axis = shifted.args[0], axis_of(greatest)
    first = total.args[0] if log is None else exp.args[0]
    if args[0] != first or greatest.args[0] != x or axis is None or axis_of(total) != axis:
        return None
    return ByHand("softmax" if log is None else "log_softmax", x, axis)
