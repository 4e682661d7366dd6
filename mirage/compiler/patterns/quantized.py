"""The pairs of the processor's products of quantized numbers, whose weights are packed once."""

from __future__ import annotations

from mirage.compiler.patterns.language import Match, op, value
from mirage.compiler.patterns.registry import register_pattern
from mirage.ir.graph.nodes import Constant
from mirage.kernels.cpu.launch.quantized import ACTIVATIONS


def _is_fitting(m: Match) -> bool:
    """Whether the weights never change."""
    w = m.operands["w"]
    return isinstance(w, Constant) or w in m.constants


_x, _w, _scale, _bias = value("x", dtype=ACTIVATIONS), value("w"), value("scale"), value("bias")
for _package in ("cpu", "torch"):
    for _name, _operands in (("quantized", (_x, _w, _scale)), ("quantized_bias", (_x, _w, _scale, _bias))):
        register_pattern(
            f"{_package}_{_name}",
            op("quantized_matmul", *_operands, name="product"),
            "cpu.quantized_matmul",
            _is_fitting,
            attributes=lambda m: {key: m.attr("product", key) for key in ("x_zero", "group", "relu", "zero")},
            package=_package,
        )
