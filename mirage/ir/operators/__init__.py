"""The built-in operators; importing this package registers them."""

from mirage.ir.operators import (
    casting,
    comparison,
    composite,
    contraction,
    convolution,
    creation,
    data_dependent,
    elementwise,
    in_place,
    indexing,
    movement,
    numeric,
    reduction,
    shape_operands,
    transcendental,
    windows,
)

__all__ = [
    "casting",
    "comparison",
    "composite",
    "contraction",
    "convolution",
    "creation",
    "data_dependent",
    "elementwise",
    "in_place",
    "indexing",
    "movement",
    "numeric",
    "reduction",
    "shape_operands",
    "transcendental",
    "windows",
]
