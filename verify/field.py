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

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, lru_cache
from random import Random
from typing import Any, TypeVar

import numpy as np
import sympy

from mirage.errors import ConstantsCollide, FieldError, InputError
from mirage.ir.arithmetic import Arithmetic
from mirage.ir.dims import Dim
from mirage.ir.functions import EXP, ScalarFunction

T = TypeVar("T")

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


@dataclass(frozen=True)
class Primes:
    """Primes p and q with q | p - 1, both below 2^31, and a generator of the q-th roots of unity mod p."""

    p: int
    q: int
    generator: int

    def __post_init__(self) -> None:
        if not (2 < self.q < self.p < 1 << 31) or (self.p - 1) % self.q:
            raise FieldError(f"p={self.p}, q={self.q}: p must be below 2^31 and q a divisor of p - 1")
        if not (sympy.isprime(self.p) and sympy.isprime(self.q)):
            raise FieldError(f"p={self.p}, q={self.q}: both must be prime")
        if self.generator % self.p == 1 or pow(self.generator, self.q, self.p) != 1:
            raise FieldError(
                f"{self.generator} does not generate the roots of unity of order {self.q} mod {self.p}"
            )


#: their product: most numbers with such a factor need no other test
_SMALL_PRIMES = math.prod(sympy.primerange(3, 50))


@lru_cache(maxsize=64)
def draw_primes(key: int | str) -> Primes:
    """Random primes p = 2q + 1 with 2^29 < q < 2^30: q is as large as products in 64 bits allow. `key` decides which."""
    rng = Random(f"primes {key}")
    while True:
        q = rng.randrange(1 << 29, 1 << 30) | 1
        p = 2 * q + 1
        if math.gcd(p * q, _SMALL_PRIMES) == 1 and sympy.isprime(q) and sympy.isprime(p):
            # every square other than 1 has order q
            return Primes(p, q, pow(rng.randrange(2, p - 1), 2, p))


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


class Residues:
    """Constants modulo p and q, each of which has residues of its own.

    Primes that do not tell two constants apart would take programs for equal that are not.
    """

    def __init__(self, primes: Primes) -> None:
        self.primes = primes
        self._found: dict[Fraction, tuple[IntArray, IntArray]] = {}
        self._by_residue: dict[tuple[int, int], Fraction] = {}
        self.of(Fraction(0))

    def of(self, value: Fraction) -> tuple[IntArray, IntArray]:
        """A constant mod p and mod q; raises ConstantsCollide where it has none, or that of another constant."""
        if value not in self._found:
            parts = []
            for m in (self.primes.p, self.primes.q):
                if value.denominator % m == 0:
                    raise ConstantsCollide(f"constant {value}: its denominator is 0 modulo {m}; draw other primes")
                residue = value.numerator * pow(value.denominator, -1, m) % m
                other = self._by_residue.setdefault((m, residue), value)
                if other != value:
                    raise ConstantsCollide(f"constants {value} and {other} are equal modulo {m}; draw other primes")
                parts.append(np.asarray(residue, dtype=np.int64))
                parts[-1].flags.writeable = False
            self._found[value] = parts[0], parts[1]
        return self._found[value]


#: primes that are drawn before constants are found to collide modulo any
_PRIMES = 32


def with_primes(key: str, run: Callable[[Residues], T]) -> T:
    """What `run` returns with random primes, or others where constants collide. `key` decides which primes are drawn.

    The key holds the seed and the text of all that is compared, so that a run can be repeated, and nobody can write constants
    that vanish modulo primes known beforehand. Raises ConstantsCollide where they collide modulo all that are tried.
    """
    for k in range(_PRIMES - 1):
        with suppress(ConstantsCollide):
            return run(Residues(draw_primes(f"{key} {k}")))
    return run(Residues(draw_primes(key)))


@dataclass(frozen=True)
class Measure:
    """How often the elements of axes count in sums, so that a few elements stand for an axis of any size.

    `axes` maps an axis to its size and to the number of its elements in the arrays. In every test each dim symbol is a random
    value of the fields, and an axis' elements have random weights that add up to its size. With natural numbers as weights, that
    is the program on larger arrays, in which elements are repeated. An axis of as many elements as its literal size has no
    weights. `joined` maps an axis that puts others side by side to these, in order: its weights are theirs.
    """

    axes: Mapping[str, tuple[Dim, int]] = field(default_factory=dict)
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def is_exact(size: Dim, elements: int) -> bool:
    """Whether an axis of that size has so many elements, each of which counts once."""
    return bool(size == elements)


