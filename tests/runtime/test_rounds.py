"""Loops all of whose rounds run in C, beside the same loops round by round."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from mirage.compilation import compile as compile_program
from mirage.errors import InputError, MirageError
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.runtime.executable import Executable
from tests.kernels.kernels import in_threads

#: a cell with a gate, over rows of any number; the weight is an argument
CELL = """
def main(x: float32[t, b, 6], h: float32[b, 3], w: float32[3, 6], o: float32[t, b, 3]):
    r = loop[body]((h, o), (x, w), count=t)
    return r

def body(i: int64[()], h: float32[b, 3], o: float32[t, b, 3], x: float32[t, b, 6], w: float32[3, 6]):
    with dataflow():
        a = take(x, i, axis=0)
        p = matmul(h, w)
        s = add(a, p)
        g = slice(s, axes=(1,), starts=(0,), stops=(3,), steps=(1,))
        u = slice(s, axes=(1,), starts=(3,), stops=(6,), steps=(1,))
        m = sigmoid(g)
        v = tanh(u)
        n = mul(m, v)
        y = add(n, h)
    e = packed["scatter_", float32[t, b, 3], in_place[0]](o, i, y, axis=0)
    with dataflow():
        r = (y, o)
    return r
"""

BODY = """
def main({parameters}):
    r = loop[body]({args}, count={count})
    return r

def body({body}):
    {lines}
    return r
