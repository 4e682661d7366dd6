"""Every rule of the package says something: saturation with it alone finds its example, and nothing where a guard is unmet."""

from __future__ import annotations

import pytest

from benchmarks.rule_examples import example_of, fires, unmet
from mirage.verify.rules.builtin import SUBJECTS
from mirage.verify.rules.pattern import INNER, call, var
from mirage.verify.rules.registry import add_rule, remove_rule
from mirage.verify.rules.rule import Rule

ALL = {rule.name: rule for group in SUBJECTS.values() for rule in group}
X = var("x", INNER)


@pytest.mark.parametrize("name", list(ALL))
def test_a_rule_fires_and_its_guards_hold_it_back(name: str) -> None:
    rule = ALL[name]
    example = example_of(rule)
    assert example is not None, "the rule can never fire"
    assert fires(rule, example.values)
    held = {guard for guard, values in unmet(example) if not fires(rule, values)}
    # what each use is checked for is no guard of every value
    expected = {guard for guard in rule.guard.split("; ") if guard and not guard.startswith("both sides")}
    assert held - {"both sides defined in the same places"} == expected
    assert not any(fires(rule, values) for _, values in unmet(example))


def test_guards_of_places_hold_some_rules_back() -> None:
    found = {
        rule.name
        for rule in ALL.values()
        if (example := example_of(rule)) is not None
        and any(guard.startswith("both sides") for guard, _ in unmet(example))
    }
    assert {"quotient of equals", "sum of logs", "square of a root", "cancel a factor"} <= found
    assert not found & {"cancel terms", "quotient of exps", "divide twice"}


def test_examples_as_text() -> None:
    assert str(example_of(ALL["quotient of equals"])) == "exp(x) / exp(x) -> 1"
    assert str(example_of(ALL["a x + b x"])) == "(2 * x) + (5 * x) -> 7 * x"
    assert str(example_of(ALL["multiply into a sum"])) == "c * sum[n](x) -> sum[n](c * x)"


def test_a_rule_that_never_fires_is_found() -> None:
    """Its left side is defined nowhere."""
    rule = Rule("log of what is negative", call("log", -call("exp", X)), X)
    add_rule(rule)
    try:
        assert example_of(rule) is None
    finally:
        remove_rule(rule.name)
