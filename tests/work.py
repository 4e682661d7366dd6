"""Work and time that are the same on every machine: calls of functions, and a clock that is moved by hand."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def at_most(calls: int) -> Iterator[None]:
    """Raises AssertionError at the first call in the block, of Python and built-in functions in this thread, beyond so many."""
    left = calls

    def count(_: object, event: str, __: object) -> None:
        nonlocal left
        left -= event in ("call", "c_call")
        if left < 0:
            sys.setprofile(None)
            raise AssertionError(f"more than {calls} calls")

    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(None)


class ByHand:
    """A clock that its `sleep` alone moves: stands for the module `time` where another module has imported that."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def time(self) -> float:
        return self.now

    def perf_counter(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)


class Rushing(ByHand):
    """A clock of a machine on which a second goes by whenever it is read."""

    def time(self) -> float:
        return self.perf_counter()

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now
