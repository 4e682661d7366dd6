"""Graphs of large programs: joined from those of pieces, proved, right, and none twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from inspect import signature
from itertools import islice, repeat
from pathlib import Path
from random import Random
from typing import Any

import pytest

import mirage as mi
from benchmarks.large import LARGE, Llama
from benchmarks.programs import PROGRAMS
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.canonical import canonical_key
from mirage.ir.dims import evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import default_schedule
from mirage.kernels.target import get_target
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph, Node
from mirage.results.work import Request
from mirage.search import jobs, large
from mirage.search import stream as whole_search
from mirage.search.candidates import Candidates
from mirage.search.checkpoint import Checkpoint
from mirage.search.computed import SOURCES
from mirage.search.large import Found, LargeSearch, is_large
from mirage.search.options import SearchOptions
from mirage.search.partitions import Partition, Way
from mirage.search.pieces import join
from mirage.search.stream import Search
from mirage.search.targets import find_targets
from mirage.search.units import Units
from mirage.verify.equivalence import Verifier
from mirage.verify.rules.saturate import MAX_ADDED
from mirage.verify.safety import offered
from tests.kernels.kernels import bound, error, random_inputs
from tests.programs import axes
from tests.random_programs import random_program, random_sizes
from tests.search.test_pieces import check
from tests.work import ByHand, Rushing

SMALL = Llama(width=8, heads=4, kv_heads=2, head=4, hidden=12).programs()
SIZES = {"b": 1, "s": 3}


@cache
def small(name: str) -> tuple[Program, AxisProgram]:
    p = SMALL[name].trace()
    return p, to_axes(p)


def first(name: str, count: int, **options: Any) -> list[Found]:
    p, ap = small(name)
    return list(islice(LargeSearch(ap, SIZES, SearchOptions(**options), lambda g: offered(p, g)), count))


@pytest.mark.parametrize("name", SMALL)
def test_joined_graphs_are_proved_and_right(name: str) -> None:
    p, ap = small(name)
    found = [g for item in first(name, 3) for g in item.graphs]
    assert found
    for g in found:
        assert offered(p, g) and analyze(g).safe
        check(p, ap, g, SIZES, Random(name))


def test_the_kernels_of_a_joined_graph_compute_the_program() -> None:
    p, _ = small("decoder_layer")
    graph = first("decoder_layer", 2)[-1].graphs[0]
    inputs = random_inputs(p, SIZES)
    run = CpuExecutable(graph, default_schedule(graph, SIZES, 1 << 20), analyze(graph), SIZES)
    assert error(run(inputs, SIZES), run_reference(p, inputs, SIZES, "float64")) < bound(p.dtype)


def test_the_first_item_has_a_graph_whatever_the_budget() -> None:
    p, ap = small("decoder_layer")
    found = first("decoder_layer", 1, budget=1e-9)
    assert found[0].graphs
    check(p, ap, found[0].graphs[0], SIZES, Random(0))


def test_the_first_graphs_are_of_the_programs_own_operators_and_no_search_goes_on_before_them() -> None:
    _, ap = small("decoder_layer")
    stream = LargeSearch(ap, SIZES)
    few, every = (next(stream).graphs[0] for _ in range(2))
    assert len(few.kernels) < len(every.kernels) == len(stream.cuts.atoms)
    searches = [shared.search for shared in stream.searches.known.values()]
    # a norm's atoms are those of the other norms
    assert len(few.kernels) < len(searches) < len(stream.ways)
    assert all(len(search.finished) == 1 for search in searches)


def test_no_graph_comes_twice_and_the_stream_ends() -> None:
    found = [g for item in first("mlp_block", 200, budget=3.0) for g in item.graphs]
    keys = [structure_key(g) for g in found]
    assert len(set(keys)) == len(keys) > 1


def test_what_kernels_take_on_the_machine_decides_between_partitions() -> None:
    """A kernel that takes very long is left out of the next graphs; what was returned does not come again."""
    _, ap = small("mlp_block")
    stream = LargeSearch(ap, SIZES, SearchOptions(steps=3000))
    before = [g for item in stream for g in item.graphs]
    assert stream.done
    (best, *_) = stream.partitions()
    kernels = {replace(n, operands=()) for _, way in best.steps if way.graph is not None for n in way.graph.kernels}
    slow = max(kernels, key=lambda n: len(n.graph.nodes) if n.graph else 0)
    took = {replace(n, operands=()): 1.0 for g in before for n in g.kernels} | {slow: 1e6}
    stream.measured(took)
    (now, *_) = stream.partitions()
    assert not any(slow == replace(n, operands=()) for _, way in now.steps if way.graph is not None for n in way.graph.kernels)
    assert not stream.done
    after = [g for item in stream for g in item.graphs]
    keys = [structure_key(g) for g in (*before, *after)]
    assert len(set(keys)) == len(keys)
    # the same times again are nothing new
    stream.measured(dict(took))
    assert stream.done


def kernels_of(ways: Iterable[Way]) -> set[Node]:
    return {replace(n, operands=()) for way in ways if way.graph is not None for n in way.graph.kernels}


def joined(stream: LargeSearch, partition: Partition) -> MuGraph:
    return join(stream.program, [(stream.pieces[p], way.graph) for p, way in partition.steps if way.graph is not None])


def test_what_is_best_by_measured_kernels_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever pieces are left to search."""
    _, ap = small("mlp_block")
    stream = LargeSearch(ap, SIZES, SearchOptions(steps=3000))
    for _ in range(200):
        stream.advance(0.0)
    assert stream.begun and not stream.done
    # a piece whose search takes long
    monkeypatch.setattr(stream, "_items", repeat(None))
    assert not stream.advance(0.0)
    every = kernels_of(way for ways in stream.ways.values() for way in ways)
    fresh: list[Partition] = []
    for slow in every:
        stream.measured(dict.fromkeys(every, 1.0) | {slow: 1e6})
        fresh = [p for p in stream.partitions()[:1] if structure_key(joined(stream, p)) not in stream.seen]
        if fresh:
            break
    ((graph, *_),) = (item.graphs for item in stream.advance(0.0))
    assert {replace(n, operands=()) for n in graph.kernels} == kernels_of(way for _, way in fresh[0].steps)
    assert not stream.advance(0.0)


