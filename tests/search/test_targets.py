"""Targets: what equality saturation finds for a search, and that graphs of it are proved, kept and recalled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.search import targets
from mirage.search.candidates import Candidates
from mirage.search.options import SearchOptions
from mirage.search.rewriting import Rewriting
from mirage.search.targets import find_targets
from mirage.verify.equivalence import Verifier
from mirage.verify.rules import saturate
from mirage.verify.rules.registry import only
from tests.api.small import limit_tuning
from tests.work import Rushing

N = mi.tensor("n")


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
    for module in (saturate, targets):
        monkeypatch.setattr(module, "time", Rushing())
    reports = []
    for options in (SearchOptions(steps=1), SearchOptions()):
        found = Rewriting(program, {"n": 64}, options, lambda _: True)
        found.advance(0.0)
        reports.append(found.report)
    assert "saturated; 1 targets" in reports[0]
    assert "out of time; no target" in reports[1]


def test_without_rules_there_is_no_target() -> None:
    with only():
        assert operators(lambda x, y: mi.exp(x) * mi.exp(y), {"n": 64}, x=N, y=N) == []


def test_squares_of_differences_become_a_product_where_that_is_cheaper() -> None:
    def distances(x: Any, y: Any) -> Any:
        return mi.sum(mi.square(mi.reshape(x, ("n", 1, 32)) - mi.reshape(y, (1, "m", 32))), axis=2)

    specs = {"x": mi.tensor("n", 32), "y": mi.tensor("m", 32)}
    found = operators(distances, {"n": 256, "m": 256}, **specs)
    assert any("matmul" in ops for ops in found)


def stream(fn: Callable[..., Any], sizes: dict[str, int], **specs: Any) -> Candidates:
    program = mi.trace(fn, **specs)
    verifier = Verifier(program)
    rewriting = Rewriting(verifier.axis_program, sizes, SearchOptions(), verifier.learn)
    return Candidates(verifier, None, rewriting=rewriting)


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


@pytest.mark.parametrize("rules", [True, False])
def test_a_result_with_and_without_rules(rules: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_tuning(monkeypatch.setattr)
    program = mi.trace(lambda x, y: mi.exp(x) * mi.exp(y), x=N, y=N)
    result = mi.superoptimize(program, sizes={"n": 64}, cache=False, rules=rules, budget=60.0)
    chains = [c.certificate.chain for c in result.graphs]
    assert any(chains) == rules
    assert bool(result.stats.rules) == rules
