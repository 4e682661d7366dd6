"""Loops that run as launches within straight lines, beside the same loops by the interpreter."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from mirage.compilation import compile as compile_program
from mirage.errors import InputError
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.kernels.cpu.launch.rounds import SHARED, LaunchedLoop, LaunchedRounds
from mirage.runtime import ready
from mirage.runtime.executable import Executable
from tests.kernels.kernels import in_threads

#: two layers of a cell, the second backwards from its last row, between products
LAYERS = """
def main(x: float32[5, b, 4], h: float32[b, 4], w: float32[4, 4], o: float32[5, b, 4]):
    with dataflow():
        a = matmul(x, w)
        z = full(shape=(5, b, 4), value=0, dtype="float32")
        y = full(shape=(5, b, 4), value=1, dtype="float32")
    r = loop[body]((h, z), (a, w), count=5)
    with dataflow():
        k = item[0](r)
        s = item[1](r)
        c = matmul(s, w)
    q = loop[back]((k, y), (c, w, int64[()](4)), count=5)
    with dataflow():
        l = item[0](q)
        m = item[1](q)
        f = matmul(m, w)
        g = (f, l, k)
    return g

def body(i: int64[()], h: float32[b, 4], o: float32[5, b, 4], x: float32[5, b, 4], w: float32[4, 4]):
    with dataflow():
        a = take(x, i, axis=0)
        p = matmul(h, w)
        s = add(a, p)
        y = tanh(s)
    e = packed["scatter_", float32[5, b, 4], in_place[0]](o, i, y, axis=0)
    with dataflow():
        r = (y, o)
    return r

def back(i: int64[()], h: float32[b, 4], o: float32[5, b, 4], x: float32[5, b, 4], w: float32[4, 4], end: int64[()]):
    with dataflow():
        j = sub(end, i)
        a = take(x, j, axis=0)
        p = matmul(h, w)
        s = add(a, p)
        y = tanh(s)
    e = packed["scatter_", float32[5, b, 4], in_place[0]](o, j, y, axis=0)
    with dataflow():
        r = (y, o)
    return r
"""

#: what a loop leaves that it does not make in the last round: `{result}`
ONE = """
def main(a: float32[n], b: float32[n], c: float32[n]):
    r = loop[body]((a, b), (c,), count=3)
    with dataflow():
        p = item[0](r)
        q = item[1](r)
        s = add(p, q)
        t = (s, p, q)
    return t

def body(i: int64[()], a: float32[n], b: float32[n], c: float32[n]):
    with dataflow():
        p = sin(a)
        q = add(b, p)
        r = {result}
    return r
"""

#: rows by numbers that only a round knows
LOOK_UP = """
def main(a: float32[3], x: float32[k, 3], at: int64[t]):
    r = loop[body]((a,), (x, at), count=t)
    return r

def body(i: int64[()], a: float32[3], x: float32[k, 3], at: int64[t]):
    with dataflow():
        j = take(at, i, axis=0)
        y = take(x, j, axis=0)
        r = add(a, y)
    return r
"""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds of the loops that are made launches, in order."""
    found: list[int] = []
    launch = LaunchedLoop.launch

    def noted(self: LaunchedLoop, count: int, *args: Any) -> Any:
        found.append(count)
        return launch(self, count, *args)

    monkeypatch.setattr(LaunchedLoop, "launch", noted)
    return found


def compiled(text: str) -> Executable:
    found = compile_program(parse_module(text), without=("superoptimize",), cache=False)
    assert isinstance(found, Executable)
    return found


def arguments(b: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, b])
    return [rng.standard_normal(s).astype(np.float32) for s in ((5, b, 4), (b, 4), (4, 4), (5, b, 4))]


def check(text: str, run: Executable, args: list[np.ndarray]) -> tuple[np.ndarray, ...]:
    wanted = run_module(parse_module(text), [a.copy() for a in args])
    found = run(*args)
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-4)
    return tuple(found)


