"""What programs cost as modelled, before anything is searched: as one kernel, and operator by operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from mirage.ir.axes import AxisProgram
from mirage.ir.types import DTYPES
from mirage.search.computed import SOURCES
from mirage.search.cost import Cost, CostModel, Place
from mirage.search.options import SearchOptions


class Prices:
    """What programs over the axes of one cost as modelled (ns)."""

    def __init__(self, model: CostModel) -> None:
        self.model = model

    @staticmethod
    def of(program: AxisProgram, axis_sizes: Mapping[str, int], options: SearchOptions) -> Prices:
        """At these sizes of the axes."""
        free = [a for a, d in program.axes.items() if d.free_symbols]
        return Prices(CostModel(axis_sizes, free, DTYPES[program.dtype].itemsize, options.rates))

    def together(self, program: AxisProgram) -> float:
        """One kernel that repeats no work."""
        stored = [x.axes for x in program.inputs] + [program.nodes[o.value].axes for o in program.outputs]
        cost = self.model.launch() + sum(self.model.written(axes) for axes in stored)
        return self.model.total(cost + sum(self._operators(program)))

    def apart(self, program: AxisProgram) -> float:
        """Every operator by itself, as a library has it."""
        cost = np.zeros(self.model.length)
        for n in program.nodes:
            if n.op not in SOURCES:
                tensors = [*(program.nodes[j].axes for j in n.operands), n.axes]
                cost = cost + self.model.launch() + sum(self.model.written(axes) for axes in tensors)
        return self.model.total(cost + sum(self._operators(program)))

    def _operators(self, program: AxisProgram) -> Iterator[Cost]:
        for n in program.nodes:
            if n.op not in SOURCES:
                operands = [program.nodes[j].axes for j in n.operands]
                yield self.model.operator(n.op, operands, n.axes, Place((), (), None), varying=False, whole=True)
