"""The normal form of abstract expressions, and the subexpression relation decided on it."""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from random import Random

import pytest
import sympy
from hypothesis import given
from hypothesis import strategies as st

from mirage.errors import TermTooLarge
from mirage.ir.functions import CLAMP, EXP, SIGMOID, SQRT
from mirage.search.abstract import AbstractAlgebra, Poly
from tests.search.terms import interpret, random_term, related_pair, rewritten, subterms

T = frozenset({"t.grid", "t.loop", "t.tile"})
D = frozenset({"d"})


def tensors(algebra: AbstractAlgebra, names: str) -> list[Poly]:
    return [algebra.tensor(name) for name in names]


def attention(a: AbstractAlgebra) -> tuple[Poly, dict[str, Poly]]:
    """softmax(Q K) V without the division by the axis size, and its intermediate results."""
    q, k, v = tensors(a, "QKV")
    scores = a.sum(a.mul(q, k), D)
    weights = a.function(EXP, scores)
    parts = {
        "Q·K": a.mul(q, k),
        "scores": scores,
        "weights": weights,
        "weights·V": a.mul(weights, v),
        "partial Σ weights·V": a.sum(a.mul(weights, v), frozenset({"t.tile"})),
        "partial Σ weights": a.sum(weights, frozenset({"t.loop", "t.tile"})),
        "Σ weights": a.sum(weights, T),
        "softmax": a.div(weights, a.sum(weights, T)),
    }
    return a.div(a.sum(a.mul(weights, v), T), a.sum(weights, T)), parts


# --- the paper's examples ---


def test_a_prefix_that_can_be_factored_out_is_kept_and_one_that_cannot_is_pruned() -> None:
    a = AbstractAlgebra()
    x, y, z = tensors(a, "XYZ")
    target = a.add(a.mul(x, z), a.mul(y, z))
    assert a.is_subexpression(a.add(x, y), target)
    assert not a.is_subexpression(a.mul(x, y), target)
    assert a.mul(a.add(x, y), z) is target


def test_every_intermediate_result_of_attention_is_kept() -> None:
    a = AbstractAlgebra()
    target, parts = attention(a)
    assert [name for name, part in parts.items() if not a.is_subexpression(part, target)] == []


def test_results_that_attention_does_not_contain_are_pruned() -> None:
    a = AbstractAlgebra()
    target, parts = attention(a)
    q, k, v = tensors(a, "QKV")
    weights = parts["weights"]
    wrong = {
        "Q·V": a.mul(q, v),
        "Q+K": a.add(q, k),
        "e^weights": a.function(EXP, weights),
        "weights²": a.mul(weights, weights),
        "ΣQ": a.sum(q, T),
        "scores over t": a.sum(a.mul(q, k), T),
        "V/weights": a.div(v, a.mul(weights, weights)),
        "another input": a.tensor("W"),
    }
    assert [name for name, part in wrong.items() if a.is_subexpression(part, target)] == []


def test_text_is_readable_and_does_not_depend_on_how_the_term_was_built() -> None:
    a, b = AbstractAlgebra(), AbstractAlgebra()
    b.tensor("V")  # another order of creation
    expected = "Σt.grid·Σt.loop·Σt.tile·V·e^(Σd·K·Q) / (Σt.grid·Σt.loop·Σt.tile·e^(Σd·K·Q))"
    assert attention(a)[0].text() == attention(b)[0].text() == expected


# --- the normal form ---


def test_sums_over_different_axis_parts_differ() -> None:
    a = AbstractAlgebra()
    x = a.tensor("X")
    rows, columns = a.sum(x, frozenset({"i"})), a.sum(x, frozenset({"j"}))
    assert rows is not columns
    assert not a.is_subexpression(rows, columns)
    assert a.is_subexpression(rows, a.sum(rows, frozenset({"j"})))


