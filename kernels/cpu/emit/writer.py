"""Indented C text, and safe comments in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager

from mirage.kernels.writer import IndentedWriter, printable, without_unread

_DECLARATION = re.compile(r" *const long (\w+) = .*;$")


class Writer(IndentedWriter):
    """Lines of C with the current indentation."""

    def comment(self, text: str) -> None:
        self.line(f"/* {comment_text(text)} */")

    def block(self, head: str = "") -> AbstractContextManager[None]:
        return self.indented(f"{head} {{" if head else "{", "}")


def without_unused(lines: Sequence[str]) -> list[str]:
    """The lines of a C function without declarations `const long name = ...;` of names that nothing reads."""
    return without_unread(lines, _DECLARATION)


def comment_text(text: str) -> str:
    """Text that cannot end a comment: printable ASCII, without backslash, ? (trigraphs) and comment marks."""
    safe = re.sub(r"[\\?]", ".", printable(text))
    return safe.replace("*/", "* /").replace("/*", "/ *")
