"""Kernels of loop programs as text: JSON of the program, the target and the sizes that they were compiled for; no code."""

from __future__ import annotations

import json

from mirage.errors import FormatError
from mirage.ir.loops.parse import parse_loops
from mirage.kernels.cuda.device import cuda_device
from mirage.kernels.cuda.loops.kernel import CudaLoopKernel
from mirage.kernels.text import kernel_fields

#: version of the form
SCHEMA = 1

_FORMAT = "mirage cuda loops"
_FIELDS = {"format", "schema", "program", "target", "hints"}


def cuda_loops_to_text(kernel: CudaLoopKernel) -> str:
    """JSON on one line, of which `cuda_loops_from_text` makes the kernel again."""
    fields = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "program": kernel.program.to_text(),
        "target": kernel.device.target,
        "hints": dict(kernel.hints),
    }
    return json.dumps(fields, separators=(",", ":"))


def cuda_loops_from_text(text: str) -> CudaLoopKernel:
    """The kernel that `cuda_loops_to_text` wrote, compiled for its target where that is not cached.

    Raises FormatError for any other text, ParseError and LoopError for another program, UnknownTarget, and what
    `CudaLoopKernel` raises.
    """
    obj = kernel_fields(text, _FIELDS, _FORMAT, SCHEMA)
    if not isinstance(obj["program"], str) or not isinstance(obj["target"], str):
        raise FormatError("kernel: program and target must be texts")
    program, hints = parse_loops(obj["program"]), obj["hints"]
    if not isinstance(hints, dict) or set(hints) != set(program.symbols):
        raise FormatError(f"kernel: hints must give sizes of {', '.join(program.symbols) or 'nothing'}")
    if not all(type(n) is int and 0 <= n < 1 << 63 for n in hints.values()):
        raise FormatError("kernel: hints must be sizes")
    return CudaLoopKernel(program, cuda_device(obj["target"]), hints)
