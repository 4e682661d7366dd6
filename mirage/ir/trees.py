"""Syntax trees of Python's own parser, made by one thread at a time: CPython 3.11 counts how deep it is in a tree for all threads
together, and raises SystemError where others change the count.
"""

from __future__ import annotations

import ast
import os
import threading

# a tree that is made may end objects whose ends make another one
_lock = threading.RLock()


def statements(text: str) -> list[ast.stmt]:
    """The statements of a text; raises what `ast.parse` raises."""
    with _lock:
        return ast.parse(text).body


def expression(text: str) -> ast.expr:
    """The expression that a text is; raises what `ast.parse` raises."""
    with _lock:
        return ast.parse(text, mode="eval").body


def _forget() -> None:
    """A process that is forked has no threads that could let go of the lock."""
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
