"""Arithmetic over two finite fields (Mirage, section 5 and Table 3), many random tests at once.

A value is a pair (x mod p, x mod q) with primes q | p - 1. `exp` maps x mod q to a power of a q-th root of
unity mod p; what comes out of it has no part mod q. Any other function is a random one, another one in every test: equal
arguments have equal results, and results that are equal by chance in one test are not in the next, of constants too. Where
an argument has no part mod q, one test tells different arguments apart too seldom: such a function takes the values of all
tests together for its argument.

The arrays are those of a module `xp`, NumPy or CuPy: integers below 2^62 and sums of float64 that are exact, so that both
find the same numbers. Primes, random values and tables are made by NumPy and copied to where `xp` keeps its arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from mirage.errors import FieldError, InputError
from mirage.ir.arithmetic import Arithmetic
from mirage.ir.decimals import as_written
from mirage.ir.dims import Dim
from mirage.ir.functions import EXP, ScalarFunction
from mirage.verify.measure import DrawnMeasure
from mirage.verify.primes import Primes, Residues
from mirage.verify.words import keys, mix

#: NumPy, or a module with its functions
ArrayModule = Any
#: an array of that module, of 64-bit integers
IntArray = Any

#: bits of each digit of the tables of powers of the generator
_DIGIT = 10


def check_module(xp: ArrayModule) -> ArrayModule:
    """`xp` itself; raises InputError for what is no module of arrays."""
    missing = [f for f in ("arange", "asarray", "matmul", "ones", "where", "zeros") if not hasattr(xp, f)]
    if missing:
        raise InputError(f"xp={xp!r} has no {missing[0]}; pass the module numpy or cupy")
    return xp


@lru_cache(maxsize=16)
def _power_tables(primes: Primes) -> list[IntArray]:
    """generator ** (digit << shift) mod p for every digit of an exponent below 2^30."""
    tables = []
    base = primes.generator
    for _ in range(3):
        table = np.ones(1 << _DIGIT, dtype=np.int64)
        for i in range(_DIGIT):
            table[1 << i : 2 << i] = table[: 1 << i] * pow(base, 1 << i, primes.p) % primes.p
        tables.append(table)
        base = pow(base, 1 << _DIGIT, primes.p)
    return tables


class Pair:
    """Values mod p, and mod q where they have them ("-" in Table 3 is None). `fresh` marks zeros to be
    written to.
    """

    __slots__ = ("fresh", "p", "q")

    def __init__(self, p: IntArray, q: IntArray | None, fresh: bool = False) -> None:
        self.p = p
        self.q = q
        self.fresh = fresh


class FieldArithmetic(Arithmetic[Pair]):
    """`tests` independent random tests, side by side along the lead dim.

    `roots` are the exponents (one per test, mod q) that make the generator each test's root of unity.
    Division by zero is recorded per test in `invalid`, and means nothing there; where a function took all tests
    together (`joined`), it spoils them all. `outside_lax` collects in
    words what the theorem of the paper does not cover. `measure` gives dims their values and axes their weights; without it, dims
    are what `sizes` says, and every element counts once. `residues` are shared by the sides of a comparison. `xp` is the module
    of the arrays; `roots` are NumPy's.

    Raises InputError if `xp` is no module of arrays; operations raise ConstantsCollide where two constants are equal modulo
    p or q.
    """

    lead = 1

    def __init__(
        self,
        sizes: Mapping[str, int],
        primes: Primes,
        roots: IntArray,
        seed: int,
        measure: DrawnMeasure | None = None,
        xp: ArrayModule = np,
        residues: Residues | None = None,
    ) -> None:
        super().__init__(sizes)
        self.xp = check_module(xp)
        self.primes = primes
        self.residues = residues or Residues(primes)
        self.tests = len(roots)
        self.roots = xp.asarray(roots)
        self.seed = seed
        self.measure = measure
        self.invalid = xp.zeros(self.tests, dtype=bool)
        self.joined = False
        self.outside_lax: set[str] = set()

    def constant(self, value: Fraction) -> Pair:
        return self._pair(self.residues.of(as_written(value)))

    def dim(self, size: Dim) -> Pair:
        if self.measure is None or size.is_Integer:
            return super().dim(size)
        return self._pair(self.measure.size(size))

    @cached_property
    def weights(self) -> Mapping[str, Pair]:
        return {} if self.measure is None else {a: self._pair(w) for a, w in self.measure.weights.items()}

    def _pair(self, x: tuple[IntArray, IntArray]) -> Pair:
        """Values of the host, as all that is drawn."""
        return Pair(self.xp.asarray(x[0]), self.xp.asarray(x[1]))

    def _both(self, f: Callable[[Any, Any, int], IntArray], x: Pair, y: Pair) -> Pair:
        q = None if x.q is None or y.q is None else f(*_aligned(x.q, y.q), self.primes.q)
        return Pair(f(*_aligned(x.p, y.p), self.primes.p), q)

    def add(self, x: Pair, y: Pair) -> Pair:
        return self._both(lambda a, b, m: (a + b) % m, x, y)

    def sub(self, x: Pair, y: Pair) -> Pair:
        return self._both(lambda a, b, m: (a - b) % m, x, y)

    def mul(self, x: Pair, y: Pair) -> Pair:
        return self._both(lambda a, b, m: a * b % m, x, y)

    def div(self, x: Pair, y: Pair) -> Pair:
        return self._both(lambda a, b, m: a * self._inverse(b, m) % m, x, y)

    def neg(self, x: Pair) -> Pair:
        return Pair(-x.p % self.primes.p, None if x.q is None else -x.q % self.primes.q)

    def _inverse(self, y: IntArray, m: int) -> IntArray:
        zero = y == 0
        if zero.any():
            self.invalid |= zero.reshape(self.tests, -1).any(axis=1) if y.ndim else True
            y = self.xp.where(zero, 1, y)
        return inverse(y, m, self.xp)

    def function(self, fn: ScalarFunction, x: Pair, *params: Fraction) -> Pair:
        # the exp of a constant has no variable to be a polynomial in, so no power of a root tells it from others
        if fn is EXP and x.q is not None and x.q.ndim:
            return Pair(self._root_power(x.q), None)
        if fn is EXP:
            what = "a constant" if x.q is not None else "an exp's result"
            self.outside_lax.add(f"the exp of {what} is taken as a random function")
        else:
            self.outside_lax.add(f"{fn.name} is taken as a random function")
        first, second = keys(f"{fn.name} {params} {self.seed} {x.q is None}")
        # the root is the number of the test
        salts = mix(self.roots.astype(np.uint64) ^ second).reshape(-1, *(1,) * (x.p.ndim - 1))
        h = mix(x.p.astype(np.uint64) ^ first ^ salts)
        if x.q is not None:
            h = mix(h ^ x.q.astype(np.uint64))
        else:
            self.joined = True
            h = mix(h.sum(axis=0, dtype=np.uint64) ^ salts)
        low = (h % np.uint64(self.primes.p)).astype(np.int64)
        return Pair(low, (mix(h ^ second) % np.uint64(self.primes.q)).astype(np.int64))

    def _root_power(self, x: IntArray) -> IntArray:
        p, q = self.primes.p, self.primes.q
        e = x * self.roots.reshape(-1, *(1,) * (x.ndim - 1)) % q
        digits = (e >> (_DIGIT * i) & ((1 << _DIGIT) - 1) for i in range(3))
        a, b, c = (t[d] for t, d in zip(self._powers, digits, strict=True))
        return self.xp.asarray(a * b % p * c % p)

    @cached_property
    def _powers(self) -> list[IntArray]:
        return [self.xp.asarray(t) for t in _power_tables(self.primes)]

    def apply(self, fn: Callable[..., Any], *xs: Pair) -> Pair:
        p = self.xp.asarray(fn(*(x.p for x in xs)))
        qs = [x.q for x in xs if x.q is not None]
        if len(qs) == len(xs):
            return Pair(p, self.xp.asarray(fn(*qs)))
        for x in xs:
            # a value without a part mod q was written into zeros: they have none either
            if x.fresh:
                x.q = None
        return Pair(p, None)

    def einsum(self, x: Pair, y: Pair, xl: Sequence[int], yl: Sequence[int], ol: Sequence[int]) -> Pair:
        def contract(a: IntArray, b: IntArray, m: int) -> IntArray:
            return _einsum(a, b, list(xl), list(yl), list(ol), m, self.xp)

        q = None if x.q is None or y.q is None else contract(x.q, y.q, self.primes.q)
        return Pair(contract(x.p, y.p, self.primes.p), q)

    def sum(self, x: Pair, axes: tuple[int, ...]) -> Pair:
        def total(a: IntArray, m: int) -> IntArray:
            return self.xp.asarray(a.sum(axis=axes) % m)

        return Pair(total(x.p, self.primes.p), None if x.q is None else total(x.q, self.primes.q))

    def zeros(self, shape: Sequence[int]) -> Pair:
        full = (self.tests, *shape)
        return Pair(self.xp.zeros(full, dtype=np.int64), self.xp.zeros(full, dtype=np.int64), fresh=True)

    def shape(self, x: Pair) -> tuple[int, ...]:
        return tuple(x.p.shape[1:])


def _aligned(x: IntArray, y: IntArray) -> tuple[IntArray, IntArray]:
    """A tensor without axes still has the dim of tests, in front, where broadcasting alone would put it
    last.
    """
    if x.ndim == 1 and y.ndim > 1:
        x = x.reshape(-1, *(1,) * (y.ndim - 1))
    elif y.ndim == 1 and x.ndim > 1:
        y = y.reshape(-1, *(1,) * (x.ndim - 1))
    return x, y


def draw(
    shape: Sequence[int], tests: int, primes: Primes, rng: np.random.Generator, xp: ArrayModule = np
) -> Pair:
    """Uniform values of shape [tests, *shape], the same ones for every module."""
    p, q = (rng.integers(0, m, (tests, *shape), dtype=np.int64) for m in (primes.p, primes.q))
    return Pair(xp.asarray(p), xp.asarray(q))


def inverse(y: IntArray, m: int, xp: ArrayModule = np) -> IntArray:
    """Inverses mod the prime m of values that are not 0: one power for all of them (Montgomery's trick,
    as a tree).
    """
    if y.size == 0:
        return y
    size = 1 << math.ceil(math.log2(y.size))
    level = xp.ones(size, dtype=np.int64)
    level[: y.size] = y.ravel()
    levels = [level]
    while len(level) > 1:
        level = level[0::2] * level[1::2] % m
        levels.append(level)
    inv = xp.asarray([pow(int(level[0]), -1, m)], dtype=np.int64)
    for level in reversed(levels[:-1]):
        # the inverse of one factor is that of the product times the other factor
        inv = (level.reshape(-1, 2)[:, ::-1] * inv[:, None] % m).ravel()
    return inv[: y.size].reshape(y.shape)


def _einsum(
    x: IntArray, y: IntArray, xl: list[int], yl: list[int], ol: list[int], m: int, xp: ArrayModule
) -> IntArray:
    """Sum of products mod m; a tensor with one dim more than labels has the lead in front."""
    lead = -1
    xl, yl = ([lead] * (a.ndim - len(ls)) + ls for a, ls in ((x, xl), (y, yl)))
    ol = [lead, *ol] if lead in xl or lead in yl else ol
    xs, ys, os = set(xl), set(yl), set(ol)
    for v in [v for v in xl if v not in ys and v not in os]:
        x, xl = x.sum(axis=xl.index(v)) % m, [w for w in xl if w != v]
    for v in [v for v in yl if v not in xs and v not in os]:
        y, yl = y.sum(axis=yl.index(v)) % m, [w for w in yl if w != v]
    batch = [v for v in ol if v in xl and v in yl]
    rows = [v for v in ol if v in xl and v not in yl]
    cols = [v for v in ol if v in yl and v not in xl]
    summed = [v for v in xl if v in yl and v not in os]
    xt = x.transpose([xl.index(v) for v in batch + rows + summed])
    yt = y.transpose([yl.index(v) for v in batch + cols + summed])
    nb, nr, nc = len(batch), len(rows), len(cols)
    bs, rs, cs, ss = xt.shape[:nb], xt.shape[nb : nb + nr], yt.shape[nb : nb + nc], xt.shape[nb + nr :]
    k = math.prod(ss)
    r = _matmul(xt.reshape((*bs, math.prod(rs), k)), yt.reshape((*bs, math.prod(cs), k)), m, xp)
    order = batch + rows + cols
    return r.reshape((*bs, *rs, *cs)).transpose([order.index(v) for v in ol])


def _matmul(x: IntArray, y: IntArray, m: int, xp: ArrayModule) -> IntArray:
    """x @ y^T mod m for [..., i, k] and [..., j, k], batches broadcasting."""
    k = x.shape[-1]
    if k <= 16:
        products = (x[..., :, None, i] * y[..., None, :, i] % m for i in range(k))
        r = next(products, None)
        if r is None:
            batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
            return xp.zeros((*batch, x.shape[-2], y.shape[-2]), dtype=np.int64)
        for product in products:
            r += product
        return r % m if k > 1 else r
    # digits of 16 bits: sums of up to 2^21 products are exact in float64
    if k > 1 << 21:
        raise FieldError(f"a contraction over {k} elements is too long to be exact; verify at smaller sizes")
    mask = (1 << 16) - 1
    xs, ys = ([(a >> 16).astype(np.float64), (a & mask).astype(np.float64)] for a in (x, y.swapaxes(-1, -2)))
    high, low = (xp.matmul(xs[i], ys[i]).astype(np.int64) % m for i in (0, 1))
    cross = (xp.matmul(xs[0], ys[1]).astype(np.int64) + xp.matmul(xs[1], ys[0]).astype(np.int64)) % m
    return xp.asarray(((((high << 16) + cross) % m << 16) + low) % m)
