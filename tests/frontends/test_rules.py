"""Rules of users: written as functions, tried, and used by searches and proofs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mirage as mi
from mirage.errors import RuleError
from mirage.ir.axes import to_axes
from mirage.verify.rules.registry import BUILT_IN, remove_rule, rules
from mirage.verify.rules.rewritten import prove_by_rules


@pytest.fixture(autouse=True)
def no_rule_stays() -> Iterator[None]:
    yield
    for rule in rules():
        if rule.name not in BUILT_IN:
            remove_rule(rule.name)


def test_a_rule_is_two_functions() -> None:
    rule = mi.register_rule("logs", lambda x, y: mi.log(mi.exp(x) * y), lambda x, y: x + mi.log(y))
    assert str(rule) == "logs: log(exp(x) * y) => x + log(y) when both sides defined in the same places"


def test_a_rule_is_used_by_proofs() -> None:
    a = to_axes(mi.trace(lambda x: mi.sin(x) * mi.tanh(mi.sin(x) + x), x=mi.tensor("n")))
    b = to_axes(mi.trace(lambda x: mi.sin(x) * mi.sigmoid(2 * (mi.sin(x) + x)) * 2 - mi.sin(x), x=mi.tensor("n")))
    third = mi.register_rule(
        "cube of a sine", lambda x: mi.sin(3 * x), lambda x: 3 * mi.sin(x) - 4 * mi.sin(x) * mi.sin(x) * mi.sin(x)
    )
    c = to_axes(mi.trace(lambda x: mi.sin(3 * x), x=mi.tensor("n")))
    d = to_axes(mi.trace(lambda x: 3 * mi.sin(x) - 4 * mi.sin(x) * mi.sin(x) * mi.sin(x), x=mi.tensor("n")))
    found = prove_by_rules(c, d)
    assert found is not None and found.rules == (third.name,)
    remove_rule(third.name)
    assert prove_by_rules(c, d) is None
    assert prove_by_rules(a, b) is not None


def test_sums_bind_the_dims_that_specs_name() -> None:
    rule = mi.register_rule(
        "exps of a row", lambda x, c: mi.sum(mi.exp(x + c), axis=0), lambda x, c: mi.exp(c) * mi.sum(mi.exp(x), axis=0),
        x=mi.tensor("n"), c=mi.tensor(),
    )  # fmt: skip
    assert rule.guard == "c the same along n"


@pytest.mark.parametrize(
    ("lhs", "rhs", "message"),
    [
        (lambda x: mi.sqrt(x * x), lambda x: x * 1.0, "is not true"),
        (lambda x: mi.exp(x), lambda y: mi.exp(y), "y is no parameter of its left side"),
        (lambda x: mi.exp(x), lambda x: mi.exp(x), "must change something"),
        (lambda x: (mi.exp(x), x), lambda x: (x, x), "2 results"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(lhs: object, rhs: object, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        mi.register_rule("r", lhs, rhs)  # type: ignore[arg-type]


def test_a_rule_whose_sides_differ_in_a_sum_is_refused() -> None:
    with pytest.raises(RuleError, match="is not true"):
        mi.register_rule(
            "sum of products", lambda x, y: mi.sum(x * y, axis=0), lambda x, y: mi.sum(x, axis=0) * mi.sum(y, axis=0),
            x=mi.tensor("n"), y=mi.tensor("n"),
        )  # fmt: skip
