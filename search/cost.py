"""The cost model that orders a search: work at the hinted sizes, in nanoseconds on one core of a rough machine.

It decides only what is looked at first; what is returned is decided by measurement.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mirage.ir.operator import Elementwise, get_operator

#: ns per multiply-add of a matmul by how many of its operands are reused: both (rows and columns), one, none
MATMUL_NS = (0.03, 0.05, 0.12)
#: ns per element of other operators
SUM_NS = 0.06
FLOP_NS = 0.04
#: ns per element written to and read back from another kernel
TRANSFER_NS = 0.6
#: ns to run one operator of a block at all
OPERATOR_NS = 20.0
#: ns to start a kernel
LAUNCH_NS = 3000.0
#: loop tile (elements) and grid splits assumed while nothing is scheduled yet
LOOP_TILE = 128
SPLITS = 8


class CostModel:
    """Costs of operators over axes of known (hinted) sizes; partial axes `a.grid` have `SPLITS` elements."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes

    def volume(self, axes: Sequence[str]) -> float:
        return math.prod(self.sizes.get(a, SPLITS) for a in axes)

    def iterations(self, axis: str | None) -> float:
        return math.ceil(self.sizes[axis] / LOOP_TILE) if axis is not None else 1

    def matmul(self, x: Sequence[str], y: Sequence[str], repeats: float) -> float:
        """ns of a matmul of block tensors with these axes, run `repeats` times."""
        unused = (set(x) <= set(y)) + (set(y) <= set(x))
        return OPERATOR_NS + self.volume(list(dict.fromkeys([*x, *y]))) * repeats * MATMUL_NS[unused]

    def operator(self, op: str, space: Sequence[str], repeats: float) -> float:
        """ns of one operator over an iteration space (axes of the result and reduced ones), run `repeats` times."""
        volume = self.volume(space) * repeats
        if op in ("sum", "accumulator", "concat"):
            return OPERATOR_NS + volume * SUM_NS
        definition = get_operator(op)
        assert isinstance(definition, Elementwise)
        return OPERATOR_NS + volume * FLOP_NS * max(definition.flops, 1)

    def transfer(self, axes: Sequence[str]) -> float:
        """ns to hand a tensor from one kernel to the next."""
        return self.volume(axes) * TRANSFER_NS
