"""The pairs of the processor's products of quantized numbers, whose weights are packed once."""

from __future__ import annotations

from typing import Any

from mirage.compiler.patterns.language import Match, op, value, view
from mirage.compiler.patterns.registry import register_pattern
from mirage.ir.graph.nodes import Constant
from mirage.kernels.cpu.launch.quantized import ACTIVATIONS


def _is_fitting(m: Match) -> bool:
    """Whether the weights never change."""
    w = m.operands["w"]
    return isinstance(w, Constant) or w in m.constants


def _attributes(m: Match) -> dict[str, Any]:
    found = {key: m.attr("product", key) for key in ("x_zero", "group", "relu", "zero")}
    return found | ({"right": tuple(m.attr("right", "perm"))} if "right" in m.calls else {})


_x, _w, _scale, _bias = value("x", dtype=ACTIVATIONS), value("w", rank=2), value("scale"), value("bias")
_w = view("transpose", _w, name="right") | _w
for _package in ("cpu", "torch"):
    for _name, _operands in (("quantized", (_x, _w, _scale)), ("quantized_bias", (_x, _w, _scale, _bias))):
        register_pattern(
            f"{_package}_{_name}",
            op("quantized_matmul", *_operands, name="product"),
            "cpu.quantized_matmul",
            _is_fitting,
            attributes=_attributes,
            package=_package,
        )
