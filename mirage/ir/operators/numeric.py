"""Elementwise arithmetic that only graphs have: extremes of two tensors, division of integers, signs, and where gradients end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mirage.ir.gradient import Cotangents, Emitter
from mirage.ir.graph_operator import GraphElementwise
from mirage.ir.loops.scalars import Scalar, maximum, minimum, select
from mirage.ir.operator import NUMERIC, ORDERED, register
from mirage.ir.types import INTEGERS


def _extreme_back(condition: str) -> Callable[..., Cotangents]:
    """All of the cotangent for the operand that is the extreme one, half of it for each of two that are equal."""

    def rule(b: Emitter, g: Any, x: Any, y: Any, out: Any) -> Cotangents:
        half, tie = b.mul(g, 0.5), b.op("equal", x, y)
        first, second = (b.where(b.op(condition, *pair), g) for pair in ((x, y), (y, x)))
        return b.where(tie, half, first), b.where(tie, half, second)

    return rule


# a NaN in either operand is the result's, as in NumPy
ELEMENTWISE_MAX, ELEMENTWISE_MIN = (
    register(
        GraphElementwise(
            f"elementwise_{_which}", 2, 2, takes=ORDERED, numpy=_numpy, loops=_loops, backward=_extreme_back(_condition)
        )
    )
    for _which, _numpy, _loops, _condition in (
        ("max", np.maximum, maximum, "greater"),
        ("min", np.minimum, minimum, "less"),
    )
)

# rounded down; 0 where the divisor is 0, as in NumPy
FLOOR_DIVIDE = register(
    GraphElementwise("floor_divide", 2, 2, takes=frozenset(INTEGERS), numpy=np.floor_divide, loops=lambda x, y: x // y)
)
# with the divisor's sign; 0 where the divisor is 0
REMAINDER = register(
    GraphElementwise("remainder", 2, 2, takes=frozenset(INTEGERS), numpy=np.remainder, loops=lambda x, y: x % y)
)


def _sign(x: Scalar) -> Scalar:
    # NaN stays NaN, as it is in none of the cases
    return select(x > 0, 1, select(x < 0, -1, x))


SIGN = register(
    GraphElementwise("sign", 1, 1, takes=NUMERIC, numpy=np.sign, loops=_sign, backward=lambda b, g, x, y: (None,))
)

# its operand; gradients take it for a constant
STOP_GRADIENT = register(
    GraphElementwise(
        "stop_gradient", 1, 1, numpy=lambda x: x.copy(), loops=lambda x: x, backward=lambda b, g, x, y: (None,)
    )
)

_WHOLE = frozenset(INTEGERS)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    register(GraphElementwise(_name, 2, 2, takes=_WHOLE, numpy=getattr(np, _name), loops=None))
# by a count that is negative, or not below the bits of the type: 0, or -1 where a negative number is shifted right
for _name in ("left_shift", "right_shift"):
    register(GraphElementwise(_name, 2, 2, takes=_WHOLE, numpy=getattr(np, _name), loops=None))
