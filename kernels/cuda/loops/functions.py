"""Functions of Triton code that loop programs call: integers as NumPy has them, extremes with NaN, and accurate functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from mirage.ir import functions as fns
from mirage.ir.functions import ScalarFunction
from mirage.kernels.cuda.emit.algebra import GAUSS_TAIL, NAN_MAX, ROUND, FunctionSources, literal

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
    "nan_max": NAN_MAX,
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
_SIGMOID = """\
@triton.jit
def sigmoid(x):
    e = {exp}(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1 + e)
"""
_GAUSS_CDF = f"""\
@triton.jit
def gauss_cdf(x):
{GAUSS_TAIL}\
    # exp of a large square, and of what rounding it loses
    s = 0.5 * x * x
    lost = tl.where(s < 200.0, tl.fma(0.5 * x, x, -s), 0.0)
    tail = 0.5 * t * exp_of(-s) * tl.exp(p - lost)
    return tl.where(x < 0, tail, 1 - tail)
"""
_TANH_64 = """\
@triton.jit
def tanh_64(x):
    # a continued fraction near 0, where 1 - exp(-2|x|) cancels
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    s = x * x
    near = x / (1 + s / (3 + s / (5 + s / (7 + s / (9 + s / (11 + s / (13 + s / 15)))))))
    return tl.where(tl.abs(x) < 0.5, near, tl.where(x < 0, -far, far))
"""
_ROUND_64 = ROUND.format(name="round_half_even_64", whole="4503599627370496.0")
#: Chebyshev coefficients of log(erfc(z) exp(z**2) / t) over t = 2 / (2 + z) in [0, 1], computed with 50 digits
_TAIL = (
    -0.6513268598908547,
    0.6419697923564902,
    0.019476473204185836,
    -0.009561514786808632,
    -0.0009465953444820369,
    0.00036683949785276145,
    4.252332480690777e-05,
    -2.0278578112534242e-05,
    -1.6242900046470256e-06,
    1.3036558355805232e-06,
    1.5626441722066142e-08,
    -8.523809591492654e-08,
    6.5290544390988515e-09,
    5.059343495551469e-09,
    -9.91364156493033e-10,
    -2.273651222931836e-10,
    9.646791102015527e-11,
    2.3940380830391146e-12,
    -6.886027526497553e-12,
    8.944879273090725e-13,
    3.130921399342958e-13,
    -1.1270822361367252e-13,
    3.810905255189232e-16,
    7.106097613609237e-15,
    -1.5230282014571041e-15,
    -9.457494571291254e-17,
    1.210237189224273e-16,
    -2.816663087746774e-17,
)


def _gauss_cdf_64() -> str:
    """Triton code of the normal distribution in float64: its tail by Clenshaw's sum of Chebyshev polynomials."""

    def constant(k: int) -> str:
        return f"tl.full([], {_TAIL[k]!r}, tl.float64)"

    lines = [
        "@triton.jit",
        "def gauss_cdf_64(x):",
        "    # erfc(z) / 2 for z = |x| / sqrt(2), as exp of a Chebyshev series (Press et al., Numerical Recipes, section 6.2)",
        "    z = tl.abs(x) * tl.full([], 0.7071067811865476, tl.float64)",
        "    t = 2 / (2 + z)",
        "    u = 2 * (2 * t - 1)",
        f"    b27 = tl.zeros_like(u) + {constant(27)}",
        f"    b26 = u * b27 + {constant(26)}",
    ]
    lines += [
        f"    b{k} = u * b{k + 1} - b{k + 2} + tl.full([], {_TAIL[k]!r}, tl.float64)" for k in reversed(range(1, 26))
    ]
    return "\n".join(
        [
            *lines,
            f"    p = 0.5 * u * b1 - b2 + {constant(0)}",
            "    # exp of a large square, and of what rounding it loses",
            "    s = 0.5 * x * x",
            "    lost = tl.where(s < 800.0, tl.fma(0.5 * x, x, -s), 0.0)",
            "    tail = 0.5 * t * tl.exp(-s) * tl.exp(p - lost)",
            "    return tl.where(x < 0, tail, 1 - tail)",
            "",
        ]
    )


def call(functions: FunctionSources, fn: ScalarFunction, x: str, params: Sequence[Fraction], dtype: str) -> str:
    """The expression of a function at x, of type float32 or float64."""

    def use(*sources: str) -> None:
        for source in sources:
            functions.sources.setdefault(source)

    wide = dtype == "float64"
    if fn is fns.EXP and not wide:
        use(_EXP)
        return f"exp_of({x})"
    if fn is fns.SIGMOID:
        use(*([] if wide else [_EXP]), _SIGMOID.format(exp="tl.exp" if wide else "exp_of"))
        return f"sigmoid({x})"
    if fn is fns.GAUSS_CDF:
        use(*([_gauss_cdf_64()] if wide else [_EXP, _GAUSS_CDF]))
        return f"gauss_cdf{'_64' * wide}({x})"
    if fn is fns.POW and params[0].denominator != 1:
        return _power(functions, x, params[0], dtype)
    if not wide:
        return functions.call(fn, x, params)
    if fn is fns.SQRT:
        return f"tl.sqrt({x})"
    if fn is fns.TANH:
        use(_TANH_64)
        return f"tanh_64({x})"
    if fn is fns.ROUND:
        use(_ROUND_64)
        return f"round_half_even_64({x})"
    if fn in (fns.RELU, fns.MAXIMUM, fns.CLAMP):
        bounds = [f"tl.full([], {literal(p)}, tl.float64)" for p in params or [Fraction(0)]]
        use(*(HELPERS[h] for h in ("nan_max", "nan_min")[: len(bounds)]))
        text = f"nan_max({x}, {bounds[0]})"
        return text if len(bounds) == 1 else f"nan_min({text}, {bounds[1]})"
    return functions.call(fn, x, params)


def _power(functions: FunctionSources, x: str, p: Fraction, dtype: str) -> str:
    """A power that is not whole: of halves by products and a square root, others by logarithms in float64."""
    name = f"power_{'minus_' * (p < 0)}{abs(p.numerator)}_{p.denominator}"
    lines = ["@triton.jit", f"def {name}(x):"]
    if p != Fraction(1, 2):
        lines.append("    # powers of what is negative are NaN, but of -inf as of inf")
        lines.append('    x = tl.where(x == float("-inf"), tl.abs(x), x)')
    if p.denominator == 2:
        whole = functions.call(fns.POW, "x", [Fraction(abs(p.numerator) // 2)])
        root = "tl.sqrt(x)" if dtype == "float64" else "tl.sqrt_rn(x)"
        lines.append(f"    y = {root}" if abs(p) < 1 else f"    y = {whole} * {root}")
        lines.append("    return 1 / y" if p < 0 else "    return y")
    else:
        exponent = f"tl.full([], {literal(p)}, tl.float64)"
        lines.append(f"    y = tl.exp2({exponent} * tl.log2(tl.abs(x).to(tl.float64)))")
        lines.append('    return tl.where(x < 0, float("nan"), y).to(x.dtype)')
    functions.sources.setdefault("\n".join(lines) + "\n")
    return f"{name}({x})"
