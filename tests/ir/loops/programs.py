"""Loop programs that tests of the IR, of fusion and of generated code share, with random inputs for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram
from mirage.ir.types import DTYPES, ELEMENTS, STORED_INTEGERS

TEXTS = [
    # several reductions in one nest, an inlined choice
    """\
def masked_softmax(x: float32[n, m], mask: bool[n, m]) -> float32[n, m]:
    @max
    def greatest(i0) -> float32[n]:
        for r0 in range(m):
            yield x[i0, r0] if mask[i0, r0] else -1000000000.0
    def e(i0, i1) -> float32[n, m]:
        return exp((x[i0, i1] if mask[i0, i1] else -1000000000.0) - greatest[i0])
    @sum
    def total(i0) -> float32[n]:
        for r0 in range(m):
            yield e[i0, r0]
    def out(i0, i1) -> float32[n, m]:
        return e[i0, i1] / total[i0]
    return out
""",
    """\
def doubled(x: float32[n, m]) -> float32[n, m]:
    def out(i0, i1) -> float32[n, m]:
        return x[i0, i1] * 2.0
    return out
""",
    # a comparison of loops
    """\
def causal(x: float32[b, n, m]) -> float32[b, n, m]:
    def out(i0, i1, i2) -> float32[b, n, m]:
        return x[i0, i1, i2] * 2.0 if i2 <= i1 else -inf
    return out
""",
    """\
def rotary(x: float32[b, n, 2*m], cosine: float32[n, 2*m], sine: float32[n, 2*m], *, m) -> float32[b, n, 2*m]:
    def out(i0, i1, i2) -> float32[b, n, 2*m]:
        return x[i0, i1, i2] * cosine[i1, i2] + (-x[i0, i1, i2 + m] if i2 < m else x[i0, i1, i2 - m]) * sine[i1, i2]
    return out
""",
    """\
def embedding(table: float32[k, m], ids: int64[b, n]) -> float32[b, n, m]:
    def out(i0, i1, i2) -> float32[b, n, m]:
        return table[checked(ids[i0, i1], k, 'gather, axis 0'), i2]
    return out
""",
    # data chooses elements along the innermost loop
    """\
def take_along(x: float32[n, m], at: int32[n, k]) -> float32[n, k]:
    def out(i0, i1) -> float32[n, k]:
        return x[i0, checked(int64(at[i0, i1]), m, 'gather, axis 1')]
    return out
""",
    # three pieces along the innermost loop
    """\
def concatenated(x: float32[n, m], y: float32[n, k], z: float32[n, 3]) -> float32[n, k + m + 3]:
    def out(i0, i1) -> float32[n, k + m + 3]:
        return x[i0, i1] if i1 < m else y[i0, i1 - m] if i1 < dim(k + m) else z[i0, i1 - k - m]
    return out
""",
    """\
def padded(x: float32[n, m]) -> float32[n, m + 5]:
    def out(i0, i1) -> float32[n, m + 5]:
        return x[i0, i1 - 2] if i1 >= 2 and i1 < dim(m + 2) else 0.5
    return out
""",
    # reductions that are kept in variables, read in a branch of every lane
    """\
def beside_reductions(x: float32[n, m], y: int32[n, m]) -> (float32[n, m + 1], int32[n, m + 1], float32[n, m + 1]):
    @sum
    def total(i0, i1) -> float32[n, 1]:
        for r0 in range(m):
            yield x[i0, r0]
    @max
    def greatest(i0, i1) -> int32[n, 1]:
        for r0 in range(m):
            yield y[i0, r0]
    def first(i0, i1) -> float32[n, m + 1]:
        return x[i0, i1] if i1 < m else total[i0, i1 - m]
    def second(i0, i1) -> int32[n, m + 1]:
        return y[i0, i1] if i1 < m else greatest[i0, i1 - m]
    def third(i0, i1) -> float32[n, m + 1]:
        return x[i0, i1] if i1 < m else float32(greatest[i0, i1 - m])
    return first, second, third
""",
    """\
def reversed_rows(x: float32[n, m]) -> float32[n, m]:
    def out(i0, i1) -> float32[n, m]:
        return x[n - 1 - i0, m - 1 - i1]
    return out
""",
    """\
def steps(x: float32[n, 2*m + 1], *, m) -> float32[n, m]:
    def out(i0, i1) -> float32[n, m]:
        t0 = i1 * 2
        return x[i0, t0] - x[i0, t0 + 1]
    return out
""",
    """\
def transposed(x: float32[n, m], y: float32[m, n]) -> float32[m, n]:
    def out(i0, i1) -> float32[m, n]:
        return x[i1, i0] + y[i0, i1]
    return out
""",
    # a NaN is the greatest element
    """\
