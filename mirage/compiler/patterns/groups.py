"""Groups of rows times a matrix `w` each, which may be read in another order."""

from __future__ import annotations

from mirage.compiler.patterns.language import Match, Pattern, op, value, view


def grouped(*dtypes: str) -> Pattern:
    """The pattern, of these element types."""
    w = value("w", dtype=dtypes, rank=3)
    return op("grouped_matmul", value("x"), view("transpose", w, name="right") | w, value("ends"), name="product")


def swaps_last(m: Match) -> bool:
    """Whether the matrices are read as they lie, or transposed."""
    return "right" not in m.calls or tuple(m.attr("right", "perm")) == (0, 2, 1)
