"""Certificates as JSON and as text."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mirage.errors import FormatError
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import verify_graph
from tests.verify.graphs import attention, flash, replace_node


@pytest.fixture(scope="module")
def good() -> Certificate:
    return verify_graph(attention(), flash())


@pytest.fixture(scope="module")
def bad() -> Certificate:
    return verify_graph(attention(), replace_node(flash(), (3, 5), op="add"))


def test_round_trip_through_text(good: Certificate, bad: Certificate) -> None:
    for c in (good, bad, good.with_proof("proved")):
        assert Certificate.from_json(json.loads(json.dumps(c.to_json()))) == c


def test_text_states_what_was_done(good: Certificate) -> None:
    text = str(good.with_proof("proved"))
    assert text.startswith(f"equal in {good.tests} random tests modulo p={good.p} and q={good.q}, seed 0\n")
    assert "error at most 2^-40 (asked for 2^-40); proof for all sizes: proved" in text
    assert "running maxima: safe" in text
    assert len(text.splitlines()) == 1 + len(good.draws) + 2 + len(good.notes)


def test_text_of_a_counterexample(bad: Certificate) -> None:
    lines = str(bad).splitlines()
    assert lines[0].startswith("NOT EQUAL")
    assert lines[1].startswith("  counterexample: output 0[0, 0, 0] in test 0 is ")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", 2),
        ("equal", 1),
        ("p", "227"),
        ("p", True),
        ("delta", 2.0),
        ("delta", float("nan")),
        ("error_bound", "0"),
        ("proof", "maybe"),
        ("notes", "a note"),
        ("notes", [1]),
        ("draws", {}),
        ("draws", [[]]),
        ("draws", [{}]),
        ("counterexample", None),
    ],
)
def test_wrong_values_are_refused(good: Certificate, field: str, value: Any) -> None:
    with pytest.raises(FormatError, match="certificate"):
        Certificate.from_json({**good.to_json(), field: value})


def test_wrong_draws_are_refused(good: Certificate) -> None:
    obj = good.to_json()
    for field, value in (("tests", -1), ("sizes", {"m": -1}), ("sizes", {1: 1}), ("k", 1.5), ("error", 2.0)):
        draws = [{**obj["draws"][0], field: value}, *obj["draws"][1:]]
        with pytest.raises(FormatError, match=f"draw of a certificate: {field}="):
            Certificate.from_json({**obj, "draws": draws})


@pytest.mark.parametrize("obj", [None, [], "certificate", {}, 3])
def test_other_objects_are_refused(obj: Any) -> None:
    with pytest.raises(FormatError, match="expected the fields"):
        Certificate.from_json(obj)


def test_missing_and_unknown_fields_are_refused(good: Certificate) -> None:
    obj = good.to_json()
    with pytest.raises(FormatError, match="expected the fields"):
        Certificate.from_json({k: v for k, v in obj.items() if k != "seed"})
    with pytest.raises(FormatError, match="expected the fields"):
        Certificate.from_json({**obj, "extra": 1})
