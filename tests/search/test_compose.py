"""Composition against every graph of up to two kernels, written out by plain loops."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from mirage.mugraph.graph import MuGraph
from mirage.mugraph.validate import validate
from mirage.search.assemble import Assembler
from mirage.search.closure import Value
from mirage.search.compose import Accept, Kernel
from mirage.search.cost import Cost, Place
from mirage.search.extract import Extractor
from mirage.search.labels import Problem
from mirage.search.plan import KernelPlan
from mirage.search.space import Space
from mirage.search.tensors import KernelTensor
from mirage.verify.proof import prove
from tests.programs import SMALL, axes, space
from tests.search.brute import cost_of, every_graph, grids, leaves_of

NONE = KernelPlan()
#: all graphs of two kernels of these can be written out
CASES = [*(n for n in SMALL if n not in ("self division", "scale")), "gqa_decode", "rms_norm", "adapter_mlp", "lora"]


@dataclass(frozen=True)
class Written:
    """A kernel that was written out: the tensors that it yields and reads, and what it costs."""

    plan: KernelPlan
    yields: frozenset[KernelTensor]
    reads: frozenset[KernelTensor]
    foreign: bool
    cost: Cost


def written(s: Space, tensors: Sequence[KernelTensor]) -> Iterator[Written]:
    """Every kernel that yields exactly these tensors, and reads what it likes."""
    own = {form for n, (form, _) in zip(s.program.nodes, s.algebras.targets, strict=True) if n.op == "sub"}
    for k, c in enumerate(s.tensors.closures):
        for goals in itertools.product(*([v for j, v in t.producers if j == k] for t in tensors)):
            for grid in grids(c, goals):
                place = Place(grid, c.plan.loops, c.plan.split)
                for chosen in every_graph(goals, s.limits.operators, grid):
                    leaves = leaves_of(chosen)
                    if sum(not v.is_scalar_leaf for v in leaves) > s.limits.inputs:
                        continue
                    reads = frozenset(v.source for v in leaves if isinstance(v.source, KernelTensor))
                    foreign = any(d.op == "sub" and v.form not in own for v, d in chosen.items())
                    cost = s.model.of_kernel(cost_of(s.model, goals, chosen, place))
                    yield Written(c.plan, frozenset(tensors), reads, foreign, cost)


def distinct(kernels: Iterator[Written]) -> list[Written]:
    """Without those that are the same to whatever reads and pays for them."""
    return list({(k.plan, k.yields, k.reads, k.foreign, k.cost.tobytes()): k for k in kernels}.values())


def some_of(items: Sequence[KernelTensor], least: int, most: int) -> Iterator[tuple[KernelTensor, ...]]:
    for count in range(least, min(most, len(items)) + 1):
        yield from itertools.combinations(items, count)


def every_composition(s: Space) -> Iterator[tuple[bool, Cost]]:
    """All graphs of one and of two kernels: whether they take foreign differences, and their costs."""
    outputs = [t for t in dict.fromkeys(s.tensors.outputs()) if t is not None]
    most = s.limits.results
    first: dict[frozenset[KernelTensor], list[Written]] = {}

    def reading_inputs(tensors: frozenset[KernelTensor]) -> list[Written]:
        if tensors not in first:
            found = distinct(written(s, sorted(tensors, key=lambda t: t.number))) if len(tensors) <= most else []
            first[tensors] = [k for k in found if not k.reads]
        return first[tensors]

    if len(outputs) <= most:
        yield from ((k.foreign, k.cost) for k in reading_inputs(frozenset(outputs)))
    for last_yields in some_of(outputs, 1, most):
        for last in distinct(written(s, last_yields)):
            missing = frozenset(outputs) - last.yields | last.reads
            if not missing or last.yields & last.reads:
                continue
            for k in reading_inputs(missing):
                if last.plan.split is None or k.plan.split != last.plan.split:
                    yield last.foreign or k.foreign, last.cost + k.cost


def assembled(s: Space) -> Accept:
    """Accepts all kernels."""
    assembler, outputs = Assembler(s.program), s.tensors.outputs()
    return lambda kernels: [assembler.graph(kernels, outputs)]


def composed(s: Space, count: int) -> list[tuple[list[Kernel], Cost]]:
    """What is found of up to `count` kernels."""
    return [(a.kernels, a.cost) for a in s.composer().compose(1, count, assembled(s)) if a]


def at_most(a: Cost, b: Cost) -> bool:
    return bool((a <= b + 1e-6 + 1e-9 * b).all())


@pytest.mark.parametrize("name", CASES)
def test_nothing_better_is_missed(name: str) -> None:
    """Every graph of two kernels costs at least what one that was found does, in every resource."""
    s = space(name)
    found = [(any(k.choice.foreign for k in kernels), cost) for kernels, cost in composed(s, 2)]
    count = 0
    for foreign, cost in every_composition(s):
        count += 1
        assert any(at_most(c, cost) and f <= foreign for f, c in found), (foreign, cost)
    assert count >= len(found) > 0


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_exists_once(name: str) -> None:
    s = space(name)
    found = composed(s, 2)
    every = list(every_composition(s))
    for kernels, cost in found:
        foreign = any(k.choice.foreign for k in kernels)
        assert any(f == foreign and np.allclose(c, cost, rtol=1e-9, atol=1e-6) for f, c in every)
        # its cost is that of its kernels
        assert np.allclose(cost, sum(s.model.of_kernel(k.choice.cost) for k in kernels))


@pytest.mark.parametrize("name", ["gqa_decode", "cosine", "lora", "rms_norm", "two outputs", "mean"])
def test_kernels_are_in_order_of_execution(name: str) -> None:
    s = space(name)
    for kernels, _ in composed(s, 3):
        done: set[KernelTensor] = set()
        read: set[KernelTensor] = set()
        splits = [k.plan.split for k in kernels if k.plan.split]
        assert len(set(splits)) == len(splits), "an axis is split by one kernel only"
        for k in kernels:
            sources = {v.source for v in k.choice.leaves if isinstance(v.source, KernelTensor)}
            assert sources <= done
            assert not done & set(k.tensors), "nothing is computed twice"
            assert 1 <= len(k.tensors) <= s.limits.results
            assert len(k.choice.chosen) <= s.limits.operators
            assert sum(not v.is_scalar_leaf for v in k.choice.leaves) <= s.limits.inputs
            done |= set(k.tensors)
            read |= sources
        outputs = set(s.tensors.outputs())
        assert outputs <= done and done - outputs <= read, "every result is read or is an output"


@pytest.mark.parametrize("name", ["gqa_decode", "cosine", "lora", "rms_norm", "two outputs", "mean"])
def test_they_assemble_to_proved_graphs(name: str) -> None:
    s = space(name)
    assembler = Assembler(s.program)
    for kernels, _ in composed(s, 3):
        g = assembler.graph(kernels, s.tensors.outputs())
        validate(g)
        assert len(g.kernels) == len(kernels)
        assert g.origin == "; ".join(str(k.plan) for k in kernels)
        assert prove(axes(name), g) == "proved"


@pytest.mark.parametrize("name", ["gqa_decode", "rms_norm", "cosine"])
def test_none_is_dominated_by_one_accepted_before(name: str) -> None:
    s = space(name)
    found = [(any(k.choice.foreign for k in kernels), cost) for kernels, cost in composed(s, 4)]
    for (f, a), (g, b) in itertools.combinations(found, 2):
        assert not ((a <= b).all() and f <= g)


def test_what_is_refused_dominates_nothing() -> None:
    """Where graphs of one kernel are refused, all others are found that they would have dominated."""
    s = space("softmax")
    refused: list[int] = []
    every = assembled(s)

    def accept(kernels: list[Kernel]) -> Sequence[MuGraph]:
        refused.append(len(kernels))
        return every(kernels) if len(kernels) > 1 else []

    found = [a for a in s.composer().compose(1, 2, accept) if a]
    assert 1 in refused
    assert found and all(len(a.kernels) == 2 for a in found)
    assert len(found) >= sum(len(kernels) == 2 for kernels, _ in composed(space("softmax"), 2))


def test_it_goes_on_step_by_step() -> None:
    """Whoever takes the steps may stop at each of them; graphs come in the order of their cost."""
    s = space("gqa_decode")
    steps = list(s.composer().compose(1, 3, assembled(s)))
    times = [s.model.total(a.cost) for a in steps if a]
    assert len(steps) > 10 * len(times) > 0
    # but for what is lost in sums of costs
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(times))


@pytest.mark.parametrize("name", ["gqa_decode", "two outputs", "lora"])
def test_a_step_extracts_from_one_grid_at_most(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever bounds need to know: the kernels of all tensors that one follows from are not extracted in one go."""
    problems: list[Problem] = []
    finished = Extractor._finished

    def noted(self: Extractor, problem: Problem, grid: Any) -> Any:
        problems.append(problem)
        return finished(self, problem, grid)

    monkeypatch.setattr(Extractor, "_finished", noted)
    s = space(name)
    before = 0
    for _ in s.composer().compose(1, 3, assembled(s)):
        assert len(problems) <= before + 1
        before = len(problems)
    assert before > 1