@lru_cache(maxsize=4096)
def _monomials(size: Dim) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """A polynomial dim as coefficients and symbols, each as often as its power says."""
    found = []
    for monomial, c in size.as_coefficients_dict().items():
        powers = monomial.as_powers_dict().items()
        found.append((int(c), tuple(b.name for b, n in powers if b.is_Symbol for _ in range(int(n)))))
    return tuple(found)


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
        measure: Measure | None = None,
        xp: ArrayModule = np,
        residues: Residues | None = None,
    ) -> None:
        super().__init__(sizes)
        self.xp = check_module(xp)
        self.primes = primes
        self.residues = residues or Residues(primes)
        self.tests = len(roots)
        self.numbers = np.asarray(roots).astype(np.uint64)
        self.roots = xp.asarray(roots)
        self.seed = seed
        self.measure = measure
        self.invalid = xp.zeros(self.tests, dtype=bool)
        self.joined = False
        self.outside_lax: set[str] = set()
        self._symbols: dict[str, Pair] = {}

    def constant(self, value: Fraction) -> Pair:
        p, q = self.residues.of(value)
        return Pair(self.xp.asarray(p), self.xp.asarray(q))

    def dim(self, size: Dim) -> Pair:
        if self.measure is None or size.is_Integer:
            return super().dim(size)
        return self._on_device(self._size(size))

    @cached_property
    def weights(self) -> Mapping[str, Pair]:
        if self.measure is None:
            return {}
        found: dict[str, Pair] = {}
        whole = {a for a, (size, n) in self.measure.axes.items() if is_exact(size, n)}
        for a, (size, n) in self.measure.axes.items():
            if a not in whole and a not in self.measure.joined:
                found[a] = self._weights(a, self._size(size), n)
        for a, parts in self.measure.joined.items():
            if any(v in found for v in parts):
                ones = np.ones((self.tests, 1), dtype=np.int64)
                each = [found.get(v) or Pair(*[ones.repeat(self.measure.axes[v][1], 1)] * 2) for v in parts]
                p, q = (np.concatenate(xs, axis=1) for xs in ([x.p for x in each], [x.q for x in each]))
                found[a] = Pair(p, q)
        return {a: self._on_device(w) for a, w in found.items()}

    def _on_device(self, x: Pair) -> Pair:
        return Pair(self.xp.asarray(x.p), None if x.q is None else self.xp.asarray(x.q))

    def _weights(self, axis: str, size: Pair, count: int) -> Pair:
        """Random weights that add up to the size, of shape [tests, count]; on the host, as all that is drawn."""
        drawn = self._random(f"weights of {axis}", count)
        for w, n, m in ((drawn.p, size.p, self.primes.p), (drawn.q, size.q, self.primes.q)):
            w[:, -1] = (n - w[:, :-1].sum(axis=1)) % m
        return drawn

    def _size(self, size: Dim) -> Pair:
        """A polynomial of the sizes of symbols, of shape [tests]."""
        p, q = self.primes.p, self.primes.q
        total = Pair(np.zeros(self.tests, dtype=np.int64), np.zeros(self.tests, dtype=np.int64))
        for c, names in _monomials(size):
            term = Pair(np.int64(c % p), np.int64(c % q))
            for name in names:
                x = self._symbol(name)
                term = Pair(term.p * x.p % p, term.q * x.q % q)
            total = Pair((total.p + term.p) % p, (total.q + term.q) % q)
        return total

    def _symbol(self, name: str) -> Pair:
        if name not in self._symbols:
            x = self._random(f"size {name}", 1)
            assert x.q is not None
            self._symbols[name] = Pair(x.p[:, 0], x.q[:, 0])
        return self._symbols[name]

    def _random(self, what: str, count: int) -> Pair:
        """Random values that both sides of a test find, of shape [tests, count]: the root names the test."""
        keys = self._keys(what)
        h = _mix(_mix(self.numbers ^ keys[0])[:, None] + np.arange(count, dtype=np.uint64))
        p, q = h % np.uint64(self.primes.p), _mix(h ^ keys[1]) % np.uint64(self.primes.q)
        return Pair(p.astype(np.int64), q.astype(np.int64))

    def _keys(self, what: str) -> IntArray:
        digest = hashlib.blake2b(f"{what} {self.seed}".encode(), digest_size=16).digest()
        return np.frombuffer(digest, dtype=np.uint64)

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
        keys = self._keys(f"{fn.name} {params} {x.q is None}")
        # the root names the test, in whatever chunk it is run
        salts = _mix(self.roots.astype(np.uint64) ^ keys[1]).reshape(-1, *(1,) * (x.p.ndim - 1))
        h = _mix(x.p.astype(np.uint64) ^ keys[0] ^ salts)
        if x.q is not None:
            h = _mix(h ^ x.q.astype(np.uint64))
        else:
            self.joined = True
            h = _mix(h.sum(axis=0, dtype=np.uint64) ^ salts)
        low = (h % np.uint64(self.primes.p)).astype(np.int64)
        return Pair(low, (_mix(h ^ keys[1]) % np.uint64(self.primes.q)).astype(np.int64))

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


def _mix(h: Any) -> Any:
    """The finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection of 64-bit words that scatters
    them.
    """
    with np.errstate(over="ignore"):
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return h ^ (h >> np.uint64(31))


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
