"""Rows that loops read and write where they are, beside the same loops with a copy of each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.compilation import compile as compile_program
from mirage.errors import InputError
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.kernels.cpu.launch.rounds import LaunchedRounds
from mirage.runtime.executable import Executable

#: a cell that goes from the row at `end` back to the first one, or as `at` says
CELL = """
def main(x: float32[t, b, 4], h: float32[b, 4], w: float32[4, 4], o: float32[t, b, 4], end: int64[()]):
    r = loop[body]((h, o), (x, w, end), count={count})
    return r

def body(i: int64[()], h: float32[b, 4], o: float32[t, b, 4], x: float32[t, b, 4], w: float32[4, 4], end: int64[()]):
    with dataflow():
        j = {at}
        a = take({read}, j, axis=0)
        p = matmul({row}, w)
        s = add({state}, p)
        y = tanh(s)
    e = packed["scatter_", float32[t, b, 4], in_place[0]](o, {to}, y, axis=0)
    with dataflow():
        r = (y, o)
    return r
"""
BACK = {"count": "t", "at": "sub(end, i)", "read": "x", "to": "j", "row": "a", "state": "h"}
#: where a kernel reads the row among others
FUSED = {"row": "h", "state": "a"}


def arrays(t: int, b: int, end: int) -> list[np.ndarray]:
    rng = np.random.default_rng([t, b])
    shapes = (t, b, 4), (b, 4), (4, 4), (t, b, 4)
    return [*(rng.standard_normal(s).astype(np.float32) for s in shapes), np.array(end)]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each loop that is prepared, the launches of a round."""
    found: list[int] = []
    made = LaunchedRounds.__init__

    def init(self: LaunchedRounds, launches: Any, index: np.ndarray, tensors: int) -> None:
        found.append(len(launches[0]))
        made(self, launches, index, tensors)

    monkeypatch.setattr(LaunchedRounds, "__init__", init)
    return found


def compiled(**parts: str) -> tuple[Executable, Any]:
    module = parse_module(CELL.format(**BACK | parts))
    found = compile_program(module, without=("superoptimize",), cache=False)
    assert isinstance(found, Executable)
    return found, module


def check(run: Executable, module: Any, args: list[np.ndarray]) -> None:
    wanted = run_module(module, [a.copy() for a in args])
    for f, w in zip(run(*args), wanted, strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("parts", "end"),
    [
        ({}, lambda t: t - 1),
        ({"at": "add(end, i)", "to": "j"}, lambda t: 0),
        ({"at": "sub(i, end)"}, lambda t: 0),
        ({"to": "i"}, lambda t: t - 1),
        ({"count": "3"}, lambda t: t - 1),
        (FUSED, lambda t: t - 1),
    ],
)
def test_rows_at_sums_and_differences_of_the_index(
    parts: dict[str, str], end: Any, launches: list[int], rounds_in_c: list[int]
) -> None:
    run, module = compiled(**parts)
    for t in (3, 4, 9):
        for b in (1, 5):
            for _ in range(2):
                check(run, module, arrays(t, b, end(t)))
    # the product of a row, and what comes of it, in its row
    assert set(launches) == {2}
    assert len(rounds_in_c) == 12


@pytest.mark.parametrize("parts", [{}, FUSED])
def test_a_row_that_there_is_not_is_named(parts: dict[str, str]) -> None:
    """By the operators, round by round: negative positions count from the end."""
    run, module = compiled(**parts)
    check(run, module, arrays(5, 2, 2))
    with pytest.raises(InputError, match="index 7 is out"):
        run(*arrays(5, 2, 7))
    check(run, module, arrays(5, 2, 4))


def test_another_end_of_the_same_tensors() -> None:
    run, module = compiled(count="2")
    args = arrays(6, 2, 5)
    for end in (5, 1, 3):
        args[4][...] = end
        check(run, module, args)


def test_rows_of_a_tensor_that_is_written_are_read_in_time(launches: list[int]) -> None:
    run, module = compiled(read="o", at="sub(i, end)")
    check(run, module, arrays(6, 3, 1))
    # the copies of a row stay
    assert set(launches) <= {4}


@pytest.mark.parametrize("end", ["sub(i, end)", "add(end, i)"])
def test_a_tensor_that_is_read_and_written_under_two_names(end: str, rounds_in_c: list[int]) -> None:
    """A round writes row i, and reads one that an earlier round has written, or one that no round has yet."""
    text = CELL.format(**BACK | {"at": end, "to": "i", "count": "5"}).replace("(x, w, end)", "(o, w, end)")
    module = parse_module(text)
    run = compile_program(module, without=("superoptimize",), cache=False)
    assert isinstance(run, Executable)
    x, h, w, o, _ = arrays(6, 3, 1)
    state, rows = h, o.copy()
    for k in range(5):
        rows[k] = state = np.tanh(state + rows[k + 1 if "add" in end else k - 1] @ w)
    np.testing.assert_allclose(run(x, h, w, o, np.array(1))[1], rows, rtol=1e-5, atol=1e-6)
    assert not rounds_in_c


def test_a_state_that_a_round_writes_over_is_no_row() -> None:
    """What the round before has made is in no row then: it would be written over, too."""
    text = CELL.format(**BACK).replace(
        """    with dataflow():
        j =""",
        """    with dataflow():
        q = sin(h)
    z = packed["copy_", float32[b, 4], in_place[0]](h, q)
    with dataflow():
        j =""",
    )
    module = parse_module(text)
    run = compile_program(module, without=("superoptimize",), cache=False)
    assert isinstance(run, Executable) and "copy_" in text
    check(run, module, arrays(5, 2, 4))


def test_an_end_that_rounds_write_over() -> None:
    text = CELL.format(**BACK | {"count": "3"}).replace(
        """    e = packed["scatter_\"""",
        """    z = packed["copy_", int64[()], in_place[0]](end, i)
    e = packed["scatter_\"""",
    )
    module = parse_module(text)
    run = compile_program(module, without=("superoptimize",), cache=False)
    assert isinstance(run, Executable) and "copy_" in text
    check(run, module, arrays(9, 2, 4))


def test_the_last_state_is_no_view_of_the_rows() -> None:
    run, _ = compiled()
    state, rows = run(*arrays(4, 2, 3))
    assert not np.shares_memory(state, rows)
    np.testing.assert_array_equal(state, rows[0])


def test_a_row_that_is_handed_on_is_copied(rounds_in_c: list[int]) -> None:
    text = CELL.format(**BACK).replace("r = (y, o)", "r = (a, o)")
    module = parse_module(text)
    run = compile_program(module, without=("superoptimize",), cache=False)
    assert isinstance(run, Executable)
    check(run, module, arrays(5, 2, 4))
    assert rounds_in_c == [5]