"""
STATES = "a: float32[n], b: float32[n]"
#: name -> the body's lines, and whether all rounds run in C
FORMS: dict[str, tuple[str, bool]] = {
    "each in its place": ("with dataflow():\n        p = sin(a)\n        q = add(b, p)\n        r = (p, q)", True),
    "the same twice": ("with dataflow():\n        p = sin(a)\n        q = add(p, b)\n        r = (q, q)", True),
    "one stays": ("with dataflow():\n        q = cos(b)\n        s = add(a, q)\n        r = (a, s)", True),
    "what all rounds read": ("with dataflow():\n        q = cos(b)\n        s = add(a, q)\n        r = (c, s)", True),
    "an array of the program": (
        "with dataflow():\n        q = cos(b)\n        s = add(a, q)\n        r = (s, float32[2](1.0, 2.0))", True,
    ),
    "exchanged": ("with dataflow():\n        p = sin(a)\n        r = (b, p)", False),
    "an operator of NumPy": ("with dataflow():\n        p = cummax(a, axis=0)\n        q = add(b, p)\n        r = (p, q)", False),
}  # fmt: skip


def compiled(text: str, **options: Any) -> Executable:
    found = compile_program(parse_module(text), without=("superoptimize",), cache=False, **options)
    assert isinstance(found, Executable)
    return found


def cell_arguments(t: int, b: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, t, b])
    x, h, w = (rng.standard_normal(s).astype(np.float32) for s in ((t, b, 6), (b, 3), (3, 6)))
    return [x, h, w, np.full((t, b, 3), 7, np.float32)]


def cell(x: np.ndarray, h: np.ndarray, w: np.ndarray, o: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """In float64."""
    state, rows = h.astype(np.float64), o.astype(np.float64)
    for k, a in enumerate(x.astype(np.float64)):
        g, u = np.split(a + state @ w, 2, axis=1)
        rows[k] = state = np.tanh(u) / (1 + np.exp(-g)) + state
    return state, rows


def check_cell(run: Executable, t: int, b: int, seed: int = 0) -> None:
    args = cell_arguments(t, b, seed)
    wanted = cell(*args)
    found = run(*args)
    for f, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-4, atol=1e-5)
    # what is updated in place is the argument's own memory
    assert found[1] is args[3] or np.array_equal(args[3], found[1])


def test_all_sizes(rounds_in_c: list[int]) -> None:
    run = compiled(CELL)
    for t in (0, 1, 2, 3, 7, 200):
        for b in (1, 2, 13, 0):
            rounds_in_c.clear()
            check_cell(run, t, b)
            check_cell(run, t, b, seed=1)
            assert rounds_in_c == ([t, t] if t > 1 and b else []), (t, b)


def test_results_stay_what_they_are() -> None:
    run = compiled(CELL)
    args = cell_arguments(4, 2)
    first, _ = run(*args)
    before = first.copy()
    again = cell_arguments(4, 2, seed=3)
    second, _ = run(*again)
    assert np.array_equal(first, before) and not np.array_equal(second, before)


def test_other_weights_and_states_of_equal_sizes() -> None:
    run = compiled(CELL, constants=("w",))
    for seed in range(3):
        check_cell(run, 5, 3, seed)


def test_threads_have_rounds_of_their_own(rounds_in_c: list[int]) -> None:
    run = compiled(CELL)
    in_threads(lambda k: check_cell(run, 40, 1 + k % 2, seed=k), 8)
    assert set(rounds_in_c) == {40}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("count", [1, 2, 5, 6])
def test_forms_of_bodies(name: str, count: int, rounds_in_c: list[int]) -> None:
    lines, in_c = FORMS[name]
    text = BODY.format(
        parameters=f"{STATES}, c: float32[n]".replace("[n]", "[2]"), args="(a, b), (c,)", count=count,
        body=f"i: int64[()], {STATES}, c: float32[n]".replace("[n]", "[2]"), lines=lines,
    )  # fmt: skip
    rng = np.random.default_rng(count)
    args = [rng.standard_normal(2).astype(np.float32) for _ in range(3)]
    wanted = run_module(parse_module(text), [a.copy() for a in args])
    run = compiled(text)
    for _ in range(2):
        for f, w in zip(run(*args), wanted, strict=True):
            np.testing.assert_allclose(f, w, rtol=1e-5, atol=1e-6)
    assert rounds_in_c == ([count] * 2 if in_c and count > 1 else [])


LOOK_UP = BODY.format(
    parameters="a: float32[3], x: float32[k, 3], at: int64[t]", args="(a,), (x, at)", count="t",
    body="i: int64[()], a: float32[3], x: float32[k, 3], at: int64[t]",
    lines="with dataflow():\n        j = take(at, i, axis=0)\n        y = take(x, j, axis=0)\n        r = add(a, y)",
)  # fmt: skip


def test_an_index_that_is_out_of_range_is_named(rounds_in_c: list[int]) -> None:
    run = compiled(LOOK_UP)
    a, x = np.zeros(3, np.float32), np.arange(12, dtype=np.float32).reshape(4, 3)
    at = np.array([3, 0, -1, 2, 1])
    np.testing.assert_array_equal(run(a, x, at), x[at].sum(0))
    with pytest.raises(InputError, match="4") as raised:
        run(a, x, np.array([3, 0, 4, 2, 1]))
    assert "in function 'body'" in "".join(raised.value.__notes__)
    np.testing.assert_array_equal(run(a, x, at[::-1].copy()), x[at].sum(0))
    assert rounds_in_c == [5, 5, 5]


SCATTERED = BODY.format(
    parameters="o: float32[k, 3], x: float32[3], at: int64[t]", args="(o,), (x, at)", count="t",
    body="i: int64[()], o: float32[k, 3], x: float32[3], at: int64[t]",
    lines='with dataflow():\n        j = take(at, i, axis=0)\n    r = packed["scatter_", float32[k, 3], in_place[0]]'
    "(o, j, x, axis=0)",
)  # fmt: skip


def test_rows_are_written_at_any_place_there_is(rounds_in_c: list[int]) -> None:
    run = compiled(SCATTERED)
    x = np.array([1, 2, 3], np.float32)
    o = np.zeros((5, 3), np.float32)
    run(o, x, np.array([4, -4, 0]))
    np.testing.assert_array_equal(o.any(1), [True, True, False, False, True])
    with pytest.raises(MirageError, match="index 5 is outside of a dim of 5"):
        run(o, x, np.array([0, 5]))
    assert rounds_in_c == [3, 2]


def test_memory_is_given_back() -> None:
    run = compiled(CELL)
    check_cell(run, 3, 50)
    # of the product; what comes of it goes to its row at once
    assert 2 * 50 * 6 * 4 > run.idle_bytes >= 50 * 6 * 4
    run.release()
    assert run.idle_bytes == 0
    check_cell(run, 3, 50)


def test_arguments_live_no_longer_than_a_call() -> None:
    run = compiled(CELL)
    args = cell_arguments(4, 2)
    seen = [weakref.ref(a) for a in args]
    found = run(*args)
    del args, found
    gc.collect()
    assert [r() is None for r in seen] == [True] * 4


def test_memory_does_not_grow_with_the_sizes_that_were_seen() -> None:
    run = compiled(CELL)
    for b in range(1, 60):
        check_cell(run, 2, b)
    # of all sizes, these would be 127440 bytes
    assert run.idle_bytes <= 16 * 2 * 59 * (3 + 6) * 4


def test_a_saved_program_does_the_same(tmp_path: Any, rounds_in_c: list[int]) -> None:
    import mirage as mi

    compiled(CELL).save(tmp_path / "cell.mirage")
    loaded = mi.load_executable(tmp_path / "cell.mirage")
    check_cell(loaded, 6, 2)
    assert rounds_in_c == [6]