def extremes(x: float32[n, m]) -> (float32[n], float32[n], int64[n], int64[n]):
    @max
    def high(i0) -> float32[n]:
        for r0 in range(m):
            yield x[i0, r0]
    @min
    def low(i0) -> float32[n]:
        for r0 in range(m):
            yield x[i0, r0]
    @argmax
    def where_high(i0) -> int64[n]:
        for r0 in range(m):
            yield x[i0, r0]
    @argmin
    def where_low(i0) -> int64[n]:
        for r0 in range(m):
            yield x[i0, r0]
    return high, low, where_high, where_low
""",
    """\
def columns(x: float32[n, m], y: float32[n, m]) -> (float32[m], float32[m], float32[m]):
    @sum
    def total(i0) -> float32[m]:
        for r0 in range(n):
            yield x[r0, i0] * y[r0, i0]
    @max
    def greatest(i0) -> float32[m]:
        for r0 in range(n):
            yield x[r0, i0]
    def mean(i0) -> float32[m]:
        return total[i0] / float32(n) + greatest[i0]
    return total, greatest, mean
""",
    """\
def matmul_relu(x: float32[b, n, k], y: float32[k, m]) -> float32[b, n, m]:
    @sum
    def product(i0, i1, i2) -> float32[b, n, m]:
        for r0 in range(k):
            yield x[i0, i1, r0] * y[r0, i2]
    def out(i0, i1, i2) -> float32[b, n, m]:
        return max(product[i0, i1, i2], 0.0)
    return out
""",
    """\
def rows_times_rows(x: float32[n, k], y: float32[m, k]) -> float32[n, m]:
    @sum
    def out(i0, i1) -> float32[n, m]:
        for r0 in range(k):
            yield x[i0, r0] * y[i1, r0]
    return out
""",
    # integers: divisors are 0 at times
    """\
