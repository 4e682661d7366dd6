"""Searches as a whole: what they return, when they stop, and what they say about it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.errors import SearchError, UnknownPruner
from mirage.ir.axes import to_axes
from mirage.ir.codec import decode, encode
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.graph import MuGraph, Role
from mirage.mugraph.predefined import with_predefined
from mirage.mugraph.validate import validate
from mirage.search import jobs, stream
from mirage.search.checkpoint import Checkpoint
from mirage.search.generate import SearchResult, generate, plan_by_plan
from mirage.search.options import Limits, SearchOptions
from mirage.search.plan import kernel_plans
from mirage.search.stats import SearchStats
from mirage.search.units import Units
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from tests.programs import QUICK, SMALL, T, axes, block, program, search, sizes

NAMES = [*QUICK, *SMALL]
ROOT = Path(__file__).parents[2]


def key(r: SearchResult) -> list[tuple[float, str, str]]:
    return [(c, g.origin, str(g)) for c, g in zip(r.costs, r.graphs, strict=True)]


def counts(stats: SearchStats) -> dict[str, Any]:
    """Statistics but for times."""
    return {k: v for k, v in asdict(stats).items() if not k.endswith("seconds")}


def generated(fn: Callable[..., Any], types: dict[str, Any], **options: Any) -> SearchResult:
    """The search of a function, with everything that it returns checked."""
    p = to_axes(mi.trace(fn, **types))
    r = generate(
        p, dict.fromkeys({s.name for d in p.axes.values() for s in d.free_symbols}, 16), SearchOptions(**options)
    )
    for g in r.graphs:
        validate(g)
        assert prove(p, g) == "proved"
    return r


def operators(g: MuGraph) -> list[str]:
    """The operators of a graph of one kernel."""
    return [block(g).nodes[i].op for i in block(g).compute_nodes()]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start at once, and checkpoints are written at once."""
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.0)


# Results.


@pytest.mark.parametrize("name", NAMES)
def test_results_and_statistics_agree(name: str) -> None:
    r = search(name)
    stats = r.stats
    assert r.costs == sorted(r.costs)
    assert stats.candidates == len(r.graphs) == len(r.costs) == len({structure_key(g) for g in r.graphs})
    assert stats.stop_reason == "complete"
    assert stats.prefixes <= stats.checks
    assert sum(n for why, n in stats.pruned.items() if why != "phase") <= stats.checks
    assert stats.limits == asdict(Limits.of(axes(name), SearchOptions()))
    assert stats.tensors >= 1 or not r.graphs
    assert decode(SearchStats, encode(stats), "stats") == stats
    # the time of day, which tells when graphs were found, is coarser than the clock of the whole
    assert 0 <= stats.first_seconds <= stats.best_seconds <= stats.seconds + 0.1
    assert (stats.best_seconds == 0.0) <= (not r.graphs) or stats.first_seconds == 0.0
    plans = {str(p) for p in kernel_plans(axes(name), 2)}
    for g in r.graphs:
        validate(g)
        assert g.inputs == axes(name).inputs and dict(g.axes) == axes(name).axes
        assert [o.dims for o in g.outputs] == [o.dims for o in axes(name).outputs]
        assert set(g.origin.removesuffix(", library calls").split("; ")) <= plans


@pytest.mark.parametrize("name", [n for n in NAMES if n != "self division"])
def test_all_results_are_proved(name: str) -> None:
    assert search(name).graphs
    assert {prove(axes(name), g) for g in search(name).graphs} == {"proved"}


@pytest.mark.parametrize("name", [n for n in SMALL if n != "self division"])
def test_results_equal_the_program_in_finite_fields(name: str) -> None:
    """The other kind of evidence, for the cheapest graph of every number of kernels."""
    verifier = Verifier(program(name))
    for g in {len(g.kernels): g for g in reversed(search(name).graphs)}.values():
        assert verifier.check(g).equal, str(g)


@pytest.mark.parametrize("name", NAMES)
def test_library_calls_beside_their_graphs(name: str) -> None:
    """Where a kernel of one operator may be a call of a library, both are returned, at the same modelled cost."""
    r = search(name)
    found = {structure_key(g): c for g, c in zip(r.graphs, r.costs, strict=True)}
    for g, cost in zip(r.graphs, r.costs, strict=True):
        assert found[structure_key(with_predefined(g))] <= cost
        called = any(n.graph is None and n.op not in ("input", "constant", "size") for n in g.kernel.nodes)
        assert called == g.origin.endswith(", library calls")


def test_a_matmul_is_a_library_call() -> None:
    assert [len(g.kernels) for g in search("matmul").graphs].count(0) == 1


# Kinds of programs.


