"""Certificates as JSON and as text."""

from __future__ import annotations

import dataclasses
import json

import pytest

from mirage.errors import VerificationError
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier, verify_graph
from tests.verify.graphs import attention, flash, replace_node


@pytest.fixture(scope="module")
def good() -> Certificate:
    verifier = Verifier(attention())
    return verifier.confirm(flash(), verifier.check(flash()))


@pytest.fixture(scope="module")
def bad() -> Certificate:
    return verify_graph(attention(), replace_node(flash(), (3, 5), op="add"))


def test_text_states_what_was_done(good: Certificate) -> None:
    text = str(good.with_proof("proved"))
    assert text.startswith(f"proved equal, and equal in {sum(c.tests for c in good.checks)} random tests\n")
    for i, c in enumerate(good.checks):
        assert f"\n  check {i + 1}, modulo p={c.p} and q={c.q}, seed {c.seed}:\n" in text
        for d in c.draws:
            assert f"\n    {d.tests} tests at h={d.sizes['h']}, " in text
    assert "error at most 2^-40 (asked for 2^-40); proof for all sizes: proved" in text
    assert "running maxima: safe; a factor on every exp of a row cancels in 16 random tests" in text
    assert len(text.splitlines()) == 1 + sum(1 + len(c.draws) for c in good.checks) + 2 + len(good.notes)


def test_json_states_what_the_checks_show(good: Certificate, bad: Certificate) -> None:
    assert json.loads(json.dumps(good.to_json())) == good.to_json() and good.to_json()["equal"]
    assert good.to_json()["error_bound"] == good.error_bound
    assert not bad.to_json()["equal"] and bad.to_json()["error_bound"] is None
    assert [c["equal"] for c in good.to_json()["checks"]] == [True, True]


def test_the_bound_is_that_of_the_worst_draw(good: Certificate) -> None:
    assert good.error_bound == max(d.error for c in good.checks for d in c.draws if d.error is not None)


def test_text_of_a_difference(bad: Certificate) -> None:
    lines = str(bad).splitlines()
    assert lines[0].startswith("unknown: output 0[0, 0, 0] in test 0 is ")
    assert lines[2].startswith("    difference: output 0[0, 0, 0] in test 0 is ")
    assert str(bad.with_counterexample("output 0 is 1.0")).startswith("different: output 0 is 1.0\n")


def test_a_verdict_says_what_the_evidence_comes_to(good: Certificate, bad: Certificate) -> None:
    untested = dataclasses.replace(good, checks=())
    assert good.verdict == "tested equal" and good.equal and not good.reason
    assert good.with_proof("proved").verdict == "proved equal"
    assert untested.with_proof("proved").verdict == "proved equal" and untested.with_proof("proved").equal
    for c in (bad, untested, bad.with_proof("not proved")):
        assert c.verdict == "unknown" and not c.equal and c.reason
    assert bad.reason == bad.difference and untested.reason == "neither proved nor tested"
    found = bad.with_counterexample("output 0")
    assert found.verdict == "different" and not found.equal and found.reason == "output 0"


def test_tests_of_random_functions_say_nothing_beside_a_proof(bad: Certificate) -> None:
    proved = dataclasses.replace(bad, lax=False).with_proof("proved")
    assert proved.verdict == "proved equal" and proved.equal and not proved.checks
    assert "random tests say nothing" in proved.notes[-1] and str(proved).startswith("proved equal, not tested\n")
    with pytest.raises(VerificationError, match="proved equal, different in a random test: output 0"):
        bad.with_proof("proved")


def test_what_is_equal_under_a_condition_does_not_stand_for_the_program(good: Certificate) -> None:
    for proof, verdict in (("proved", "proved equal"), ("not proved", "tested equal")):
        c = good.with_proof(proof, "x != 0")  # type: ignore[arg-type]
        assert c.verdict == verdict and c.condition == "x != 0"
        assert not c.equal and c.reason == "equal only where x != 0"
        assert str(c).splitlines()[0].endswith(" random tests, but only where x != 0")
