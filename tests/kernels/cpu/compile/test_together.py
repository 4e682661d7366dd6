"""Pieces of work that wait for compilers: one runs at a time, and those that wait let others go on."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from mirage.kernels.cpu.compile.together import together, waiting

#: seconds after which a test fails instead of waiting for ever
LONG = 60


def test_outcomes_come_in_order_errors_among_them() -> None:
    def piece(k: int) -> int:
        if k == 2:
            raise ValueError("the third")
        return k * k

    found = together([partial(piece, k) for k in range(5)], 2)
    assert [f.result() for k, f in enumerate(found) if k != 2] == [0, 1, 9, 16]
    with pytest.raises(ValueError, match="the third"):
        found[2].result()


def test_a_piece_that_waits_lets_another_one_go_on() -> None:
    done = threading.Event()

    def waits() -> bool:
        with waiting():
            return done.wait(LONG)

    def ends_it() -> bool:
        done.set()
        return True

    assert [f.result() for f in together([waits, ends_it], 2)] == [True, True]


def test_python_code_of_one_piece_runs_at_a_time() -> None:
    inside: list[int] = []
    most = []

    def piece(k: int) -> None:
        for _ in range(50):
            inside.append(k)
            most.append(len(inside))
            inside.remove(k)
            with waiting():
                pass

    for f in together([partial(piece, k) for k in range(4)], 4):
        f.result()
    assert max(most) == 1


def test_a_piece_may_have_pieces_of_its_own() -> None:
    def outer(k: int) -> int:
        return sum(f.result() for f in together([lambda: k, lambda: 10 * k], 2))

    assert [f.result() for f in together([partial(outer, k) for k in range(3)], 2)] == [0, 11, 22]


def test_outside_of_a_piece_waiting_is_nothing() -> None:
    with waiting():
        pass
