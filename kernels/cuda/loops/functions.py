"""Functions of Triton code that loop programs call: integers as NumPy has them, extremes with NaN, and accurate functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from mirage.ir import functions as fns
from mirage.ir.functions import ScalarFunction
from mirage.kernels.cuda.emit_algebra import FunctionSources, literal

#: name -> source of the functions that kernels call by name
HELPERS: Mapping[str, str] = {
    "floor_div": """\
@triton.jit
def floor_div(a, b):
    # 0 where b is 0; by -1 the least integer wraps around
    by = tl.where((b == 0) | (b == -1), tl.full([], 1, b.dtype), b)
    rest = a % by
    down = ((rest != 0) & ((rest < 0) != (by < 0))).to(a.dtype)
    return tl.where(b == 0, a - a, tl.where(b == -1, 0 - a, a // by - down))
""",
    "floor_mod": """\
@triton.jit
def floor_mod(a, b):
    by = tl.where((b == 0) | (b == -1), tl.full([], 1, b.dtype), b)
    rest = a % by
    return tl.where((rest != 0) & ((rest < 0) != (by < 0)), rest + by, rest)
""",
    "to_int32": """\
@triton.jit
def to_int32(x):
    # what is not in range becomes the least value
    inside = (x > -2147483649.0) & (x < 2147483648.0)
    return tl.where(inside, tl.where(inside, x, x - x).to(tl.int32), tl.full([], -2147483648, tl.int32))
""",
    "to_int64": """\
@triton.jit
def to_int64(x):
    # what is not in range becomes the least value
    inside = (x >= -9223372036854775808.0) & (x < 9223372036854775808.0)
    return tl.where(inside, tl.where(inside, x, x - x).to(tl.int64), tl.full([], -9223372036854775808, tl.int64))
""",
    "nan_max": """\
@triton.jit
def nan_max(a, b):
    return tl.where((a > b) | (a != a), a, b)
""",
    "nan_min": """\
@triton.jit
def nan_min(a, b):
    return tl.where((a < b) | (a != a), a, b)
""",
    "product": """\
@triton.jit
def product(a, b):
    return a * b
""",
    "first_max": """\
@triton.jit
def first_max(a, i, b, j):
    # the first of the largest; a NaN is larger than all
    takes = (a > b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(takes, a, b), tl.where(takes, i, j)
""",
    "first_min": """\
@triton.jit
def first_min(a, i, b, j):
    # the first of the smallest; a NaN is smaller than all
    takes = (a < b) | ((a != a) & (b == b)) | (((a == b) | ((a != a) & (b != b))) & (i < j))
    return tl.where(takes, a, b), tl.where(takes, i, j)
""",
    "report": """\
@triton.jit
def report(failures, check, wrong, index, extent):
    # two words per check: an index that is out of range, and the extent + 1; whichever is written last
    at = failures + 2 * check + wrong.to(tl.int64) * 0
    tl.store(at, index.to(tl.int64) + wrong.to(tl.int64) * 0, mask=wrong)
    tl.store(at + 1, wrong.to(tl.int64) * 0 + extent + 1, mask=wrong)
""",
}

# Triton's exp multiplies by log2(e) first, which rounds large arguments
_EXP = """\
@triton.jit
def exp_of(x):
    # a power of two, which is exact, times exp of a rest that is small unless the result is 0 or infinite
    whole = tl.floor(tl.minimum(tl.maximum(x, -87.0), 88.0) * 1.4426950408889634 + 0.5)
    whole = tl.minimum(whole, 127.0)
    rest = tl.fma(whole, -1.42860682030941723212e-6, tl.fma(whole, -0.693145751953125, x))
    return tl.exp(rest) * tl.exp2(whole)
"""
_TANH = """\
@triton.jit
def tanh_64(x):
    # a continued fraction near 0, where 1 - exp(-2|x|) cancels
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    s = x * x
    near = x / (1 + s / (3 + s / (5 + s / (7 + s / (9 + s / (11 + s / (13 + s / 15)))))))
    return tl.where(tl.abs(x) < 0.5, near, tl.where(x < 0, -far, far))
"""
_ROUND = """\
@triton.jit
def round_half_even_64(x):
    # numbers of this size and more are integers
    up = tl.floor(x + 0.5)
    odd = up - 2 * tl.floor(up * 0.5)
    near = tl.where(x + 0.5 == up, up - odd, up)
    return tl.where(tl.abs(x) < 4503599627370496.0, near, x)
"""

_POW_64 = """\
@triton.jit
def real_power(x, p):
    return tl.where(x < 0, float("nan"), tl.exp2(p * tl.log2(tl.abs(x))))
"""

#: functions of float64 that differ from those of float32
_WIDE: Mapping[ScalarFunction, tuple[str, str]] = {
    fns.EXP: ("tl.exp({x})", ""),
    fns.SQRT: ("tl.sqrt({x})", ""),
    fns.TANH: ("tanh_64({x})", _TANH),
    fns.ROUND: ("round_half_even_64({x})", _ROUND),
}


def call(functions: FunctionSources, fn: ScalarFunction, x: str, params: Sequence[Fraction], wide: bool) -> str:
    """The expression of a function at x, of float64 if `wide`, else float32."""
    if not wide:
        if fn is fns.EXP:
            functions.sources.setdefault(_EXP)
            return f"exp_of({x})"
        return functions.call(fn, x, params)
    if fn in _WIDE:
        text, source = _WIDE[fn]
        if source:
            functions.sources.setdefault(source)
        return text.format(*(literal(p) for p in params), x=x)
    return functions.call(fn, x, params)
