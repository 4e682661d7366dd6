"""Pieces of HTML for notebooks and pages: everything that is not markup of ours is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mirage.drawing.pieces import safe

#: the colours of a verdict: those of Okabe and Ito, which colour-blind readers tell apart; the word says the same
_TONES = {"good": "#009e73", "bad": "#d55e00", "open": "#767676"}


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = (), numbers: Iterable[int] = ()) -> str:
    """A table of these rows under a line of column names; columns of these `numbers` are aligned at the right."""
    right = set(numbers)

    def line(tag: str, cells: Sequence[object]) -> str:
        style = ["right" if k in right else "left" for k in range(len(cells))]
        cell = (f'<{tag} style="text-align:{s}">{safe(str(c))}</{tag}>' for s, c in zip(style, cells, strict=True))
        return f"<tr>{''.join(cell)}</tr>"

    top = f"<thead>{line('th', head)}</thead>" if head else ""
    return f"<table>{top}<tbody>{''.join(line('td', r) for r in rows)}</tbody></table>"


def heading(text: str, badge: str = "", tone: str = "open") -> str:
    """A line that says what is shown, with a word such as a verdict in a frame, in the colour of a tone."""
    mark = ""
    if badge:
        color = _TONES[tone]
        mark = f' <span style="border:2px solid {color};border-radius:6px;padding:0 6px">{safe(badge)}</span>'
    return f"<p><strong>{safe(text)}</strong>{mark}</p>"


def folded(title: str, text: str) -> str:
    """Text as it is, behind its title until it is opened."""
    lines = "\n".join(safe(line) for line in text.splitlines())
    return f"<details><summary>{safe(title)}</summary><pre>{lines}</pre></details>"
