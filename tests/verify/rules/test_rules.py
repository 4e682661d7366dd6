"""Rules: all that come with the package are true, and false ones are refused."""

from __future__ import annotations

import pytest

from mirage.errors import RuleError
from mirage.verify.rules.builtin import RING, SUBJECTS
from mirage.verify.rules.pattern import INNER, as_pattern, call, number, sum_, var
from mirage.verify.rules.registry import BUILT_IN, add_rule, find_rule, only, remove_rule, rules
from mirage.verify.rules.rule import Rule
from mirage.verify.rules.trial import try_rule

X, Y = var("x", INNER), var("y", INNER)
C = var("c")
ALL = {rule.name: rule for group in SUBJECTS.values() for rule in group}


@pytest.mark.parametrize("name", [n for i, n in enumerate(ALL) if i % 5 == 0])
def test_a_rule_of_the_package_holds_in_floats_and_finite_fields(name: str) -> None:
    try_rule(ALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ALL))
def test_all_rules_of_the_package_hold_in_floats_and_finite_fields(name: str) -> None:
    try_rule(ALL[name])


def test_names_are_distinct() -> None:
    assert len(ALL) == sum(map(len, SUBJECTS.values())) == len(BUILT_IN)


FALSE = [
    Rule("exp of a sum is a sum of exps", call("exp", X + Y), call("exp", X) + call("exp", Y)),
    Rule("root of a square is what is squared", call("sqrt", X * X), X),
    Rule("abs of a sum", call("abs", X + Y), call("abs", X) + call("abs", Y)),
    Rule("relu of what is scaled by anything", call("relu", X * Y), X * call("relu", Y)),
    Rule("a sum of products is a product of sums", sum_(X * Y), sum_(X) * sum_(Y)),
    Rule("a constant summed", sum_(C + X), C + sum_(X)),
    Rule("one off", number("a") * X, (1 + number("a")) * X),
    Rule("a quotient turned", X / Y, Y / X),
]


@pytest.mark.parametrize("rule", FALSE, ids=lambda r: r.name)
def test_a_false_rule_is_refused_with_a_counterexample(rule: Rule) -> None:
    with pytest.raises(RuleError, match="is not true"):
        try_rule(rule)


def test_a_fact_makes_a_rule_true() -> None:
    lhs, rhs = call("sqrt", X * X), X
    with pytest.raises(RuleError, match="is not true"):
        try_rule(Rule("without", lhs, rhs))
    try_rule(Rule("with", lhs, rhs, {"x": "nonnegative"}))


def test_malformed_rules_are_refused() -> None:
    with pytest.raises(RuleError, match="'z' is not on its left side"):
        Rule("r", X + Y, X + var("z"))
    with pytest.raises(RuleError, match="bare var"):
        Rule("r", X, X * 1)
    with pytest.raises(RuleError, match="must change something"):
        Rule("r", X + Y, X + Y)
    with pytest.raises(RuleError, match="'odd' of 'x' is no fact"):
        Rule("r", X + Y, Y + X, {"x": "odd"})  # type: ignore[dict-item]


def test_the_guards_are_said_in_words() -> None:
    assert str(Rule("r", sum_(C * X), C * sum_(X))) == "r: sum[n](c * x) => c * sum[n](x) when c the same along n"
    assert ALL["cancel a factor"].guard == "both sides defined in the same places"
    assert ALL["a x + b x"].guard == "a a constant; b a constant"
    assert ALL["relu of a scaled"].guard == "x nonnegative"


def test_rules_are_added_and_taken_out_again() -> None:
    rule = Rule("a rule of this test", call("sin", X * 0), as_pattern(0))
    add_rule(rule)
    try:
        names = [r.name for r in rules()]
        # the ring's rules are used last, so that a bound which they reach keeps no other from being used
        assert names.index(rule.name) < min(names.index(r.name) for r in SUBJECTS[RING])
        with pytest.raises(RuleError, match="already"):
            add_rule(rule)
    finally:
        remove_rule(rule.name)
    assert find_rule(rule.name) is None
    with pytest.raises(RuleError, match="no rule that was added"):
        remove_rule("x + x")


def test_an_ablation_has_the_rules_that_it_names_and_gives_the_others_back() -> None:
    before = rules()
    with only("x + x"):
        assert [r.name for r in rules()] == ["x + x"]
    assert rules() == before
