"""Extraction against every graph of small closures, written out by a plain recursion."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from mirage.mugraph.graph import partial_axis
from mirage.search.closure import Closure, Derivation, Value
from mirage.search.cost import Cost, CostModel, Place
from mirage.search.extract import Choice, Extractor, Order, topological
from mirage.search.plan import KernelPlan, kernel_plans
from tests.programs import SMALL, axes, space

Chosen = dict[Value, Derivation]
#: what makes graphs comparable: the leaves, the results of exp, and whether a difference is foreign
Kind = tuple[frozenset[Value], frozenset[Value], bool]

NONE = KernelPlan()
CASES = [
    (name, p)
    for name in (*(n for n in SMALL if n != "self division"), "gqa_decode", "rms_norm", "adapter_mlp")
    for p in kernel_plans(axes(name), 2)
]


class Case:
    """The closure of one plan of a program, its extractor, and the results that a last kernel has."""

    def __init__(self, name: str, plan: KernelPlan, **options: int) -> None:
        s = space(name, max_kernels=1, **options)
        number = next(k for k, c in enumerate(s.tensors.closures) if c.plan == plan)
        self.closure: Closure = s.tensors.closures[number]
        self.extractor: Extractor = s.composer.extractors[number]
        self.model: CostModel = s.composer.model
        outputs = [t for t in dict.fromkeys(s.tensors.outputs()) if t is not None]
        goals = [next((v for k, v in t.producers if k == number), None) for t in outputs]
        self.goals = [g for g in goals if g is not None]
        self.has_all = len(self.goals) == len(goals)

    def extract(self, limit: int | None = None, max_inputs: int | None = None) -> list[Choice]:
        e = self.extractor
        limit = e.limit if limit is None else limit
        found = Extractor(self.closure, self.model, limit=limit, max_inputs=max_inputs or e.max_inputs)
        found.deadline = time.perf_counter() + 60
        choices = found.choices(self.goals)
        assert found.complete
        return choices

    def differences(self) -> set[object]:
        nodes = zip(self.closure.program.nodes, self.closure.al.targets, strict=True)
        return {form for n, (form, _) in nodes if n.op == "sub"}

    def kind(self, chosen: Chosen) -> Kind:
        read = {u for d in chosen.values() for u in d.operands if u.source is not None}
        exps = {v for v, d in chosen.items() if d.op == "exp"}
        own = self.differences()
        return (
            frozenset(read | {g for g in self.goals if g.source is not None}),
            frozenset(exps),
            any(d.op == "sub" and v.form not in own for v, d in chosen.items()),
        )

    def cost(self, chosen: Chosen, place: Place) -> Cost:
        """The sum of what a graph does, priced one by one."""
        split = (partial_axis(place.split),) if place.split else ()
        total = self.model.launch()
        for g in self.goals:
            total = total + self.model.transfer((*split, *g.axes), place, held=False)
        for v in self.kind(chosen)[0]:
            total = total + self.model.transfer(v.axes, place, held=True)
        for v, d in chosen.items():
            varying = any(u.varying for u in d.operands)
            operands = [u.axes for u in d.operands]
            total = total + self.model.operator(d.op, operands, v.axes, place, varying=varying, whole=v.after)
        return total

    def grids(self) -> Iterator[tuple[str, ...]]:
        """The sets of axes that a grid may have: of those that all results have, any that are not reduced."""
        plan = self.closure.plan
        joined = {
            a for v in self.closure.values for d in v.derivations if d.joined for a in (d.joined[0], *d.joined[1])
        }
        reduced = {a for v in self.closure.values for d in v.derivations for a in d.reduce}
        shared = [a for a in self.goals[0].axes if all(a in g.axes for g in self.goals) and a not in plan.loops]
        some = [a for a in shared if a in reduced]
        for count in range(len(some) + 1):
            for whole in itertools.combinations(some, count):
                yield tuple(a for a in shared if a not in joined and a not in whole)


def every_graph(goals: Sequence[Value], limit: int, parallel: Sequence[str]) -> Iterator[Chosen]:
    """All ways to give each needed value one derivation that reduces no parallel axis, with at most `limit` operators."""

    def extend(chosen: Chosen, todo: tuple[Value, ...]) -> Iterator[Chosen]:
        todo = tuple(v for v in todo if v.source is None and v not in chosen)
        if len(chosen) + len(set(todo)) > limit:
            return
        if not todo:
            yield chosen
            return
        for d in todo[0].derivations:
            if not set(d.reduce) & set(parallel):
                yield from extend({**chosen, todo[0]: d}, (*todo[1:], *d.operands))

    return extend({}, tuple(goals))


def minimal(costs: list[Cost]) -> list[Cost]:
    """The costs that no other one is at most in every entry, each once."""
    rows = np.unique(np.round(np.array(costs), 6), axis=0)
    return [r for r in rows if not any((o <= r).all() and (o < r).any() for o in rows)]


def fronts(case: Case, limit: int, max_inputs: int, grid: tuple[str, ...]) -> dict[Kind, list[Cost]]:
    """Per kind the minimal costs of all graphs with this grid; those of foreign ones among themselves."""
    plan = case.closure.plan
    place = Place(grid, plan.loops, plan.split)
    found: dict[Kind, list[Cost]] = {}
    for chosen in every_graph(case.goals, limit, grid):
        kind = case.kind(chosen)
        if sum(not v.is_scalar_leaf for v in kind[0]) <= max_inputs:
            found.setdefault(kind, []).append(case.cost(chosen, place))
    return {kind: minimal(costs) for kind, costs in found.items()}


def is_in(cost: Cost, costs: Sequence[Cost]) -> bool:
    return any(np.allclose(cost, c, rtol=1e-9, atol=1e-6) for c in costs)


def check(case: Case, limit: int, max_inputs: int) -> int:
    """The choices against all graphs; how many there are."""
    choices = case.extract(limit, max_inputs)
    wanted: dict[Kind, list[Cost]] = {}
    for grid in case.grids():
        by_kind = fronts(case, limit, max_inputs, grid)
        for kind, costs in by_kind.items():
            leaves, exps, foreign = kind
            own = by_kind.get((leaves, exps, False), []) if foreign else []
            wanted.setdefault(kind, []).extend(
                # a foreign graph that an own one dominates need not be found
                c for c in costs if not any((o <= c + 1e-6).all() for o in own)
            )
    found: dict[Kind, list[Cost]] = {}
    for c in choices:
        kind = case.kind(dict(c.chosen))
        assert kind == (frozenset(c.leaves), frozenset(c.exps), c.foreign)
        assert len(c.chosen) <= limit
        assert sum(not v.is_scalar_leaf for v in c.leaves) <= max_inputs
        found.setdefault(kind, []).append(c.cost)
    for kind, costs in wanted.items():
        missing = [c for c in costs if not is_in(c, found.get(kind, []))]
        assert not missing, (kind, missing)
    for kind, costs in found.items():
        # of equally cheap ones, a dominated one may have come first
        totals = [case.model.total(c) for c in wanted[kind]]
        extra = [c for c in costs if not is_in(c, wanted[kind]) and case.model.total(c) not in totals]
        assert not extra, (kind, extra)
    return len(choices)


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_the_fronts_of_all_graphs(name: str, plan: KernelPlan) -> None:
    case = Case(name, plan)
    if not case.has_all:
        assert plan != NONE, "a kernel without a loop can always do everything"
        return
    limit, inputs = case.extractor.limit, case.extractor.max_inputs
    assert check(case, limit, inputs)
    least = min(len(c.chosen) for c in case.extract())
    assert check(case, least, inputs)
    assert not case.extract(least - 1)
    fewest = min(sum(not v.is_scalar_leaf for v in c.leaves) for c in case.extract())
    assert check(case, limit, fewest)
    assert fewest == 1 or not case.extract(None, fewest - 1)


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_the_costs_are_those_of_the_graphs(name: str, plan: KernelPlan) -> None:
    case = Case(name, plan)
    places = [Place(grid, plan.loops, plan.split) for grid in case.grids()] if case.has_all else []
    for choice in case.extract() if case.has_all else []:
        assert is_in(choice.cost, [case.cost(dict(choice.chosen), p) for p in places])
        assert case.model.operators(choice.cost) == len(choice.chosen)


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_choices_are_graphs(name: str, plan: KernelPlan) -> None:
    case = Case(name, plan)
    for choice in case.extract() if case.has_all else []:
        order = topological(choice)
        assert len(order) == len(set(order))
        assert set(order) == set(choice.chosen) | set(choice.leaves)
        assert all(v.source is not None for v in choice.leaves)
        for v, d in choice.chosen.items():
            assert d in v.derivations
            assert all(order.index(u) < order.index(v) for u in d.operands)
        read = {u for d in choice.chosen.values() for u in d.operands}
        assert set(order) - set(choice.goals) <= read, "nothing is computed in vain"


def test_shared_values_are_paid_once() -> None:
    """In h * sigmoid(h) + h the matmul is one operator."""
    for choice in Case("shared", NONE).extract():
        assert [d.op for d in choice.chosen.values()].count("matmul") == 1


def test_an_axis_that_is_reduced_is_not_parallel() -> None:
    """x - mean(x) has the axis that it reduces: the block holds whole rows."""
    case = Case("mean", NONE)
    assert list(case.grids()) == [("b", "n"), ("b",)]
    assert all(any(d.reduce == ("n",) for d in c.chosen.values()) for c in case.extract())


def test_exps_are_not_compared() -> None:
    """Graphs with other exponents are kept beside each other, however much more they cost."""
    name = "softmax matmul"
    kinds = {c.exps for c in Case(name, NONE).extract()}
    assert kinds and all(kinds)


def test_foreign_differences() -> None:
    """x - sum(x) / n is the program's own; a difference that it does not take is foreign."""
    assert all(not c.foreign for name in ("gqa_decode", "chain") for c in Case(name, NONE).extract())
    choices = Case("mean", KernelPlan(("n",))).extract() + Case("mean", NONE).extract()
    assert any(not c.foreign for c in choices)


def test_the_deadline_ends_it() -> None:
    case = Case("cosine", KernelPlan(("n",)))
    whole = len(case.extract())
    e = Extractor(case.closure, case.model, limit=case.extractor.limit, max_inputs=case.extractor.max_inputs)
    e.deadline = time.perf_counter() - 1
    assert len(e.choices(case.goals)) <= whole
    assert not e.complete and e.labels == 64


def test_the_same_order_every_time() -> None:
    case = Case("rmsnorm_linear", NONE)
    first, second = ([(dict(c.chosen), c.cost.tolist()) for c in case.extract()] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(("name", "plan"), CASES)
def test_values_are_numbered_operands_first(name: str, plan: KernelPlan) -> None:
    c = Case(name, plan).closure
    order = Order(c.values[::-1])
    assert sorted(order.number.values()) == list(range(len(c.values)))
    assert all(v.source is not None for v in order.values[: order.leaves])
    assert all(v.source is None for v in order.values[order.leaves :])
    for v in c.values:
        assert order.values[order.number[v]] is v
        assert all(order.number[u] < order.number[v] for d in v.derivations for u in d.operands if v.source is None)
