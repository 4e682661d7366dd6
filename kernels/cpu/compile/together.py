"""Work that waits for compilers, several pieces at a time.

Python code of one piece runs at a time, so that pieces may share what is not made for threads, such as solvers and caches;
while a piece waits for a compiler, another one goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")


class _Turn(threading.local):
    """The lock that this thread holds while it runs, if it does a piece of work."""

    lock: threading.Lock | None = None


_turn = _Turn()


def together(pieces: Sequence[Callable[[], T]], threads: int) -> list[Future[T]]:
    """The outcomes of pieces of work, all done, in order; at most `threads` are begun and not done."""
    lock = threading.Lock()

    def run(piece: Callable[[], T]) -> T:
        with lock:
            _turn.lock = lock
            try:
                return piece()
            finally:
                _turn.lock = None

    pool = ThreadPoolExecutor(threads)
    try:
        futures = [pool.submit(run, p) for p in pieces]
        # the caller may be a piece itself
        with waiting():
            wait(futures)
    finally:
        # an interrupt leaves what has not begun
        pool.shutdown(wait=False, cancel_futures=True)
    return futures


@contextmanager
def waiting() -> Iterator[None]:
    """Within, this thread only waits: another piece of work may go on."""
    lock = _turn.lock
    if lock is None:
        yield
        return
    lock.release()
    try:
        yield
    finally:
        lock.acquire()
