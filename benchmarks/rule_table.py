"""The tables of all rules in `docs/rules.md`: `python -m benchmarks.rule_table` writes them again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.page import with_end
from benchmarks.rule_examples import Example, example_of, unmet
from mirage.errors import RuleError
from mirage.verify.rules.builtin import SUBJECTS
from mirage.verify.rules.pattern import shown
from mirage.verify.rules.rule import Rule

PAGE = Path(__file__).parents[1] / "docs" / "rules.md"


def _row(rule: Rule) -> str:
    cells = (rule.name, f"`{shown(rule.lhs)}`", f"`{shown(rule.rhs)}`", rule.guard, _example(rule))
    return "".join(f"| {c.replace('|', chr(92) + '|')} " for c in cells) + "|"


def _example(rule: Rule) -> str:
    """What saturation with this rule alone makes of values, and what it leaves as it is, where that can be seen."""
    example = example_of(rule)
    if example is None:
        raise RuleError(f"rule {rule} says nothing of any values that were tried; take it out, or mend its guards")
    stays = dict.fromkeys(shown(Example(rule, values).before) for _, values in unmet(example))
    apart = [f"`{text}`" for text in stays if text != shown(example.before)]
    return f"`{example}`" + (f", not {', '.join(apart)}" if apart else "")


def tables() -> Iterator[str]:
    """The lines of the page's tables: the package's rules, by subject."""
    for subject, rules in SUBJECTS.items():
        yield f"### {subject}"
        yield ""
        yield "| rule | from | to | where | example |"
        yield "| --- | --- | --- | --- | --- |"
        yield from map(_row, rules)
        yield ""


def written(page: str) -> str:
    """The page with the tables, which stand at its end, made anew."""
    return with_end(page, "## All rules", list(tables())[:-1])


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
