"""The computed error bound of the random tests."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.ir.axes import to_axes
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import KernelSchedule, Schedule
from mirage.verify.bounds import ONE, Bound, GraphTerms, Terms, compare, read_terms
from mirage.verify.primes import Primes, draw_primes
from tests.verify.graphs import attention, flash, flash_decoding

PRIMES = draw_primes(0)
TERMS = st.builds(Terms, st.integers(2, 4), st.integers(0, 3), st.integers(1, 3), st.integers(0, 3))
SIZES = {"h": 2, "s": 2, "d64": 3, "t": 3, "d64_2": 2}


def program_terms(program: Program, **sizes: int) -> GraphTerms:
    return read_terms(reference_graph(to_axes(program)), Schedule(()), sizes, weighted=False)


def weighted_terms(program: Program, **sizes: int) -> GraphTerms:
    return read_terms(reference_graph(to_axes(program)), Schedule(()), sizes)


@given(TERMS, TERMS, TERMS)
def test_terms_multiply_and_add_like_sums_of_exponentials(a: Terms, b: Terms, c: Terms) -> None:
    assert a * b == b * a and (a * b) * c == a * (b * c) and a * ONE == a
    assert a + b == b + a and (a + b) + c == a + (b + c)
    assert (a * (b + c)).count == (a * b + a * c).count
    assert a**3 == a * a * a and a**0 == ONE


def test_polynomials_stay_one_term() -> None:
    x = Terms(1, 1)
    assert x * x + x == Terms(1, 2)
    assert x.times(5) == x


def test_softmax_has_a_term_per_summed_entry() -> None:
    (above, below), *rest = program_terms(attention(), **SIZES).outputs
    assert not rest
    # three keys: three exponentials times v over three exponentials, exponents of degree 2 in q and k
    assert above == Terms(3, 1, 2, 0)
    assert below == Terms(3, 0, 2, 0)


def test_weights_count_in_the_degrees() -> None:
    """A weight in each exponent's sum over d64, and one in each sum over t."""
    ((above, below),) = weighted_terms(attention(), **SIZES).outputs
    assert above == Terms(3, 2, 3, 0)
    assert below == Terms(3, 1, 3, 0)


def test_sizes_of_dims_count_in_the_degrees() -> None:
    """A mean over 4 m: the size has degree 1, and so has what the weights add up to; over m n they have degree 2."""
    for dim, degree in (("4*m", 1), ("m*n", 2), (8, 0)):
        b = ProgramBuilder("mean")
        p = b.finish([b.op("mean", b.input("x", tensor("b", dim)), axes=(1,))])
        axes = {a: 2 for a in to_axes(p).axes}
        ((above, below),) = weighted_terms(p, **axes).outputs
        assert (above.degree, below.degree) == (1 + max(degree, 1), degree)
        ((above, below),) = program_terms(p, **axes).outputs
        assert (above.degree, below.degree) == (1, 0)


def test_attention_against_itself() -> None:
    weighted = weighted_terms(attention(), **SIZES)
    bound = compare(weighted, weighted, PRIMES)
    assert isinstance(bound, Bound) and (bound.k, bound.d) == (18, 3)
    terms = program_terms(attention(), **SIZES)
    bound = compare(terms, terms, PRIMES)
    assert isinstance(bound, Bound)
    assert (bound.k, bound.d) == (18, 2)
    assert bound.acceptance == pytest.approx(1 - 1 / 18 + 18**2 * 2 / PRIMES.q + 2 / PRIMES.p, rel=1e-12)
    assert bound.acceptance ** bound.tests(2.0**-40) <= 2.0**-40
    assert bound.acceptance ** (bound.tests(2.0**-40) - 1) > 2.0**-40


def test_loops_and_splits_count_all_their_parts() -> None:
    tiles = (("h", 1), ("s", 1), ("t", 1))
    loop = read_terms(flash(), Schedule((KernelSchedule(tiles),)), SIZES)
    assert loop.outputs == weighted_terms(attention(), **SIZES).outputs
    schedule = Schedule((KernelSchedule(tiles, (("t", 3),)), KernelSchedule((*tiles, ("d64_2", 1)))))
    split = read_terms(flash_decoding(), schedule, {**SIZES, "t.grid": 3})
    assert split.outputs == loop.outputs


def polynomial(*ops: str) -> Program:
    b = ProgramBuilder("p")
    x, y = (b.input(n, tensor("m", "n")) for n in "xy")
    for op in ops:
        x = b.op(op, x, y)
    return b.finish([x])


def test_denominators_multiply_up_only_along_axes_that_they_vary_over() -> None:
    b = ProgramBuilder("p")
    x, y, z = b.input("x", tensor("m", "n")), b.input("y", tensor("m", "n")), b.input("z", tensor("m", 1))
    varying = b.finish([b.op("sum", b.op("div", x, y), axes=(1,))])
    fixed = b.finish([b.op("sum", b.op("div", x, z), axes=(1,))])
    assert program_terms(varying, m=2, n=4).outputs == ((Terms(1, 4), Terms(1, 4)),)
    assert program_terms(fixed, m=2, n=4).outputs == ((Terms(1, 1), Terms(1, 1)),)


def test_a_common_denominator_is_not_multiplied() -> None:
    b = ProgramBuilder("p")
    x, y = (b.input(n, tensor("m")) for n in "xy")
    q = b.op("div", x, y)
    assert program_terms(b.finish([b.op("add", q, q)]), m=2).outputs == ((Terms(1, 1), Terms(1, 1)),)


