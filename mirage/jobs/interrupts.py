"""Ctrl-C that waits for what has to be done whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held() -> Iterator[None]:
    """Ctrl-C comes at the end of the block. Processes that are started in it leave Ctrl-C to this one from their beginning, and
    so do theirs.

    In other threads than the main one, which Ctrl-C does not reach, only the latter.
    """
    came: list[object] = []
    before = signal.getsignal(signal.SIGINT)
    mine = threading.current_thread() is threading.main_thread() and before is not None
    if mine:
        signal.signal(signal.SIGINT, lambda *about: came.append(about))
    # processes begin with the signals blocked that are blocked where they are started
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        if mine:
            signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
