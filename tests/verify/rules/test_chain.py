"""E-graphs and chains: what is equal under the rules, why, and that a wrong chain is not accepted."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import AxisProgram, to_axes
from mirage.verify.rules.chain import checked
from mirage.verify.rules.egraph import EGraph
from mirage.verify.rules.lower import lowered
from mirage.verify.rules.pattern import Binding, Pattern
from mirage.verify.rules.registry import only
from mirage.verify.rules.rewritten import prove_by_rules
from mirage.verify.rules.saturate import Saturation, saturate
from mirage.verify.rules.terms import Terms, read

N = mi.tensor("n")


def axes(fn: Callable[..., Any], **specs: Any) -> AxisProgram:
    return to_axes(mi.trace(fn, **specs))


def names(a: AxisProgram, b: AxisProgram) -> list[str] | None:
    found = prove_by_rules(a, b)
    return None if found is None else [link.rule for link in found.links]


def test_a_program_is_proved_by_the_rules_that_it_takes() -> None:
    a = axes(lambda x, y: mi.exp(x) * mi.exp(y), x=N, y=N)
    b = axes(lambda x, y: mi.exp(x + y), x=N, y=N)
    assert names(a, b) == ["product of exps"]
    assert names(b, a) in (["exp of a sum"], ["product of exps"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x, y: mi.sqrt(mi.exp(x)) * mi.sqrt(mi.exp(y)), lambda x, y: mi.exp((x + y) / 2)),
        (lambda x, y: mi.log(mi.exp(x) / mi.exp(y)), lambda x, y: x - y),
        (lambda x, y: mi.relu(x) * mi.relu(x) + 0 * y, lambda x, y: x * mi.relu(x) + 0 * y),
        (lambda x, y: 1 / (1 + mi.exp(y - x)), lambda x, y: mi.sigmoid(x - y)),
        (lambda x, y: mi.abs(x) * mi.abs(y), lambda x, y: mi.abs(x * y)),
    ],
)
def test_identities_are_proved(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    assert names(axes(one, x=N, y=N), axes(other, x=N, y=N))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # not defined, or not the same, everywhere
        (lambda x, y: x * y / y, lambda x, y: x + 0 * y),
        (lambda x, y: mi.exp(mi.log(x)) + y, lambda x, y: x + y),
        (lambda x, y: mi.sqrt(x) * mi.sqrt(y), lambda x, y: mi.sqrt(x * y)),
        (lambda x, y: mi.log(x * y), lambda x, y: mi.log(x) + mi.log(y)),
        (lambda x, y: mi.sqrt(x * x) + y, lambda x, y: x + y),
        (lambda x, y: mi.exp(x * y), lambda x, y: mi.exp(x) * mi.exp(y)),
        (lambda x, y: mi.relu(x * y), lambda x, y: x * mi.relu(y)),
    ],
)
def test_what_holds_only_in_places_is_not_proved(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    assert names(axes(one, x=N, y=N), axes(other, x=N, y=N)) is None


def test_a_cancellation_needs_a_divisor_that_is_not_zero() -> None:
    a = axes(lambda x, y: x * mi.exp(y) / mi.exp(y), x=N, y=N)
    b = axes(lambda x, y: x + 0 * y, x=N, y=N)
    assert names(a, b) is not None


def test_what_a_sum_multiplies_must_not_depend_on_its_axis() -> None:
    specs = {"x": mi.tensor("b", "n"), "c": mi.tensor("n")}
    a = axes(lambda x, c: mi.exp(mi.sum(x * c, axis=1)), **specs)
    b = axes(lambda x, c: mi.exp(mi.sum(x, axis=1) * mi.sum(c, axis=0)), **specs)
    assert names(a, b) is None


def test_every_step_of_a_chain_is_checked() -> None:
    program = axes(lambda x, y: mi.exp(x) * mi.exp(y), x=N, y=N)
    terms = Terms(program.axes)
    (before,) = read(terms, program).outputs
    x = read(terms, program).values[0]
    after = read(terms, axes(lambda x, y: mi.exp(x + y), x=N, y=N)).outputs[0]
    wrong = read(terms, axes(lambda x, y: mi.exp(x - y), x=N, y=N)).outputs[0]
    found = saturate(terms, (before, after))
    steps = found.graph.explain(before, after)
    links = checked(terms, before, after, steps)
    assert links is not None and [str(link) for link in links] == [
        "product of exps: (exp(x) * exp(y)) => exp((x + y))"
    ]
    assert checked(terms, before, wrong, steps) is None
    assert checked(terms, after, before, steps) is None
    assert checked(terms, before, after, []) is None
    (step,) = steps
    assert checked(terms, before, wrong, [step._replace(after=wrong)]) is None
    swapped = step.instance._replace(binding={"x": x, "y": x})
    assert checked(terms, before, after, [step._replace(instance=swapped)]) is None
    with only():
        # a rule that was taken out proves nothing
        assert checked(terms, before, after, steps) is None


def test_a_saturation_in_steps_comes_to_the_same() -> None:
    program = axes(lambda x, y: mi.exp(x) * mi.exp(y) / mi.exp(x - y), x=N, y=N)
    found = []
    for seconds in (0.0, math.inf):
        terms = Terms(program.axes)
        saturation = Saturation(terms, read(terms, program).outputs, seconds=60)
        steps = 1
        while not saturation.advance(seconds):
            steps += 1
        found.append((str(saturation.found.graph), saturation.found.used, saturation.found.stop_reason))
        assert (steps > 1) == (seconds == 0)
        assert saturation.advance()
    assert found[0] == found[1]


def test_rules_are_tried_again_only_near_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(near: Callable[[EGraph, int], frozenset[int]], fn: Callable[..., Any]) -> tuple[int, int, str, int]:
        monkeypatch.setattr(EGraph, "near_changes", near)
        program = axes(fn, x=N, y=N)
        terms = Terms(program.axes)
        matched = 0
        match = EGraph.matches

        def counted(graph: EGraph, p: Pattern, root: int) -> list[Binding]:
            nonlocal matched
            matched += 1
            return match(graph, p, root)

        with monkeypatch.context() as patch:
            patch.setattr(EGraph, "matches", counted)
            found = saturate(terms, read(terms, program).outputs, seconds=60)
        return len(found.graph), len(found.graph.classes()), found.stop_reason, matched

    near = EGraph.near_changes
    for fn in (
        lambda x, y: mi.exp(x) * mi.exp(y),
        lambda x, y: mi.sqrt(mi.exp(x)) * y,
        lambda x, y: mi.log(mi.exp(x) * mi.exp(y)),
    ):
        everywhere = tried(lambda graph, height: frozenset(graph.classes()), fn)
        fewer = tried(near, fn)
        assert everywhere[:3] == fewer[:3] and everywhere[2] == "saturated"
        assert fewer[3] < everywhere[3]


def test_a_saturation_is_bounded_and_says_so() -> None:
    program = axes(lambda x, y: mi.square(x + y) * mi.square(x - y) * (x + 1), x=N, y=N)
    terms = Terms(program.axes)
    roots = read(terms, program).outputs
    assert saturate(terms, roots, max_added=30).stop_reason == "30 added terms"
    assert saturate(terms, roots, seconds=1e-9).stop_reason == "out of time"
    with only("x + x"):
        assert saturate(Terms(program.axes), ()).stop_reason == "saturated"


def test_terms_read_and_lowered_are_the_program() -> None:
    program = axes(
        lambda x, g, w: mi.silu(mi.rms_norm(x, g)) @ w, x=mi.tensor("s", 8), g=mi.tensor(8), w=mi.tensor(8, "n")
    )
    terms = Terms(program.axes)
    outputs = read(terms, program).outputs
    again = lowered(terms, program, outputs)
    assert read(terms, again).outputs == outputs
    assert {"silu", "matmul", "rsqrt", "square"} & {n.op for n in again.nodes} >= {"silu", "matmul"}
