"""Quantized tensors: whole numbers of which a scale and a zero point make real ones, `(q - zero) * scale`, and products of them.

What each operator gives is said operation by operation, all in float32, so that every implementation gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage.errors import AttributeValueError, DTypeError, ShapeError
from mirage.ir.annotations import Annotation, PartialTensor, tensor_annotation
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.dims import Dim
from mirage.ir.functions import ROUND
from mirage.ir.graph_operator import GraphOperator
from mirage.ir.loops import scalars
from mirage.ir.loops.program import TensorExpr, compute, operands
from mirage.ir.loops.scalars import Scalar
from mirage.ir.operator import Attribute, Attrs, register
from mirage.ir.types import ELEMENTS, TensorType, is_one, shape_text

#: element types of quantized tensors
QUANTIZED = ("int8", "uint8", "int16", "uint16")
#: what a dequantized tensor is made of: sums of products, too
_WHOLE = (*QUANTIZED, "int32")


def quantized_range(dtype: str) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    info = np.iinfo(ELEMENTS[dtype])
    return int(info.min), int(info.max)


def shifted(sums: Any, multiplier: Any, shift: int) -> Any:
    """Whole numbers of 64 bits: `(sums * multiplier + 2^(shift - 1)) >> shift`, halves rounded up."""
    return (sums.astype(np.int64) * multiplier.astype(np.int64) + (1 << shift >> 1)) >> shift


def require_types(op: str, what: str, t: TensorType, allowed: Sequence[str]) -> None:
    """Raises DTypeError for an operand that is of no allowed type."""
    if t.dtype not in allowed:
        raise DTypeError(f"{op}: {what} is {t}; it has to be of {', '.join(allowed)}")


def check_shift(op: str, attrs: Attrs) -> None:
    """Raises AttributeValueError for a shift that 64 bits have no room for."""
    if not 0 <= attrs["shift"] <= 62:
        raise AttributeValueError(f"{op}: shift={attrs['shift']}; it is 0 to 62")


def check_scales(op: str, types: Sequence[TensorType], attrs: Attrs) -> None:
    """Raises DTypeError for a scale, or a bias behind it, that results of such a type are not made with."""
    require_types(op, "the scale", types[0], ("float32", "int32"))
    fixed = types[0].dtype == "int32"
    if fixed and attrs["dtype"] not in QUANTIZED:
        raise DTypeError(f"{op}: {attrs['dtype']} of multipliers; results are of {', '.join(QUANTIZED)}")
    if len(types) > 1:
        require_types(op, "the bias", types[1], ("int32",) if fixed else ("float32", "int32"))


class _Scaled(GraphOperator):
    """An operator of a tensor, a scale and a zero point: one number each, or one for each position along `axis`.

    With a `group`, each has the tensor's shape, but along `axis`, where one is for so many positions.
    """

    def _check(self, types: Sequence[TensorType], attrs: Attrs) -> None:
        x, *scales = types
        axis, group = attrs["axis"], attrs["group"]
        for what, t in zip(("scale", "zero point"), scales, strict=False):
            if group == 0 and (t.rank == 0 or (t.rank == 1 and is_one(t.shape[0]))):
                continue
            if not -x.rank <= axis < x.rank:
                raise ShapeError(f"{self.name}: axis {axis} is out of range for a tensor of rank {x.rank}")
            wanted = (x.shape[axis],)
            if group:
                each = list(x.shape)
                each[axis] /= group
                wanted = tuple(each)
            if t.shape != wanted:
                raise ShapeError(
                    f"{self.name}: a {what} [{shape_text(t.shape)}] of [{shape_text(x.shape)}] along axis {axis}"
                    f"{f' in groups of {group}' if group else ''}; give {'' if group else 'one, or '}[{shape_text(wanted)}]"
                )
        if len(types) > 1:
            require_types(self.name, "the scale", types[1], ("float32",))

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        if attrs["group"] < 0:
            raise AttributeValueError(f"{self.name}: group={attrs['group']} is negative; 0 is for no groups")
        return attrs

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        shape = args[0].shape if isinstance(args[0], TensorType | PartialTensor) else None
        return tensor_annotation(shape, attrs.get("dtype", "float32"))

    def _broadcast(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> list[Any]:
        """The arrays with scale and zero point as they broadcast to the first."""
        x, *scales = arrays
        if attrs["group"]:
            return [x, *(xp.repeat(s, attrs["group"], axis=attrs["axis"]) for s in scales)]
        shape = [1] * max(x.ndim, 1)
        shape[attrs["axis"] if any(s.size != 1 for s in scales) else 0] = -1
        return [x, *(s.reshape(shape if x.ndim and s.ndim else ()) for s in scales)]

    def _elements(
        self, types: Sequence[TensorType], attrs: Attrs, i: tuple[Scalar, ...]
    ) -> tuple[Scalar, Scalar, Scalar | None]:
        x, *scales = operands(types)
        axis, group = attrs["axis"], attrs["group"]
        found = []
        for s, t in zip(scales, types[1:], strict=True):
            if group:
                at = list(i)
                at[axis] = at[axis] // group
                found.append(s[tuple(at)])
            else:
                # one of size 1 broadcasts, whatever the index
                own = (scalars.size(0),) if t.rank and is_one(t.shape[0]) else (i[axis],)
                found.append(s[own] if t.rank else s[()])
        return x[i], found[0], found[1] if len(found) > 1 else None


class Quantize(_Scaled):
    """Real numbers as whole ones: `clip(round(x / scale) + zero)`, half to even, within the range of `dtype`."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        self._check(types, attrs)
        require_types(self.name, "the operand", types[0], ("float32",))
        if attrs["dtype"] not in QUANTIZED:
            raise AttributeValueError(f"{self.name}: dtype={attrs['dtype']!r}; it is one of {', '.join(QUANTIZED)}")
        if len(types) > 2:
            require_types(self.name, "the zero point", types[2], (attrs["dtype"],))
        return TensorType(types[0].shape, attrs["dtype"])

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, scale, *zero = self._broadcast(xp, arrays, attrs)
        least, most = quantized_range(attrs["dtype"])
        found = xp.rint(x / scale)
        if zero:
            found = found + zero[0].astype(found.dtype)
        return xp.clip(found, least, most).astype(ELEMENTS[attrs["dtype"]])

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        least, most = quantized_range(attrs["dtype"])

        def element(*i: Scalar) -> Scalar:
            x, scale, zero = self._elements(types, attrs, i)
            found = scalars.apply(ROUND, x / scale)
            if zero is not None:
                found = found + scalars.cast(zero, "float32")
            return scalars.cast(scalars.minimum(scalars.maximum(found, least), most), out.dtype)

        return compute(out, element)