def test_two_outputs_share_a_loop() -> None:
    types = dict(x=T("b", 4096), w=T(4096, "n"), u=T(4096, "n"))
    r = generated(lambda x, w, u: (x @ w, mi.exp(x) @ u), types, max_kernels=1)
    graphs = [g for g in r.graphs if g.origin == "loop d4096"]
    assert graphs
    for g in graphs:
        b = block(g)
        assert len(g.kernel.outputs) == len(b.outputs) == 2
        assert sum(n.op == "accumulator" for n in b.nodes) == 2
        assert sum(n.op == "input" for n in b.nodes) == 3, "x is read once"


def test_outputs_in_different_kernels() -> None:
    """Two products that share nothing: one kernel each, or both at once."""
    r = generated(lambda x, w, y, u: (x @ w, y @ u), dict(x=T("b", 64), w=T(64, "n"), y=T("m", 32), u=T(32, "k")))
    apart = [g for g in r.graphs if len(g.kernels) == 2]
    assert apart
    for g in apart:
        assert all(len(block(g, k).outputs) == 1 for k in (0, 1))
        assert len({ref.node for ref in g.kernel.outputs}) == 2


def test_outputs_of_different_axes() -> None:
    graphs = [g for g in search("outputs of other axes").graphs if len(g.kernels) == 1]
    assert graphs
    for g in graphs:
        # a block that writes the sum of a row does not also tile the columns
        assert block(g).role["b"] is Role.PARALLEL and Role.PARALLEL not in {
            block(g).role[a] for a in ("n", "d64") if a in block(g).role
        }


def test_more_outputs_than_a_kernel_may_have() -> None:
    types = dict(x=T("b", 64), w=T(64, "n"))
    three = lambda x, w: (x @ w, mi.sum(x, axis=1), mi.exp(x))  # noqa: E731
    assert {len(g.kernels) for g in generated(three, types).graphs} >= {1}
    r = generated(three, types, max_results=1)
    assert r.graphs and all(len(b.outputs) == 1 for g in r.graphs for b in [block(g, k) for k in range(len(g.kernels))])
    assert not generated(three, types, max_results=1, max_kernels=2).graphs


def test_an_output_that_another_reads() -> None:
    for g in search("nested outputs").graphs:
        assert sum(n.op == "matmul" for k in g.kernels if k.graph for n in k.graph.nodes) == 1


def test_equal_outputs_are_written_once() -> None:
    for g in search("equal outputs").graphs:
        assert g.kernel.outputs[0] == g.kernel.outputs[1]


def test_trivial_outputs() -> None:
    """An output that is an input, a constant or a size is not computed."""
    r = generated(lambda x: (x, mi.relu(x) * x), dict(x=T("n", 8)))
    assert r.graphs
    for g in r.graphs:
        assert g.kernel.nodes[g.kernel.outputs[0].node].op == "input"
        assert len(g.kernels) == 1 and len(block(g).outputs) == 1
    r = generated(lambda x: (x - mi.mean(x, axis=1, keepdims=True), x), dict(x=T("n", "m")), max_kernels=1)
    assert r.graphs and all(operators(g)[-1] == "sub" for g in r.graphs)


def test_no_operators_at_all() -> None:
    """There is nothing to search for."""
    r = generated(lambda x: x, dict(x=T("n", 8)))
    assert (r.graphs, r.stats.stop_reason) == ([], "complete")


def test_a_shared_value_is_computed_once() -> None:
    assert operators(search("shared").graphs[0]).count("matmul") == 1


def test_elementwise_programs_are_one_kernel() -> None:
    (g,) = search("elementwise").graphs
    assert operators(g) == ["relu", "mul", "add"]


def test_concats() -> None:
    for name in ("concat", "concat matmul"):
        for g in search(name).graphs:
            nodes = [n for k in g.kernels if k.graph for n in k.graph.nodes] + list(g.kernel.nodes)
            assert sum(n.op == "concat" for n in nodes) == 1
    types = dict(x=T("b", 64), y=T("b", 4096), w=T(4096, "n"))
    r = generated(lambda x, y, w: mi.concat([x, y @ w], axis=1), types, max_kernels=1)
    assert any(g.origin == "loop d4096" for g in r.graphs)


def test_means_divide_by_the_size() -> None:
    assert {len(g.kernels) for g in search("mean").graphs} >= {1, 2}
    for g in search("mean").graphs:
        assert any(n.op == "size" for k in g.kernels if k.graph for n in k.graph.nodes)


def test_scalar_results_are_finished_in_one_kernel() -> None:
    graphs = [g for g in search("cosine").graphs if g.origin == "loop n"]
    assert any(sum(n.op == "accumulator" for n in block(g).nodes) == 2 for g in graphs)


