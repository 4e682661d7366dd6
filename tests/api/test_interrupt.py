"""Ctrl-C: the first ends the work and gives what was found by then, and nothing that was cut short is taken for complete."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import mirage as mi
from mirage.cache import ResultStore
from mirage.mugraph.graph import MuGraph
from mirage.progress import Step, bars
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME
from mirage.search.stream import Search
from mirage.search.tune import Tuner
from mirage.search.units import Found, Units
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier
from tests import forks
from tests.api.small import BUDGET, PATIENCE, Judge, adapter, arrays, check, races_by


class Interrupter:
    """Progress that is interrupted, as by Ctrl-C, at the first line of each of these texts in turn."""

    def __init__(self, *at: str) -> None:
        self.at = list(at)
        self.told: list[str] = []

    def __call__(self, text: str) -> None:
        self.told.append(text)
        if self.at and self.at[0] in text:
            self.at.pop(0)
            raise KeyboardInterrupt


@pytest.fixture
def store(tmp_path: Path) -> ResultStore:
    return ResultStore(f"sqlite:///{tmp_path}/r.sqlite")


def keys(store: ResultStore) -> list[str]:
    return [record.key for record in store.list()]


def runs(r: mi.Superoptimized) -> None:
    """Fail unless the result computes its program."""
    sizes = {"b": 4, "n": 4}
    inputs = arrays(r.program, sizes)
    check(r.program, [r(*inputs)], inputs, sizes)


def test_an_interrupt_of_the_verification(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    admit, looked_at = Verifier.admit, 0

    def interrupting(self: Verifier, graph: MuGraph, **more: Any) -> Certificate:
        nonlocal looked_at
        looked_at += 1
        if looked_at == 3:
            raise KeyboardInterrupt
        return admit(self, graph, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Verifier, "admit", interrupting)
        r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert r.interrupted
    assert 0 < len(r.graphs) <= 2
    assert r.compiled > 0
    runs(r)
    # it is kept as what was cut short
    again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert not again.recalled
    assert not again.interrupted
    assert len(again.graphs) > len(r.graphs)
    assert mi.superoptimize(adapter, budget=BUDGET, cache=store).recalled


def test_an_interrupt_of_the_search(store: ResultStore) -> None:
    say = Interrupter("graphs, searching")
    r = mi.superoptimize(adapter, budget=BUDGET, cache=store, progress=say)
    assert r.interrupted
    assert INTERRUPTED in r.stats.stop_reason
    assert r.tune_stop == INTERRUPTED
    # one wave of kernels
    assert 0 < r.compiled <= r.target.cores
    runs(r)
    improved = r.improve(BUDGET)
    assert not improved.interrupted
    assert improved.stats.stop_reason == "complete"
    assert len(improved.graphs) > len(r.graphs)
    runs(improved)


def test_a_search_that_was_interrupted_goes_on_in_another_call(store: ResultStore) -> None:
    r = mi.superoptimize(adapter, budget=BUDGET, cache=store, progress=Interrupter("graphs, searching"))
    again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert not again.interrupted
    assert again.stats.stop_reason == "complete"
    assert len(again.graphs) > len(r.graphs)


def test_an_interrupt_of_the_tuning(store: ResultStore) -> None:
    say = Interrupter("2 kernels compiled")
    r = mi.superoptimize(adapter, budget=BUDGET, cache=store, progress=say)
    assert r.interrupted
    assert r.tune_stop == INTERRUPTED
    assert r.compiled == 2
    assert sum(c.timing is not None for c in r.graphs) in (1, 2)
    assert set(r.baselines) == {"reference", "library"}
    assert say.told[-1].startswith("tuning: 2 kernels compiled")
    runs(r)
    # it is kept, and goes on
    assert [record.best_us is not None for record in store.list()].count(True) == 1
    again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert not again.recalled
    assert again.stats.stop_reason == "complete"
    # what it left out is named; time and interrupts did not end it
    assert INTERRUPTED not in again.tune_stop and OUT_OF_TIME not in again.tune_stop
    assert mi.superoptimize(adapter, budget=BUDGET, cache=store).recalled


def test_an_interrupt_of_the_first_unit_gives_what_it_had_found(
    store: ResultStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Units.run

    def interrupting(self: Units, unit: str, *most: float) -> Iterator[Found | None]:
        for item in run(self, unit, *most):
            yield item
            if item is not None:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Units, "run", interrupting)
        r = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert r.interrupted and r.stats.stop_reason.startswith("interrupted (4 of 4 units left)")
    assert len(r.graphs) == 1 and r.compiled > 0
    runs(r)
    improved = r.improve(BUDGET)
    assert improved.stats.stop_reason == "complete" and len(improved.graphs) > 1


def test_an_interrupt_before_anything_was_found(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        mi.superoptimize(adapter, budget=BUDGET, cache=store, progress=Interrupter("searching"))

    def interrupted(*args: object, **more: object) -> None:
        raise KeyboardInterrupt

    for cls, name in ((Search, "advance"), (Verifier, "admit")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(cls, name, interrupted)
            mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert store.list() == []


@pytest.mark.parametrize("second", ["1 kernels compiled", "the last measurement"])
def test_a_second_interrupt_is_raised(store: ResultStore, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    say = Interrupter("0 kernels compiled", second)
    if second == "the last measurement":

        def interrupted(*args: object, **more: object) -> None:
            say.at.pop(0)
            raise KeyboardInterrupt

        monkeypatch.setattr(Tuner, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mi.superoptimize(adapter, budget=BUDGET, cache=store, progress=say)
    assert say.at == []
    # the best so far may have been kept in the meantime
    assert not any(record["complete"] for record in map(store.get, keys(store)) if record)


# Real signals, to the whole group of a real command, as a terminal sends them.

PROGRAM = """
import mirage as mi

