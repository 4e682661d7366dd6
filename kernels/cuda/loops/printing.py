"""Text of Triton expressions: constants of a type, and parentheses where they are needed."""

from __future__ import annotations

import math

from mirage.ir.loops.scalars import Const
from mirage.ir.types import INTEGERS
from mirage.kernels.cuda.emit.values import bare
from mirage.kernels.cuda.loops.frame import VALUES


def times(text: str, factor: str) -> str:
    """Text of a product."""
    if factor == "1":
        return text
    return f"{text} * {factor}"


def is_number(text: str) -> bool:
    """Whether text is an integer."""
    return text.lstrip("-").isdigit()


def bare_constant(c: Const) -> str:
    """A constant beside an operand of its type."""
    if c.type in INTEGERS:
        return str(int(c.value)) if c.value >= 0 else f"({int(c.value)})"
    number = _float(c) if c.type == "float32" else math.nan
    if not math.isfinite(number):
        return typed(c)
    return repr(number) if number >= 0 else f"({number!r})"


def typed(c: Const) -> str:
    """A constant as a value of its type."""
    if c.type == "bool":
        return f"tl.full([], {bool(c.value)}, tl.int1)"
    if c.type in INTEGERS:
        return f"tl.full([], {int(c.value)}, {VALUES[c.type]})"
    number = _float(c)
    text = repr(number) if math.isfinite(number) else f'float("{number}")'
    return f"tl.full([], {text}, {VALUES[c.type]})"


def _float(c: Const) -> float:
    try:
        return float(c.value)
    except OverflowError:
        return math.inf if c.value > 0 else -math.inf


def ordered(text: str) -> str:
    """A boolean as what compares as 0 and 1."""
    return f"{parenthesized(text)}.to(tl.int32)"


def parenthesized(text: str) -> str:
    """Text to which a method call or an operator can be put."""
    if bare(text) != text or text.replace("_", "a").isalnum():
        return text
    return text if text.endswith(")") and " " not in text.split("(")[0] and _one_call(text) else f"({text})"


def _one_call(text: str) -> bool:
    """Whether text is one call, or a chain of them."""
    depth = 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if depth == 0 and c == " ":
            return False
    return True
