"""Products of block tensors: tensor cores (`tl.dot`), or sums of elementwise products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mirage.kernels.cuda.emit_values import Dims, Group, Space, Value

#: the least extent that tl.dot sums over, for all types that programs have; it pads rows and columns itself
MIN_DEPTH = 16


@dataclass(frozen=True)
class Product:
    """How one product of two operands is computed.

    `left` and `right` are the operands' dims as they are multiplied, `dims` those of the result: (batch,) rows, columns
    for `dot`, where dims of no group are of extent 1. Else the operands' dims are the groups of both, of which those in
    `over` are summed.
    """

    dot: bool
    left: Dims
    right: Dims
    dims: Dims
    over: tuple[Group, ...]


def plan_product(space: Space, x: Value, y: Value, over: Sequence[Group], dot: bool) -> Product:
    """Plan x * y summed over the groups `over`, with tensor cores if `dot` and there is enough to sum."""
    a, b = ({g for d in v.dims for g in d} for v in (x, y))
    deep = tuple(space.ordered(set(over) & a & b))
    if dot and space.extent(deep) >= MIN_DEPTH and set(over) <= a & b:
        batch = tuple(space.ordered((a & b) - set(over)))
        rows, cols = (tuple(space.ordered(own - other)) for own, other in ((a, b), (b, a)))
        lead: Dims = (batch,) if batch else ()
        return Product(True, (*lead, rows, deep), (*lead, deep, cols), (*lead, rows, cols), deep)
    both = space.dims(a | b)
    rest = space.dims((a | b) - set(over))
    return Product(False, both, both, rest, tuple(space.ordered(set(over) & (a | b))))


def dot_text(left: str, right: str, accumulator: str, exact: bool) -> str:
    """A call of tl.dot; float32 operands are multiplied as such (`exact`), not as tf32."""
    more = f", acc={accumulator}" if accumulator else ""
    precision = ', input_precision="ieee"' if exact else ""
    return f"tl.dot({left}, {right}{more}{precision})"
