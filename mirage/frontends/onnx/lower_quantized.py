"""Lowerings of operators of quantized tensors: whole numbers, of which a scale and a zero point make numbers.

Sums of products of whole numbers are computed in float64, where they are exact up to 2^53, and by the fastest products there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mirage.frontends import graph_ops
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.lower_windows import Window, convolved
from mirage.frontends.onnx.table import Call, fitting, lowers
from mirage.frontends.products import matmul
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import axis_of
from mirage.ir.graph.nodes import Constant
from mirage.ir.operators.quantization import QUANTIZED
from mirage.ir.types import ELEMENTS


def _along(x: Any, like: Any, axis: int) -> Any:
    """A scale or a zero point as it broadcasts: one for all elements, or one for each position along an axis."""
    if x.ndim == 0 or (x.ndim == 1 and x.shape[0] == 1):
        return x.reshape(())
    if x.ndim != 1:
        unsupported("its scales are those of blocks")
    at = axis_of(axis, like.ndim)
    return x.reshape(tuple(x.shape[0] if k == at else 1 for k in range(like.ndim)))


def _quantized(c: Call, x: Any, dtype: str) -> Any:
    """Numbers rounded, half to even, to whole numbers within the range of a type."""
    range_ = np.iinfo(ELEMENTS[dtype])
    x = apply("elementwise_max", apply("round", x), c.constant(range_.min, x.dtype))
    return c.cast(apply("elementwise_min", x, c.constant(range_.max, x.dtype)), dtype)


def _shifted(c: Call, x: Any, zero: Any, axis: int, dtype: str) -> Any:
    """Quantized numbers without their zero point, as numbers of a type."""
    found = c.cast(x, dtype)
    if zero is None:
        return found
    return apply("sub", *fitting(found, _along(c.cast(zero, dtype), x, axis)))


def _scales(c: Call, x: Any, scale: Any, zero: Any) -> tuple[Any, ...]:
    """Scale and zero point as operands, as constants where they are known: products are made of what is known alone.

    A zero point that is 0 everywhere is left out.
    """
    if x.ndim == 0 or (scale.ndim == 1 and scale.shape[0] == 1):
        scale, zero = (None if s is None else s.reshape(()) for s in (scale, zero))
    known = c.known(1), c.known(2) if zero is not None else np.zeros(1)
    if known[1] is not None and not np.any(known[1]):
        zero = None
    found = [scale if known[0] is None else _constant(c, known[0], scale)]
    if zero is not None:
        found.append(zero if known[1] is None else _constant(c, known[1], zero))
    return tuple(found)


def _constant(c: Call, known: np.ndarray, like: Any) -> Any:
    """What an operand is known to hold, as a constant of the shape of `like`, and of its type, which a number has not."""
    return c.trace.wrap(Constant(np.reshape(known, [int(d) for d in like.shape]), like.annotation))


def _axis(c: Call, x: Any, scale: Any) -> dict[str, int]:
    """The axis that a scale belongs to, and the positions along it that have one."""
    if scale.ndim == 0 or (scale.ndim == 1 and scale.shape[0] == 1):
        return {}
    block, axis = c.attr("block_size", 0), axis_of(c.attr("axis", 1), x.ndim)
    if scale.ndim != (x.ndim if block else 1):
        unsupported("its scales are those of blocks")
    return {"axis": axis, "group": block}


@lowers("QuantizeLinear", since=10)
def _quantize(c: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    dtype = c.dtype_of("output_dtype", "uint8") if zero is None else zero.dtype
    if x.dtype not in ("float32", "int32") or scale.dtype != "float32" or c.attr("precision", 0):
        unsupported("it quantizes numbers other than of float32")
    if dtype not in QUANTIZED:
        unsupported(f"it quantizes to {dtype}")
    return apply("quantize", c.cast(x, "float32"), *_scales(c, x, scale, zero), dtype=dtype, **_axis(c, x, scale))


@lowers("DequantizeLinear", since=10)
def _dequantize(c: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    dtype = c.dtype_of("output_dtype", scale.dtype)
    if scale.dtype != "float32" or x.dtype not in (*QUANTIZED, "int32"):
        unsupported("it dequantizes to numbers other than of float32")
    return c.cast(apply("dequantize", x, *_scales(c, x, scale, zero), **_axis(c, x, scale)), dtype)


@lowers("MatMulInteger")
def _matmul_integer(c: Call, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    # zero points are of rows of the first, and columns of the second
    return c.cast(matmul(_shifted(c, a, a_zero, -2, "float64"), _shifted(c, b, b_zero, -1, "float64")), "int32")


@lowers("QLinearMatMul")
def _quantized_matmul(
    c: Call, a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, scale: Any, zero: Any
) -> Any:
    if any(s.dtype != "float32" for s in (a_scale, b_scale, scale)):
        unsupported("its scales are not of float32")
    found = matmul(_shifted(c, a, a_zero, -2, "float64"), _shifted(c, b, b_zero, -1, "float64"))
    return _rescaled(c, found, _along(a_scale, found, -2) * _along(b_scale, found, -1), scale, zero, -2)


def _rescaled(c: Call, found: Any, scales: Any, scale: Any, zero: Any, axis: int) -> Any:
    """Exact sums of products, of operands of such scales, quantized."""
    factor = c.cast(apply("div", *fitting(scales, _along(scale, found, axis))), "float64")
    y = apply("mul", *fitting(found, factor))
    return _quantized(c, y + _along(c.cast(zero, "float64"), found, axis), zero.dtype)


def _weights(c: Call, w: Any, zero: int) -> Any | None:
    """Weights without their zero point in int8, where operand `zero` is known to leave them there."""
    known = c.known(zero)
    if w.dtype == "int8" and (zero >= len(c.values) or c.values[zero] is None or (known is not None and not np.any(known))):
        return w
    if w.dtype == "uint8" and known is not None and np.all(known == 128):
        return c.cast(apply("sub", c.cast(w, "int32"), 128), "int8")
    return None


def _windows(c: Call, x: Any, w: Any, x_zero: int) -> dict[str, Any] | None:
    """The attributes of a convolution of whole numbers; None where there is none of such tensors."""
    at, given = Window(c, x, w.shape[2:]), x_zero < len(c.values) and c.values[x_zero] is not None
    zero = c.known(x_zero) if given else np.zeros((), np.int64)
    known = all(isinstance(n, int) and n >= 0 for n in (*at.low, *at.high))
    if zero is None or zero.size != 1 or x.dtype not in ("int8", "uint8") or not known:
        return None
    return {
        "strides": tuple(at.strides), "dilations": tuple(at.dilations), "groups": c.attr("group", 1), "low": tuple(at.low),
        "high": tuple(at.high), "x_zero": int(zero.reshape(())),
    }  # fmt: skip


@lowers("ConvInteger")
def _conv_integer(c: Call, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    windows, weights = _windows(c, x, w, 2), _weights(c, w, 3)
    if windows is not None and weights is not None:
        return apply("quantized_convolution", x, weights, dtype="int32", **windows)
    return c.cast(convolved(c, _shifted(c, x, x_zero, 0, "float64"), _shifted(c, w, w_zero, 0, "float64")), "int32")


@lowers("QLinearConv")
def _quantized_conv(
    c: Call, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, scale: Any, zero: Any, bias: Any = None
) -> Any:
    windows, weights, zero_of = _windows(c, x, w, 2), _weights(c, w, 5), c.known(7)
    scales = [s for k in (1, 4, 6) if (s := c.known(k)) is not None and s.dtype == np.float32]
    known = len(scales) == 3 and scales[0].size == scales[2].size == 1 and isinstance(w.shape[0], int)
    if windows is not None and weights is not None and known and zero_of is not None and zero_of.size == 1:
        factors = (scales[0].reshape(()) * scales[1].reshape(-1) / scales[2].reshape(())).astype(np.float32)
        along = c.constant(np.ascontiguousarray(np.broadcast_to(factors, (w.shape[0],))), "float32")
        operands = (x, weights, along, *(() if bias is None else (bias,)))
        to = {"dtype": zero.dtype, "zero": int(zero_of.reshape(()))}
        return apply("quantized_convolution", *operands, **windows, **to)
    whole = None if bias is None else c.cast(bias, "float64")
    found = convolved(c, _shifted(c, x, x_zero, 0, "float64"), _shifted(c, w, w_zero, 0, "float64"), whole)
    return _rescaled(c, found, _along(x_scale, found, 1) * _along(w_scale, found, 1), scale, zero, 1)


@lowers("DynamicQuantizeLinear")
def _dynamically_quantized(c: Call, x: Any) -> Any:
    every = tuple(range(x.ndim))
    least, most = (op(x, every) for op in (graph_ops.min, graph_ops.max))
    least, most = apply("elementwise_min", least, 0.0), apply("elementwise_max", most, 0.0)
    scale = (most - least) / 255.0
    zero = _quantized(c, -least / scale, "uint8")
    y = apply("round", x / scale) + c.cast(zero, "float32")
    return _quantized(c, y, "uint8"), scale, zero
