"""A sample of the adversary's pairs: no verdict says what is not so."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import pytest

from benchmarks.search import adversary
from benchmarks.search.adversary import Judged, by_kind, judged, judged_by_rules, measure
from benchmarks.search.pairs import CANCELLED, CHANGES, IDENTITIES, Pair, generated, named

#: random pairs of the sample
SAMPLE = 24
#: all pairs that have names, of several seeds one or two
NAMED = [pytest.param(p, marks=[pytest.mark.slow] * (p.seed in (1, 11))) for p in named()]


@pytest.mark.parametrize("pair", NAMED, ids=lambda p: f"{p.name} {p.seed}")
def test_named_pairs(pair: Pair) -> None:
    found = list(judged(pair))
    assert [j.form for j in found] == ["programs", "program and graph"]
    assert not [j for j in found if j.wrong]


def test_a_sample_of_random_pairs() -> None:
    found = list(itertools.chain.from_iterable(map(judged, generated(SAMPLE))))
    assert not [j for j in found if j.wrong]
    rows = {r.kind: r for r in by_kind(found)}
    assert rows["random identity"].equal >= SAMPLE // 6
    assert rows["random change"].different >= SAMPLE // 6
    assert rows["random condition"].with_condition >= SAMPLE // 6


@pytest.mark.slow
def test_all_pairs() -> None:
    assert not [j for j in measure() if j.wrong]


def test_pairs_are_of_all_kinds_and_the_same_on_every_run() -> None:
    pairs = list(generated(adversary.COUNT))
    assert len(pairs) == adversary.COUNT >= 300
    assert {p.name for p in pairs} == {*IDENTITIES, *CHANGES, *CANCELLED}
    assert min(Counter(p.expected for p in pairs).values()) >= 100
    assert len({p.seed for p in pairs}) == 7
    for p, q in itertools.islice(zip(pairs, generated(adversary.COUNT), strict=True), 30):
        assert [str(x) for x in p.programs()] == [str(x) for x in q.programs()]


def one(expected: str, verdict: str, condition: str | None = None) -> Judged:
    equal = verdict in ("proved equal", "tested equal") and condition is None
    return Judged("pair", "kind", "programs", 0, expected, verdict, equal, condition, False)  # type: ignore[arg-type]


class Stated:
    """What `is_wrong` reads of a certificate."""

    def __init__(self, verdict: str, condition: str | None = None) -> None:
        j = one("equal", verdict, condition)
        self.verdict, self.equal, self.condition = j.verdict, j.equal, j.condition


@pytest.mark.parametrize(
    ("expected", "verdict", "condition", "wrong"),
    [
        ("equal", "proved equal", None, False),
        ("equal", "unknown", None, False),
        ("equal", "different", None, True),
        ("different", "tested equal", None, True),
        ("different", "proved equal", "x != 0", True),
        ("different", "unknown", None, False),
        ("equal where defined", "proved equal", "x != 0", False),
        ("equal where defined", "proved equal", None, True),
        ("equal where defined", "different", None, True),
    ],
)
def test_what_is_wrong(expected: str, verdict: str, condition: str | None, wrong: bool) -> None:
    assert adversary.is_wrong(expected, Stated(verdict, condition)) == wrong  # type: ignore[arg-type]


def test_the_rows_count_every_comparison_once() -> None:
    found = [one("equal", "proved equal"), one("equal", "unknown"), one("different", "different")]
    *_, total = by_kind([*found, one("equal where defined", "proved equal", "x != 0")])
    counts = total.comparisons, total.equal, total.with_condition, total.different, total.unknown, total.wrong
    assert counts == (4, 1, 1, 1, 1, 0)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_wrong_verdict_ends_with_an_error(
    wrong: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Judged("pair", "kind", "programs", 0, "different", "proved equal" if wrong else "unknown", wrong, None, wrong)
    monkeypatch.setattr(adversary, "measure", lambda *_: iter([row]))
    if wrong:
        with pytest.raises(SystemExit) as e:
            adversary.main(1, as_json=True)
        assert e.value.code == 1
    else:
        adversary.main(1, as_json=True)
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["verdict"] == row.verdict and "unknown: " in printed.err


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_rules_prove_no_pair_of_programs_that_differ(every: int) -> None:
    """Of every so many pairs."""
    found = [judged_by_rules(pair) for pair in [*named(), *generated(6, 0)][::every]]
    assert found and not any(j.wrong for j in found)