def test_a_sum_over_several_parts_is_one_sum_after_the_other_and_over_none_is_the_term() -> None:
    a = AbstractAlgebra()
    x = a.tensor("X")
    nested = a.sum(a.sum(x, frozenset({"j"})), frozenset({"i"}))
    assert a.sum(x, frozenset({"i", "j"})) is nested
    assert a.sum(x, frozenset()) is x
    assert a.sum(nested, frozenset({"i"})) is not nested


def test_multiplicity_counts() -> None:
    a = AbstractAlgebra()
    x, y = tensors(a, "XY")
    twice = a.add(x, x)
    assert twice is not x
    assert not a.is_subexpression(twice, a.add(x, y))
    assert a.is_subexpression(twice, a.add(x, a.add(y, x)))
    assert a.add(x, a.mul(twice, y)).text() == "X + 2×X·Y"


def test_nothing_cancels_and_constants_do_not_fold() -> None:
    a = AbstractAlgebra()
    x, y = tensors(a, "XY")
    one, two = a.constant(Fraction(1)), a.constant(Fraction(2))
    assert a.div(a.mul(x, y), y) is not x
    assert a.sub(x, x) is a.add(x, a.mul(a.constant(Fraction(-1)), x))
    assert a.neg(a.neg(x)) is not x
    assert a.mul(two, two) is not a.constant(Fraction(4))
    assert a.mul(one, x) is not x
    assert a.div(x, a.div(y, two)) is not a.div(a.mul(x, two), y)


def test_constants_and_dims_are_atoms() -> None:
    a = AbstractAlgebra()
    x = a.tensor("X")
    n, m = sympy.symbols("n m", positive=True, integer=True)
    mean = a.div(a.sum(x, D), a.dim(n))
    assert mean is a.div(a.sum(x, D), a.dim(n))
    assert a.is_subexpression(a.dim(n), mean)
    assert not a.is_subexpression(a.dim(m), mean)
    assert not a.is_subexpression(a.constant(Fraction(1)), mean)
    assert a.add(mean, a.constant(Fraction(-1, 2))).text() == "(-1/2) + Σd·X / |n|"


def test_functions_differ_by_name_parameters_and_argument() -> None:
    a = AbstractAlgebra()
    x, y = tensors(a, "XY")
    clamp = a.function(CLAMP, x, Fraction(0), Fraction(6))
    assert clamp is a.function(CLAMP, x, Fraction(0), Fraction(6))
    others = [a.function(CLAMP, x, Fraction(0), Fraction(5)), a.function(SIGMOID, x), a.function(SIGMOID, y)]
    assert len({clamp, *others}) == 4
    assert clamp.text() == "clamp(X, 0, 6)"
    assert all(a.is_subexpression(x, term) for term in (clamp, *others[:2]))
    assert not a.is_subexpression(x, others[2])


# --- denominators ---


def test_a_product_of_denominators_equals_its_expansion() -> None:
    a = AbstractAlgebra()
    x, y, z, w = tensors(a, "XYZW")
    by_factor = a.div(a.div(w, x), a.add(y, z))
    assert by_factor is a.div(w, a.add(a.mul(x, y), a.mul(x, z)))
    assert a.is_subexpression(a.div(w, a.add(y, z)), by_factor)
    assert a.is_subexpression(a.div(w, x), by_factor)
    assert not a.is_subexpression(a.div(w, y), by_factor)


def test_denominators_divide_exactly() -> None:
    a = AbstractAlgebra()
    x, y, z, w = tensors(a, "XYZW")
    sum_xy, sum_yz = a.add(x, y), a.add(y, z)
    target = a.div(w, a.mul(a.mul(sum_xy, sum_yz), sum_xy))
    assert a.is_subexpression(a.div(w, a.mul(sum_xy, sum_xy)), target)
    assert a.is_subexpression(a.div(w, a.mul(sum_yz, sum_xy)), target)
    assert not a.is_subexpression(a.div(w, a.mul(sum_yz, sum_yz)), target)
    assert not a.is_subexpression(a.div(w, a.add(x, z)), target)


