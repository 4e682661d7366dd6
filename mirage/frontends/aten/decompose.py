"""Which operators stay whole before a graph is imported, and which are split into ATen's core operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.export import default_decompositions

#: what the graph IR has, or makes better of, as one: torch would split it
WHOLE = (
    "scaled_dot_product_attention",
    "linear",
    "matmul",
    "layer_norm",
    "rms_norm",
    "silu",
    "native_layer_norm",
    "index_add",
    "index_copy",
    "index_fill",
    "roll",
    "select_scatter",
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The table for `ExportedProgram.run_decompositions` and AOTAutograd: torch's core operators and those of `WHOLE` stay."""
    table = default_decompositions()
    for op in list(table):
        if isinstance(op, torch._ops.OpOverload) and op._schema.name.partition("::")[2] in WHOLE:
            del table[op]
    return dict(table)
