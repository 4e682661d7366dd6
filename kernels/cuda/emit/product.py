"""Products of block tensors: tensor cores (`tl.dot`), or sums of elementwise products."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mirage.kernels.cuda.emit.values import Dims, Group, Space, Value
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule

#: the least extent that tl.dot sums over, for all types that programs have; it pads rows and columns itself
MIN_DEPTH = 16


@dataclass(frozen=True)
class Product:
    """How one product of two operands is computed.

    `left` and `right` are the dims of the operands, the second one first if `swapped`, `dims` those of the result: (batch,)
    rows, columns for `dot`, where dims of no group are of extent 1. Else the operands' dims are the groups of both, of
    which those in `over` are summed.
    """

    dot: bool
    left: Dims
    right: Dims
    dims: Dims
    over: tuple[Group, ...]
    swapped: bool = False


def plan_product(
    space: Space, operands: tuple[Value, Value], over: Collection[Group], schedule: CudaKernelSchedule
) -> Product:
    """Plan the product of two operands summed over the groups `over`: with tensor cores if the schedule says so and there
    is enough to sum.
    """
    a, b = ({g for d in v.dims for g in d} for v in operands)
    deep = tuple(space.ordered(set(over) & a & b))
    if schedule.dot and space.extent(deep) >= MIN_DEPTH and set(over) <= a & b:
        batch = tuple(space.ordered((a & b) - set(over)))
        rows, cols = (tuple(space.ordered(own - other)) for own, other in ((a, b), (b, a)))
        if schedule.swap:
            rows, cols = cols, rows
        lead: Dims = (batch,) if batch else ()
        dims = ((*lead, rows, deep), (*lead, deep, cols), (*lead, rows, cols))
        return Product(True, *dims, deep, schedule.swap)
    both = space.dims(a | b)
    rest = space.dims((a | b) - set(over))
    return Product(False, both, both, rest, tuple(space.ordered(set(over) & (a | b))))


def dot_text(left: str, right: str, accumulator: str, exact: bool) -> str:
    """A call of tl.dot; float32 operands are multiplied as such (`exact`), not as tf32."""
    more = f", acc={accumulator}" if accumulator else ""
    precision = ', input_precision="ieee"' if exact else ""
    return f"tl.dot({left}, {right}{more}{precision})"