def integers(x: int64[n, m], y: int32[n, m]) -> (int64[n, m], int32[n, m], bool[n, m]):
    def quotient(i0, i1) -> int64[n, m]:
        t0 = x[i0, i1]
        t1 = int64(y[i0, i1])
        return t0 // t1 * 3 - t0 % t1
    def small(i0, i1) -> int32[n, m]:
        t0 = y[i0, i1]
        return max(t0 // 7, int32(x[i0, i1]) % t0) + int32(i1)
    def test(i0, i1) -> bool[n, m]:
        t0 = y[i0, i1]
        return x[i0, i1] > int64(t0) or not t0 == 3
    return quotient, small, test
""",
    """\
def counts(x: int64[n, m], mask: bool[n, m]) -> (int64[n], bool[n], bool[n], int64[n]):
    @sum
    def total(i0) -> int64[n]:
        for r0 in range(m):
            yield x[i0, r0] * int64(mask[i0, r0])
    @any
    def some(i0) -> bool[n]:
        for r0 in range(m):
            yield mask[i0, r0]
    @all
    def every(i0) -> bool[n]:
        for r0 in range(m):
            yield mask[i0, r0] or x[i0, r0] > 0
    @max
    def greatest(i0) -> int64[n]:
        for r0 in range(m):
            yield x[i0, r0]
    return total, some, every, greatest
""",
    # integers and booleans beside floating-point numbers in vectors
    """\
def mixed(x: float32[n, m], y: int64[n, m], z: int32[m], mask: bool[n, m]) -> (float32[n, m], bool[n, m], int64[n, m]):
    def value(i0, i1) -> float32[n, m]:
        return x[i0, i1] * float32(y[i0, i1]) + float32(z[i1]) * float32(mask[i0, i1]) + float32(i1)
    def test(i0, i1) -> bool[n, m]:
        return (value[i0, i1] < x[i0, i1]) == mask[i0, i1]
    def choice(i0, i1) -> int64[n, m]:
        return y[i0, i1] + 1 if value[i0, i1] > 0.5 and (not mask[i0, i1]) else int64(z[i1])
    return value, test, choice
""",
    # integers that are only stored: computed with as int64, cast back with all that wraps around
    """\
def stored(x: int8[n, m], y: uint8[n, m], z: uint16[m], w: uint32[n, m], v: int16[n, m]) \
-> (int8[n, m], uint16[n, m], uint32[n, m], int16[n, m], uint8[m, n], bool[n, m], uint8[n]):
    def bytes(i0, i1) -> int8[n, m]:
        return int8(x[i0, i1] * y[i0, i1] + 100)
    def words(i0, i1) -> uint16[n, m]:
        return uint16(x[i0, i1] - z[i1])
    def wide(i0, i1) -> uint32[n, m]:
        return uint32(w[i0, i1] * uint8(v[i0, i1]))
    def most(i0, i1) -> int16[n, m]:
        return max(v[i0, i1], x[i0, i1])
    def turned(i0, i1) -> uint8[m, n]:
        return y[i1, i0]
    def less(i0, i1) -> bool[n, m]:
        return w[i0, i1] > z[i1] or x[i0, i1] == y[i0, i1]
    @max
    def greatest(i0) -> uint8[n]:
        for r0 in range(m):
            yield y[i0, r0]
    return bytes, words, wide, most, turned, less, greatest
""",
    """\
def dequantized(x: int8[n, m], y: uint8[n, m], z: uint16[m], w: uint32[n, m], v: int16[n, m], scale: float32[n]) \
-> float32[n, m]:
    def out(i0, i1) -> float32[n, m]:
        return float32(x[i0, i1] - y[i0, i1]) * scale[i0] + sigmoid(float32(z[i1]) * 0.0001) + float32(w[i0, i1] // 16777216) \
- float32(v[i0, i1]) * 0.001
    return out
""",
    """\
def quantized(x: float32[n, m], flag: bool[n, m]) -> (uint8[n, m], int8[n, m], uint16[n, m]):
    def low(i0, i1) -> uint8[n, m]:
        return uint8(min(max(x[i0, i1] * 1024.0, 0.0), 255.0))
    def even(i0, i1) -> int8[n, m]:
        return int8(x[i0, i1] * 64.0)
    def flags(i0, i1) -> uint16[n, m]:
        return uint16(flag[i0, i1])
    return low, even, flags
""",
    """\
def cast_layer_norm(y: int32[n, m], weight: float32[m]) -> float32[n, m]:
    def x(i0, i1) -> float32[n, m]:
        return float32(y[i0, i1]) * 0.125
    @sum
    def total(i0, i1) -> float32[n, 1]:
        for r0 in range(m):
            yield x[i0, r0]
    @sum
    def squares(i0, i1) -> float32[n, 1]:
        for r0 in range(m):
            t0 = x[i0, r0] - total[i0, 0] / float32(m)
            yield t0 * t0
    def out(i0, i1) -> float32[n, m]:
        t0 = float32(m)
        return (x[i0, i1] - total[i0, 0] / t0) / sqrt(squares[i0, 0] / t0 + 1e-05) * weight[i1]
    return out
""",
    # nests of their own, with a tensor between them
    """\
def normalized_by_all(x: float32[n, m]) -> (float32[n, m], float32[()]):
    def e(i0, i1) -> float32[n, m]:
        return exp(x[i0, i1])
    @sum
    def total() -> float32[()]:
        for r0 in range(n):
            for r1 in range(m):
                yield e[r0, r1]
    def out(i0, i1) -> float32[n, m]:
        return e[i0, i1] / total[()]
    return out, total
""",
    """\
def halves(x: float16[n, m], y: float16[m]) -> float16[n, m]:
    @sum
    def total(i0) -> float16[n]:
        for r0 in range(m):
            yield x[i0, r0] * y[r0]
    def out(i0, i1) -> float16[n, m]:
        return x[i0, i1] + total[i0] * float16(y[i1] * 3.0)
    return out
""",
    """\
def conversions(x: bfloat16[n, m], y: float16[n, m], z: float64[n, m]) -> (float16[n, m], float64[n, m], float32[n, m]):
    def narrow(i0, i1) -> float16[n, m]:
        return x[i0, i1] + y[i0, i1]
    def wide(i0, i1) -> float64[n, m]:
        return tanh(z[i0, i1]) * float64(x[i0, i1])
    def middle(i0, i1) -> float32[n, m]:
        t0 = z[i0, i1]
        return sigmoid(float32(t0)) if t0 > 0.0 else float32(int64(t0 * 8.0))
    return narrow, wide, middle
""",
    """\
def doubles(x: float64[n, m]) -> float64[n]:
    @prod
    def product(i0) -> float64[n]:
        for r0 in range(m):
            yield x[i0, r0] * 0.25 + 1.0
    def out(i0) -> float64[n]:
        t0 = product[i0]
        return log(t0 * t0 + 1.0)
    return out
""",
    """\
def keep_ones(x: float32[1, n, 1, m, 1], y: float32[n, 1, 1]) -> float32[1, n, 1, m, 1]:
    def out(i0, i1, i2, i3, i4) -> float32[1, n, 1, m, 1]:
        return x[0, i1, 0, i3, 0] * y[i1, 0, 0]
    return out
""",
    """\
def scalars(x: float32[()], y: float32[n]) -> (float32[()], float32[n]):
    def twice() -> float32[()]:
        return x[()] * 2.0
    def out(i0) -> float32[n]:
        return y[i0] - twice[()]
    return twice, out
""",
    # indices that do not cancel
    """\
def regrouped(x: float32[n, 6]) -> float32[2*n, 3]:
    def out(i0, i1) -> float32[2*n, 3]:
        t0 = i0 * 3 + i1
        return x[t0 // 6, t0 % 6]
    return out
""",
    # a branch that reads, chosen by a row
    """\
def stacked(x: float32[n, m], y: float32[k, m]) -> float32[k + n, m]:
    def out(i0, i1) -> float32[k + n, m]:
        return x[i0, i1] if i0 < n else y[i0 - n, i1] * 2.0
    return out
""",
    # what is written side by side comes from memory that is apart; one branch is chosen by a row
    """\
def interleaved(x: float32[n, 4, m], y: float32[k, 4*m]) -> float32[k + n, 4*m]:
    def out(i0, i1) -> float32[k + n, 4*m]:
        return y[i0, i1] if i0 < k else x[i0 - k, i1 % 4, i1 // 4] + 1.0
    return out
""",
    """\
def shuffled(x: float32[n, 12, 16], y: float16[n, 6, 32]) -> float32[n, 192]:
    def out(i0, i1) -> float32[n, 192]:
        t0 = i1 // 2 % 16
        t1 = i1 // 32
        return (x[i0, t1 * 2 + i1 % 2, t0] if t0 < 11 else 0.5) * y[i0, t1, i1 % 32]
    return out
""",
    # dims that are equal when they are collapsed
    """\
def merged_heads(x: float32[b, n, m]) -> float32[b*n, m]:
    @sum
    def total(i0, i1) -> float32[b, n]:
        for r0 in range(m):
            yield exp(x[i0, i1, r0])
    def out(i0, i1) -> float32[b*n, m]:
        t0 = i0 // n
        t1 = i0 % n
        return exp(x[t0, t1, i1]) / total[t0, t1]
    return out
""",
    """\
def split_heads(x: float32[b*n, m], *, b, n) -> float32[b, n, m]:
    @sum
    def total(i0) -> float32[b*n]:
        for r0 in range(m):
            yield exp(x[i0, r0])
    def out(i0, i1, i2) -> float32[b, n, m]:
        t0 = i0 * n + i1
        return exp(x[t0, i2]) / total[t0]
    return out
""",
    """\
def softmax_columns(x: float32[n, m, k]) -> float32[n, m, k]:
    @max
    def greatest(i0, i1) -> float32[n, k]:
        for r0 in range(m):
            yield x[i0, r0, i1]
    def e(i0, i1, i2) -> float32[n, m, k]:
        return exp(x[i0, i1, i2] - greatest[i0, i2])
    @sum
    def total(i0, i1) -> float32[n, k]:
        for r0 in range(m):
            yield e[i0, r0, i1]
    def out(i0, i1, i2) -> float32[n, m, k]:
        return e[i0, i1, i2] / total[i0, i2]
    return out
""",
]


@cache
def programs() -> dict[str, LoopProgram]:
    """The programs by name."""
    found = [parse_loops(t) for t in TEXTS]
    return {p.name: p for p in found}


def inputs(program: LoopProgram, sizes: Mapping[str, int], seed: int = 0) -> list[np.ndarray]:
    """Random inputs: indices are in range, counted from either end; integers are small, some of them 0,
    and those that are only stored any that their types reach.
    """
    rng = np.random.default_rng(seed)
    arrays = []
    for name, t in program.inputs:
        shape = t.bind(sizes)
        if t.dtype in DTYPES:
            # sums are far from 0, and errors small relative to them
            array = np.asarray(rng.uniform(-0.25, 1.0, shape))
        elif t.dtype == "bool":
            array = np.asarray(rng.random(shape) < 0.7)
        elif t.dtype in STORED_INTEGERS:
            range_ = np.iinfo(ELEMENTS[t.dtype])
            array = np.asarray(rng.integers(range_.min, range_.max, shape, endpoint=True))
        else:
            extent = sizes["k"] if name == "ids" else sizes["m"] if name == "at" else 9
            array = np.asarray(rng.integers(-extent, extent, shape) if extent else np.zeros(shape))
        arrays.append(array.astype(ELEMENTS[t.dtype]))
    return arrays


#: of a vector: it and its reductions share a nest
SOFTMAX = """\
def softmax(x: float32[n]) -> float32[n]:
    @max
    def greatest() -> float32[()]:
        for r0 in range(n):
            yield x[r0]
    def e(i0) -> float32[n]:
        return exp(x[i0] - greatest[()])
    @sum
    def total() -> float32[()]:
        for r0 in range(n):
            yield e[r0]
    def out(i0) -> float32[n]:
        return e[i0] / total[()]
    return out
"""


def reduced(combiner: str, dtype: str, n: str = "n", m: str = "m") -> LoopProgram:
    """A matrix reduced to one number."""
    return parse_loops(f"""\
def reduced(x: {dtype}[{n}, {m}]) -> {dtype}[1, 1]:
    @{combiner}
    def out(i0, i1) -> {dtype}[1, 1]:
        for r0 in range({n}):
            for r1 in range({m}):
                yield x[r0, r1]
    return out
""")
