"""Indented source text of any language, and what no line of it reads left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class IndentedWriter:
    """Lines of source with the current indentation; subclasses say how their language marks comments and blocks."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def add(self, lines: Sequence[str]) -> None:
        for text in lines:
            self.line(text)

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"

    @contextmanager
    def indented(self, first: str, last: str = "") -> Iterator[None]:
        """Lines within are a level deeper, between `first` and, where there is one, `last`."""
        self.line(first)
        self.depth += 1
        yield
        self.depth -= 1
        if last:
            self.line(last)


def words(lines: Sequence[str]) -> Counter[str]:
    """How often each identifier occurs."""
    return Counter(re.findall(r"\w+", "\n".join(lines)))


def without_unread(
    lines: Sequence[str], definition: re.Pattern[str], code: Callable[[str], str] = lambda line: line
) -> list[str]:
    """The lines without definitions, whose first group is a name, that nothing reads; `code` is what of a line counts."""
    while True:
        count = words([code(x) for x in lines])
        defined = [definition.match(x) for x in lines]
        kept = [x for x, m in zip(lines, defined, strict=True) if m is None or count[m[1]] > 1]
        if len(kept) == len(lines):
            return kept
        lines = kept


def printable(text: str) -> str:
    """Text with a dot for all that is not printable ASCII."""
    return "".join(c if " " <= c <= "~" else "." for c in text)
