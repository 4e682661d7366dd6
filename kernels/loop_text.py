"""Kernels of loop programs as text: JSON of the program, the target and the sizes that they were compiled for; no code."""

from __future__ import annotations

import json
from collections.abc import Mapping

from mirage.errors import FormatError
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.kernels.text import kernel_fields

#: version of the form
SCHEMA = 1

_FORMAT = "mirage loops"
_FIELDS = {"format", "schema", "program", "target", "hints"}


def parts_to_text(program: LoopProgram, target: str, hints: Mapping[str, int]) -> str:
    """JSON on one line, of which `parts_from_text` makes the same again."""
    fields = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "program": program.to_text(),
        "target": target,
        "hints": dict(hints),
    }
    return json.dumps(fields, separators=(",", ":"))


def parts_from_text(text: str) -> tuple[LoopProgram, str, dict[str, int]]:
    """What `parts_to_text` wrote.

    Raises FormatError for any other text, ParseError and LoopError for another program.
    """
    obj = kernel_fields(text, _FIELDS, _FORMAT, SCHEMA)
    if not isinstance(obj["program"], str) or not isinstance(obj["target"], str):
        raise FormatError("kernel: program and target must be texts")
    program, hints = parse_loops(obj["program"]), obj["hints"]
    if not isinstance(hints, dict) or set(hints) != set(program.symbols):
        raise FormatError(f"kernel: hints must give sizes of {', '.join(program.symbols) or 'nothing'}")
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in hints.values()):
        raise FormatError("kernel: hints must be sizes")
    return program, obj["target"], hints
