"""Arithmetic over the pair of finite fields."""

from __future__ import annotations

from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage.errors import FieldError
from mirage.ir.decimals import as_written
from mirage.ir.functions import EXP, LOG, RELU, SQRT
from mirage.verify.field import FieldArithmetic, Pair, draw, inverse
from mirage.verify.primes import Primes, draw_primes

PRIMES = draw_primes(0)
P, Q = PRIMES.p, PRIMES.q
TESTS = 5


def arithmetic(primes: Primes = PRIMES, seed: int = 0) -> FieldArithmetic:
    roots = np.random.default_rng(1).integers(0, primes.q, TESTS, dtype=np.int64)
    return FieldArithmetic({"n": 7}, primes, roots, seed)


def values(*shape: int, seed: int = 0) -> Pair:
    return draw(shape, TESTS, PRIMES, np.random.default_rng(seed))


def pair_of(x: int, primes: Primes = PRIMES) -> Pair:
    return Pair(np.full((TESTS, 1), x % primes.p), np.full((TESTS, 1), x % primes.q))


@pytest.mark.parametrize("seed", range(5))
def test_primes_are_large_and_reproducible(seed: int) -> None:
    primes = draw_primes(seed)
    assert primes == draw_primes.__wrapped__(seed)
    assert primes.p == 2 * primes.q + 1
    assert 1 << 29 < primes.q < 1 << 30


def test_other_seeds_give_other_primes() -> None:
    assert len({draw_primes(s).p for s in range(8)}) == 8


@pytest.mark.parametrize(
    ("p", "q", "generator", "message"),
    [
        (227, 112, 4, "divisor of p - 1"),
        (4_294_967_291, 2, 4, "below 2"),
        (225, 7, 4, "prime"),
        (227, 113, 1, "does not generate"),
        (227, 113, 2, "does not generate"),
    ],
)
def test_bad_primes_are_refused(p: int, q: int, generator: int, message: str) -> None:
    with pytest.raises(FieldError, match=message):
        Primes(p, q, generator)


@given(st.fractions(), st.fractions(), st.fractions().filter(bool))
def test_constants_form_a_field(a: Fraction, b: Fraction, c: Fraction) -> None:
    ar = arithmetic()
    # a number of binary64 stands for the decimal that it prints as
    assume(all(as_written(v) == v for v in (a, b, c, a + b, a - b, a * b, a / c)))
    x, y, z = (ar.constant(v) for v in (a, b, c))
    for got, wanted in (
        (ar.add(x, y), a + b),
        (ar.sub(x, y), a - b),
        (ar.mul(x, y), a * b),
        (ar.div(x, z), a / c),
        (ar.neg(x), -a),
    ):
        w = ar.constant(wanted)
        assert (got.p, got.q) == (w.p, w.q)


def test_a_denominator_that_is_zero_in_the_field_is_refused() -> None:
    with pytest.raises(FieldError, match="denominator is 0 modulo"):
        arithmetic().constant(Fraction(1, P * 3))


def test_dims_are_their_sizes() -> None:
    from mirage.ir.dims import to_dim

    assert arithmetic().dim(to_dim("3*n")).p == 21


@given(st.integers(0, 2**32), st.integers(1, 70))
def test_inverse(seed: int, count: int) -> None:
    rng = Random(seed)
    y = np.array([rng.randrange(1, P) for _ in range(count)], dtype=np.int64)
    assert (inverse(y, P) * y % P == 1).all()


def test_exp_is_a_power_of_each_tests_root_of_unity() -> None:
    ar = arithmetic()
    x = values(3)
    assert x.q is not None
    e = ar.function(EXP, x)
    assert e.q is None
    for t in range(TESTS):
        root = pow(PRIMES.generator, int(ar.roots[t]), P)
        assert pow(root, Q, P) == 1
        assert [int(v) for v in e.p[t]] == [pow(root, int(v), P) for v in x.q[t]]


def test_exp_turns_sums_into_products() -> None:
    ar = arithmetic()
    x, y = values(4, 3), values(4, 3, seed=1)
    left = ar.function(EXP, ar.add(x, y))
    assert (left.p == ar.mul(ar.function(EXP, x), ar.function(EXP, y)).p).all()
    assert (left.p != ar.function(EXP, x).p).any()


@pytest.mark.parametrize("k", [1, 5, 16, 17, 4096])
def test_long_contractions_are_exact(k: int) -> None:
    ar = arithmetic()
    x = Pair(np.full((TESTS, 2, k), P - 1), np.full((TESTS, 2, k), Q - 1))
    y = values(k, 3)
    got = ar.einsum(x, y, [0, 1], [1, 2], [2, 0])
    assert y.q is not None and got.q is not None
    for a, b, m in ((y.p, got.p, P), (y.q, got.q, Q)):
        wanted = [[[-int(sum(int(v) for v in a[t, :, j])) % m] * 2 for j in range(3)] for t in range(TESTS)]
        assert b.tolist() == wanted


def test_einsum_over_batches_and_labels_of_one_side() -> None:
    ar = arithmetic()
    x, y = values(2, 3, 4), values(4, 2, 5)
    got = ar.einsum(x, y, [0, 1, 2], [2, 0, 3], [1, 0]).p
    wanted = np.einsum("tabc,tcad->tba", x.p.astype(object), y.p.astype(object)) % P
    assert (got == wanted).all()


