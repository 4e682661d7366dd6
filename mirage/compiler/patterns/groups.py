"""Groups of rows times a matrix `w` each, which may be read in another order."""

from __future__ import annotations

from typing import Any

from mirage.compiler.patterns.language import Match, Pattern, op, value, view
from mirage.kernels.cpu.launch.linear import ACTIVATIONS


def grouped(*dtypes: str, w: str = "w", right: str = "right") -> Pattern:
    """The pattern, of these element types, with names of the matrices and of the order in which they are read."""
    matrices = value(w, dtype=dtypes, rank=3)
    return op("grouped_matmul", value("x"), view("transpose", matrices, name=right) | matrices, value("ends"))


def gated(*dtypes: str) -> Pattern:
    """A function of such products times those of other matrices, the gate."""
    product = op(ACTIVATIONS, grouped(*dtypes), name="activation")
    return op("mul", product, grouped(*dtypes, w="gate", right="gate_right"), commutative=True)


def swaps_last(m: Match) -> bool:
    """Whether the matrices are read as they lie, or transposed, and those of a gate alike."""
    order, of_gate = (m.attr(name, "perm") for name in ("right", "gate_right"))
    return order in (None, (0, 2, 1)) and ("gate" not in m.operands or of_gate == order)


def group_attributes(m: Match) -> dict[str, Any]:
    """The attributes `right`, `gated` and `activation` of a library function."""
    found: dict[str, Any] = {"right": tuple(m.attr("right", "perm"))} if "right" in m.calls else {}
    return found | ({"gated": True, "activation": m.calls["activation"].op} if "gate" in m.operands else {})
