"""Work in steps: generators that yield None between steps, so that whoever runs them may stop there, and return a result."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]


def for_seconds(seconds: float, steps: Iterator[T]) -> Iterator[T]:
    """The steps that begin before the work on them has taken so many seconds; the others are left."""
    spent = 0.0
    while spent < seconds:
        start = time.perf_counter()
        try:
            step = next(steps)
        except StopIteration:
            return
        spent += time.perf_counter() - start
        yield step


def finish(steps: Steps[T]) -> T:
    """All steps, one after the other; the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
