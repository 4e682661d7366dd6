"""Kernels of loop programs as text: JSON of the program, the target and the sizes that they were compiled for; no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from mirage.errors import FormatError
from mirage.ir.codec import LOOPS, within
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram


@dataclass(frozen=True)
class _Stored:
    program: str
    target: str
    hints: Mapping[str, Annotated[int, within(0, (1 << 63) - 1)]]


def parts_to_text(program: LoopProgram, target: str, hints: Mapping[str, int]) -> str:
    """JSON on one line, of which `parts_from_text` makes the same again."""
    return LOOPS.to_text(_Stored(program.to_text(), target, hints))


def parts_from_text(text: str) -> tuple[LoopProgram, str, dict[str, int]]:
    """What `parts_to_text` wrote.

    Raises FormatError for any other text, ParseError and LoopError for another program.
    """
    found = LOOPS.from_text(_Stored, text)
    program = parse_loops(found.program)
    if set(found.hints) != set(program.symbols):
        raise FormatError(f"kernel: hints must give sizes of {', '.join(program.symbols) or 'nothing'}")
    return program, found.target, dict(found.hints)
