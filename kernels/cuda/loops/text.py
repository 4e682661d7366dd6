"""Kernels of loop programs as text: JSON of the program, the target and the sizes that they were compiled for; no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from mirage.errors import FormatError
from mirage.ir.codec import CUDA_LOOPS, within
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.kernels.cuda.device import CudaDevice, cuda_device


@dataclass(frozen=True)
class _Stored:
    program: str
    target: str
    hints: Mapping[str, Annotated[int, within(0, (1 << 63) - 1)]]


def parts_to_text(program: LoopProgram, device: CudaDevice, hints: Mapping[str, int]) -> str:
    """JSON on one line, of which `parts_from_text` makes the same again."""
    return CUDA_LOOPS.to_text(_Stored(program.to_text(), device.target, hints))


def parts_from_text(text: str) -> tuple[LoopProgram, CudaDevice, dict[str, int]]:
    """What `parts_to_text` wrote.

    Raises FormatError for any other text, ParseError and LoopError for another program, UnknownTarget.
    """
    found = CUDA_LOOPS.from_text(_Stored, text)
    program = parse_loops(found.program)
    if set(found.hints) != set(program.symbols):
        raise FormatError(f"kernel: hints must give sizes of {', '.join(program.symbols) or 'nothing'}")
    return program, cuda_device(found.target), dict(found.hints)
