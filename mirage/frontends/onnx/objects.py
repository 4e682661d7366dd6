"""Values of ONNX that are no tensors, as programs have them: without onnx, which what is saved runs without."""

from __future__ import annotations

from typing import Any


def listed(x: Any) -> Any:
    """A sequence as a list, as ONNX has it."""
    return [listed(v) for v in x] if isinstance(x, tuple) else x
