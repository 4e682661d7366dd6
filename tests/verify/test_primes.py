"""Primes that nobody can aim at."""

from __future__ import annotations

from fractions import Fraction

import pytest

import mirage as mi
from mirage.errors import ConstantsCollide
from mirage.ir.axes import to_axes
from mirage.ir.program import Program, ProgramBuilder
from mirage.mugraph.reference import reference_graph
from mirage.verify import primes
from mirage.verify.equivalence import Verifier, verify_programs
from mirage.verify.primes import Residues, draw_primes, with_primes


def scaled(value: int, op: str = "") -> Program:
    b = ProgramBuilder("scaled")
    x = b.op("mul", b.input("x", mi.tensor("n", 4)), b.op("constant", value=Fraction(value)))
    return b.finish([b.op(op, x) if op else x])


@pytest.mark.parametrize("op", ["", "exp"])
def test_each_pair_has_primes_of_its_own_and_each_run_the_same(op: str) -> None:
    one, two, three = (scaled(k, op) for k in (1, 2, 3))
    found = [verify_programs(one, b).checks[0] for b in (two, three, two)]
    assert found[0] == found[2] and found[0].p != found[1].p
    assert verify_programs(one, two, seed=1).checks[0].p != found[0].p
    verifier = Verifier(one)
    graphs = [reference_graph(to_axes(p)) for p in (two, three, two)]
    checks = [verifier.check(g).checks[0] for g in graphs]
    assert checks[0] == checks[2] and checks[0].p != checks[1].p


@pytest.mark.parametrize("seed", range(3))
def test_constants_that_vanish_modulo_known_primes_do_not_pass(seed: int) -> None:
    """Primes of that seed, and those of an earlier comparison of the same programs but for the constant."""
    earlier = verify_programs(scaled(1), scaled(0), seed=seed).checks[0]
    for p, q in ((draw_primes(seed).p, draw_primes(seed).q), (earlier.p, earlier.q)):
        assert not verify_programs(scaled(p * q), scaled(0), seed=seed).equal
        assert not verify_programs(scaled(q, "exp"), scaled(0, "exp"), seed=seed).equal
        assert not Verifier(scaled(p * q), seed).check(reference_graph(to_axes(scaled(0)))).equal


def test_constants_have_residues_of_their_own() -> None:
    drawn = draw_primes(0)
    residues = Residues(drawn)
    three = residues.of(Fraction(3))
    assert three is residues.of(Fraction(3)) and [int(r) for r in three] == [3, 3]
    for value, message in (
        (Fraction(drawn.p), "and 0 are equal modulo"),
        (Fraction(drawn.q), "and 0 are equal modulo"),
        (Fraction(3 + drawn.q), "and 3 are equal modulo"),
        (Fraction(1, drawn.p), "its denominator is 0 modulo"),
    ):
        with pytest.raises(ConstantsCollide, match=message):
            residues.of(value)


def test_other_primes_are_drawn_where_constants_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = draw_primes("key 0"), draw_primes("key 1")
    used: list[int] = []

    def run(residues: Residues) -> int:
        used.append(residues.primes.p)
        residues.of(Fraction(first.q))
        return residues.primes.p

    assert with_primes("key", run) == second.p and used == [first.p, second.p]
    monkeypatch.setattr(primes, "draw_primes", lambda key: first)
    with pytest.raises(ConstantsCollide, match="draw other primes"):
        with_primes("key", run)


def test_functions_of_constants_are_told_apart_in_every_draw() -> None:
    """Logarithms that agree modulo p in one test; 2^16 pairs, of which some would agree in all tests of a draw."""

    def logarithm(c: int) -> Program:
        b = ProgramBuilder("logarithm")
        x = b.input("x", mi.tensor("n", 4))
        return b.finish([b.op("mul", b.op("log", b.op("constant", value=Fraction(c))), b.op("exp", x))])

    a, b = logarithm(6543), logarithm(126692)
    assert not verify_programs(a, b).equal and verify_programs(a, a).equal
