"""Indented C text, and safe comments in it."""

from __future__ import annotations

from collections.abc import Iterator
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


def comment_text(text: str) -> str:
    """Text that cannot end a comment: printable ASCII, without backslash, ? (trigraphs) and comment marks."""
    safe = "".join(c if " " <= c <= "~" and c not in "\\?" else "." for c in text)
    return safe.replace("*/", "* /").replace("/*", "/ *")
