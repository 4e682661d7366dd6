"""Targets: what equality saturation finds for a search, and that graphs of it are proved, kept and recalled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.reference import reference_graph
from mirage.search import rewriting
from mirage.search.candidates import Candidates
from mirage.search.options import SearchOptions
from mirage.search.rewriting import Rewriting
from mirage.search.stream import Search
from mirage.search.targets import _Prices, find_targets
from mirage.search.units import Found
from mirage.verify.equivalence import Verifier
from mirage.verify.rules import saturate
from mirage.verify.rules.registry import only
from mirage.verify.rules.terms import Terms, read
from tests.api.small import limit_tuning
from tests.work import Rushing

N = mi.tensor("n")
M = mi.tensor("n", "k")


def operators(fn: Callable[..., Any], sizes: dict[str, int], **specs: Any) -> list[list[str]]:
    program = to_axes(mi.trace(fn, **specs))
    table = {a: evaluate(d, sizes) for a, d in program.axes.items()}
    found = find_targets(program, table, seconds=60)
    return [[n.op for n in t.program.nodes if n.op not in ("input", "constant")] for t in found.programs]


def test_a_product_of_exps_has_one_exp_as_its_target() -> None:
    assert operators(lambda x, y: mi.exp(x) * mi.exp(y), {"n": 64}, x=N, y=N) == [["add", "exp"]]


def test_a_program_that_has_no_cheaper_form_has_no_target() -> None:
    assert operators(lambda x, y: mi.exp(x) + mi.sin(y), {"n": 64}, x=N, y=N) == []
    assert operators(lambda x: mi.softmax(x), {"n": 64}, x=mi.tensor("n", 8)) == []


def test_a_counted_search_has_its_targets_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    program = to_axes(mi.trace(lambda x, y: mi.exp(x) * mi.exp(y), x=N, y=N))
    monkeypatch.setattr(saturate, "time", Rushing())
    reports, left_out = [], []
    for options in (SearchOptions(steps=1), SearchOptions()):
        found = Rewriting(program, {"n": 64}, options, lambda _: True)
        while not found.saturated:
            found.advance(0.0)
        reports.append(found.report)
        left_out.append(found.left_out)
    assert "saturated; 1 targets" in reports[0]
    assert "out of time; no target" in reports[1]
    assert left_out == [["1 of 1 targets of rules not searched to the end: budget spent"], ["rules not saturated: out of time"]]


def test_what_a_counted_search_finds_by_a_step_does_not_depend_on_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for slow in (False, True):
        if slow:
            monkeypatch.setattr(saturate, "time", Rushing())
            monkeypatch.setattr(rewriting, "time", Rushing())
        search, targets = products(SearchOptions(steps=1))
        states = []
        for _ in range(200):
            if not targets.waits(search):
                targets.advance(0.0, search)
            else:
                search.advance(0.0)
            states.append((targets.steps, targets.saturated, len(targets.found), len(search.found)))
        found.append(states)
    assert found[0] == found[1]


def test_without_rules_there_is_no_target() -> None:
    with only():
        assert operators(lambda x, y: mi.exp(x) * mi.exp(y), {"n": 64}, x=N, y=N) == []


def test_squares_of_differences_become_a_product_where_that_is_cheaper() -> None:
    def distances(x: Any, y: Any) -> Any:
        return mi.sum(mi.square(mi.reshape(x, ("n", 1, 32)) - mi.reshape(y, (1, "m", 32))), axis=2)

    specs = {"x": mi.tensor("n", 32), "y": mi.tensor("m", 32)}
    found = operators(distances, {"n": 256, "m": 256}, **specs)
    assert any("matmul" in ops for ops in found)


def test_a_sum_over_a_concat_becomes_two_sums() -> None:
    def total(x: Any, y: Any) -> Any:
        return mi.sum(mi.exp(mi.concat([x, y], axis=1)), axis=1)

    found = operators(total, {"n": 64}, x=mi.tensor("n", 256), y=mi.tensor("n", 256))
    assert found and all("concat" not in ops for ops in found)


def stream(fn: Callable[..., Any], sizes: dict[str, int], **specs: Any) -> Candidates:
    program = mi.trace(fn, **specs)
    verifier = Verifier(program)
    targets = Rewriting(verifier.axis_program, sizes, SearchOptions(), verifier.learn)
    return Candidates(verifier, None, rewriting=targets)


def test_graphs_of_a_target_are_proved_by_the_chain_that_leads_to_it() -> None:
    found = stream(lambda x, y: mi.exp(x) * mi.exp(y), {"n": 64}, x=N, y=N)
    assert not found.done
    graphs = found.all(60)
    assert found.done and graphs
    for candidate in graphs:
        certificate = found.verifier.confirm(candidate.graph, candidate.certificate)
        assert certificate.verdict == "proved equal" and len(certificate.checks) == 2
        assert certificate.chain == ("product of exps: (exp(x) * exp(y)) => exp((x + y))",)
        assert "by the rule product of exps" in str(certificate)


def plain(found: Candidates, *, preferred: bool) -> set[tuple[bool, int]]:
    """Whether graphs are of targets, and how many of their exponents may overflow."""
    return {
        (bool(c.certificate.chain), len(c.maximum.plain)) for c in (found.preferred() if preferred else found.found)
    }  # fmt: skip


def test_a_target_with_fewer_exps_keeps_no_kernel_of_the_program_from_running() -> None:
    found = stream(lambda x, y: mi.exp(x) / mi.exp(y), {"n": 64}, x=N, y=N)
    found.search = Search(found.verifier.axis_program, {"n": 64}, SearchOptions())
    found.all(3600)
    assert plain(found, preferred=False) >= {(False, 2), (True, 1)}
    assert plain(found, preferred=True) == plain(found, preferred=False)
    # without graphs of the program, the targets are compared with one another
    found.found = [c for c in found.found if c.certificate.chain]
    assert plain(found, preferred=True) == {(True, min(n for _, n in plain(found, preferred=False)))}


def test_a_graph_with_more_exps_that_may_overflow_than_another_does_not_run() -> None:
    found = stream(lambda x, y: mi.exp(x) / mi.exp(y), {"n": 64}, x=N, y=N)
    found.search = Search(found.verifier.axis_program, {"n": 64}, SearchOptions())
    found.all(3600)
    (own,) = [c for c in found.found if not c.certificate.chain]
    safe = replace(own, maximum=replace(own.maximum, plain=()))
    found.found.append(safe)
    assert found.preferred() == [safe]


def test_no_graph_of_the_pieces_is_lost_to_the_targets() -> None:
    found = stream(lambda x, y: mi.exp(x) * mi.exp(y), {"n": 64}, x=N, y=N)
    item = Found([reference_graph(found.verifier.axis_program)], 1.0, np.zeros(0), False, 0.0)

    class Pieces:
        begun = done = complete = False

        steps = 1

        def advance(self, seconds: float) -> list[Found]:
            self.begun = self.done = self.complete = True
            return [item]

    found.pieces = Pieces()  # type: ignore[assignment]
    assert structure_key(item.graphs[0]) in {structure_key(c.graph) for c in found.all(60)}


def test_a_graph_that_is_recalled_is_proved_by_rules_again() -> None:
    found = stream(lambda x, y: mi.exp(x) * mi.exp(y), {"n": 64}, x=N, y=N)
    graph = found.all(60)[0].graph
    fresh = Verifier(found.verifier.program)
    assert fresh.admit(graph, by_rules=True).chain
    with only():
        assert not Verifier(found.verifier.program).admit(graph, by_rules=True).chain


def test_an_interrupt_ends_the_targets_and_more_goes_on() -> None:
    found = stream(lambda x, y: mi.exp(x) * mi.exp(y), {"n": 64}, x=N, y=N)
    found.stop()
    assert found.done and not found.complete
    found.resume(60)
    assert found.all(60) and found.complete


def products(options: SearchOptions | None = None) -> tuple[Search, Rewriting]:
    """The search of a program whose targets have a matmul each, and theirs."""
    verifier = Verifier(mi.trace(lambda x, y, w: mi.exp(x) * mi.exp(y) @ w, x=M, y=M, w=mi.tensor("k", "j")))
    sizes = {"n": 64, "k": 64, "j": 64}
    options = options or SearchOptions()
    search = Search(verifier.axis_program, sizes, options)
    return search, Rewriting(verifier.axis_program, sizes, options, verifier.learn)


def test_the_targets_wait_for_the_first_kernel_of_the_program_and_then_take_turns() -> None:
    search, targets = products()
    assert targets.waits(search) and not targets.waits()
    search.advance(60)
    assert search.finished and not targets.waits(search)
    targets.advance(0.0, search)
    assert targets.steps == 1 and not targets.saturated
    while not targets.waits(search):
        targets.advance(0.0, search)
    assert rewriting.SHARE * targets.steps > search.steps
    while not search.done:
        search.advance(60)
    assert not targets.waits(search)


def test_targets_have_a_share_of_the_search_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    reports, left_out = [], []
    for steps in (1, 10**9):
        monkeypatch.setattr(rewriting, "STEPS", steps)
        search, targets = products()
        while not search.done:
            search.advance(60)
        while not targets.done:
            targets.advance(0.0, search)
        reports.append(targets.report)
        left_out.append(targets.left_out)
    assert [len(found) for found in left_out] == [1, 0]
    assert left_out[0][0].endswith("targets of rules not searched to the end: they have had their share of the search")
    assert reports[0].endswith("as they have had their share of the search") and "budget spent" in reports[0]
    assert "share" not in reports[1] and "complete" in reports[1]


def test_what_was_left_out_of_rules() -> None:
    _, targets = products()
    assert targets.left_out == ["rules not tried: budget spent"]
    targets.advance(0.0)
    assert targets.left_out == ["rules not saturated: budget spent"]
    targets.interrupt()
    assert targets.left_out == ["rules not saturated: interrupted"]
    targets.resume(60)
    while not targets.done:
        targets.advance(60)
    assert targets.left_out == []


def test_a_result_says_that_saturation_was_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason why its search stopped says so, as the report and the command line show it, and a stored one keeps it."""
    limit_tuning(monkeypatch.setattr)
    program = mi.trace(lambda x, y: mi.exp(x) * mi.exp(y), x=N, y=N)
    for bound, reason in (("MAX_ROUNDS", "1 rounds"), ("MATCHES", "10 rounds")):
        with monkeypatch.context() as m:
            m.setattr(saturate, bound, 1 if bound == "MAX_ROUNDS" else 0)
            result = mi.superoptimize(program, sizes={"n": 64}, cache=False, budget=60.0)
        assert result.stats.stop_reason == f"complete; rules not saturated: {reason}"
        assert dict(result.report_rows())["search stopped"] == result.stats.stop_reason
        assert result.to_json()["stats"]["stop_reason"] == result.stats.stop_reason
    assert mi.superoptimize(program, sizes={"n": 64}, cache=False, budget=60.0).stats.stop_reason == "complete"


