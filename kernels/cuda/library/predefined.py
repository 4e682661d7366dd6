"""Predefined operators of an emitted muGraph: library calls on the tensors that its steps share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any

import numpy as np

from mirage.ir.dims import evaluate
from mirage.kernels.cpu.emit.stages import LibraryStage, library_stage
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.emitted import EmittedTriton, PredefinedStep
from mirage.kernels.cuda.library.libraries import library
from mirage.kernels.cuda.library.program import CudaLibraryCalls
from mirage.kernels.library_calls import Arrays, LibraryCalls
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph, Ref

#: makes library calls of a program, see `LibraryCalls`
MakeCalls = Callable[..., LibraryCalls]


class PredefinedOperators:
    """Predefined operators that follow one another, with the scalar constants that they read; `plan` makes the calls, those of
    NumPy by default.

    `maximum` is `analyze(mugraph)`.
    """

    def __init__(
        self,
        mugraph: MuGraph,
        emitted: EmittedTriton,
        steps: Sequence[PredefinedStep],
        maximum: RunningMaximum,
        plan: MakeCalls = LibraryCalls,
    ) -> None:
        nodes = mugraph.kernel.nodes
        run = [s.node for s in steps]
        reads = [(r, t) for s in steps for r, t in zip(nodes[s.node].operands, s.reads, strict=True)]
        scalars = list(dict.fromkeys(r.node for r, t in reads if t < 0))
        # numbers past those of the tensors are the scalars'
        numbers = {Ref(i): len(emitted.tensors) + k for k, i in enumerate(scalars)}
        numbers |= {r: t for r, t in reads if t >= 0} | {Ref(s.node): s.writes for s in steps}
        maxima = {s: (_axes(emitted, t), t) for step in steps for s, t in step.maxima}
        self.stage: LibraryStage = library_stage(
            mugraph, [*scalars, *run], emitted.axes, maximum, numbers, maxima, plan=plan
        )
        #: the tensors that they read and write
        self.tensors = tuple(t for t in sorted(self.stage.tensors()) if t < len(emitted.tensors))
        self.writes = frozenset(w.tensor for w in (*self.stage.writes, *self.stage.copies)).intersection(self.tensors)
        self._emitted = emitted
        self._scalars = len(scalars)
        together = (*reads, *((Ref(s.node), s.writes) for s in steps))
        self._orders = {t: nodes[r.node].axes(r.out) for r, t in together if t >= 0}

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """Compile what the library needs at these sizes of the dim symbols; needs no device. Raises CompilerError."""
        assert isinstance(self.stage.calls, CudaLibraryCalls)
        self.stage.calls.prepare({a: evaluate(d, sizes) for a, d in self._emitted.axes.items()})

    def bind(self, arrays: Mapping[int, Any], sizes: Mapping[str, int], xp: Any = np) -> Callable[[], None]:
        """A function that runs the operators on these arrays, by tensor, of the library `xp`; `sizes` are those of the dim
        symbols.

        The arrays that they write are contiguous.
        """
        extents = {a: evaluate(d, sizes) for a, d in self._emitted.axes.items()}
        values = self.stage.calls.values(sizes)
        memory: MutableSequence[Any] = [None] * len(self._emitted.tensors)
        memory += [xp.zeros((), np.float32) for _ in range(self._scalars)]

        def prepare(t: int) -> Any:
            own = _axes(self._emitted, t)
            array = arrays[t].reshape([extents[a] for a in own])
            return array.transpose([own.index(a) for a in self._orders.get(t, own)])

        for t in self.writes:
            memory[t] = prepare(t)

        def run() -> None:
            now = list(memory)
            for t in self.tensors:
                if t not in self.writes:
                    # a reshape may copy, and contents change between runs
                    now[t] = prepare(t)
            self.stage.run(list(values), extents, now)

        return run


def library_operators(
    mugraph: MuGraph,
    emitted: EmittedTriton,
    steps: Sequence[PredefinedStep],
    maximum: RunningMaximum,
    device: CudaDevice,
    arrays: Arrays,
) -> PredefinedOperators:
    """These operators as calls of the library that the schedule names, on `arrays`."""
    # by the names of inputs that `library_stage` gives them
    types = {f"tensor{t}": emitted.tensors[t].dtype for s in steps for t in s.reads if t >= 0}
    plan = library(emitted.library).calls(device, types, arrays)
    return PredefinedOperators(mugraph, emitted, steps, maximum, plan)


def _axes(emitted: EmittedTriton, t: int) -> tuple[str, ...]:
    return tuple(a for d in emitted.tensors[t].axes for a in d)
