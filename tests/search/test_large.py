"""Graphs of large programs: joined from those of pieces, proved, right, and none twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

import mirage as mi
from benchmarks.large import LARGE, llama
from benchmarks.programs import PROGRAMS
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import default_schedule
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.search import jobs, large
from mirage.search import stream as whole_search
from mirage.search.checkpoint import Checkpoint
from mirage.search.cuts import SOURCES
from mirage.search.large import Found, LargeSearch, is_large
from mirage.search.options import SearchOptions
from mirage.search.stream import Search
from mirage.search.units import Units
from mirage.verify.safety import offered
from tests.kernels.kernels import bound, error, random_inputs
from tests.programs import axes
from tests.random_programs import random_program, random_sizes
from tests.search.test_pieces import check
from tests.work import ByHand, Rushing

SMALL = llama(width=8, heads=4, kv_heads=2, head=4, hidden=12)
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


def test_the_first_graph_is_of_the_programs_own_operators_and_no_search_goes_on_before_it() -> None:
    _, ap = small("decoder_layer")
    stream = LargeSearch(ap, SIZES)
    graph, *_ = next(stream).graphs
    assert len(graph.kernels) == len(stream.cuts.atoms)
    searches = [shared.search for shared in stream.searches.known.values()]
    # a norm's atoms are those of the other norms
    assert 0 < len(searches) <= len(stream.cuts.atoms)
    assert all(len(search.finished) == 1 for search in searches)


def test_no_graph_comes_twice_and_the_stream_ends() -> None:
    found = [g for item in first("mlp_block", 200, budget=3.0) for g in item.graphs]
    keys = [structure_key(g) for g in found]
    assert len(set(keys)) == len(keys) > 1


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
    searched: list[AxisProgram] = []

    def counted(program: AxisProgram, *args: Any, **more: Any) -> Search:
        searched.append(program)
        return Search(program, *args, **more)

    monkeypatch.setattr(large, "Search", counted)
    first("decoder_layer", 1)
    squares = [p for p in searched if any(n.op == "square" for n in p.nodes)]
    assert len(squares) == 1


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

    def noted(self: Units, unit: str) -> Iterator[Any]:
        ran.append(unit)
        return run(self, unit)

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
    (item, *_) = first("attention_block", 1)
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