def test_division_tries_every_monomial_that_shares_the_leading_numerator() -> None:
    a = AbstractAlgebra()
    x, y, z, w = tensors(a, "XYZW")
    # all numerators alike: monomials differ in their denominators alone
    p_terms = [a.div(w, x), a.div(w, y), a.div(w, a.add(x, y))]
    q_terms = [a.div(w, z), a.div(w, x), a.div(w, a.mul(x, x))]
    products = [a.mul(p, q) for p in reversed(p_terms) for q in reversed(q_terms)]
    target = a.div(z, reduce(a.add, products))
    p, q = reduce(a.add, p_terms), reduce(a.add, q_terms)
    assert target is a.div(a.div(z, p), q)
    assert a.is_subexpression(a.div(z, p), target)
    assert a.is_subexpression(a.div(z, q), target)
    assert not a.is_subexpression(a.div(z, a.add(a.div(w, z), a.div(w, y))), target)


def test_every_monomial_needs_its_own_denominator_in_the_target() -> None:
    a = AbstractAlgebra()
    x, y, z, w = tensors(a, "XYZW")
    e = a.add(a.div(x, y), a.div(x, z))
    assert a.is_subexpression(e, a.add(a.div(a.mul(w, x), y), a.div(a.mul(w, x), z)))
    assert not a.is_subexpression(e, a.add(a.div(a.mul(w, x), y), a.div(a.mul(w, x), w)))


def test_division_uses_each_monomial_once() -> None:
    a = AbstractAlgebra()
    s, t, u, z, y, x = tensors(a, "STUZYX")
    divisor = a.add(x, a.add(y, z))
    scale = a.add(s, a.add(t, u))
    product = a.mul(divisor, a.add(y, z))  # X·Y + X·Z + Y·Y + Z·Z + 2×Y·Z
    once = reduce(a.add, [a.mul(x, y), a.mul(x, z), a.mul(y, y), a.mul(z, z), a.mul(y, z)])
    assert a.is_subexpression(a.div(s, divisor), a.div(s, a.mul(scale, product)))
    assert not a.is_subexpression(a.div(s, divisor), a.div(s, a.mul(scale, once)))


def test_a_denominator_without_a_quotient_that_is_an_expression_is_not_split() -> None:
    a = AbstractAlgebra()
    x, y = tensors(a, "XY")
    # X / Σi·Y would need a denominator that is an axis alone, X / (Y + Y·Y) one that contains 1
    assert not a.is_subexpression(a.div(x, y), a.div(x, a.sum(y, D)))
    assert not a.is_subexpression(a.div(x, y), a.div(x, a.add(y, a.mul(y, y))))
    assert a.is_subexpression(a.div(x, y), a.div(x, a.sum(a.mul(y, y), D)))


def test_sums_move_between_the_factors_of_a_denominator() -> None:
    a = AbstractAlgebra()
    x, y, z = tensors(a, "XYZ")
    target = a.div(a.div(x, y), a.sum(z, D))
    assert target is a.div(a.div(x, a.sum(y, D)), z)
    assert a.is_subexpression(a.sum(y, D), target)


def test_what_is_nested_in_functions_and_denominators_is_found() -> None:
    a = AbstractAlgebra()
    x, y, z, w = tensors(a, "XYZW")
    inner = a.div(x, a.add(y, a.mul(z, z)))
    target = a.div(w, a.function(SQRT, a.add(a.function(EXP, inner), w)))
    for part in (inner, a.mul(z, z), a.add(y, a.mul(z, z)), a.function(EXP, inner)):
        assert a.is_subexpression(part, target)
    assert not a.is_subexpression(a.add(x, y), target)
    assert not a.is_subexpression(a.mul(w, x), target)


