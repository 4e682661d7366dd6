"""Predefined operators of an emitted muGraph: library calls on the tensors that its steps share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence
from typing import Any

import numpy as np

from mirage.ir.dims import evaluate
from mirage.ir.types import DTYPES
from mirage.kernels.cpu.stages import LibraryStage, library_stage
from mirage.kernels.cuda.emitted import EmittedTriton, PredefinedStep
from mirage.kernels.library import LibraryCalls
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph, Ref

#: makes library calls of a program, see `LibraryCalls`
Plan = Callable[..., LibraryCalls]


class PredefinedOperator:
    """One predefined operator, with the scalar constants that it reads; `plan` makes the calls, those of NumPy by default.

    `maximum` is `analyze(mugraph)`.
    """

    def __init__(
        self,
        mugraph: MuGraph,
        emitted: EmittedTriton,
        step: PredefinedStep,
        maximum: RunningMaximum,
        plan: Plan = LibraryCalls,
    ) -> None:
        nodes = mugraph.kernel.nodes
        operator = nodes[step.node]
        reads = list(zip(operator.operands, step.reads, strict=True))
        scalars = list(dict.fromkeys(r.node for r, t in reads if t < 0))
        # numbers past those of the tensors are the scalars'
        numbers = {Ref(i): len(emitted.tensors) + k for k, i in enumerate(scalars)}
        numbers |= {r: t for r, t in reads if t >= 0} | {Ref(step.node): step.writes}
        maxima = {s: (_axes(emitted, t), t) for s, t in step.maxima}
        self.stage: LibraryStage = library_stage(
            mugraph, [*scalars, step.node], emitted.axes, maximum, numbers, maxima, plan=plan
        )
        #: the tensors that it reads and writes
        self.tensors = tuple(t for t in sorted(self.stage.tensors()) if t < len(emitted.tensors))
        self.writes = step.writes
        self._emitted = emitted
        self._storage = DTYPES[mugraph.dtype]
        # cuBLASLt takes factors of one type; what is scaled first is computed, and rounded then
        self._rounded = bool(operator.reduce) and not step.maxima
        self._scalars = len(scalars)
        self._orders = {t: nodes[r.node].axes(r.out) for r, t in (*reads, (Ref(step.node), step.writes)) if t >= 0}

    def bind(self, arrays: Mapping[int, Any], sizes: Mapping[str, int], xp: Any = np) -> Callable[[], None]:
        """A function that runs the operator on these arrays, by tensor, of the library `xp`; `sizes` are those of the dim
        symbols.

        The array that it writes is contiguous.
        """
        extents = {a: evaluate(d, sizes) for a, d in self._emitted.axes.items()}
        values = self.stage.calls.values(sizes)
        memory: MutableSequence[Any] = [None] * len(self._emitted.tensors)
        memory += [xp.zeros((), np.float32) for _ in range(self._scalars)]

        def prepare(t: int) -> Any:
            own = _axes(self._emitted, t)
            array = arrays[t]
            if self._rounded and xp is not np and t != self.writes and array.dtype != self._storage:
                array = array.astype(self._storage)
            array = array.reshape([extents[a] for a in own])
            return array.transpose([own.index(a) for a in self._orders.get(t, own)])

        memory[self.writes] = prepare(self.writes)

        def run() -> None:
            now = list(memory)
            for t in self.tensors:
                if t != self.writes:
                    # a reshape may copy, and contents change between runs
                    now[t] = prepare(t)
            self.stage.run(list(values), extents, now)

        return run


def _axes(emitted: EmittedTriton, t: int) -> tuple[str, ...]:
    return tuple(a for d in emitted.tensors[t].axes for a in d)