def test_refused_graphs_are_left_out() -> None:
    _, ap = small("mlp_block")
    seen: list[MuGraph] = []

    def refuse(graph: MuGraph) -> bool:
        seen.append(graph)
        return False

    assert not any(item.graphs for item in islice(LargeSearch(ap, SIZES, SearchOptions(), refuse), 2))
    assert seen


def test_equal_pieces_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer has three norms: of queries, of keys and values, and before the MLP."""
    searched: list[str] = []

    def counted(program: AxisProgram, *args: Any, **more: Any) -> Search:
        searched.append(canonical_key(program).text)
        return Search(program, *args, **more)

    monkeypatch.setattr(large, "Search", counted)
    first("decoder_layer", 1)
    assert len(searched) == len(set(searched))
    assert sum("square" in text and "matmul" not in text for text in searched) == 1


def drained(stream: LargeSearch) -> list[str]:
    """The structures of all graphs that are left."""
    return [structure_key(g) for item in stream for g in item.graphs]


def test_a_stream_whose_budget_was_spent_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ap = small("mlp_block")
    whole = LargeSearch(ap, SIZES)
    every = drained(whole)
    assert whole.done and whole.complete
    clock = ByHand()
    monkeypatch.setattr(large, "time", clock)
    cut = LargeSearch(ap, SIZES, SearchOptions(budget=1.0))
    clock.sleep(2.0)
    found = drained(cut)
    assert cut.done and not cut.complete and found
    cut.resume(1.0)
    assert not cut.done
    more = drained(cut)
    assert cut.complete and not set(found) & set(more) and set(every) <= {*found, *more}
    # there is nothing to go on with
    cut.resume(1.0)
    assert cut.done and drained(cut) == []


def test_a_counted_stream_is_the_same_on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ap = small("mlp_block")
    few, more, timed = (SearchOptions(steps=40), SearchOptions(steps=400), SearchOptions())
    before = {o: drained(LargeSearch(ap, SIZES, o)) for o in (few, more, timed)}
    assert before[few] != before[more]
    for module in (large, whole_search):
        monkeypatch.setattr(module, "time", Rushing())
    after = {o: drained(LargeSearch(ap, SIZES, o)) for o in (few, more, timed)}
    assert [after[o] for o in (few, more)] == [before[o] for o in (few, more)]
    assert after[timed] != before[timed]


def test_a_counted_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ap = small("mlp_block")
    every = drained(LargeSearch(ap, SIZES))
    cut = LargeSearch(ap, SIZES, SearchOptions(steps=40))
    found, rounds = drained(cut), 0
    assert cut.done and not cut.complete and found
    while not cut.complete:
        cut.resume(1.0)
        found += drained(cut)
        rounds += 1
    assert rounds > 1 and set(every) <= set(found)


def test_an_interrupted_stream_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ap = small("mlp_block")
    # which graphs of a piece are known after half a second is a matter of the machine
    counted = SearchOptions(steps=10**6)
    monkeypatch.setattr(large, "PIECE_STEPS", 50)
    every = drained(LargeSearch(ap, SIZES, counted))
    advance = Search.advance
    for at in (1, 2, 5):
        stream, calls = LargeSearch(ap, SIZES, counted), 0

        def interrupted(self: Search, seconds: float, at: int = at) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                self.interrupt()
                raise KeyboardInterrupt
            return advance(self, seconds)

        with monkeypatch.context() as patch:
            patch.setattr(Search, "advance", interrupted)
            with pytest.raises(KeyboardInterrupt):
                drained(stream)
        assert not stream.complete
        stream.resume(100.0)
        assert set(every) <= set(drained(stream)) and stream.complete


def test_finished_pieces_are_in_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ap = small("mlp_block")
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.0)
    path, key = tmp_path / "c.jsonl", "0" * 64
    ran: list[str] = []
    run = Units.run

    def noted(self: Units, unit: str, *most: float) -> Iterator[Any]:
        ran.append(unit)
        return run(self, unit, *most)

    monkeypatch.setattr(Units, "run", noted)
    # killed after the second item: nothing is written at an end
    first = list(islice(LargeSearch(ap, SIZES, checkpoint=Checkpoint(path, key)), 2))
    assert ran and path.read_text().count("piece ") > 0
    ran.clear()
    again = list(islice(LargeSearch(ap, SIZES, checkpoint=Checkpoint(path, key)), 2))
    assert not ran
    assert [[structure_key(g) for g in item.graphs] for item in again] == [
        [structure_key(g) for g in item.graphs] for item in first
    ]


def test_pieces_are_written_when_they_are_worth_a_file(tmp_path: Path) -> None:
    _, ap = small("mlp_block")
    path = tmp_path / "c.jsonl"
    stream = LargeSearch(ap, SIZES, checkpoint=Checkpoint(path, "0" * 64))
    for shared in stream.searches.known.values():
        shared.search.seconds = 0.0
    stream.save()
    assert not path.exists()


def called(graph: MuGraph) -> list[str]:
    """The library calls of a graph."""
    return [n.op for n in graph.kernel.nodes if n.op != "graph" and n.op not in SOURCES]


def test_the_largest_products_may_be_library_calls() -> None:
    p, ap = small("attention_block")
    *_, item = first("attention_block", 2)
    plain, *mixed = item.graphs
    assert called(plain) == []
    assert [called(g) for g in mixed] == [["matmul"] * k for k in (1, 4, 5)]
    for g in mixed:
        check(p, ap, g, SIZES, Random(0))


def test_which_programs_are_large() -> None:
    assert all(is_large(to_axes(f.trace())) for f in LARGE.values())
    assert [name for name in PROGRAMS if is_large(axes(name))] == ["qknorm_attention", "norm_transformer"]


def test_an_unsafe_piece_stays_as_unsafe_as_the_program() -> None:
    """An exp that nothing divides has no running maximum; its graphs are returned all the same."""
    p = mi.trace(lambda x, w: mi.exp(x) @ w, "plain", x=mi.tensor("m", "k"), w=mi.tensor("k", "n"))
    found = list(islice(LargeSearch(to_axes(p), {"m": 4, "k": 5, "n": 6}, accept=lambda g: offered(p, g)), 1))
    assert found[0].graphs
    assert not any(analyze(g).safe for g in found[0].graphs)


@pytest.mark.parametrize("seed", [6, 21, 38, 64])
def test_random_programs_in_pieces(seed: int) -> None:
    """That of seed 38 has a value that is zero along its axes: where it crosses, it has them."""
    rng = Random(seed)
    p = random_program(rng, 3 + seed % 25)
    ap, sizes = to_axes(p), random_sizes(rng, p)
    options = SearchOptions(max_kernels=2)
    for item in islice(LargeSearch(ap, sizes, options, lambda g: offered(p, g)), 3):
        for g in item.graphs:
            check(p, ap, g, sizes, rng)


def with_mlp(change: Callable[[Any, Any], Any]) -> Program:
    """Norm, MLP gated by what `change` makes of two products, and residual."""

    def block(x: Any, g: Any, w1: Any, w3: Any, w2: Any) -> Any:
        n = mi.rms_norm(x, g)
        return x + change(n @ w1, n @ w3) @ w2

    up = mi.tensor(8, 12)
    return mi.trace(block, x=mi.tensor("s", 8), g=mi.tensor(8), w1=up, w3=up, w2=mi.tensor(12, 8))


def stream(p: Program, options: SearchOptions, sizes: dict[str, int]) -> Candidates:
    """The stream of a large program: its pieces and its targets."""
    request = Request(Verifier(p), [sizes], get_target("cpu"), options)
    found = request.work().candidates
    assert found.pieces is not None
    # the search of the whole goes on for long
    found.search = None
    return found


#: counted, so that what is found is the same on every machine
COUNTED = SearchOptions(steps=1000)


def drawn(found: Candidates) -> Candidates:
    """A stream, drained by counts alone."""
    while not found.done:
        found.more(0.0)
    return found


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("product of exps", lambda a, b: mi.silu(a) * (mi.exp(a) * mi.exp(b))),
        ("quotient of exps", lambda a, b: mi.silu(a) * (mi.exp(a) / mi.exp(b))),
    ],
)
def test_a_large_program_has_targets_whose_graphs_are_proved_and_cheaper(rule: str, change: Callable[[Any, Any], Any]) -> None:
    p = with_mlp(change)
    assert is_large(to_axes(p))
    found = drawn(stream(p, COUNTED, {"s": 128}))
    own, targets = ([c for c in found.found if bool(c.certificate.chain) == chain] for chain in (False, True))
    assert own and targets
    assert min(c.cost for c in targets) < min(c.cost for c in own)
    assert all(link.startswith(f"{rule}: ") for c in targets for link in c.certificate.chain)
    best = min(targets, key=lambda c: c.cost)
    certificate = found.verifier.confirm(best.graph, best.certificate)
    assert certificate.verdict == "proved equal" and certificate.chain
    assert len(certificate.checks) == 2


def test_what_rules_remove_from_a_large_program_is_not_computed() -> None:
    p = with_mlp(lambda a, b: mi.silu(a) * mi.log(mi.exp(b)))
    costs = [
        min(c.cost for c in drawn(stream(p, replace(COUNTED, rules=rules), {"s": 128})).found) for rules in (False, True)
    ]
    assert costs[0] > costs[1]


def test_rules_leave_a_layer_without_a_better_form_as_it_is() -> None:
    p, _ = small("decoder_layer")
    options = replace(COUNTED, steps=500)
    found = [drawn(stream(p, replace(options, rules=rules), {"b": 1, "s": 128})) for rules in (False, True)]
    graphs = [[structure_key(c.graph) for c in each.found] for each in found]
    assert graphs[0] == graphs[1]
    assert found[1].rewriting is not None
    assert found[1].rewriting.report.endswith(f"{MAX_ADDED} added terms; no target")
    assert found[1].rewriting.left_out == [f"rules not saturated: {MAX_ADDED} added terms"]


def test_rules_of_functions_are_used_before_the_bound_in_a_program_of_forty_operators() -> None:
    layer = SMALL["decoder_layer"]

    def logged(**args: Any) -> Any:
        y = layer(**args)
        return mi.log(mi.exp(y) * mi.exp(mi.sin(y)))

    logged.__signature__ = signature(layer.fn)  # type: ignore[attr-defined]
    ap = to_axes(mi.trace(logged, "logged", **layer.specs))
    assert sum(n.op not in SOURCES for n in ap.nodes) > 40
    axes = {a: evaluate(d, {"b": 1, "s": 128}) for a, d in ap.axes.items()}
    first, *_ = find_targets(ap, axes, seconds=math.inf).programs
    assert "log of an exp" in first.rules
    assert [n.op for n in first.program.nodes].count("exp") == 1


def test_equal_pieces_of_a_program_and_its_target_are_searched_once() -> None:
    found = drawn(stream(with_mlp(lambda a, b: mi.silu(a) * (mi.exp(a) * mi.exp(b))), COUNTED, {"s": 128}))
    assert found.rewriting is not None and found.pieces is not None
    (target,) = found.rewriting._searches
    assert isinstance(target, LargeSearch) and target.searches is found.pieces.searches
    assert len(target.searches.known) < len(target.ways) + len(found.pieces.ways)


def test_the_first_graph_comes_before_any_rule_is_tried() -> None:
    found = stream(with_mlp(lambda a, b: mi.exp(a) * mi.exp(b)), COUNTED, {"s": 128})
    assert found.rewriting is not None
    while not found.found:
        assert found.rewriting.steps == 0
        found.more(0.0)
    found.stop()
    assert found.rewriting.left_out == ["rules not tried: interrupted"]


def test_an_interrupt_ends_large_targets_and_more_goes_on() -> None:
    p = with_mlp(lambda a, b: mi.silu(a) * (mi.exp(a) * mi.exp(b)))
    every = {structure_key(c.graph) for c in drawn(stream(p, COUNTED, {"s": 128})).found}
    found = stream(p, COUNTED, {"s": 128})
    targets = found.rewriting
    assert targets is not None
    while not targets.found:
        found.more(0.0)
    found.stop()
    assert found.done and not found.complete
    assert targets.left_out[-1] == "1 of 1 targets of rules not searched to the end: interrupted"
    found.resume(60)
    assert not found.done
    assert every <= {structure_key(c.graph) for c in drawn(found).found}
