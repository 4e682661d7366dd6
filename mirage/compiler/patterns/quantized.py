"""The pairs of the processor's products with narrow weights, which are packed once: of quantized numbers, of real ones, and of
weights that users want to be stored so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage.compiler.patterns.groups import group_attributes, grouped, swaps_last
from mirage.compiler.patterns.language import Match, Pattern, op, value, view
from mirage.compiler.patterns.linear import adds_a_row, linear, linear_attributes
from mirage.compiler.patterns.registry import Attributes, Check, register_pattern
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Constant
from mirage.ir.types import HALVES, TensorType, is_one
from mirage.kernels.cpu.launch.quantized import ACTIVATIONS

#: what the weights of products may be stored in, as packages of patterns, with attributes of `cpu.narrowed_matmul`: how many
#: terms have one scale, all of a column for 0, whether they are multiplied as whole numbers, and their type if not int8
NARROW: Mapping[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"}, "int8": {"group": 0}, "int8/32": {"group": 32}, "int8/128": {"group": 128},
    "int8/dynamic": {"group": 0, "dynamic": True},
}  # fmt: skip


def _has_constant_weights(m: Match) -> bool:
    w = m.operands["w"]
    return isinstance(w, Constant) or w in m.constants


def _is_transposed(m: Match) -> dict[str, Any]:
    return {"right": tuple(m.attr("right", "perm"))} if "right" in m.calls else {}


def _quantized_attributes(m: Match) -> dict[str, Any]:
    x, found = m.type("x"), {key: m.attr("product", key) for key in ("x_zero", "group", "relu", "zero", "shift")}
    wide = {"wide": True} if isinstance(x, TensorType) and x.dtype == "int16" else {}
    return found | wide | _is_transposed(m)


def _has_one_scale(m: Match) -> bool:
    """Whether there is one known scale, and one known zero point, if any."""
    known = [m.operands[name] for name in ("scale", "zero") if name in m.operands]
    fits = all(isinstance(a, Constant) and a.array.size == 1 for a in known)
    return fits and not m.attr("whole", "group") and isinstance(deduce(m.calls["whole"], {}), TensorType)


def _scale_and_zero(m: Match) -> dict[str, Any]:
    scale, zero = m.operands["scale"], m.operands.get("zero")
    assert isinstance(scale, Constant)
    found = {"scale": float(scale.array.reshape(()))}
    return found | ({"zero": int(zero.array.reshape(()))} if isinstance(zero, Constant) else {})


def _windows_attributes(m: Match) -> dict[str, Any]:
    found = {key: value for key, value in m.calls["windows"].attrs if key != "dtype"}
    # numbers of attributes are exact, those of libraries are not
    return {key: float(value) if key in ("other_scale", "least", "most") else value for key, value in found.items()}


def _scales_columns(m: Match) -> bool:
    """Whether the weights never change, and their scales are those of columns, or of groups of terms."""
    w, scale = m.type("w"), m.type("scale")
    if not isinstance(w, TensorType) or not isinstance(scale, TensorType) or not _has_constant_weights(m) or not adds_a_row(m):
        return False
    axis, group = m.attr("real", "axis") % 2, m.attr("real", "group")
    if group:
        return axis == 0 and "right" not in m.calls
    return scale.rank == 0 or is_one(scale.shape[0]) or axis == ("right" not in m.calls)


def _scaled_product(w: Pattern) -> Pattern:
    """Sums of products with whole numbers, which are scaled behind the sum, as torchao's weights of 8 bits are."""
    numbers = op("cast", view("transpose", w, name="right") | w)
    return op("mul", op("matmul", value("x", dtype="float32"), numbers, name="product"), value("scale"), commutative=True)


def _scales_outputs(m: Match) -> bool:
    """Whether the weights never change, and there is a scale of each column."""
    product, scale = deduce(m.calls["product"], {}), m.type("scale")
    if not isinstance(product, TensorType) or not isinstance(scale, TensorType) or scale.dtype != "float32":
        return False
    return _has_constant_weights(m) and scale.shape[-1:] == product.shape[-1:] and all(map(is_one, scale.shape[:-1]))


