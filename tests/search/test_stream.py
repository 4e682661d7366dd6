"""The search as a stream: the same graphs however it is cut into calls, the program's own operators first."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search.scaling import block as mlp_block
from mirage.ir.axes import to_axes
from mirage.mugraph.degree import program_is_stable
from mirage.mugraph.graph import MuGraph
from mirage.search import jobs, stream
from mirage.search.checkpoint import Checkpoint
from mirage.search.closure import Closure
from mirage.search.generate import undominated
from mirage.search.native import native_labels
from mirage.search.options import SearchOptions
from mirage.search.plan import kernel_plans
from mirage.search.stream import Search
from mirage.search.units import FUSED, Found, Units
from tests.programs import QUICK, axes, block, search, sizes

NAMES = ["gqa_decode", "rms_norm", "lora", "two outputs", "norm_transformer"]


def started(name: str, **options: object) -> Search:
    return Search(axes(name), sizes(name), SearchOptions(), **options)  # type: ignore[arg-type]


def drained(s: Search, seconds: float = 0.0, calls: int = 10**6) -> list[Found]:
    """What so many calls give."""
    found: list[Found] = []
    for _ in range(calls):
        if s.done:
            break
        found += s.advance(seconds)
    return found


def texts(found: list[Found]) -> list[tuple[float, list[str]]]:
    return [(f.cost, [str(g) for g in f.graphs]) for f in found]


@pytest.mark.parametrize("name", NAMES)
def test_drained_it_is_the_result(name: str) -> None:
    s = started(name)
    found = drained(s)
    graphs = [str(g) for f in undominated(found) for g in f.graphs]
    whole = search(name)
    assert list(dict.fromkeys(graphs)) == list(dict.fromkeys(map(str, whole.graphs)))
    assert s.stop_reason == whole.stats.stop_reason and s.stop_reason.startswith("complete")
    assert s.finished == s.units


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_on_where_it_was(name: str) -> None:
    """Calls of a single step find what one call finds, in the same order."""
    assert texts(drained(started(name), 0.0)) == texts(drained(started(name), 60.0))


@pytest.mark.parametrize("name", [*QUICK, "norm_transformer", "qknorm_attention"])
def test_the_first_call_gives_the_own_operators_of_each_plan(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any value is found that is not the program's own."""
    extended: list[object] = []
    monkeypatch.setattr(Closure, "_extend", lambda self, *_: extended.append(self))
    s = started(name)
    found = s.advance(0.0)
    assert not extended and s.finished == [FUSED]
    assert found and s.found == found
    origins = [f.graphs[0].origin for f in found]
    assert origins[0] == "no loop" and len(set(origins)) == len(origins)
    assert set(origins) <= {str(p) for p in kernel_plans(axes(name), 2)}
    own = sorted(n.op for n in axes(name).nodes if n.op not in ("input", "constant", "size"))
    for f in found:
        kernel = block(f.graphs[0])
        assert sorted(kernel.nodes[i].op for i in kernel.compute_nodes() if kernel.nodes[i].op != "accumulator") == own


def test_a_unit_finds_the_cheapest_first() -> None:
    s = started("gqa_decode")
    drained(s, calls=1)
    while not s.done:
        finished = len(s.finished)
        costs: list[float] = []
        while len(s.finished) == finished and not s.done:
            costs += [f.cost for f in s.advance(0.0)]
        # but for what is lost in sums of costs
        assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(costs))


def test_operators_that_the_program_lacks_come_last_and_are_told_where_they_were_not_tried() -> None:
    s = Search(axes("gqa_decode"), sizes("gqa_decode"))
    own = Search(axes("gqa_decode"), sizes("gqa_decode"), SearchOptions(vocabulary="program"))
    s.advance(0.0)
    own.advance(0.0)
    assert "not tried" in s.stop_reason and "not tried" not in own.stop_reason
    drained(s)
    drained(own)
    assert s.stop_reason == own.stop_reason == "complete"
    assert min(f.cost for f in s.found) <= min(f.cost for f in own.found)


