"""Convolutions of quantized tensors with weights of 8 bits."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np
import sympy

from mirage.errors import AttributeValueError, DTypeError, ShapeError
from mirage.ir.annotations import Annotation, tensor_annotation
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.graph_operator import GraphOperator
from mirage.ir.operator import Attribute, Attrs, register
from mirage.ir.operators.convolution import CONVOLUTION
from mirage.ir.operators.quantization import (
    QUANTIZED,
    check_scales,
    check_shift,
    quantized_range,
    require_types,
    shifted,
)
from mirage.ir.requirements import AtMost
from mirage.ir.types import ELEMENTS, TensorType, shape_text

_WINDOWS = ("strides", "dilations", "groups")


class QuantizedConvolution(GraphOperator):
    """`convolution` of `x[b, groups * c, *space]` of whole numbers with weights `w[o, c, *kernel]` of int8; sums are in 32 bits.

    `low` places lie before x along each spatial dim and `high` behind it, of real zeros. Operands are x, w, a scale `[o]`, a bias
    `[o]`, and another summand of the result's shape, as far as they are there. Each result is, in float32 but for the sums:

        sum    = sum over the window of (x - x_zero) * w               modulo 2^32; plus the bias if that is int32
        value  = float(sum) * scale + bias                             where they are float32
        value  = value + other                                         float(other - other_zero) * other_scale of a quantized one
        value  = min(max(value, least), most)                          as far as these are given
        result = clip(round(value) + zero)                             half to even, where `dtype` is an integer type

    A scale of int32 is a multiplier: the value is `(sum * scale + 2^(shift - 1)) >> shift` in 64 bits, and the result an integer.
    Without a scale, of int32, results are the sums.
    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, section 2.
    """

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        CONVOLUTION.check_attrs({key: attrs[key] for key in _WINDOWS})
        if any(n < 0 for n in (*attrs["low"], *attrs["high"])):
            raise AttributeValueError(f"{self.name}: low={attrs['low']}, high={attrs['high']}; neither has negative numbers")
        if attrs["dtype"] not in ("float32", "float64", "int32", *QUANTIZED):
            raise AttributeValueError(
                f"{self.name}: dtype={attrs['dtype']!r}; it is float32, int32 or one of {', '.join(QUANTIZED)}"
            )
        least, most = (0, 0) if attrs["dtype"] not in QUANTIZED else quantized_range(attrs["dtype"])
        if not least <= attrs["zero"] <= most:
            raise AttributeValueError(f"{self.name}: zero={attrs['zero']} is no {attrs['dtype']}; it is {least} to {most}")
        check_shift(self.name, attrs)
        return attrs

    def _windows(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[list[TensorType], Attrs]:
        """The types and attributes of the convolution of the padded tensor."""
        x, w = types[:2]
        if not len(attrs["low"]) == len(attrs["high"]) == x.rank - 2:
            raise ShapeError(
                f"{self.name}: low={attrs['low']}, high={attrs['high']} of [{shape_text(x.shape)}]; give one each per spatial dim"
            )
        space = [n + a + b for n, a, b in zip(x.shape[2:], attrs["low"], attrs["high"], strict=True)]
        padded = TensorType((*x.shape[:2], *map(sympy.sympify, space)), "float32")
        return [padded, TensorType(w.shape, "float32")], {key: attrs[key] for key in _WINDOWS}

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        x, w, *rest = types
        require_types(self.name, "x", x, ("int8", "uint8"))
        require_types(self.name, "w", w, ("int8",))
        least, most = quantized_range(x.dtype)
        if not least <= attrs["x_zero"] <= most:
            raise AttributeValueError(f"{self.name}: x_zero={attrs['x_zero']} is no {x.dtype}; it is {least} to {most}")
        found = CONVOLUTION.result(*self._windows(types, attrs))
        assert isinstance(found, TensorType)
        out = TensorType(found.shape, attrs["dtype"])
        if (attrs["dtype"] == "int32") != (not rest):
            raise DTypeError(f"{self.name}: {out} with {len(types)} operands; int32 is what has no scale, and only that")
        if rest:
            check_scales(self.name, rest, attrs)
        for what, t in zip(("scale", "bias"), rest, strict=False):
            if t.shape != (w.shape[0],):
                raise ShapeError(f"{self.name}: a {what} [{shape_text(t.shape)}]; it is [{w.shape[0]}]")
        if len(rest) > 2:
            if rest[0].dtype != "float32":
                raise DTypeError(f"{self.name}: another summand beside multipliers; only scales of float32 have one")
            require_types(self.name, "the other summand", rest[2], ("float32", "int8", "uint8"))
            if rest[2].shape != out.shape:
                raise ShapeError(
                    f"{self.name}: another summand [{shape_text(rest[2].shape)}] of [{shape_text(out.shape)}]; "
                    "give the same shape"
                )
        return out

    def requirements(self, types: Sequence[TensorType], attrs: Attrs) -> tuple[AtMost, ...]:
        return CONVOLUTION.requirements(*self._windows(types, attrs))

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return tensor_annotation(None, attrs["dtype"])

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, w, *rest = arrays
        edges = [(0, 0), (0, 0), *zip(attrs["low"], attrs["high"], strict=True)]
        # whole numbers of float64 are exact beyond the largest sum that memory has room for
        wide = xp.pad(x.astype(np.float64) - attrs["x_zero"], edges)
        sums = CONVOLUTION.compute(xp, [wide, w.astype(np.float64)], {key: attrs[key] for key in _WINDOWS})
        along = (-1, *[1] * (x.ndim - 2))
        scale, bias, other = (*rest, None, None, None)[:3]
        whole = sums.astype(np.int64)
        if bias is not None and bias.dtype == np.int32:
            whole, bias = whole + bias.reshape(along).astype(np.int64), None
        whole = whole.astype(np.int32)
        if scale is None:
            return whole
        least, most = (float(attrs.get("least", -inf)), float(attrs.get("most", inf)))
        if scale.dtype == np.int32:
            value = shifted(whole, scale.reshape(along), attrs["shift"])
            low, high = (n - attrs["zero"] for n in quantized_range(attrs["dtype"]))
            bounds = [int(xp.rint(xp.clip(n, low, high))) for n in (least, most)]
            return (xp.clip(value, *bounds) + attrs["zero"]).astype(ELEMENTS[attrs["dtype"]])
        value = whole.astype(scale.dtype) * scale.reshape(along)
        if bias is not None:
            value = value + bias.reshape(along)
        if other is not None and other.dtype.kind in "iu":
            real = (other.astype(np.int64) - attrs["other_zero"]).astype(scale.dtype)
            value = value + real * scale.dtype.type(float(attrs["other_scale"]))
        elif other is not None:
            value = value + other
        value = xp.clip(value, scale.dtype.type(least), scale.dtype.type(most))
        if attrs["dtype"] not in QUANTIZED:
            return value.astype(ELEMENTS[attrs["dtype"]], copy=False)
        low, high = (n - attrs["zero"] for n in quantized_range(attrs["dtype"]))
        found = xp.clip(xp.rint(value), low, high).astype(np.int64) + attrs["zero"]
        return found.astype(ELEMENTS[attrs["dtype"]])


QUANTIZED_CONVOLUTION = register(
    QuantizedConvolution(
        "quantized_convolution",
        2,
        5,
        (
            Attribute("strides", "ints"),
            Attribute("dilations", "ints"),
            Attribute("groups", "int", 1),
            Attribute("low", "ints"),
            Attribute("high", "ints"),
            Attribute("x_zero", "int", 0),
            Attribute("other_scale", "number", 1),
            Attribute("other_zero", "int", 0),
            Attribute("shift", "int", 0),
            Attribute("least", "number", None),
            Attribute("most", "number", None),
            Attribute("dtype", "dtype", "float32"),
            Attribute("zero", "int", 0),
        ),
    )
)
