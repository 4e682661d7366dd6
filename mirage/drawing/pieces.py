"""Pieces of drawings: boxes, labels and arrows as SVG, without external references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

_FONT = "DejaVu Sans, Verdana, Helvetica, Arial, sans-serif"
#: sizes of text and the space around it, in pixels
TEXT, SMALL, PAD = 12.0, 9.5, 12.0
INK, MUTED, EDGE = "#1f2a3d", "#5b6880", "#66738c"
#: fill and stroke by kind of box
COLORS = {
    "card": ("#fcfdff", "#ccd4e0"),
    "block": ("#f2f5fb", "#6b84b5"),
    "thread": ("#eef7f0", "#6da47c"),
    "band": ("#e2ebfa", "#9db3dc"),
    "input": ("#fff3d6", "#c79a3b"),
    "output": ("#ece6fb", "#8a74c9"),
    "accumulator": ("#ffe1d8", "#c9694f"),
    "matmul": ("#d6e4ff", "#4f74b8"),
    "operator": ("#ffffff", "#7b879c"),
    "kernel": ("#dff2e3", "#5f9a70"),
    "effect": ("#ffe1d8", "#c9694f"),
    "control": ("#fdf6ff", "#a06ab4"),
}


@dataclass
class Picture:
    """Something drawn with its top left corner at (0, 0): `parts` take that corner's position."""

    width: float
    height: float
    parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> list[str]:
        return [f'<g transform="translate({x:.1f} {y:.1f})">', *self.parts, "</g>"]


def text_width(text: str, size: float) -> float:
    """Upper estimate of the text's width in pixels, after the widest of the fonts."""
    narrow, wide = set("ijlI.,:;|!'()[] tfr"), set("mwMW@%")
    return size * sum(0.40 if c in narrow else 0.98 if c in wide else 0.66 for c in text)


def safe(text: str) -> str:
    """Text for XML, which has no control characters."""
    return escape(printable(text))


def printable(text: str) -> str:
    """Text without characters that have no picture, such as those that turn the direction of what follows."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def label(text: str, x: float, y: float, size: float, bold: bool = False, color: str = INK, anchor: str = "") -> str:
    more = (' font-weight="bold"' if bold else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{color}"{more}>{safe(text)}</text>'


def rect(kind: str, x: float, y: float, width: float, height: float, radius: float, dashed: bool = False) -> str:
    fill, stroke = COLORS[kind]
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}" '
        f'fill="{fill}" stroke="{stroke}"{dash}/>'
    )


def box(kind: str, title: str, lines: Sequence[str] = ()) -> Picture:
    """A small box: a title and lines of smaller text."""
    width = max([text_width(title, TEXT), *(text_width(t, SMALL) for t in lines)]) + 18
    height = 24 + 12 * len(lines)
    parts = [rect(kind, 0, 0, width, height, 5), label(title, width / 2, 16, TEXT, anchor="middle")]
    for k, text in enumerate(lines):
        parts.append(label(text, width / 2, 29 + 12 * k, SMALL, color=MUTED, anchor="middle"))
    return Picture(width, height, parts)


def captioned(picture: Picture, caption: str) -> Picture:
    """The picture with a line of small text under it."""
    width = max(picture.width, text_width(caption, SMALL))
    x = (width - picture.width) / 2
    text = label(caption, width / 2, picture.height + 12, SMALL, color=MUTED, anchor="middle")
    return Picture(width, picture.height + 16, [*picture.at(x, 0), text])


def path(points: Sequence[tuple[float, float]], upright: bool) -> str:
    """A smooth line through points, alternately straight (through a row) and curved (to the next)."""
    (x, y), *rest = points
    text = f"M{x:.1f} {y:.1f}"
    for k, (u, v) in enumerate(rest):
        if k % 2 == 0:
            text += f"L{u:.1f} {v:.1f}"
        elif upright:
            text += f"C{x:.1f} {(y + v) / 2:.1f} {u:.1f} {(y + v) / 2:.1f} {u:.1f} {v:.1f}"
        else:
            text += f"C{(x + u) / 2:.1f} {y:.1f} {(x + u) / 2:.1f} {v:.1f} {u:.1f} {v:.1f}"
        x, y = u, v
    return f'<path d="{text}" fill="none" stroke="{EDGE}" stroke-width="1.2" marker-end="url(#arrow)"/>'


def document(title: str, body: Picture) -> str:
    """A picture under its title as an SVG document: deterministic, with its own background."""
    width = max(body.width, text_width(title, 15) + 8) + 2 * PAD
    height = body.height + 2 * PAD + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}" font-family="{_FONT}">',
        f"<title>{safe(title)}</title>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0.8L7.4 4L0 7.2z" fill="{EDGE}"/></marker></defs>',
        rect("card", 0.5, 0.5, width - 1, height - 1, 10),
        label(title, PAD + 4, 25, 15, bold=True),
    ]
    out += body.at(PAD, PAD + 30)
    return "\n".join([*out, "</svg>"]) + "\n"
