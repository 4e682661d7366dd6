"""Trees of texts that several threads parse at once."""

from __future__ import annotations

import ast
import gc
import os
import time
from collections.abc import Iterator

import pytest

from mirage.ir.trees import expression, statements
from tests.kernels.kernels import in_threads

#: as deep as programs are
TEXT = "f(a, b, (c[0], d[n, 2 * m])) + g(h(i(j(k(1), 2), 3), 4), 5)"


class Cycle:
    """What the collector of garbage ends, with a turn for other threads, also in the middle of a tree."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.fixture
def garbage() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(20)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("garbage")
def test_threads_parse_at_once() -> None:
    wanted = ast.dump(ast.parse(TEXT, mode="eval").body)
    block = "\n".join([f"x = {TEXT}"] * 40)

    def parse(seed: int) -> None:
        for _ in range(15):
            cycles = [Cycle() for _ in range(50)]
            del cycles
            made = statements(block)
            assert len(made) == 40 and isinstance(made[-1], ast.Assign)
            assert ast.dump(expression(TEXT)) == wanted

    in_threads(parse, 8)


@pytest.mark.parametrize("text", ["f(", "x = = 1", "(" * 300 + ")" * 300])
def test_what_is_no_tree_is_no_lock_either(text: str) -> None:
    for _ in range(2):
        with pytest.raises((SyntaxError, MemoryError, RecursionError)):
            expression(text)
    assert isinstance(expression("1"), ast.Constant)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
def test_a_forked_process_parses() -> None:
    from mirage.ir import trees

    with trees._lock:
        child = os.fork()
        if not child:
            os._exit(0 if isinstance(expression("1"), ast.Constant) else 1)
    assert os.waitpid(child, 0)[1] == 0