def test_what_the_program_has_found_is_not_beaten_again() -> None:
    found = []
    for known in (False, True):
        search, targets = products()
        while not search.done:
            search.advance(60)
        while not targets.done:
            targets.advance(60, *([search] if known else []))
        found.append(targets.found)
    assert min(f.cost for f in found[0]) == min(f.cost for f in found[1])
    assert len(found[1]) <= len(found[0])


def test_terms_that_share_operands_pay_once_for_them() -> None:
    program = to_axes(mi.trace(lambda x, y: mi.exp(x) * y + mi.exp(x) / mi.sum(mi.exp(x), axis=0), x=N, y=N))
    terms = Terms(program.axes)
    outputs = read(terms, program).outputs
    prices = _Prices(terms, {"n": 1000}, ())
    seen: set[int] = set()
    todo, total = list(outputs), 0.0
    while todo:
        if (x := todo.pop()) not in seen:
            seen.add(x)
            total += prices.parts(x)[0]
            todo += prices.parts(x)[1]
    assert prices.of(outputs) == pytest.approx(total)
    assert prices.of((*outputs, *outputs)) == pytest.approx(total)
    assert prices.of((terms.nodes[outputs[0]].args[0],)) < total


@pytest.mark.parametrize("rules", [True, False])
def test_a_result_with_and_without_rules(rules: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    program = mi.trace(lambda x, y: mi.exp(x) * mi.exp(y), x=N, y=N)
    result = mi.superoptimize(program, sizes={"n": 64}, cache=False, rules=rules, budget=60.0)
    chains = [c.certificate.chain for c in result.graphs]
    assert any(chains) == rules
    assert bool(result.stats.rules) == rules


@pytest.mark.parametrize(
    ("name", "fn", "specs"),
    [
        ("products", lambda x, w, y: x @ w - x @ w + y, {"x": M, "w": mi.tensor("k", "m"), "y": mi.tensor("n", "m")}),
        ("zeros", lambda x, y: 0 * mi.sum(x, 1) + y, {"x": M, "y": N}),
        ("summed", lambda x, y: mi.sum(x - x, 1) + y, {"x": M, "y": N}),
        ("ones", lambda x, y: mi.sum(mi.exp(x) / mi.exp(x), 1) * y, {"x": M, "y": N}),
        ("centred", lambda x, y: mi.sum(x - mi.mean(x, 1, keepdims=True), 1) + y, {"x": M, "y": N}),
    ],
)
def test_no_target_sums_over_an_axis_that_its_operand_lacks(name: str, fn: Callable[..., Any], specs: dict[str, Any]) -> None:
    """What cancels leaves a number behind, whose sum over an axis is a product with the axis's size."""
    program = to_axes(mi.trace(fn, **specs))
    targets = find_targets(program, {a: 16 for a in program.axes}, seconds=60).programs
    assert targets, name
    for target in targets:
        nodes = target.program.nodes
        assert all({*n.reduce} <= {a for j in n.operands for a in nodes[j].axes} for n in nodes)
        verifier = Verifier(mi.trace(fn, **specs))
        assert verifier.learn(target)
        assert verifier.admit(reference_graph(target.program)).equal


def test_what_cancels_is_not_computed() -> None:
    assert operators(lambda x, y: mi.sum(x - x, 1) + y, {"n": 64, "k": 64}, x=M, y=N)[0] == []
    counted = operators(lambda x, y: mi.sum(mi.exp(x) / mi.exp(x), 1) * y, {"n": 64, "k": 64}, x=M, y=N)
    assert "exp" not in counted[0] and "sum" not in counted[0]