def test_terms_that_expand_too_far_are_refused() -> None:
    a = AbstractAlgebra(limit=16)
    x, y, z = tensors(a, "XYZ")
    square = a.mul(a.add(x, y), a.add(x, a.add(y, z)))
    with pytest.raises(TermTooLarge, match=r"25 monomials.*limit of 16"):
        a.mul(square, square)
    with pytest.raises(TermTooLarge):
        a.div(a.div(x, square), square)


# --- laws, on random terms ---

seeds = st.builds(Random, st.integers(0, 2**32))


@given(rng=seeds, leaves=st.integers(1, 9))
def test_equivalent_terms_are_one_object(rng: Random, leaves: int) -> None:
    a = AbstractAlgebra()
    term = random_term(rng, leaves)
    assert interpret(rewritten(rng, term, 12), a) is interpret(term, a)


@given(rng=seeds, sizes=st.tuples(*[st.integers(1, 4)] * 3))
def test_the_equivalence_axioms_hold(rng: Random, sizes: tuple[int, int, int]) -> None:
    a = AbstractAlgebra()
    x, y, z = (interpret(random_term(rng, size), a) for size in sizes)
    i = frozenset({"i"})
    assert a.add(x, y) is a.add(y, x)
    assert a.mul(x, y) is a.mul(y, x)
    assert a.add(x, a.add(y, z)) is a.add(a.add(x, y), z)
    assert a.mul(x, a.mul(y, z)) is a.mul(a.mul(x, y), z)
    assert a.add(a.mul(x, z), a.mul(y, z)) is a.mul(a.add(x, y), z)
    assert a.add(a.div(x, z), a.div(y, z)) is a.div(a.add(x, y), z)
    assert a.mul(x, a.div(y, z)) is a.div(a.mul(x, y), z)
    assert a.div(a.div(x, y), z) is a.div(x, a.mul(y, z))
    assert a.sum(a.add(x, y), i) is a.add(a.sum(x, i), a.sum(y, i))
    assert a.sum(a.mul(x, y), i) is a.mul(a.sum(x, i), y)
    assert a.sum(a.div(x, y), i) is a.div(a.sum(x, i), y)


@given(rng=seeds, sizes=st.tuples(*[st.integers(1, 4)] * 2))
def test_operands_are_subexpressions_of_results_but_not_the_other_way(rng: Random, sizes: tuple[int, int]) -> None:
    a = AbstractAlgebra()
    x, y = (interpret(random_term(rng, size), a) for size in sizes)
    for result in (a.add(x, y), a.sub(x, y), a.mul(x, y), a.div(x, y)):
        assert a.is_subexpression(x, result)
        assert a.is_subexpression(y, result)
        assert not a.is_subexpression(result, x)
    for result in (a.neg(x), a.function(EXP, x), a.sum(x, D)):
        assert a.is_subexpression(x, result)
        assert not a.is_subexpression(result, x)
    assert a.is_subexpression(x, x)


@given(rng=seeds, leaves=st.integers(2, 9))
def test_subterms_of_equivalent_terms_are_subexpressions(rng: Random, leaves: int) -> None:
    a = AbstractAlgebra()
    e, t = related_pair(rng, leaves)
    assert a.is_subexpression(interpret(e, a), interpret(t, a))


@given(rng=seeds, leaves=st.integers(2, 8))
def test_the_relation_is_transitive_and_antisymmetric(rng: Random, leaves: int) -> None:
    a = AbstractAlgebra()
    target = interpret(rewritten(rng, random_term(rng, leaves), 4), a)
    others = [interpret(random_term(rng, rng.randint(1, 3)), a) for _ in range(6)]
    pool = [*others, target, *(interpret(s, a) for s in subterms(related_pair(rng, leaves)[0]))]
    for x in pool:
        for y in pool:
            if x is not y and a.is_subexpression(x, y):
                assert not a.is_subexpression(y, x)
                assert all(a.is_subexpression(x, z) for z in pool if a.is_subexpression(y, z))
