"""Superoptimizing programs whose graphs have several kernels, predefined operators among them, or no kernel at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.cache import ResultStore
from mirage.ir.axes import to_axes
from mirage.ir.program import Program
from mirage.ir.types import TensorType
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.predefined import with_predefined
from mirage.mugraph.reference import reference_graph
from mirage.results import work
from mirage.results.cpu.result import Superoptimized
from mirage.search.generate import SearchResult
from mirage.search.stream import Search
from mirage.search.units import Found
from tests import modelled as modelling
from tests.api.small import BUDGET, arrays, check, loaded
from tests.kernels.kernels import cut
from tests.modelled import modelled
from tests.sampled import thinned

B, N = 9, 17
ONE_NAME = {"x": mi.tensor("b", 64), "w": mi.tensor(64, "n")}
Parts = Sequence[Sequence[int]]

#: programs, other names for their inputs, and which of their operators share a graph-defined kernel
PROGRAMS: dict[str, tuple[Callable[..., Any], dict[str, Any], list[Parts]]] = {
    "outputs of other axes": (lambda x, w: (x @ w, mi.sum(x, axis=1)), ONE_NAME, [[[2], [3]], [[2]], [[3]], []]),
    "nested outputs": (lambda x, w: (x @ w, mi.relu(x @ w)), ONE_NAME, [[[2, 3]], [[2], [3]], [[3]]]),
    "two outputs": (
        lambda x, w, u: (x @ w, mi.exp(x) @ u),
        {**ONE_NAME, "u": mi.tensor(64, "n")},
        [[[3], [4, 5]], [[4, 5]], [[3], [4], [5]]],
    ),
    "five kernels": (
        lambda x, w: mi.sum(mi.relu(mi.tanh(x @ w) * 2 + 1), axis=1),
        ONE_NAME,
        [[[2], [3], [5, 7], [8], [9]], [[2, 3], [8]], [[3], [5]]],
    ),
    "an input as a result": (lambda x, w: (x, x @ w), ONE_NAME, [[[2]], []]),
    "inputs as results": (lambda x: (x, mi.transpose(x)), {"x": mi.tensor("b", "n")}, [[]]),
}


def graphs(program: Program, parts: list[Parts]) -> list[MuGraph]:
    """Each cut of the program, and its predefined variant."""
    cuts = [cut(program, *p) for p in parts]
    return list({structure_key(g): g for own in cuts for g in (own, with_predefined(own))}.values())


def found(monkeypatch: pytest.MonkeyPatch, chosen: list[MuGraph]) -> None:
    """Let a search find these graphs."""

    class Chosen(Search):
        def advance(self, seconds: float) -> list[Found]:
            self.done = True
            self.found = [Found([g], float(k), np.zeros(0), False, 0.0) for k, g in enumerate(chosen)]
            return self.found

    monkeypatch.setattr(work, "Search", Chosen)
    result = SearchResult(chosen, [float(k) for k in range(len(chosen))])
    monkeypatch.setattr(modelling, "generate", lambda *args, **options: result)


def right(r: Superoptimized) -> None:
    """Fail unless every kernel that was compiled, and the call itself, compute the program at sizes of all kinds."""
    symbols = r.program.symbols()
    for at in ((1, 1), (2, 15), (16, 17), (31, 13)):
        sizes = dict(zip(symbols, at, strict=False))
        inputs = arrays(r.program, sizes)
        for c in r.graphs:
            if c.executable is not None:
                check(r.program, c.executable(inputs, sizes), inputs, sizes)
        answer = r(*inputs)
        check(r.program, answer if isinstance(answer, tuple) else [answer], inputs, sizes)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_graph_computes_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, types, parts = PROGRAMS[name]
    program = mi.trace(fn, "f", **types)
    chosen = graphs(program, parts)
    found(monkeypatch, chosen)
    r = modelled(program, dict(zip(program.symbols(), (B, N), strict=False)), kernels=len(chosen))
    assert r.compiled == len(chosen)
    right(r)


@pytest.mark.parametrize("name", thinned(PROGRAMS))
def test_graphs_are_tuned_stored_and_recalled(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fn, types, parts = PROGRAMS[name]
    program = mi.trace(fn, "f", **types)
    chosen = graphs(program, parts)
    sizes = dict(zip(program.symbols(), (B, N), strict=False))
    store = ResultStore(f"sqlite:///{tmp_path}/r.sqlite")
    with monkeypatch.context() as m:
        found(m, chosen)
        r = mi.superoptimize(program, sizes=sizes, budget=BUDGET, cache=store)
    assert not r.rejected
    assert {str(c.graph.kernel) for c in r.graphs} == {str(g.kernel) for g in chosen}
    assert all(c.certificate.proof == "proved" for c in r.graphs)
    right(r)
    r.save(tmp_path / "r.json")
    right(loaded(tmp_path / "r.json"))
    # another program of the same structure finds them in the store
    other = mi.trace(fn, "g", **{k: mi.tensor(*_renamed(t)) for k, t in types.items()})
    theirs = dict(zip(other.symbols(), sizes.values(), strict=True))
    monkeypatch.setattr(work, "Search", None)
    again = mi.superoptimize(other, sizes=theirs, budget=BUDGET, cache=store)
    assert again.cache_hit and len(again.graphs) == len({id(v.candidate.graph) for v in r.versions if v.candidate})
    right(again)


def _renamed(t: TensorType) -> list[Any]:
    return [int(d) if d.is_Integer else f"other_{d}" for d in t.shape]


def test_a_program_that_only_returns_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    program = mi.trace(lambda x: x, "same", x=mi.tensor("b", "n"))
    found(monkeypatch, [reference_graph(to_axes(program))])
    r = modelled(program, {"b": B, "n": N})
    (c,) = r.graphs
    assert c.executable is not None and "mirage_run" not in c.executable.source
    right(r)
    (x,) = arrays(program, {"b": 3, "n": 4})
    y = r(x)
    y[:] = 0
    assert x.any()


def test_softmaxes_along_both_axes_at_large_logits() -> None:
    """One maximum for both would leave rows far below it without a term: 0 / 0."""
    program = mi.trace(lambda x: mi.softmax(x, axis=0) * mi.softmax(x, axis=1), "dual", x=mi.tensor("m", "n"))
    r = mi.superoptimize(program, sizes={"m": B, "n": N}, budget=BUDGET, cache=False)
    sizes = {"m": 5, "n": 7}
    (x,) = arrays(program, sizes)
    x += 200 * np.arange(5, dtype=np.float32)[:, None]
    runs: list[Any] = [c.executable for c in r.graphs if c.executable is not None]
    for run in (*runs, r.reference, r._library):
        check(program, run([x], sizes), [x], sizes)
    check(program, [r(x)], [x], sizes)