def test_a_program_of_loops_is_one_line(launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    run = compiled(LAYERS)
    lines: list[int] = []
    first = LaunchedRounds.run_first

    def counted(self: LaunchedRounds) -> int | None:
        lines.append(len(self._launches[0]))
        return first(self)

    monkeypatch.setattr(LaunchedRounds, "run_first", counted)
    kept = []
    for b in (1, 3, 1, 0):
        for seed in range(5):
            found = check(LAYERS, run, arguments(b, seed))
            kept.append((found, [f.copy() for f in found]))
    # from the second call of each size on; more memory for a larger one is other memory for the one before
    assert launched == [5, 5] * 3
    # three products, two tensors to begin with, and two loops
    assert lines.count(7) == 12
    # what a call gives is no other call's
    for found, copies in kept:
        for f, c in zip(found, copies, strict=True):
            np.testing.assert_array_equal(f, c)


@pytest.mark.parametrize("result", ["(p, q)", "(a, q)", "(q, b)", "(c, q)", "(q, q)"])
def test_what_a_loop_leaves(result: str, launched: list[int]) -> None:
    text = ONE.format(result=result)
    run = compiled(text)
    for n in (1, 40):
        for seed in range(4):
            rng = np.random.default_rng([n, seed])
            args = [rng.standard_normal(n).astype(np.float32) for _ in range(3)]
            given = [a.copy() for a in args]
            found = check(text, run, args)
            found[1][...] = found[2][...] = 5
            for a, g in zip(args, given, strict=True):
                np.testing.assert_array_equal(a, g)
    assert launched == [3, 3]


def test_an_error_names_the_instructions_of_both(launched: list[int]) -> None:
    run = compiled(LOOK_UP)
    a, x, at = np.zeros(3, np.float32), np.arange(12, dtype=np.float32).reshape(4, 3), np.array([3, 0, -1, 2, 1])
    for _ in range(2):
        for _ in range(3):
            np.testing.assert_array_equal(run(a, x, at), x[at].sum(0))
        with pytest.raises(InputError, match="index 4") as raised:
            run(a, x, np.array([3, 0, 4, 2, 1]))
        notes = "".join(raised.value.__notes__)
        assert "in function 'body'" in notes and "in function 'main'" in notes
    assert launched == [5, 5]


def test_positions_that_calls_give_are_looked_at_in_each(launched: list[int]) -> None:
    text = LAYERS.replace("o: float32[5, b, 4]):\n    with", "e: int64[()]):\n    with").replace("int64[()](4)", "e")
    run = compiled(text)
    for end in (4, 4, 4):
        check(text, run, [*arguments(2)[:3], np.array(end)])
    with pytest.raises(InputError, match="index 7"):
        run(*arguments(2)[:3], np.array(7))
    assert launched == [5]


def test_tensors_that_share_memory_are_left_to_the_rounds_one_by_one(launched: list[int]) -> None:
    """The loop writes to rows of what it reads under another name: a round sees what those before have written."""
    text = LAYERS.replace("(a, w), count=5", "(z, w), count=5").replace("(c, w, int64[()](4))", "(y, w, int64[()](4))")
    run = compiled(text)
    for seed in range(4):
        x, h, w, _ = arguments(3, seed)
        k, rows = h, np.zeros((5, 3, 4), np.float32)
        for i in range(5):
            rows[i] = k = np.tanh(rows[i] + k @ w)
        last, rows = k, np.ones((5, 3, 4), np.float32)
        for i in (4, 3, 2, 1, 0):
            rows[i] = last = np.tanh(rows[i] + last @ w)
        for f, wanted in zip(run(x, h, w, arguments(3)[3]), (rows @ w, last, k), strict=True):
            np.testing.assert_allclose(f, wanted, rtol=1e-4, atol=1e-4)
    assert not launched


def test_a_loop_that_does_not_begin_is_made_by_its_steps(launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    text = ONE.format(result="(p, q)")
    run = compiled(text)
    args = [np.full(4, k, np.float32) for k in (1, 2, 3)]
    for _ in range(2):
        check(text, run, args)
    declined: list[LaunchedRounds] = []

    def declining(self: LaunchedRounds) -> int:
        declined.append(self)
        self._status, self._args.failed = SHARED, 0
        return 0

    with monkeypatch.context() as patch:
        patch.setattr(LaunchedRounds, "run_first", declining)
        check(text, run, args)
    check(text, run, args)
    assert launched == [3] and declined


def test_loops_that_take_long_let_signals_have_their_turn(launched: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready, "SECONDS", 1e-9)
    run = compiled(LAYERS)
    for seed in range(4):
        check(LAYERS, run, arguments(2, seed))
    assert not launched


def test_threads_have_loops_of_their_own() -> None:
    run = compiled(LAYERS)

    def calls(k: int) -> None:
        for seed in range(5):
            check(LAYERS, run, arguments(1 + k % 2, 8 * seed + k))

    in_threads(calls, 6)


def test_memory_is_given_back_and_arguments_live_no_longer_than_calls() -> None:
    run = compiled(LAYERS)
    for _ in range(3):
        args = arguments(30)
        seen = [weakref.ref(a) for a in args]
        found = run(*args)
        del args, found
        gc.collect()
        assert [r() is None for r in seen] == [True] * 4
    # the products of a round, and the states
    assert run.idle_bytes >= 4 * 30 * 4 * 4
    run.release()
    assert run.idle_bytes == 0
    check(LAYERS, run, arguments(30))
