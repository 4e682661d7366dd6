"""Operators that torch defines by others, as AOTAutograd sees them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from mirage.frontends.aten.decompose import WHOLE


def kept_whole() -> AbstractContextManager[None]:
    """A context in which AOTAutograd leaves operators of `WHOLE` whole that it would split before it asks its table.

    Gradients of these operators are not known in it.
    """
    from torch.export.exported_program import _override_composite_implicit_decomp

    def left(*args: Any, **kwargs: Any) -> Any:
        return NotImplemented

    packets = [getattr(torch.ops.aten, name) for name in WHOLE]
    overloads = [getattr(p, name) for p in packets for name in p.overloads() if name != "out"]
    composite = [op for op in overloads if op._can_decompose()]
    found: AbstractContextManager[None] = _override_composite_implicit_decomp(dict.fromkeys(composite, left))
    return found