def test_constants_that_cancel_are_dropped() -> None:
    """(x * 2) @ w * 0.5 is x @ w, and -(-x) is x: the matmul alone dominates all else."""
    for name in ("scale", "double neg"):
        one = [g for g in search(name).graphs if g.origin == "no loop" and len(g.kernels) == 1]
        assert [operators(g) for g in one] == [["matmul"]]


def test_terms_that_cancel() -> None:
    """x - (x + y) has a graph, though no prefix with x is a part of -y."""
    assert generated(lambda x, y: x - (x + y), dict(x=T("n"), y=T("n"))).graphs


@pytest.mark.parametrize(
    "fn", [lambda x: x / x, lambda x: (x / x, mi.exp(x)), lambda x: (mi.exp(x), x - x), lambda x: mi.exp(x - x)]
)
def test_no_graph_is_an_answer(fn: Callable[..., Any]) -> None:
    """What loses its axes is no tensor of a kernel, whatever other outputs there are."""
    r = generated(fn, dict(x=T("b", 64)))
    assert (r.graphs, r.stats.stop_reason) == ([], "complete")
    assert r.stats.first_seconds == r.stats.best_seconds == 0.0


# Limits.


@pytest.mark.parametrize("name", ["norm_transformer", "layer_norm", "qknorm_attention", "gqa_decode"])
def test_a_small_budget_has_the_fused_program(name: str) -> None:
    r = generate(axes(name), sizes(name), SearchOptions(budget=1e-6))
    assert "budget spent" in r.stats.stop_reason
    own = sorted(n.op for n in axes(name).nodes if n.op not in ("input", "constant", "size"))
    assert own in [sorted(operators(g)) for g in r.graphs if g.origin == "no loop"]
    assert all(prove(axes(name), g) == "proved" for g in r.graphs)


def test_a_cut_search_says_how_much_is_missing() -> None:
    r = generate(axes("gqa_decode"), sizes("gqa_decode"), SearchOptions(budget=1e-6))
    missing, untried = r.stats.stop_reason.split("; ")
    assert missing == "budget spent (3 of 4 units left)"
    assert untried == "operators of Table 1 not tried on all values: sum over d128, mul"
    whole = search("gqa_decode")
    assert r.graphs and min(r.costs) >= min(whole.costs)


def test_the_number_of_kernels() -> None:
    most = [max(g.origin.count(";") for g in search("gqa_decode", max_kernels=n).graphs) + 1 for n in (1, 2, 3, 4, 5)]
    assert most == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["gqa_decode", "rms_norm", "lora", "cosine", "two outputs"])
def test_more_kernels_keep_what_is_not_dominated(name: str) -> None:
    """Graphs of more kernels never dominate: each of fewer kernels is found by every search that may have more."""
    few, many = ({str(g.kernel) for g in search(name, max_kernels=n).graphs if g.origin.count(";") < 2} for n in (2, 5))
    assert len(few) == len(many)


def test_operators_of_a_kernel() -> None:
    most: dict[int, int] = {}
    for limit in (5, 6, 8):
        r = search("gqa_decode", max_operators=limit)
        assert r.stats.limits["operators"] == limit
        most[limit] = max(len(block(g, k).compute_nodes()) for g in r.graphs for k in range(len(g.kernels)))
    assert all(n <= limit for limit, n in most.items())
    assert sorted(set(most.values())) == list(most.values())
    # one operator a kernel is the program as it is
    assert not search("gqa_decode", max_operators=1).graphs
    six = search("gqa_decode", max_operators=1, max_kernels=6)
    assert all(g.origin.count(";") == 5 for g in six.graphs)


def test_tensors_that_a_kernel_reads() -> None:
    for most in (1, 2, 3):
        r = search("rmsnorm_linear", max_inputs=most)
        assert all(len(block(g, k).inputs) <= most for g in r.graphs for k in range(len(g.kernels)))
        # x, its norms and the weights of the norm are read together
        assert bool(r.graphs) == (most > 2)


def test_loop_axes() -> None:
    for most in (0, 1, 2):
        r = search("frobenius", max_loops=most)
        found = max(len(block(g, k).loop) for g in r.graphs for k in range(len(g.kernels)))
        assert found <= most and (found == most or most == 1)


def test_only_accepted_graphs() -> None:
    def only_splits(g: MuGraph) -> bool:
        return "split" in g.origin

    r = generate(axes("gqa_decode"), sizes("gqa_decode"), SearchOptions(), accept=only_splits)
    assert r.graphs and all(map(only_splits, r.graphs))
    assert len(r.graphs) >= len([g for g in search("gqa_decode").graphs if only_splits(g)])


