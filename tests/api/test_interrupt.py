"""Ctrl-C: the first ends a phase and gives what was found by then, and nothing that was cut short is taken for complete."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import mirage as mi
from mirage import api
from mirage.cache import ResultStore
from mirage.progress import Step, bars
from mirage.results.candidates import Check, verify_candidates
from mirage.search.generate import SearchResult, generate
from mirage.search.jobs import INTERRUPTED, WorkerPool
from mirage.verify.equivalence import Verifier
from tests.api.small import BUDGET, adapter, arrays, check, rows

ROOT = Path(__file__).parents[2]


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


def runs(r: mi.Superoptimized) -> None:
    """Fail unless the result computes its program."""
    sizes = {"b": 4, "n": 4}
    inputs = arrays(r.program, sizes)
    check(r.program, [r(*inputs)], inputs, sizes)


def test_an_interrupt_of_the_verification(store: ResultStore) -> None:
    say = Interrupter("verifying: 3 of")
    r = mi.superoptimize(adapter, budget=10 * BUDGET, cache=store, progress=say)
    assert r.interrupted
    assert 0 < len(r.graphs) <= 3 < r.candidates
    assert f"{r.candidates - 3} candidates not verified, {INTERRUPTED}" in r.stats.stop_reason
    assert any(line.startswith("tuning: ") for line in say.told)
    runs(r)
    # nothing of it is in the store
    assert store.list() == []
    again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert not again.cache_hit
    assert not again.interrupted
    assert len(again.graphs) > len(r.graphs)


def test_an_interrupt_of_the_tuning(store: ResultStore) -> None:
    say = Interrupter("2 kernels compiled")
    r = mi.superoptimize(adapter, budget=30 * BUDGET, cache=store, progress=say)
    assert r.interrupted
    assert r.tune_stop == INTERRUPTED
    assert r.compiled in (1, 2)
    assert sum(c.timing is not None for c in r.graphs) in (1, 2)
    assert set(r.baselines) == {"reference", "library"}
    assert say.told[-1] == "tuning: 2 kernels compiled"
    runs(r)
    # the search was complete, the tuning is done again
    assert len(store.list()) == 1
    again = mi.superoptimize(adapter, budget=BUDGET, cache=store)
    assert again.cache_hit
    assert "search" not in again.seconds
    assert again.tune_stop != INTERRUPTED
    assert len(store.list()) == 2


def test_an_interrupt_before_anything_was_found(store: ResultStore) -> None:
    for at in ("searching", "verifying: 0 of"):
        with pytest.raises(KeyboardInterrupt):
            mi.superoptimize(adapter, budget=BUDGET, cache=store, progress=Interrupter(at))
    assert store.list() == []


@pytest.mark.parametrize("second", ["verifying: 2 of", "1 kernels compiled"])
def test_a_second_interrupt_is_raised(store: ResultStore, second: str, monkeypatch: pytest.MonkeyPatch) -> None:
    say = Interrupter("verifying: 1 of", second)
    if second.startswith("verifying"):
        # the first in the search, after which there is something to verify

        def interrupted(*args: Any, **options: Any) -> SearchResult:
            found = generate(*args, **options)
            found.stats.stop_reason = INTERRUPTED
            return found

        monkeypatch.setattr(api, "generate", interrupted)
        say.at.pop(0)
    with pytest.raises(KeyboardInterrupt):
        mi.superoptimize(adapter, budget=10 * BUDGET, cache=store, progress=say)
    assert say.at == []
    assert store.list() == []


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


def interrupted(folder: Path, at: str, *arguments: str, workers: str = "1") -> tuple[Any, str]:
    """The JSON that a command prints, and its messages, when it gets Ctrl-C at a line of progress."""
    command = [sys.executable, "-c", COMMAND, *arguments, "--budget", "600", "--json"]
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "MIRAGE_CACHE_DIR": str(folder / "cache"), "MIRAGE_SEARCH_WORKERS": workers,
    }  # fmt: skip
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as child:  # fmt: skip
        assert child.stderr
        for line in child.stderr:
            if at in line:
                break
        start = time.monotonic()
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=60)
        assert time.monotonic() - start < 30
    assert child.returncode == 0, err
    assert "Traceback" not in err
    return json.loads(out), err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_of_the_command(tmp_path: Path, workers: str) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    found, err = interrupted(tmp_path, "kernels compiled", "superoptimize", "p.py:adapter", workers=workers)
    assert "mirage: interrupted; this is what was found by then" in err
    assert found["interrupted"] is True
    assert found["verified"] > 0


def test_ctrl_c_of_a_compilation(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    arguments = ("compile", "p.py:adapter", "--save", "adapter.mirage")
    found, err = interrupted(tmp_path, "kernels compiled", *arguments)
    assert "mirage: interrupted; what was found by then is used" in err
    assert found["interrupted"] is True
    executable = mi.load_executable(tmp_path / "adapter.mirage")
    x, w, v = (np.ones(s, np.float32) for s in ((3, 8), (8, 5), (5, 8)))
    assert (executable(x, w, v) == 41).all()


# Verification by workers.


def test_certificates_do_not_depend_on_who_made_them() -> None:
    verifier = Verifier(adapter.trace(), 7)
    found = generate(verifier.axis_program, {"b": 3, "n": 5})
    # a certificate that differs would be seen: the graphs are not all alike
    graphs, costs = found.graphs[:6], found.costs[:6]
    told: list[str] = []
    alone, run = verify_candidates(verifier, graphs, costs, seconds=60, executor=None, say=told.append)
    assert run.stop_reason == "complete"
    assert told[-1] == "verifying: 6 of 6, 6 passed"
    assert [c.cost for c in alone] == sorted(costs)
    with WorkerPool(2) as pool:
        # a pool that runs gets all the work
        assert pool.submit(abs, -1).result() == 1
        assert verify_candidates(verifier, graphs, costs, seconds=60, executor=pool, say=lambda _: None)[0] == alone


def test_a_worker_makes_one_verifier() -> None:
    work = Check(Verifier(rows.trace(), 3))
    first, second = (pickle.loads(pickle.dumps(work)) for _ in range(2))
    assert first is second
    assert first.verifier.program == work.verifier.program
    assert (first.verifier.seed, first.verifier.delta) == (3, work.verifier.delta)


def test_a_program_of_the_users_own_operators_stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(workers: int | None = None) -> None:
        raise AssertionError("workers do not know the operator")

    monkeypatch.setattr(api, "default_executor", refuse)
    mi.elementwise("doubled_here", lambda al, x: al.add(x, x))
    r = mi.superoptimize(
        mi.trace(lambda x: mi.apply("doubled_here", x), x=mi.tensor("m", 4)), sizes={"m": 3}, budget=1, cache=False
    )
    assert r.candidates > 0
    with pytest.raises(AssertionError, match="workers"):
        mi.superoptimize(rows, budget=1, cache=False)


# Progress.


def test_steps_are_lines() -> None:
    assert Step("searching") == "searching"
    assert Step("searching", "5 graphs", 2, 7) == "searching: 2 of 7, 5 graphs"
    assert Step("tuning", "3 kernels compiled") == "tuning: 3 kernels compiled"
    step = Step("verifying", "", 1, 4)
    assert (step, step.phase, step.done, step.total) == ("verifying: 1 of 4", "verifying", 1, 4)


def test_bars_on_a_terminal_and_nothing_elsewhere() -> None:
    terminal = Console(force_terminal=True, width=120, record=True, file=io.StringIO())
    with bars(terminal) as say:
        say(Step("searching", "12 prefixes, [bold]", 2, 7))
        say(Step("verifying", "", 1, 4))
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


def test_an_interrupted_compilation_searches_no_more(store: ResultStore, tmp_path: Path) -> None:
    say = Interrupter("verifying: 3 of")
    executable = mi.compile(two_parts, adapter.specs, budget=10 * BUDGET, cache=store, progress=say)
    text = executable.explain()
    assert "; interrupted" in text and "fused without a search, as the compilation was interrupted" in text
    assert executable.interrupted and executable.to_json()["interrupted"]
    executable.save(tmp_path / "two.mirage")
    assert mi.load_executable(tmp_path / "two.mirage").interrupted
    assert not any("verifying" in line for line in say.told[say.told.index(_second(say.told)) :])
    assert store.list() == []
    check_two_parts(executable)


def _second(told: list[str]) -> str:
    """The line that begins the second subprogram."""
    return next(line for line in told if line.startswith("subprograms: 1 of 2"))


def test_subprograms_found_before_an_interrupt_are_kept(store: ResultStore) -> None:
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
