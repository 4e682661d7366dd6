"""The tables of all rules in `docs/rules.md`: `python -m benchmarks.rule_table` writes them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.page import with_end
from mirage.verify.rules.builtin import SUBJECTS
from mirage.verify.rules.pattern import shown
from mirage.verify.rules.rule import Rule

PAGE = Path(__file__).parents[1] / "docs" / "rules.md"


def _row(rule: Rule) -> str:
    return f"| {rule.name} | `{shown(rule.lhs)}` | `{shown(rule.rhs)}` | {rule.guard.replace('|', chr(92) + '|')} |"


def tables() -> Iterator[str]:
    """The lines of the page's tables: the package's rules, by subject."""
    for subject, rules in SUBJECTS.items():
        yield f"### {subject}"
        yield ""
        yield "| rule | from | to | where |"
        yield "| --- | --- | --- | --- |"
        yield from map(_row, rules)
        yield ""


def written(page: str) -> str:
    """The page with the tables, which stand at its end, made anew."""
    return with_end(page, "## All rules", list(tables())[:-1])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
