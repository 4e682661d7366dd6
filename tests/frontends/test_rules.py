"""Rules of users: written as functions, tried, and used by searches and proofs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mirage as mi
from mirage.api import verify
from mirage.errors import RuleError
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.mugraph.reference import reference_graph
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


def cubes() -> tuple[Program, Program]:
    n = mi.tensor("n")
    one = mi.trace(lambda x: mi.sin(3 * x), x=n)
    other = mi.trace(lambda x: 3 * mi.sin(x) - 4 * mi.sin(x) * mi.sin(x) * mi.sin(x), x=n)
    assert isinstance(one, Program) and isinstance(other, Program)
    return one, other


@pytest.mark.parametrize("graphs", [False, True])
def test_verify_uses_rules_where_nothing_else_decides(graphs: bool) -> None:
    one, other = cubes()
    right = reference_graph(to_axes(other)) if graphs else other
    assert verify(one, right).verdict == "unknown"
    third = mi.register_rule(
        "cube of a sine", lambda x: mi.sin(3 * x), lambda x: 3 * mi.sin(x) - 4 * mi.sin(x) * mi.sin(x) * mi.sin(x)
    )
    found = verify(one, right)
    assert found.equal and found.verdict == "proved equal"
    assert any(link.startswith(third.name) for link in found.chain) and f"by the rule {third.name}" in str(found)
    wrong = mi.trace(lambda x: 3 * mi.sin(x) - 4 * mi.sin(x) * mi.sin(x), x=mi.tensor("n"))
    assert verify(one, wrong).verdict == "different"


def test_verify_shows_the_chain_of_a_graph_that_rules_led_to() -> None:
    program = mi.trace(lambda x, y: mi.sqrt(mi.exp(x)) * y, x=mi.tensor("n"), y=mi.tensor("n"))
    better = mi.trace(lambda x, y: mi.exp(x / 2) * y, x=mi.tensor("n"), y=mi.tensor("n"))
    found = verify(program, reference_graph(to_axes(better)))
    assert found.verdict == "proved equal" and found.condition is None and len(found.checks) == 2
    assert [link.partition(":")[0] for link in found.chain] == ["root of an exp"]
    # what holds only where x is not negative is not proved
    root = mi.trace(lambda x: mi.sqrt(x * x), x=mi.tensor("n"))
    assert not verify(root, mi.trace(lambda x: x * 1.0, x=mi.tensor("n"))).equal


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