def test_ranges_of_kernels_are_all_graphs_together() -> None:
    s = space("gqa_decode")
    composer = s.composer()
    parts = [[a for a in composer.compose(k, k, assembled(s)) if a] for k in (1, 2, 3)]
    assert all(len(a.kernels) == k for k, part in enumerate(parts, 1) for a in part)
    apart = sorted(tuple(a.cost) for part in parts for a in part)
    assert apart == sorted(tuple(cost) for _, cost in composed(space("gqa_decode"), 3))


def test_what_is_known_dominates() -> None:
    s = space("gqa_decode")
    found = composed(s, 2)
    composer = s.composer()
    for _, cost in found[1:]:
        composer.know(cost, False)
    again = [a.cost for a in composer.compose(1, 2, assembled(s)) if a]
    assert len(again) == 1 and np.allclose(again[0], found[0][1])


@pytest.mark.parametrize("name", ["gqa_decode", "lora", "two outputs", "adapter_mlp", "mean"])
def test_the_cheapest_graph_is_among_those_of_bounded_time(name: str) -> None:
    s = space(name)
    every = sorted(s.model.total(cost) for _, cost in composed(s, 3))
    bounded, whole = s.composer(1.001 * every[0]), s.composer()
    found = [s.model.total(a.cost) for a in bounded.compose(1, 3, assembled(s)) if a]
    assert min(found) == pytest.approx(every[0])
    assert max(found) <= 1.001 * every[0]
    assert [a for a in whole.compose(1, 3, assembled(s)) if a]
    labels = [sum(e.labels for e in c.extractors) for c in (bounded, whole)]
    assert labels[0] < labels[1] or len(every) < 3
    assert not [a for a in s.composer(0.99 * every[0]).compose(1, 3, assembled(s)) if a]


def test_an_output_that_no_kernel_computes() -> None:
    assert not composed(space("self division"), 3)


def test_producers_of_the_last_open_tensor() -> None:
    """A kernel yields it, alone or with others of the same plan."""
    s = space("two outputs")
    outputs = [t for t in s.tensors.outputs() if t is not None]
    composer = s.composer()
    bits = sum(1 << composer._number[t] for t in outputs)
    found = list(composer._next(bits))
    assert all(max(outputs, key=composer._number.__getitem__) in tensors for _, _, tensors in found)
    assert {len(tensors) for _, _, tensors in found} == {1, 2}
    for closure, values, tensors in found:
        pairs: list[tuple[Value, KernelTensor]] = list(zip(values, tensors, strict=True))
        assert all((closure, v) in t.producers for v, t in pairs)
    assert len(set(found)) == len(found)
