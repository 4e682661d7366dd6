"""Lowerings of operators of quantized tensors: whole numbers, of which a scale and a zero point make numbers.

Sums of products of whole numbers are computed in float64, where they are exact up to 2^53, and by the fastest products there are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mirage.frontends import graph_ops
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.lower_windows import convolved
from mirage.frontends.onnx.table import Call, fitting, lowers
from mirage.frontends.products import matmul
from mirage.frontends.proxy import apply
from mirage.frontends.shapes import axis_of
from mirage.ir.types import ELEMENTS, STORED_INTEGERS


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


@lowers("QuantizeLinear", since=10)
def _quantize(c: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    dtype = c.dtype_of("output_dtype", "uint8") if zero is None else zero.dtype
    if c.attr("block_size", 0) or x.dtype not in ("float32", "int32") or scale.dtype != "float32" or c.attr("precision", 0):
        unsupported("it quantizes blocks, or numbers other than of float32")
    if dtype not in STORED_INTEGERS:
        unsupported(f"it quantizes to {dtype}")
    axis = c.attr("axis", 1)
    y = apply("round", apply("div", *fitting(c.cast(x, "float32"), _along(scale, x, axis))))
    return _quantized(c, y if zero is None else apply("add", *fitting(y, _along(c.cast(zero, y.dtype), x, axis))), dtype)


@lowers("DequantizeLinear", since=10)
def _dequantize(c: Call, x: Any, scale: Any, zero: Any = None) -> Any:
    dtype = c.dtype_of("output_dtype", scale.dtype)
    if c.attr("block_size", 0) or scale.dtype != "float32" or x.dtype not in (*STORED_INTEGERS, "int32"):
        unsupported("it dequantizes blocks, or to numbers other than of float32")
    axis = c.attr("axis", 1)
    # an int32 less another may have more digits than a float32
    y = c.cast(_shifted(c, x, zero, axis, "int64"), "float32")
    return c.cast(apply("mul", *fitting(y, _along(scale, x, axis))), dtype)


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


@lowers("ConvInteger")
def _conv_integer(c: Call, x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    return c.cast(convolved(c, _shifted(c, x, x_zero, 0, "float64"), _shifted(c, w, w_zero, 0, "float64")), "int32")


@lowers("QLinearConv")
def _quantized_conv(
    c: Call, x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, scale: Any, zero: Any, bias: Any = None
) -> Any:
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