def test_division_by_zero_marks_its_test() -> None:
    ar = arithmetic()
    y = values(3)
    y.p[2, 1] = 0
    ar.div(values(3, seed=1), y)
    assert ar.invalid.tolist() == [False, False, True, False, False]
    assert y.q is not None
    y.q[4, 0] = 0
    ar.div(values(3, seed=1), y)
    assert ar.invalid.tolist() == [False, False, True, False, True]


def test_dividing_by_a_constant_zero_marks_all_tests() -> None:
    ar = arithmetic()
    ar.div(values(3), ar.constant(Fraction(0)))
    assert ar.invalid.all()


def test_other_functions_are_consistent_random_functions() -> None:
    ar = arithmetic()
    x = values(3)
    a, b = ar.function(SQRT, x), ar.function(SQRT, Pair(x.p.copy(), x.q))
    assert (a.p == b.p).all() and a.q is not None and (a.q == b.q).all()
    assert (a.p != ar.function(RELU, x).p).all()
    assert (ar.function(RELU, x, Fraction(1)).p != ar.function(RELU, x).p).all()
    assert (arithmetic(seed=1).function(SQRT, x).p != a.p).all()
    assert ((a.p >= 0) & (a.p < P) & (a.q >= 0) & (a.q < Q)).all()
    # the part modulo q matters as much as the part modulo p
    moved = Pair(x.p, np.mod(x.q + 1, Q))  # type: ignore[operator]
    assert (ar.function(SQRT, moved).p != a.p).all()
    assert ar.outside_lax == {"sqrt is taken as a random function", "relu is taken as a random function"}


def test_a_second_exp_is_a_random_function_outside_lax() -> None:
    ar = arithmetic()
    e = ar.function(EXP, values(3))
    assert not ar.outside_lax
    first, second = ar.function(EXP, e), ar.function(EXP, e)
    assert (first.p == second.p).all()
    assert ar.outside_lax == {"the exp of an exp's result is taken as a random function"}


def exps(*changed: int) -> Pair:
    """Results of exp, other ones in some tests."""
    p = np.arange(1, TESTS + 1).reshape(-1, 1)
    return Pair(p + 100 * np.isin(np.arange(TESTS), changed).reshape(-1, 1), None)


def test_a_function_of_exps_takes_all_tests_together() -> None:
    """An argument that differs in a single test has other results in every test."""
    ar = arithmetic()
    assert not ar.joined
    same, again, other = (ar.function(RELU, exps(*changed)) for changed in ((), (), (3,)))
    assert ar.joined and ar.outside_lax == {"relu is taken as a random function"}
    assert same.q is not None and other.q is not None and again.q is not None
    assert (same.p == again.p).all() and (same.q == again.q).all()
    assert (same.p != other.p).all() and (same.q != other.q).all()
    assert len(set(same.p.ravel())) == TESTS


def test_a_function_of_exps_is_not_symmetric_in_the_tests() -> None:
    ar = arithmetic()
    x = exps()
    turned = Pair(x.p[::-1].copy(), None)
    assert (ar.function(RELU, x).p != ar.function(RELU, turned).p[::-1]).all()


def test_functions_of_inputs_do_not_join_tests() -> None:
    ar = arithmetic()
    ar.function(RELU, values(2))
    assert not ar.joined


def test_what_is_written_into_zeros_decides_their_part_modulo_q() -> None:
    ar = arithmetic()
    target = ar.zeros([2, 3])
    value = ar.function(EXP, values(2, 3))

    def put(t: np.ndarray, v: np.ndarray) -> np.ndarray:
        t[:] = v
        return t

    ar.apply(put, target, value)
    assert target.q is None and (target.p == value.p).all()


def test_a_tensor_without_axes_broadcasts_by_test() -> None:
    ar = arithmetic()
    x = values(4, TESTS)
    total = ar.sum(x, (-1, -2))
    got = ar.sub(x, total)
    assert (got.p == (x.p - total.p[:, None, None]) % P).all()


def test_functions_of_constants_are_other_ones_in_every_test() -> None:
    """Two constants whose logarithms agree in one test do not agree in all: by chance in hardly any."""
    primes = Primes(227, 113, 4)
    roots = np.arange(113, dtype=np.int64)
    ar = FieldArithmetic({}, primes, roots, 0)
    one, same, other = (ar.function(LOG, ar.constant(Fraction(c))) for c in (5, 5, 7))
    assert (one.p == same.p).all() and one.p.shape == (113,)
    assert len(set(one.p.tolist())) > 50
    assert (one.p == other.p).sum() < 10


def test_a_test_has_its_functions_in_whatever_chunk_it_is_run() -> None:
    roots = np.random.default_rng(1).integers(0, PRIMES.q, TESTS, dtype=np.int64)
    x = values(3)
    assert x.q is not None
    whole = FieldArithmetic({}, PRIMES, roots, 0).function(SQRT, x)
    part = FieldArithmetic({}, PRIMES, roots[2:], 0).function(SQRT, Pair(x.p[2:], x.q[2:]))
    assert (whole.p[2:] == part.p).all()