@mi.program(x=mi.tensor("b", 8), w=mi.tensor(8, "n"), v=mi.tensor("n", 8), sizes={"b": 3, "n": 5})
def adapter(x, w, v):
    return mi.relu(x @ w) @ v + x
"""

# What the command prints on standard error goes to a terminal there; here, the lines of progress are printed.
COMMAND = """
import sys
import mirage.cli as cli
import mirage.cli_compile as cli_compile
from contextlib import contextmanager

@contextmanager
def lines(console):
    yield lambda line: print(line, file=sys.stderr, flush=True)

cli.bars = cli_compile.bars = lines
cli.main()
"""


def interrupted(cache: Path, at: str, *arguments: str) -> tuple[Any, str]:
    """The JSON that a command prints, and its messages, when it gets Ctrl-C at a line of progress."""
    environment = {**os.environ, "MIRAGE_CACHE_DIR": str(cache)}
    command = [*arguments, "--budget", "600", "--json"]
    with forks.start(COMMAND, *command, cwd=cache.parent, env=environment, group=True) as child:
        for line in child.stderr:
            if at in line:
                break
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=PATIENCE)
    assert child.returncode == 0, err
    assert "Traceback" not in err
    return json.loads(out), err


@pytest.mark.parametrize("at", ["graphs, searching", "the fastest takes"])
def test_ctrl_c_of_the_command(tmp_path: Path, own_cache: Path, at: str) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    found, err = interrupted(own_cache, at, "superoptimize", "p.py:adapter")
    assert "mirage: interrupted; this is what was found by then" in err
    assert found["interrupted"] is True
    assert found["verified"] > 0


def test_ctrl_c_of_a_compilation(tmp_path: Path, own_cache: Path) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    arguments = ("compile", "p.py:adapter", "--save", "adapter.mirage")
    found, err = interrupted(own_cache, "kernels compiled", *arguments)
    assert "mirage: interrupted; what was found by then is used" in err
    assert found["interrupted"] is True
    executable = mi.load_executable(tmp_path / "adapter.mirage")
    x, w, v = (np.ones(s, np.float32) for s in ((3, 8), (8, 5), (5, 8)))
    assert (executable(x, w, v) == 41).all()


# Progress.


def test_steps_are_lines() -> None:
    assert Step("searching") == "searching"
    assert Step("searching", "5 graphs", 2, 7) == "searching: 2 of 7, 5 graphs"
    assert Step("tuning", "3 kernels compiled") == "tuning: 3 kernels compiled"
    step = Step("subprograms", "", 1, 4)
    assert (step, step.phase, step.done, step.total) == ("subprograms: 1 of 4", "subprograms", 1, 4)


def test_bars_on_a_terminal_and_nothing_elsewhere() -> None:
    terminal = Console(force_terminal=True, width=120, record=True, file=io.StringIO())
    with bars(terminal) as say:
        say(Step("searching", "12 prefixes, [bold]", 2, 7))
        say(Step("tuning", "", 1, 4))
        say("a line of somebody else")
    text = terminal.export_text()
    assert "searching" in text
    assert "2/7" in text
    assert "12 prefixes, [bold]" in text
    assert "a line of somebody else" in text
    plain = Console(force_terminal=False, width=120, record=True, file=io.StringIO())
    with bars(plain) as say:
        say(Step("searching", "", 2, 7))
    assert plain.export_text() == ""


def two_parts(x: Any, w: Any, v: Any) -> Any:
    return mi.softmax(mi.sort(mi.relu(x @ w) @ v + x, axis=1))


def check_two_parts(executable: mi.Executable) -> None:
    rng = np.random.default_rng(0)
    x, w, v = (rng.standard_normal(s).astype(np.float32) for s in ((4, 8), (8, 5), (5, 8)))
    want = np.exp(np.sort(np.maximum(x @ w, 0) @ v + x, axis=1))
    np.testing.assert_allclose(executable(x, w, v), want / want.sum(axis=1, keepdims=True), rtol=1e-4)


def test_an_interrupted_compilation_searches_no_more(
    store: ResultStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    races_by(Judge("full", "found", "fused"), monkeypatch.setattr)
    say = Interrupter("2 kernels compiled")
    executable = mi.compile(two_parts, adapter.specs, budget=2 * BUDGET, cache=store, progress=say)
    text = executable.explain()
    assert "; interrupted" in text and "libraries and fusion without a search, as the compilation was interrupted" in text
    assert executable.interrupted and executable.to_json()["interrupted"]
    executable.save(tmp_path / "two.mirage")
    assert mi.load_executable(tmp_path / "two.mirage").interrupted
    assert not any("tuning" in line for line in say.told[say.told.index(_second(say.told)) :])
    check_two_parts(executable)
    # what was found goes on
    again = mi.compile(two_parts, adapter.specs, budget=2 * BUDGET, cache=store)
    assert not again.interrupted and "interrupted" not in again.explain()
    check_two_parts(again)


def _second(told: list[str]) -> str:
    """The line that begins the second subprogram."""
    return next(line for line in told if line.startswith("subprograms: 1 of 2"))


def test_subprograms_found_before_an_interrupt_are_kept(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    races_by(Judge("full", "found", "fused"), monkeypatch.setattr)

    def say(text: str) -> None:
        if text.startswith("subprograms: 1 of 2"):
            kept.extend(store.list())
            raise KeyboardInterrupt

    kept: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        mi.compile(two_parts, adapter.specs, budget=2 * BUDGET, cache=store, progress=say)
    assert kept and store.list() == kept
    executable = mi.compile(two_parts, adapter.specs, budget=2 * BUDGET, cache=store)
    assert "from the cache" in executable.explain() and not executable.interrupted
    check_two_parts(executable)