def test_what_is_missing_is_told_at_any_time() -> None:
    s = started("gqa_decode")
    assert s.stop_reason == "budget spent (4 of 4 units left)"
    s.advance(0.0)
    assert s.stop_reason == s.stats.stop_reason and s.stop_reason.startswith("budget spent (3 of 4 units left); operators of ")
    assert not s.done and s.stats.candidates == sum(len(f.graphs) for f in s.found)
    drained(s)
    assert s.stop_reason == "complete" and s.done
    assert s.advance(1.0) == []


def test_an_interrupt_ends_it_with_what_was_found() -> None:
    def accept(g: MuGraph) -> bool:
        if ";" in g.origin:
            raise KeyboardInterrupt
        return True

    s = started("gqa_decode", accept=accept)
    with pytest.raises(KeyboardInterrupt):
        drained(s)
    assert s.done and s.found
    assert s.stop_reason == "interrupted (2 of 4 units left)"
    assert s.advance(1.0) == []


@pytest.mark.parametrize("name", ["gqa_decode", "rms_norm", "lora"])
def test_graphs_of_the_values_that_there_are(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the values take long, graphs are made in between, and nothing is missing in the end."""
    monkeypatch.setattr(stream, "ROUND_STEPS", 1)
    composed: list[bool] = []
    composer = Units._composed

    def noted(self: Units, most: float) -> object:
        composed.append(self.space.complete)
        return composer(self, most)

    monkeypatch.setattr(Units, "_composed", noted)
    s = started(name)
    found = undominated(drained(s))
    assert set(composed) == {False, True}
    assert s.stop_reason == "complete"
    for cost in search(name).costs:
        assert any(f.cost <= cost * (1 + 1e-9) for f in found)
    costs = [f.cost for f in found]
    assert min(costs) == pytest.approx(min(search(name).costs))


def test_a_graph_that_is_much_faster_comes_before_others() -> None:
    """A norm and a gated product after an MLP have as many values as products of sums have forms: to write down all kernels of
    one tensor takes minutes.
    """
    assert native_labels(wait=True) is not None
    program = mlp_block(12)
    s = Search(to_axes(program), dict.fromkeys(program.symbols(), 8), safe=program_is_stable(program))
    while s.steps < 20_000 and len({f.cost for f in s.found}) < 3:
        s.advance(0.0)
    first = s.found[0].cost
    assert min(f.cost for f in s.found) < first / 5


def test_what_is_found_early_is_no_other_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that bounds how long graphs may take, again and again, finds the same in the end."""
    monkeypatch.setattr(stream, "ROUND_STEPS", 1)
    monkeypatch.setattr(stream, "SOON", 1e-3)
    ran: list[float] = []
    run = Units.run

    def noted(self: Units, unit: str, most: float = math.inf) -> Any:
        ran.append(most)
        return run(self, unit, most)

    monkeypatch.setattr(Units, "run", noted)
    s = started("lora")
    found = undominated(drained(s))
    bounded = [most for most in ran if most < math.inf]
    assert len(set(bounded)) > 3
    assert s.stop_reason == "complete"
    monkeypatch.undo()
    assert [f.cost for f in found] == pytest.approx([f.cost for f in undominated(drained(started("lora")))])


def cut(units: int) -> Callable[[Search], None]:
    def run(s: Search) -> None:
        while len(s.finished) < units:
            s.advance(0.0)

    return run


@pytest.mark.parametrize("units", [1, 2, 3])
def test_finished_units_are_not_run_again(units: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a search was left, another one with its checkpoint goes on, and gives the same."""
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.0)
    name = "gqa_decode"
    file = tmp_path / "checkpoint"
    first = started(name, checkpoint=Checkpoint(file, "k"))
    cut(units)(first)
    run, ran = Units.run, []

    def noted(self: Units, unit: str, *most: float) -> object:
        ran.append(unit)
        return run(self, unit, *most)

    monkeypatch.setattr(Units, "run", noted)
    again = started(name, checkpoint=Checkpoint(file, "k"))
    found = drained(again)
    assert ran == again.units[units:]
    assert texts(undominated(found)) == texts(undominated(drained(started(name))))
