"""Elementwise arithmetic that only graphs have: extremes of two tensors, division of integers, signs."""

from __future__ import annotations

import numpy as np

from mirage.ir.graph_operator import GraphElementwise
from mirage.ir.loops.scalars import Scalar, maximum, minimum, select
from mirage.ir.operator import NUMERIC, ORDERED, register
from mirage.ir.types import INTEGERS

# a NaN in either operand is the result's, as in NumPy
ELEMENTWISE_MAX = register(GraphElementwise("elementwise_max", 2, 2, takes=ORDERED, numpy=np.maximum, loops=maximum))
ELEMENTWISE_MIN = register(GraphElementwise("elementwise_min", 2, 2, takes=ORDERED, numpy=np.minimum, loops=minimum))

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


SIGN = register(GraphElementwise("sign", 1, 1, takes=NUMERIC, numpy=np.sign, loops=_sign))

_WHOLE = frozenset(INTEGERS)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    register(GraphElementwise(_name, 2, 2, takes=_WHOLE, numpy=getattr(np, _name), loops=None))
# by a count that is negative, or not below the bits of the type: 0, or -1 where a negative number is shifted right
for _name in ("left_shift", "right_shift"):
    register(GraphElementwise(_name, 2, 2, takes=_WHOLE, numpy=getattr(np, _name), loops=None))
