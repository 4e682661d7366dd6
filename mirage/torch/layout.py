"""Outputs with their dims in the order that eager mode gives them in memory: those of programs are contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch


def arranged(value: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """What gives a contiguous tensor the strides of a fake one; None where it has these, or strides with gaps.

    The order of dims is read from the sizes of the example, which adds no guard, and checked for all sizes.
    """
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.ndim < 2:
        return None
    sizes, strides = [_expression(n) for n in value.shape], [_expression(n) for n in value.stride()]
    hints = [_hint(n) for n in value.stride()]
    order = sorted(range(value.ndim), key=lambda k: (-hints[k], k))
    if order == list(range(value.ndim)) or not _dense([sizes[k] for k in order], [strides[k] for k in order]):
        return None
    back = sorted(range(value.ndim), key=order.__getitem__)
    return lambda x: x.permute(order).contiguous().permute(back)


def _dense(sizes: list[sympy.Expr], strides: list[sympy.Expr]) -> bool:
    """Whether elements of dims in this order follow each other without gaps; strides of dims of one element mean nothing."""
    step = sympy.Integer(1)
    for n, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if n != 1 and sympy.expand(stride - step) != 0:
            return False
        step *= n
    return True


def _expression(n: int | torch.SymInt) -> sympy.Expr:
    return sympy.Integer(n) if isinstance(n, int) else n.node.expr


def _hint(n: int | torch.SymInt) -> int:
    return n if isinstance(n, int) else n.node.hint or 0