class Dequantize(_Scaled):
    """Whole numbers as real ones: `(x - zero) * scale`, the difference exact."""

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        self._check(types, attrs)
        require_types(self.name, "the operand", types[0], _WHOLE)
        if len(types) > 2:
            require_types(self.name, "the zero point", types[2], (types[0].dtype,))
        return TensorType(types[0].shape, "float32")

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, scale, *zero = self._broadcast(xp, arrays, attrs)
        whole = x.astype(np.int64)
        if zero:
            whole = whole - zero[0].astype(np.int64)
        return whole.astype(np.float32) * scale

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        def element(*i: Scalar) -> Scalar:
            x, scale, zero = self._elements(types, attrs, i)
            whole = scalars.cast(x, "int64")
            if zero is not None:
                whole = whole - scalars.cast(zero, "int64")
            return scalars.cast(whole, "float32") * scale

        return compute(out, element)


class SimQuantize(_Scaled):
    """Real numbers as quantizing them would leave them: `dequantize(quantize(x))`, of the same shape and type as x.

    Without a scale it is x itself: a place that annotation has found, and for which calibration is to choose one. It computes on
    the unquantized type, and has no other use than to be realized. Source: Relay, section 4.2 (simQ).
    """

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        self._check(types, attrs)
        require_types(self.name, "the operand", types[0], ("float32",))
        if attrs["dtype"] not in QUANTIZED:
            raise AttributeValueError(f"{self.name}: dtype={attrs['dtype']!r}; it is one of {', '.join(QUANTIZED)}")
        if len(types) > 2:
            require_types(self.name, "the zero point", types[2], (attrs["dtype"],))
        return types[0]

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return super().coarse(args, {})

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        if len(arrays) < 2:
            return arrays[0]
        whole = QUANTIZE.compute(xp, arrays, attrs)
        return DEQUANTIZE.compute(xp, [whole, *arrays[1:]], attrs).astype(arrays[0].dtype, copy=False)


