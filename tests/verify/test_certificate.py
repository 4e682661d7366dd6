"""Certificates as JSON and as text."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from mirage.errors import FormatError, VerificationError
from mirage.verify.certificate import SCHEMA, Certificate
from mirage.verify.equivalence import Verifier, verify_graph
from tests.verify.graphs import attention, flash, replace_node


@pytest.fixture(scope="module")
def good() -> Certificate:
    verifier = Verifier(attention())
    return verifier.confirm(flash(), verifier.check(flash()))


@pytest.fixture(scope="module")
def bad() -> Certificate:
    return verify_graph(attention(), replace_node(flash(), (3, 5), op="add"))


def test_round_trip_through_text(good: Certificate, bad: Certificate) -> None:
    under = good.with_proof("proved", "x != 0")
    for c in (good, bad, good.with_proof("proved"), under, bad.with_counterexample("output 0")):
        assert Certificate.from_json(json.loads(json.dumps(c.to_json()))) == c


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
    assert good.to_json()["equal"] and good.to_json()["error_bound"] == good.error_bound
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


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", SCHEMA + 1),
        ("schema", SCHEMA - 1),
        ("schema", str(SCHEMA)),
        ("verdict", "equal"),
        ("verdict", "different"),
        ("condition", 1),
        ("condition", "x != 0"),
        ("counterexample", None),
        ("counterexample", "output 0"),
        ("equal", 1),
        ("equal", False),
        ("error_bound", 2.0**-41),
        ("error_bound", None),
        ("factor_tests", -1),
        ("factor_tests", True),
        ("delta", 2.0),
        ("delta", float("nan")),
        ("error_bound", "0"),
        ("proof", "maybe"),
        ("notes", "a note"),
        ("notes", [1]),
        ("checks", {}),
        ("checks", []),
        ("checks", [[]]),
        ("checks", [{}]),
    ],
)
def test_wrong_values_are_refused(good: Certificate, field: str, value: Any) -> None:
    with pytest.raises(FormatError, match="certificate"):
        Certificate.from_json({**good.to_json(), field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("p", "227"),
        ("q", True),
        ("seed", None),
        ("draws", {}),
        ("draws", [[]]),
        ("draws", [{}]),
        ("difference", None),
        ("difference", "a difference"),
        ("equal", False),
        ("error_bound", 0.5),
    ],
)
def test_wrong_checks_are_refused(good: Certificate, field: str, value: Any) -> None:
    obj = good.to_json()
    checks = [{**obj["checks"][0], field: value}, *obj["checks"][1:]]
    with pytest.raises(FormatError, match="of a certificate"):
        Certificate.from_json({**obj, "checks": checks})


def test_wrong_draws_are_refused(good: Certificate) -> None:
    obj = good.to_json()
    check = obj["checks"][1]
    for field, value in (
        ("tests", -1),
        ("sizes", {"m": -1}),
        ("sizes", {1: 1}),
        ("k", 1.5),
        ("error", 2.0),
        ("pairs", -1),
    ):
        draws = [{**check["draws"][0], field: value}, *check["draws"][1:]]
        with pytest.raises(FormatError, match=f"draw of a certificate: {field}="):
            Certificate.from_json({**obj, "checks": [obj["checks"][0], {**check, "draws": draws}]})


@pytest.mark.parametrize("obj", [None, [], "certificate", {}, 3])
def test_other_objects_are_refused(obj: Any) -> None:
    with pytest.raises(FormatError, match="expected the fields"):
        Certificate.from_json(obj)


def test_missing_and_unknown_fields_are_refused(good: Certificate) -> None:
    obj = good.to_json()
    with pytest.raises(FormatError, match="expected the fields"):
        Certificate.from_json({k: v for k, v in obj.items() if k != "delta"})
    with pytest.raises(FormatError, match="expected the fields"):
        Certificate.from_json({**obj, "extra": 1})