def test_expressions_that_are_too_large() -> None:
    """Squared again and again, a sum of many terms has no normal form within the limit."""

    def fn(x: Any, y: Any, u: Any, v: Any) -> Any:
        s = x + y + u + v
        for _ in range(4):
            s = s * s
        return s

    r = generated(fn, {n: T("n") for n in "xyuv"})
    assert not r.graphs
    assert r.stats.stop_reason.startswith("not searched: a product of 35 by 35 monomials exceeds ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (SearchOptions(max_kernels=0), "max_kernels=0"),
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
    assert counts(again.stats) == counts(search(name).stats)


@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_same_in_other_processes(workers: int, hasty: None) -> None:
    """Several searches may share the workers."""
    with ProcessPoolExecutor(workers) as pool:
        for name in ("rms_norm", "lora", "gqa_decode"):
            r = generate(axes(name), sizes(name), SearchOptions(), executor=pool)
            assert key(r) == key(search(name))
            assert counts(r.stats) == counts(search(name).stats)


@pytest.mark.parametrize("workers", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_same_in_threads(workers: int, hasty: None) -> None:
    with ThreadPoolExecutor(workers) as pool:
        for name in ("gqa_decode", "lora", "cosine", "frobenius"):
            r = generate(axes(name), sizes(name), SearchOptions(), executor=pool)
            assert key(r) == key(search(name))
            assert counts(r.stats) == counts(search(name).stats)


def test_the_same_with_other_hashes() -> None:
    """Sets of strings have another order in every process."""
    code = (
        "from tests.programs import search\n"
        "for name in ('gqa_decode', 'cosine', 'two outputs'):\n"
        "    r = search(name)\n"
        "    print([(c, str(g)) for c, g in zip(r.costs, r.graphs)])"
    )
    outs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, cwd=ROOT, capture_output=True
        )
        for seed in ("1", "2")
    ]
    assert outs[0].stdout and outs[0].stdout == outs[1].stdout, outs[0].stderr


def test_the_same_from_a_checkpoint(tmp_path: Path, hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "gqa_decode"
    file = tmp_path / "checkpoint"
    first = generate(axes(name), sizes(name), checkpoint=Checkpoint(file, "k"))
    assert key(first) == key(search(name))

    def never(*_: object) -> None:
        raise AssertionError("finished units are not run again")

    monkeypatch.setattr(Units, "run", never)
    again = generate(axes(name), sizes(name), checkpoint=Checkpoint(file, "k"))
    assert key(again) == key(search(name))
    assert again.stats.stop_reason == "complete"


def test_an_interrupted_search_goes_on(tmp_path: Path, hasty: None) -> None:
    """It keeps what it has, says why it stopped, and misses nothing when it is run again."""
    name = "gqa_decode"
    file = tmp_path / "checkpoint"
    seen = 0

    def accept(g: MuGraph) -> bool:
        nonlocal seen
        seen += 1
        if seen == 12:
            raise KeyboardInterrupt
        return True

    cut = generate(axes(name), sizes(name), accept=accept, checkpoint=Checkpoint(file, "k"))
    assert cut.stats.stop_reason.startswith("interrupted (")
    assert 0 < len(cut.graphs) < len(search(name).graphs)
    assert {str(g.kernel) for g in cut.graphs}
    assert all(prove(axes(name), g) == "proved" for g in cut.graphs)
    whole = generate(axes(name), sizes(name), checkpoint=Checkpoint(file, "k"))
    assert key(whole) == key(search(name))
    assert whole.stats.stop_reason == "complete"


def test_an_interrupt_before_there_is_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stream, "Units", interrupted)
    r = generate(axes("matmul"), sizes("matmul"))
    assert (r.graphs, r.stats.stop_reason) == ([], "interrupted (4 of 4 units left)")


def test_sizes_order_the_results() -> None:
    small = search("lora", max_kernels=1)
    large = generate(axes("lora"), {"b": 512, "n": 64}, SearchOptions(max_kernels=1))
    assert small.costs != large.costs
    assert small.stats.prefixes == large.stats.prefixes


def test_progress() -> None:
    seen: list[tuple[int, int, int]] = []
    r = generate(axes("matmul"), sizes("matmul"), progress=lambda *now: seen.append(now))
    done, total, graphs = zip(*seen, strict=True)
    assert done == (1, 2, 3, 4) and set(total) == {4}
    assert list(graphs) == sorted(graphs) and graphs[-1] >= len({g.origin.split(",")[0] for g in r.graphs})


def test_the_clock_of_statistics() -> None:
    start = time.perf_counter()
    stats = generate(axes("lora"), sizes("lora")).stats
    assert 0 < stats.first_seconds <= stats.best_seconds <= stats.seconds + 0.1
    assert stats.seconds <= time.perf_counter() - start


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
