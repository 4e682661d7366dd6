"""Indented Python text, and safe comments in it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager

from mirage.kernels import writer
from mirage.kernels.writer import IndentedWriter, without_unread
from mirage.kernels.writer import printable as comment_text

__all__ = ["Writer", "comment_text", "without_unused", "words"]

_ASSIGNMENT = re.compile(r" *(\w+) = ")


class Writer(IndentedWriter):
    """Lines of Python with the current indentation."""

    def comment(self, text: str) -> None:
        self.line(f"# {comment_text(text)}".rstrip())

    def block(self, head: str) -> AbstractContextManager[None]:
        return self.indented(f"{head}:")


def words(lines: Sequence[str]) -> Counter[str]:
    """How often each identifier occurs in code, comments left out."""
    return writer.words([_code(x) for x in lines])


def without_unused(lines: Sequence[str]) -> list[str]:
    """The lines of a function without assignments of names that nothing reads."""
    return without_unread(lines, _ASSIGNMENT, _code)


def _code(line: str) -> str:
    return line.split("#")[0]
