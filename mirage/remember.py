"""What is remembered of earlier calls: tables that never hold more than so much."""

from __future__ import annotations

import threading
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

#: held for a moment where something is new; what is known is read without it
_lock = threading.Lock()


def remember(table: dict[K, V], key: K, value: V, most: int) -> V:
    """Note the value of a key in a table of at most so many, from which the oldest go; returns it. Threads may do so at once."""
    with _lock:
        while len(table) >= most:
            # the end of an object may have dropped it by now
            table.pop(next(iter(table)), None)
        table[key] = value
    return value
