"""Rows times a matrix `w`, which may be transposed, a `bias` that is added to each row, and a function of each element: what
library functions of products with weights compute.
"""

from __future__ import annotations

from typing import Any

from mirage.compiler.patterns.language import Match, Pattern, op, optional, value, view
from mirage.ir.graph.deduce import deduce
from mirage.ir.types import TensorType
from mirage.kernels.cpu.launch.linear import ACTIVATIONS


def linear(w: Pattern, dtype: str = "float32") -> Pattern:
    """The pattern, of a matrix that this one matches; all else is of an element type."""
    product = op("matmul", value("x", dtype=dtype), view("transpose", w, name="right") | w, name="product")
    bias = value("bias", dtype=dtype)
    total = optional(product, lambda p: op("add", p, bias, commutative=True, name="bias"))
    return optional(total, lambda p: op(ACTIVATIONS, p, name="activation"))


def adds_a_row(m: Match) -> bool:
    """Whether what is added, if anything, is the same for each row."""
    product, bias = deduce(m.calls["product"], {}), m.type("bias") if "bias" in m.operands else None
    if not isinstance(product, TensorType):
        return False
    return bias is None or (isinstance(bias, TensorType) and bias.shape == product.shape[-1:])


def linear_attributes(m: Match) -> dict[str, Any]:
    """The attributes `right`, `bias` and `activation` of a library function."""
    found: dict[str, Any] = {"right": tuple(m.attr("right", "perm"))} if "right" in m.calls else {}
    if "bias" in m.calls:
        found["bias"] = True
    return found | ({"activation": m.calls["activation"].op} if "activation" in m.calls else {})
