"""Extraction against every graph of small closures, written out by a plain recursion."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from mirage.search.closure import Closure, Value
from mirage.search.cost import Cost, CostModel, Place
from mirage.search.extract import Choice, Extractor, Order, topological
from mirage.search.plan import KernelPlan, kernel_plans
from mirage.search.steps import finish
from tests.programs import SMALL, axes, space
from tests.search.brute import Chosen, cost_of, every_graph, grids, leaves_of

#: what makes graphs comparable: the leaves, the results of exp with their grid, and whether a difference is foreign
Kind = tuple[frozenset[Value], tuple[frozenset[Value], tuple[str, ...]], bool]

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
        self.extractor: Extractor = s.composer().extractors[number]
        self.model: CostModel = s.model
        outputs = [t for t in dict.fromkeys(s.tensors.outputs()) if t is not None]
        goals = [next((v for k, v in t.producers if k == number), None) for t in outputs]
        self.goals = [g for g in goals if g is not None]
        self.has_all = len(self.goals) == len(goals)

    def extract(self, limit: int | None = None, max_inputs: int | None = None) -> list[Choice]:
        e = self.extractor
        limit = e.limit if limit is None else limit
        found = Extractor(self.closure, self.model, limit=limit, max_inputs=max_inputs or e.max_inputs)
        return finish(found.choices(self.goals))

    def differences(self) -> set[object]:
        nodes = zip(self.closure.program.nodes, self.closure.al.targets, strict=True)
        return {form for n, (form, _) in nodes if n.op == "sub"}

    def kind(self, chosen: Chosen, grid: tuple[str, ...]) -> Kind:
        exps = {v for v, d in chosen.items() if d.op == "exp"}
        own = self.differences()
        return (
            frozenset(leaves_of(chosen)),
            (frozenset(exps), grid if exps else ()),
            any(d.op == "sub" and v.form not in own for v, d in chosen.items()),
        )

    def cost(self, chosen: Chosen, place: Place) -> Cost:
        return cost_of(self.model, self.goals, chosen, place)

    def grids(self) -> Iterator[tuple[str, ...]]:
        return grids(self.closure, self.goals)


def is_in(cost: Cost, costs: Sequence[Cost]) -> bool:
    return any(np.allclose(cost, c, rtol=1e-9, atol=1e-6) for c in costs)


def stands_for(a: tuple[Kind, Cost], b: tuple[Kind, Cost]) -> bool:
    """Whether a graph reads no more and costs no more than another one with the same exps, and is not foreign to it."""
    (read_a, exps_a, foreign_a), cost_a = a
    (read_b, exps_b, foreign_b), cost_b = b
    comparable = read_a <= read_b and exps_a == exps_b and foreign_a <= foreign_b
    return comparable and bool((cost_a <= cost_b + 1e-6 + 1e-9 * cost_b).all())


def check(case: Case, limit: int, max_inputs: int) -> int:
    """The choices against all graphs; how many there are."""
    plan = case.closure.plan
    choices = case.extract(limit, max_inputs)
    found = [
        ((frozenset(c.leaves), (frozenset(c.exps), c.parallel if c.exps else ()), c.foreign), c.cost) for c in choices
    ]
    for c, (kind, _) in zip(choices, found, strict=True):
        assert kind == case.kind(dict(c.chosen), c.parallel)
        assert len(c.chosen) <= limit
        assert sum(not v.is_scalar_leaf for v in c.leaves) <= max_inputs
    for a, b in itertools.permutations(found, 2):
        assert not stands_for(a, b)
    for grid in case.grids():
        place = Place(grid, plan.loops, plan.split)
        for chosen in every_graph(case.goals, limit, grid):
            kind = case.kind(chosen, grid)
            if sum(not v.is_scalar_leaf for v in kind[0]) <= max_inputs:
                graph = kind, case.cost(chosen, place)
                assert any(stands_for(f, graph) for f in found), chosen
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
    """x - y is the program's own in (x - y) @ w; x @ w - y @ w is foreign, and dominates no other."""
    plans = (NONE, KernelPlan(("d64",)))
    choices = [c for p in plans for c in Case("difference then matmul", p).extract()]
    assert {c.foreign for c in choices} == {False, True}
    assert all(not c.foreign for name in ("gqa_decode", "chain", "mean") for c in Case(name, NONE).extract())


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