def _narrows(group: int, fits: Check) -> Check:
    """Whether weights may be stored in fewer bits, with a scale for so many terms, or for all of a column, where a match fits."""

    def check(m: Match) -> bool:
        w = m.type("w")
        assert isinstance(w, TensorType)
        terms = w.shape[-1 if "right" in m.calls else -2]
        known = all(d.is_Integer and d > 0 for d in w.shape)
        return known and _has_constant_weights(m) and fits(m) and (not group or int(terms) % group == 0)

    return check


def _narrow_attributes(stored: Mapping[str, Any]) -> Attributes:
    return lambda m: {**stored, **linear_attributes(m)}


def _group_attributes(stored: Mapping[str, Any]) -> Attributes:
    return lambda m: {**stored, **group_attributes(m)}


_x, _w, _scale, _bias = value("x", dtype=ACTIVATIONS), value("w", rank=2), value("scale"), value("bias")
_right = view("transpose", _w, name="right") | _w
_real = value("x", dtype="float32")
_rows = (_x, value("w"), _scale, _bias, value("other"))
for _name, _scales in (("zero", (_scale, value("zero"))), ("no_zero", (_scale,))):
    register_pattern(
        f"cpu_quantize_{_name}",
        op("quantize", _real, *_scales, name="whole"),
        "cpu.quantize",
        _has_one_scale,
        inputs=("x",),
        attributes=_scale_and_zero,
        package="cpu",
    )
for _count, _of in ((2, "sums"), (3, "scale"), (4, "bias"), (5, "other")):
    register_pattern(
        f"cpu_quantized_convolution_{_of}",
        op("quantized_convolution", *_rows[:_count], name="windows"),
        "cpu.quantized_convolution",
        _has_constant_weights,
        attributes=_windows_attributes,
        package="cpu",
    )
for _name, _operands in (("quantized", (_x, _right, _scale)), ("quantized_bias", (_x, _right, _scale, _bias))):
    register_pattern(
        f"cpu_{_name}",
        op("quantized_matmul", *_operands, name="product"),
        "cpu.quantized_matmul",
        _has_constant_weights,
        attributes=_quantized_attributes,
        package="cpu",
    )
register_pattern(
    "cpu_dequantized",
    linear(op("dequantize", value("w", rank=2, dtype="int8"), value("scale"), name="real")),
    "cpu.dequantized_matmul",
    _scales_columns,
    inputs=("x", "w", "scale", "bias"),
    attributes=lambda m: {"group": m.attr("real", "group")} | linear_attributes(m),
    package="cpu",
)
register_pattern(
    "cpu_scaled",
    _scaled_product(value("w", rank=2, dtype="int8")),
    "cpu.dequantized_matmul",
    _scales_outputs,
    inputs=("x", "w", "scale"),
    attributes=linear_attributes,
    package="cpu",
)
_STORED = (
    *((name, "float32", stored) for name, stored in NARROW.items()),
    *((name, half, NARROW[name]) for half in HALVES for name in NARROW if name != "bfloat16"),
    *(("cpu", half, {"dtype": half}) for half in HALVES),
)
for _name, _dtype, _form in _STORED:
    register_pattern(
        f"{_name}_{_dtype}",
        linear(value("w", rank=2, dtype=_dtype), _dtype),
        "cpu.narrowed_matmul",
        _narrows(_form.get("group", 0), adds_a_row),
        # weights in fewer bits, where users ask for them, come first
        priority=-4 if _name == "cpu" else 0,
        attributes=_narrow_attributes(_form),
        package=_name,
    )
    if "dynamic" not in _form:
        register_pattern(
            f"{_name}_{_dtype}_groups",
            grouped(_dtype),
            "cpu.narrowed_groups",
            _narrows(_form.get("group", 0), swaps_last),
            priority=-4 if _name == "cpu" else 0,
            attributes=_group_attributes(_form),
            package=_name,
        )
