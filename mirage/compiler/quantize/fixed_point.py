"""Scales between whole numbers as multipliers and shifts: nothing between two products is computed in floating point.

    y: int8 = quantized_matmul(x, w, scale, bias, dtype=int8, ...)
    =>
    y: int8 = quantized_matmul(x, w, round(scale * 2^shift), round(bias / scale), shift=shift, dtype=int8, ...)

Scales that are powers of two are shifts alone: their multipliers are powers of two, the least of them 1. Others have multipliers
of at most 31 bits. Results of float32 keep their scales, and so do those that another tensor is added to.
Source: Relay, section 4.2 (fixed-point multiplication); Jacob et al., section 2.2.
"""

from __future__ import annotations

import numpy as np

from mirage.compiler.passes.quantized_products import constant_of
from mirage.compiler.passes.rewrite import Rewriter
from mirage.ir.graph.nodes import Constant, Module, OpCall
from mirage.ir.operators.quantization import QUANTIZED

#: bits of a multiplier, and the largest shift
_BITS, _MOST = 31, 62
#: those of multipliers of sums of 64 bits, which products have to leave room for
_FEW = 15


def run(module: Module) -> Module:
    """The module with multipliers in its main function's products and convolutions whose results are whole numbers."""
    main = module.functions[module.main]
    r = Rewriter(main, module.functions)
    for b in main.bindings:
        value = r.current(b)
        r.keep(b, _fixed(value) if isinstance(value, OpCall) else value)
    return module.with_function(r.finish())


def _fixed(call: OpCall) -> OpCall:
    attrs = dict(call.attrs)
    if call.op not in ("quantized_matmul", "quantized_convolution") or attrs["dtype"] not in QUANTIZED or attrs.get("group"):
        return call
    x, w, *rest = call.args
    arrays = [a.array for a in rest if isinstance(a, Constant)]
    if len(arrays) != len(rest) or len(arrays) > 2:
        return call
    wide = getattr(x.annotation, "dtype", "") == "int16"
    scale, bits = arrays[0].astype(np.float64), _FEW if wide else _BITS
    if np.abs(scale).max(initial=0) >= 2.0 ** (bits - 1):
        return call
    shift = shift_of(scale, bits)
    multiplier = np.rint(np.ldexp(scale, shift)).astype(np.int32)
    new = [constant_of(multiplier)]
    if len(arrays) > 1:
        largest = np.iinfo(np.int32).max
        with np.errstate(divide="ignore", invalid="ignore"):
            offset = np.where(scale != 0, arrays[1] / scale, 0)
        new.append(constant_of(np.clip(np.rint(offset), -largest, largest).astype(np.int32)))
    return OpCall(call.op, (x, w, *new), tuple({**attrs, "shift": shift}.items()))


def shift_of(scale: np.ndarray, bits: int) -> int:
    """By how much multipliers of at most so many bits, with the sign, are shifted: 0 to 62, of scales that are less than
    2^(bits - 1).

    It is no more than what makes scales that are powers of two whole.
    """
    some = np.abs(scale[scale != 0])
    if not some.size:
        return 0
    mantissa, exponent = np.frexp(some)
    # the largest is less than 2^exponent, and rounded up to it at most
    room = bits - 1 - int(exponent.max())
    if (mantissa == 0.5).all():
        room = min(room, 1 - int(exponent.min()))
    return max(min(room, _MOST), 0)
