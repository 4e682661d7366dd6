"""The benchmarks of rules: their rows say what four searches found, and their tables add them up."""

from __future__ import annotations

import math

import pytest

import mirage as mi
from benchmarks.programs import PROGRAMS
from benchmarks.search import rewrites, rules
from benchmarks.search.rewrite_programs import PROGRAMS as REWRITES
from benchmarks.search.rewrite_programs import Rewrite
from benchmarks.search.rewrites import rewrite_row, rewrites_table, searches_table
from benchmarks.search.rules import RulesRow, rules_row, rules_table
from mirage.search import rewriting


@pytest.fixture(autouse=True)
def counts_alone_limit_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriting, "MAX_SECONDS", math.inf)
    monkeypatch.setattr(rewrites, "SEARCH", 3600.0)


def test_a_program_without_targets_costs_the_same_with_rules() -> None:
    softmax = PROGRAMS["softmax"]
    row = rules_row(softmax.trace(), next(iter(softmax.sizes.values())), (), "softmax")
    assert row.own == row.table == row.both > 0 == row.saturated
    assert row.report.endswith("saturated; no target") and row.ratio > 0


def test_a_program_with_targets_costs_less_with_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LONG_S", 0.0)
    (row,) = rules.measure(["quotient of exps"], rewrites=True)
    assert row.program == "quotient of exps"
    assert row.both == row.saturated < row.own == row.table
    assert "targets: complete" in row.report


def rules_add_to_the_search(name: str) -> None:
    r = REWRITES[name]
    row = rules_row(mi.trace(r.written, **r.specs), r.sizes, r.constants, name)
    # 0 where rules alone find nothing
    assert 0 < row.both <= min(row.own, row.table, row.saturated or math.inf)


@pytest.mark.parametrize("name", [n for i, n in enumerate(REWRITES) if i % 5 == 0])
def test_a_search_with_rules_is_never_worse_than_rules_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LONG_S", 0.0)
    rules_add_to_the_search(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(REWRITES))
def test_no_search_with_rules_is_worse_than_rules_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "LONG_S", 0.0)
    rules_add_to_the_search(name)


def test_the_last_line_is_of_all_programs() -> None:
    rows = [
        RulesRow(name, 1.0, 1.5, 0.5, both, 10.0, 10.0, 0.0, 5.0, 20, 30, "no target") for name, both in (("a", 2.0), ("b", 4.0))
    ]
    lines = rules_table(rows).markdown().splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines[2:]]
    assert [c[0] for c in cells] == ["a", "b", "all"]
    assert [c[5:9] for c in cells] == [["2.00", "0.50", "20", "30"], ["4.00", "0.50", "20", "30"], ["3.00", "", "", ""]]
    assert cells[-1][1:5] == ["2.000", "3.000", "1.000", "6.000"]


def test_a_rewrite_is_found_and_compared_with_the_program_as_it_is_written() -> None:
    row = rewrite_row(REWRITES["log ratio"], timed=False)
    assert row.found and row.rules and not row.why
    assert row.both <= rewrites.TOLERANCE * row.better < row.own < row.written
    assert row.gain is None and row.library_us == 0
    (line, total) = rewrites_table([row]).markdown().splitlines()[2:]
    assert f"| {row.own / row.both:.2f} | {row.written / row.both:.2f} | - | - | - | - | - |" in line
    assert "1 of 1" in total
    found = [line.strip("|").split("|")[1].strip() for line in searches_table([row]).markdown().splitlines()[2:]]
    assert found == ["0", "0", "1", "1", "1"]


def test_a_form_whose_exponents_may_overflow_is_no_find() -> None:
    form = Rewrite("form", lambda x: 1 / mi.sigmoid(x), lambda x: 1 + mi.exp(-x), {"x": mi.tensor("n")}, {"n": 1 << 17})
    row = rewrite_row(form, timed=False)
    assert not row.found and "may overflow" in row.why and math.isfinite(row.both)


@pytest.mark.parametrize("name", ["log-softmax", "cross-entropy"])
def test_a_log_of_a_softmax_is_a_difference(name: str) -> None:
    row = rewrite_row(REWRITES[name], timed=False)
    assert row.found and not row.why and "log of a quotient" in row.rules
    assert row.both <= rewrites.TOLERANCE * row.better < row.own
