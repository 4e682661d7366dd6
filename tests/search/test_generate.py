"""Searches as a whole: what they return, when they stop, and what they say about it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from mirage.errors import AxisError, SearchError, UnknownPruner
from mirage.ir.axes import to_axes
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.validate import validate
from mirage.search.generate import SearchOptions, SearchResult, generate, operator_limit, plan_by_plan
from mirage.search.plan import plans
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from tests.ir.programs import random_program
from tests.programs import QUICK, SMALL, axes, block, program, search, sizes

NAMES = [*QUICK, *SMALL]
ROOT = Path(__file__).parents[2]


def key(r: SearchResult) -> list[tuple[float, str, str]]:
    return [(c, g.origin, str(g)) for c, g in zip(r.costs, r.graphs, strict=True)]


# Results.


@pytest.mark.parametrize("name", NAMES)
def test_results_and_statistics_agree(name: str) -> None:
    r = search(name)
    stats, total = r.stats, len(list(plans(axes(name), 2)))
    assert r.costs == sorted(r.costs)
    assert stats.candidates == len(r.graphs) == len(r.costs) == len({g.kernel for g in r.graphs})
    assert stats.graphs == stats.candidates + stats.duplicates
    assert stats.plans == stats.plans_total == total
    assert stats.prefixes <= stats.checks
    assert sum(n for why, n in stats.pruned.items() if why != "phase") <= stats.checks
    assert 0 < stats.seconds < 30
    assert {g.origin for g in r.graphs} <= {str(p) for p in plans(axes(name), 2)}
    assert stats.from_json(stats.to_json()) == stats
    for g in r.graphs:
        validate(g)
        assert g.inputs == axes(name).inputs and dict(g.axes) == axes(name).axes
        assert [o.dims for o in g.outputs] == [o.dims for o in axes(name).outputs]
        assert len(g.kernels) == 1 + g.origin.count(";")


@pytest.mark.parametrize("name", [n for n in SMALL if n != "self division"])
def test_results_equal_the_program_in_finite_fields(name: str) -> None:
    """The other kind of evidence, for the cheapest graph of every plan."""
    verifier = Verifier(program(name))
    firsts = {g.origin: g for g in reversed(search(name).graphs)}
    assert firsts
    for g in firsts.values():
        assert verifier.check(g).equal, str(g)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    """Whatever is returned is valid and proved; programs without graphs have a reason."""
    p = random_program(Random(seed), 2 + seed % 3)
    try:
        ap = to_axes(p)
    except AxisError:
        pytest.skip("no axis form")
    r = generate(ap, {"m": 6, "n": 5}, SearchOptions(budget=0.7, keep=6))
    for g in r.graphs:
        validate(g)
        assert prove(ap, g) == "proved"
    if r.graphs:
        verifier = Verifier(p)
        assert all(verifier.check(g).equal for g in (r.graphs[0], r.graphs[-1]))
    elif r.stats.stop_reason == "complete":
        inputs = {i for i, n in enumerate(ap.nodes) if n.op == "input"}
        assert "cancelled axes" in r.stats.pruned or any(o.value in inputs for o in ap.outputs)


# Kinds of programs.


def test_two_outputs_share_a_loop() -> None:
    graphs = [g for g in search("two outputs").graphs if g.origin == "loop d64"]
    assert graphs
    for g in graphs:
        b = block(g)
        assert len(g.kernel.outputs) == len(b.outputs) == 2
        assert sum(n.op == "accumulator" for n in b.nodes) == 2
        assert sum(n.op == "input" for n in b.nodes) == 3, "x is read once"


def test_outputs_of_different_axes() -> None:
    graphs = [g for g in search("outputs of other axes").graphs if len(g.kernels) == 1]
    for g in graphs:
        # a block that writes the sum of a row does not also tile the columns
        assert block(g).role["b"].value == "parallel" and block(g).role["n"].value == "whole"
    assert graphs


def test_an_output_that_another_reads() -> None:
    for g in search("nested outputs").graphs:
        assert sum(n.op == "matmul" for k in g.kernels if k.graph for n in k.graph.nodes) == 1
    first = search("equal outputs").graphs[0]
    assert first.kernel.outputs[0] == first.kernel.outputs[1] or first.kernels[0].dims[0] == first.kernels[0].dims[1]


def test_a_shared_value_is_computed_once() -> None:
    g = search("shared").graphs[0]
    assert sum(n.op == "matmul" for n in block(g).nodes) == 1


def test_elementwise_programs_are_one_kernel() -> None:
    (g,) = search("elementwise").graphs
    assert [n.op for n in block(g).nodes if n.op not in ("input", "constant")] == ["relu", "mul", "add"]
    assert search("elementwise").stats.stop_reason == "complete"


def test_concats() -> None:
    for name in ("concat", "concat matmul"):
        for g in search(name).graphs:
            assert sum(n.op == "concat" for k in g.kernels if k.graph for n in k.graph.nodes) == 1
    assert any(g.origin == "loop d32" for g in search("concat").graphs)


def test_means_divide_by_the_size() -> None:
    assert {len(g.kernels) for g in search("mean").graphs} == {1, 2}
    for g in search("mean").graphs:
        assert any(n.op == "size" for k in g.kernels if k.graph for n in k.graph.nodes)


def test_scalar_results_are_finished_in_one_kernel() -> None:
    graphs = [g for g in search("cosine").graphs if g.origin == "loop n"]
    assert any(sum(n.op == "accumulator" for n in block(g).nodes) == 2 for g in graphs)


def test_constants_that_cancel_are_dropped() -> None:
    """(x * 2) @ w * 0.5 is x @ w, and -(-x) is x: the cheapest graph has the matmul alone."""
    for name in ("scale", "double neg"):
        assert len(block(search(name).graphs[0]).compute_nodes()) == 1
        assert any(len(block(g).compute_nodes()) > 2 for g in search(name).graphs)


def test_no_graph_is_an_answer() -> None:
    r = search("self division")
    assert (r.graphs, r.stats.stop_reason) == ([], "complete")


# Limits.


@pytest.mark.parametrize("name", ["norm_transformer", "layer_norm"])
def test_a_small_budget_is_kept_and_has_the_fused_program(name: str) -> None:
    r = generate(axes(name), sizes(name), SearchOptions(budget=0.5))
    assert r.stats.seconds < 1.5
    assert "budget spent" in r.stats.stop_reason
    own = sorted(n.op for n in axes(name).nodes if n.op not in ("input", "constant", "size"))
    fused = [g for g in r.graphs if g.origin == "no loop"]
    assert own in [sorted(block(g).nodes[i].op for i in block(g).compute_nodes()) for g in fused]
    assert all(prove(axes(name), g) == "proved" for g in r.graphs)


def test_plans_that_are_not_reached_are_counted() -> None:
    r = generate(axes("moe"), sizes("moe"), SearchOptions(budget=0.02))
    assert "budget spent before" in r.stats.stop_reason
    assert r.stats.plans < r.stats.plans_total
    assert r.stats.seconds < 1


def test_operator_limit() -> None:
    assert search("gqa_decode").stats.operator_limit == operator_limit(axes("gqa_decode"), SearchOptions()) == 11
    most: dict[int, int] = {}
    for limit in (5, 6, 8):
        r = search("gqa_decode", max_operators=limit, keep=40)
        assert r.stats.operator_limit == limit
        most[limit] = max(len(block(g, k).compute_nodes()) for g in r.graphs for k in range(len(g.kernels)))
    assert most == {5: 5, 6: 6, 8: 8}
    assert not search("gqa_decode", max_operators=1).graphs


def test_keep_is_per_plan_and_reported() -> None:
    few, many = search("rmsnorm_linear", keep=3), search("rmsnorm_linear", keep=30)
    assert "the 3 cheapest graphs kept" in few.stats.stop_reason
    for origin in {g.origin for g in few.graphs}:
        some = [c for c, g in zip(few.costs, few.graphs, strict=True) if g.origin == origin]
        more = [c for c, g in zip(many.costs, many.graphs, strict=True) if g.origin == origin]
        assert len(some) <= len(more)
        if len(origin.split(";")) == 1:
            assert len(some) <= 3 and some == more[: len(some)]


def test_kernels() -> None:
    assert {len(g.kernels) for g in search("gqa_decode", max_kernels=1).graphs} == {1}
    assert {len(g.kernels) for g in search("gqa_decode").graphs} == {1, 2}


def test_only_accepted_graphs() -> None:
    def only_splits(g: MuGraph) -> bool:
        return "split" in g.origin

    r = generate(axes("gqa_decode"), sizes("gqa_decode"), SearchOptions(), accept=only_splits)
    assert r.graphs and all(map(only_splits, r.graphs))
    assert r.stats.pruned["not accepted"] > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SearchOptions(max_kernels=3), "max_kernels=3"),
        (SearchOptions(max_operators=0), "max_operators=0"),
        (SearchOptions(budget=0.0), "budget=0.0"),
        (SearchOptions(budget=float("nan")), "budget=nan"),
    ],
)
def test_impossible_options(options: SearchOptions, message: str) -> None:
    with pytest.raises(SearchError, match=message):
        generate(axes("matmul"), sizes("matmul"), options)


def test_unknown_pruners() -> None:
    with pytest.raises(UnknownPruner, match="'magic'"):
        generate(axes("matmul"), sizes("matmul"), SearchOptions(pruner="magic"))


# The same every time.


@pytest.mark.parametrize("name", ["gqa_decode", "rmsnorm_linear", "two outputs"])
def test_deterministic(name: str) -> None:
    again = generate(axes(name), sizes(name), SearchOptions())
    assert key(again) == key(search(name))
    assert again.stats.prefixes == search(name).stats.prefixes


def test_the_same_in_other_processes() -> None:
    with ProcessPoolExecutor(2) as pool:
        for name in ("gqa_decode", "lora"):
            r = generate(axes(name), sizes(name), SearchOptions(), executor=pool)
            mine = search(name)
            assert key(r) == key(mine)
            assert r.stats.checks == mine.stats.checks and r.stats.pruned == mine.stats.pruned
            assert r.stats.stop_reason == mine.stats.stop_reason


def test_the_same_with_other_hashes() -> None:
    """Sets of strings have another order in every process."""
    code = (
        "from tests.programs import search\n"
        "r = search('gqa_decode')\n"
        "print([(c, str(g)) for c, g in zip(r.costs, r.graphs)])"
    )
    outs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT, capture_output=True
        )
        for seed in ("1", "2")
    ]
    assert outs[0].stdout and outs[0].stdout == outs[1].stdout, outs[0].stderr


def test_the_same_in_threads() -> None:
    with ThreadPoolExecutor(2) as pool:
        r = generate(axes("lora"), sizes("lora"), SearchOptions(), executor=pool)
    assert key(r) == key(search("lora"))


def test_sizes_only_order_the_results() -> None:
    small = search("lora", keep=100, max_kernels=1)
    large = generate(axes("lora"), {"b": 512, "n": 64}, SearchOptions(keep=100, max_kernels=1))
    assert {g.kernel for g in small.graphs} == {g.kernel for g in large.graphs}
    assert small.costs != large.costs


def test_progress() -> None:
    seen: list[tuple[int, int]] = []
    generate(axes("matmul"), sizes("matmul"), SearchOptions(), progress=lambda k, n: seen.append((k, n)))
    assert seen == [(k, 7) for k in range(1, 8)]


def test_plan_by_plan() -> None:
    r = search("gqa_decode")
    ranked = plan_by_plan(list(zip(r.graphs, r.costs, strict=True)))
    assert sorted(c for _, c in ranked) == r.costs
    origins = [g.origin for g, _ in ranked]
    count = len(set(origins))
    assert len(set(origins[:count])) == count
    for origin in set(origins):
        costs = [c for g, c in ranked if g.origin == origin]
        assert costs == sorted(costs)
    assert all(a <= b for a, b in itertools.pairwise(c for _, c in ranked[:count]))