def test_without_exp_the_bound_is_schwartz_zippel() -> None:
    terms = program_terms(polynomial("mul", "add", "mul"), m=2, n=2)
    bound = compare(terms, terms, PRIMES)
    assert bound == Bound(1, 3, 3 / PRIMES.p)
    assert bound.tests(2.0**-40) == 2


def test_a_condition_of_the_theorem_that_fails_gives_no_bound() -> None:
    terms = program_terms(attention(), **{**SIZES, "t": 200})
    found = compare(terms, terms, PRIMES)
    assert isinstance(found, str)
    assert found == f"d k^4 = 2 * 80000^4 is not below q = {PRIMES.q}"


def relu_of(exponentials: bool) -> Program:
    b = ProgramBuilder("p")
    x = b.input("x", tensor("m", "n"))
    if exponentials:
        x = b.op("sum", b.op("exp", x), axes=(1,))
    return b.finish([b.op("relu", x)])


def test_functions_are_counted_by_what_they_are_applied_to() -> None:
    facts = program_terms(relu_of(False), m=3, n=4).facts
    assert (facts.calls, facts.call_degree, facts.joint_calls) == (12, 1, 0)
    facts = program_terms(relu_of(True), m=3, n=4).facts
    assert (facts.calls, facts.joint_calls) == (0, 3)
    assert (facts.joint_above, facts.joint_below) == (Terms(4, 0, 1), Terms())


def test_functions_of_exponentials_join_all_tests() -> None:
    terms = program_terms(relu_of(True), m=3, n=4)
    found = compare(terms, terms, PRIMES)
    # arguments differ by a sum of 4 + 4 terms, in any pair of the 3 + 3 calls
    assert isinstance(found, Bound) and (found.k, found.pairs, found.argument_k) == (1, 15, 8)
    assert found.collision == pytest.approx(1 - 1 / 8, abs=1e-6)
    delta = 2.0**-40
    n = found.tests(delta)
    assert found.error(n) <= delta < found.error(n - 8)
    assert found.error(n, 1) == 2 * found.error(n)
    assert found.error(found.tests(delta, 1), 1) <= delta
    plain = program_terms(relu_of(False), m=3, n=4)
    assert compare(plain, plain, PRIMES).pairs == 0  # type: ignore[union-attr]


def test_arguments_that_are_too_large_have_no_bound() -> None:
    terms = program_terms(relu_of(True), m=3, n=100)
    assert compare(terms, terms, PRIMES) == (
        f"a function is applied to a result of exp: d k^4 = 1 * 200^4 is not below q = {PRIMES.q}"
    )


def test_exps_of_inverses_are_terms_of_their_own() -> None:
    """The sum over n of exp(1 / x): the exponents have constant numerators and differ all the same."""
    b = ProgramBuilder("p")
    x = b.input("x", tensor("m", "n"))
    one = b.op("constant", value=Fraction(1))
    p = b.finish([b.op("sum", b.op("exp", b.op("div", one, x)), axes=(1,))])
    ((above, below),) = program_terms(p, m=1, n=4).outputs
    assert (above.count, above.below) == (4, 1) and below == Terms()


@pytest.mark.parametrize("k", [2, 4])
def test_the_bound_holds_for_arguments_in_a_batch(k: int) -> None:
    """With the paper's small primes, how often two sums of exponentials are equal in all n tests of a batch."""
    powers = np.array([pow(4, i, 227) for i in range(113)])
    rng = np.random.default_rng(k)
    n, batches = 3, 40_000
    exponents = rng.integers(0, 113, (batches, n, k))
    roots = rng.integers(0, 113, (batches, n, 1))
    signs = np.array([1] * (k // 2) + [-1] * (k // 2))
    equal = ((powers[exponents * roots % 113] * signs).sum(axis=2) % 227 == 0).all(axis=1).mean()
    assert 0 < equal + 1e-9 <= (1 - 1 / k + k * k / 113 + 1 / 227) ** n


@pytest.mark.parametrize("k", [2, 3, 5])
def test_the_bound_holds_for_a_sum_of_exponentials(k: int) -> None:
    """With the paper's small primes, how often a sum of k exponentials of independent variables is zero."""
    primes = Primes(227, 113, 4)
    powers = np.array([pow(4, i, 227) for i in range(113)])
    rng = np.random.default_rng(k)
    exponents = rng.integers(0, 113, (100_000, k))
    roots = rng.integers(0, 113, (100_000, 1))
    zero = (powers[exponents * roots % 113].sum(axis=1) % 227 == 0).mean()
    assert zero <= 1 - 1 / k + k * k / primes.q + 1 / primes.p


def test_a_sum_that_vanishes_for_many_roots_stays_below_the_bound() -> None:
    """1 + w^a - 2 w^b for every pair of constant exponents, over all 113 roots of unity w modulo 227."""
    powers = np.array([pow(4, i, 227) for i in range(113)])
    root = np.arange(113)
    worst = 0.0
    for a in range(1, 113):
        for b in range(a + 1, 113):
            total = 1 + powers[root * a % 113] - 2 * powers[root * b % 113]
            worst = max(worst, float((total % 227 == 0).mean()))
    assert 1 / 113 < worst <= 1 - 1 / 3
