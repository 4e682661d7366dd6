"""The Triton sources of one loop program, by what sizes decide: block sizes, and whether 32-bit indices suffice."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from mirage.ir.loops.program import LoopProgram
from mirage.ir.loops.simplify import simplify_program
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.loops.emit import EmittedLoops, emit, tensors_of
from mirage.kernels.cuda.loops.ranges import narrow
from mirage.kernels.cuda.loops.schedule import HintedDivision, LoopSchedule, choose
from mirage.kernels.cuda.loops.stitch import stitch
from mirage.kernels.cuda.loops.structure import Division

#: the size that dims without a hint are taken to have
_TYPICAL = 1024


class LoopVersions:
    """A loop program in kernels for a device, which sizes like `hints` (dim symbol -> size) decide; any sizes may be asked for.

    `kernels` are the launches in order, `tensors` what they read and write, of which the last `workspace` are handed on
    between them. `division` replaces the one for these hints.
    """

    def __init__(
        self, program: LoopProgram, device: CudaDevice, hints: Mapping[str, int], division: Division | None = None
    ) -> None:
        self.program = program
        self.device = device
        self.hints = {s: int(hints.get(s, _TYPICAL)) for s in program.symbols}
        simplified = simplify_program(program)
        self.kernels = stitch(simplified, division or HintedDivision(simplified, device, self.hints))
        self.tensors, self.workspace = tensors_of(program, self.kernels)
        self._lock = threading.Lock()
        self._emitted: dict[tuple[Any, ...], EmittedLoops] = {}

    def schedules(self, sizes: Mapping[str, int]) -> tuple[LoopSchedule, ...]:
        """How the kernels are divided at these sizes."""
        tensors = {t.name: t for t in self.tensors}
        return tuple(choose(k, tensors, sizes, self.device) for k in self.kernels)

    def emitted(self, sizes: Mapping[str, int]) -> EmittedLoops:
        """The source for these sizes."""
        schedules = self.schedules(sizes)
        index = "i32" if narrow(self.kernels, self.tensors, sizes) else "i64"
        key = (index, *schedules)
        with self._lock:
            if key not in self._emitted:
                self._emitted[key] = emit(self.program, self.kernels, schedules, index)
            return self._emitted[key]
