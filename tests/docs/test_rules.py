"""The page of rules lists those of the package."""

from __future__ import annotations

from benchmarks.rule_table import PAGE, tables, written
from mirage.verify.rules.builtin import SUBJECTS


def test_the_tables_are_those_of_the_data() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run `make docs`"


def test_every_rule_has_a_row() -> None:
    rows = [line for line in tables() if line.startswith("| ")]
    assert len(rows) == sum(map(len, SUBJECTS.values())) + 2 * len(SUBJECTS)
