"""Indented C text, and safe comments in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class Writer:
    """Lines of C with the current indentation."""

    def __init__(self, depth: int = 0) -> None:
        self.lines: list[str] = []
        self.depth = depth

    def line(self, text: str = "") -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def add(self, lines: list[str]) -> None:
        for text in lines:
            self.line(text)

    def comment(self, text: str) -> None:
        self.line(f"/* {comment_text(text)} */")

    @contextmanager
    def block(self, head: str = "") -> Iterator[None]:
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def without_unused(lines: Sequence[str]) -> list[str]:
    """The lines of a C function without declarations `const long name = ...;` of names that nothing reads."""
    while True:
        count = Counter(re.findall(r"\w+", "\n".join(lines)))
        declared = [re.match(r" *const long (\w+) = .*;$", x) for x in lines]
        kept = [x for x, m in zip(lines, declared, strict=True) if m is None or count[m[1]] > 1]
        if len(kept) == len(lines):
            return kept
        lines = kept


def comment_text(text: str) -> str:
    """Text that cannot end a comment: printable ASCII, without backslash, ? (trigraphs) and comment marks."""
    safe = "".join(c if " " <= c <= "~" and c not in "\\?" else "." for c in text)
    return safe.replace("*/", "* /").replace("/*", "/ *")
