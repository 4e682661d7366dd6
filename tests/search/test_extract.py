"""Extraction against every graph of small closures, written out by a plain recursion."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from mirage.search import extract
from mirage.search.closure import Closure, Derivation, Value
from mirage.search.extract import Choice, Extraction, topological
from mirage.search.plan import KernelPlan, plans
from tests.programs import SMALL, axes, close

Graph = frozenset[tuple[Value, Derivation]]

CASES = [
    (name, p.kernels[0])
    for name in (*(n for n in SMALL if n != "self division"), "gqa_decode", "rms_norm", "rmsnorm_linear", "lora")
    for p in plans(axes(name), 1)
    if name != "frobenius" or p.kernels[0].loop is None
]


def goals_of(c: Closure, name: str) -> list[Value]:
    found = [
        next((v for v in c.values if v.form is c.al.targets[o.value][0] and v.derivations), None)
        for o in axes(name).outputs
    ]
    goals = [v for v in found if v is not None]
    assert len(goals) == len(found)
    return goals


def every_graph(goals: Sequence[Value], limit: int) -> set[Graph]:
    """All ways to give each needed value one derivation, with at most `limit` operators."""

    def extend(chosen: dict[Value, Derivation], todo: tuple[Value, ...]) -> Iterator[Graph]:
        todo = tuple(v for v in todo if v.source is None and v not in chosen)
        if len(chosen) > limit:
            return
        if not todo:
            yield frozenset(chosen.items())
            return
        for d in todo[0].derivations:
            yield from extend({**chosen, todo[0]: d}, (*todo[1:], *d.operands))

    return set(extend({}, tuple(goals)))


def extraction(goals: Sequence[Value], limit: int, **more: Callable) -> Extraction:
    return Extraction(goals, limit=limit, deadline=time.perf_counter() + 60, **more)


def graph(choice: Choice) -> Graph:
    return frozenset(choice.chosen.items())


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_every_graph_once_cheapest_first(name: str, kernel: KernelPlan) -> None:
    c = close(name, kernel)
    goals = goals_of(c, name)
    least = min(len(g) for g in every_graph(goals, 99))
    for limit in (least - 1, least, c.limit):
        e = extraction(goals, limit)
        choices = list(e)
        found = [graph(x) for x in choices]
        assert e.complete
        assert len(set(found)) == len(found)
        assert set(found) == every_graph(goals, limit)
        costs = [x.cost for x in choices]
        # equal costs may differ by rounding
        assert costs == pytest.approx(sorted(costs), rel=1e-12)
        assert costs == pytest.approx([sum(d.cost for d in x.chosen.values()) for x in choices])


def test_choices_are_graphs() -> None:
    c = close("gqa_decode", KernelPlan("t"))
    for choice in extraction(goals_of(c, "gqa_decode"), c.limit):
        order = topological(choice)
        assert set(order) == set(choice.chosen) | choice.leaves
        assert all(v.source is not None for v in choice.leaves)
        for v, d in choice.chosen.items():
            assert all(order.index(u) < order.index(v) for u in d.operands)
        read = {u for d in choice.chosen.values() for u in d.operands}
        assert set(order) - set(choice.goals) <= read, "nothing is computed in vain"


def test_shared_values_are_paid_once() -> None:
    """In h * sigmoid(h) + h the matmul is one operator."""
    c = close("shared", KernelPlan())
    first = next(iter(extraction(goals_of(c, "shared"), c.limit)))
    assert [d.op for d in first.chosen.values()].count("matmul") == 1


def test_leaves_are_priced_and_refused() -> None:
    c = close("sum then matmul", KernelPlan())
    goals = goals_of(c, "sum then matmul")
    (plain, *_) = extraction(goals, c.limit)
    (priced, *_) = extraction(goals, c.limit, leaf_cost=lambda _: 10.0)
    assert priced.cost == pytest.approx(plain.cost + 10.0 * len(plain.leaves))
    assert not list(extraction(goals, c.limit, accept_leaves=lambda leaves: len(leaves) < 3))
    assert list(extraction(goals, c.limit, accept_leaves=lambda leaves: len(leaves) <= 3))


def test_dear_leaves_change_the_order() -> None:
    """A graph that reads an earlier kernel's result is chosen only where that is cheap."""
    c = close("rms_norm", KernelPlan())
    goals = goals_of(c, "rms_norm")
    choices = list(extraction(goals, c.limit, leaf_cost=lambda v: 1e6 * v.number))
    costs = [x.cost for x in choices]
    assert costs == pytest.approx(sorted(costs), rel=1e-12)


def test_steps_are_limited_and_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    c = close("rmsnorm_linear", KernelPlan())
    goals = goals_of(c, "rmsnorm_linear")
    whole = len(list(extraction(goals, c.limit)))
    monkeypatch.setattr(extract, "MAX_STEPS", 100)
    e = extraction(goals, c.limit)
    assert 0 < len(list(e)) < whole
    assert not e.complete


def test_the_deadline_ends_it() -> None:
    c = close("rmsnorm_linear", KernelPlan())
    e = Extraction(goals_of(c, "rmsnorm_linear"), limit=c.limit, deadline=time.perf_counter() - 1)
    assert len(list(e)) < 100
    assert not e.complete


def test_the_same_order_every_time() -> None:
    c = close("rmsnorm_linear", KernelPlan())
    goals = goals_of(c, "rmsnorm_linear")
    first, second = ([graph(x) for x in extraction(goals, c.limit)] for _ in range(2))
    assert all(a == b for a, b in itertools.zip_longest(first, second))