class QuantizedMatmul(GraphOperator):
    """`x[..., k]` of whole numbers times weights `w[k, n]` of int8, with sums of whole numbers, scaled where they are stored.

    Operands are x, w, a scale, and a bias `[n]` if there is one, of float32 or int32. The scale is `[n]`, or `[k / group, n]`
    where `group` terms along k, a multiple of 4, have one of their own. Each result is, in float32 but for the sums:

        sum    = sum over k of (x - x_zero) * w             modulo 2^32, of int16 2^64; plus the bias if that is int32
        value  = float(sum) * scale + bias                  of groups: the sum of float(sum) * scale over them, in order
        value  = max(value, 0)                              if it is `relu`
        result = clip(round(value) + zero)                  half to even, where `dtype` is an integer type

    A scale of int32 is a multiplier: the value is `(sum * scale + 2^(shift - 1)) >> shift` in 64 bits, and the result an integer.

    So a real scale is that of x times that of w, and over that of the result where that is quantized, as the bias is then.
    Source: Jacob et al., Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference, section 2.
    """

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        attrs = super().check_attrs(given)
        if attrs["dtype"] not in ("float32", "float64", *QUANTIZED):
            raise AttributeValueError(
                f"{self.name}: dtype={attrs['dtype']!r}; it is float32 or one of {', '.join(QUANTIZED)}"
            )
        least, most = (0, 0) if attrs["dtype"] not in QUANTIZED else quantized_range(attrs["dtype"])
        if not least <= attrs["zero"] <= most:
            raise AttributeValueError(
                f"{self.name}: zero={attrs['zero']} is no {attrs['dtype']}; it is {least} to {most}"
            )
        if attrs["group"] < 0 or attrs["group"] % 4:
            raise AttributeValueError(f"{self.name}: group={attrs['group']}; it is a multiple of 4, or 0 for all of k")
        check_shift(self.name, attrs)
        return attrs

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        x, w = types[:2]
        require_types(self.name, "x", x, ("int8", "uint8", "int16"))
        require_types(self.name, "w", w, ("int8",))
        least, most = quantized_range(x.dtype)
        if not least <= attrs["x_zero"] <= most:
            raise AttributeValueError(f"{self.name}: x_zero={attrs['x_zero']} is no {x.dtype}; it is {least} to {most}")
        if x.rank < 1 or w.rank != 2 or x.shape[-1] != w.shape[0]:
            raise ShapeError(
                f"{self.name}: x [{shape_text(x.shape)}] and w [{shape_text(w.shape)}]; they are [..., k] and [k, n]"
            )
        wanted: tuple[Dim, ...] = (w.shape[1],)
        if attrs["group"]:
            k = w.shape[0]
            if not k.is_Integer or k % attrs["group"]:
                raise ShapeError(f"{self.name}: {k} terms in groups of {attrs['group']}; a group divides k")
            wanted = (k / attrs["group"], w.shape[1])
        check_scales(self.name, types[2:], attrs)
        if attrs["group"] and any(t.dtype == "int32" for t in types[2:]):
            raise DTypeError(f"{self.name}: a scale or bias of int32 of groups; only those of float32 have groups")
        for what, t, shape in zip(("scale", "bias"), types[2:], (wanted, wanted[-1:]), strict=False):
            if t.shape != shape:
                raise ShapeError(f"{self.name}: a {what} [{shape_text(t.shape)}]; it is [{shape_text(shape)}]")
        return TensorType((*x.shape[:-1], w.shape[1]), attrs["dtype"])

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return tensor_annotation(None, attrs["dtype"])

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        x, w, scale, *bias = arrays
        group = attrs["group"] or max(w.shape[0], 1)
        # whole numbers of float64 are exact beyond the largest sum that memory has room for
        wide, weights = x.astype(np.float64) - attrs["x_zero"], w.astype(np.float64)
        value: Any = None
        fixed = scale.dtype == np.int32
        offset = bias.pop() if bias and bias[0].dtype == np.int32 else np.zeros(1, np.int32)
        for g, first in enumerate(range(0, max(w.shape[0], 1), group)):
            sums = (wide[..., first : first + group] @ weights[first : first + group]).astype(np.int64) + offset
            whole = sums if x.dtype == np.int16 else sums.astype(np.int32)
            if fixed:
                value = shifted(whole, scale, attrs["shift"])
                break
            part = whole.astype(scale.dtype) * (scale[g] if attrs["group"] else scale)
            value = part if value is None else value + part
        if bias:
            value = value + bias[0]
        if attrs["relu"]:
            value = xp.maximum(value, 0)
        if attrs["dtype"] not in QUANTIZED:
            return value.astype(ELEMENTS[attrs["dtype"]], copy=False)
        least, most = (n - attrs["zero"] for n in quantized_range(attrs["dtype"]))
        found = xp.clip(xp.rint(value), least, most).astype(np.int64) + attrs["zero"]
        return found.astype(ELEMENTS[attrs["dtype"]])


_ALONG = (Attribute("axis", "int", -1), Attribute("group", "int", 0))
_TO = Attribute("dtype", "dtype", "int8")
QUANTIZE = Quantize("quantize", 2, 3, (_TO, *_ALONG))
DEQUANTIZE = Dequantize("dequantize", 2, 3, _ALONG)
SIM_QUANTIZE = SimQuantize("sim_quantize", 1, 3, (_TO, *_ALONG))
for _operator in (QUANTIZE, DEQUANTIZE, SIM_QUANTIZE):
    register(_operator)
QUANTIZED_MATMUL = register(
    QuantizedMatmul(
        "quantized_matmul",
        3,
        4,
        (
            Attribute("x_zero", "int", 0),
            Attribute("group", "int", 0),
            Attribute("relu", "bool", False),
            Attribute("dtype", "dtype", "float32"),
            Attribute("zero", "int", 0),
            Attribute("shift", "int", 0),
        ),
    )
)
