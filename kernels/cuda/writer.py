"""Indented Python text, and safe comments in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Writer:
    """Lines of Python with the current indentation."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def comment(self, text: str) -> None:
        self.line(f"# {comment_text(text)}".rstrip())

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(f"{head}:")
        self.depth += 1
        yield
        self.depth -= 1


def words(lines: Sequence[str]) -> Counter[str]:
    """How often each identifier occurs in code, comments left out."""
    return Counter(re.findall(r"\w+", "\n".join(x.split("#")[0] for x in lines)))


def without_unused(lines: Sequence[str]) -> list[str]:
    """The lines of a function without assignments of names that nothing reads."""
    while True:
        count = words(lines)
        assigned = [re.match(r" *(\w+) = ", x) for x in lines]
        kept = [x for x, m in zip(lines, assigned, strict=True) if m is None or count[m[1]] > 1]
        if len(kept) == len(lines):
            return kept
        lines = kept


def comment_text(text: str) -> str:
    """Text that cannot end a comment: printable ASCII."""
    return "".join(c if " " <= c <= "~" else "." for c in text)
