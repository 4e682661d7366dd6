"""Scatter charts over logarithmic axes as SVG, with marks that a page can make explorable.

A mark is told by its shape and by its colour, which is one of Okabe and Ito's: colour-blind readers see the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mirage.drawing.pieces import MUTED, SMALL, Picture, document, label, safe, text_width
from mirage.drawing.show import Displayed, View, show

#: kinds of marks: their fill, and their outline as an SVG path around (0, 0)
KINDS = {
    "kernels": ("#0072b2", "M-4.5 0A4.5 4.5 0 1 0 4.5 0A4.5 4.5 0 1 0 -4.5 0Z"),
    "library": ("#e69f00", "M-4 -4H4V4H-4Z"),
    "runs": ("#d55e00", "M0 -9L2.4 -3.2L8.6 -2.8L3.8 1.2L5.3 7.3L0 4L-5.3 7.3L-3.8 1.2L-8.6 -2.8L-2.4 -3.2Z"),
}
#: a line's colour and dashes, by what it is
_LINES = {"front": ("#009e73", ""), "roof": ("#56606f", ""), "reference": ("#8a5a78", "6 4")}
_WIDTH, _HEIGHT = 640.0, 430.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 18.0, 34.0, 46.0
#: height of the band of what has no y
_BAND = 74.0
_GRID = "#dde3ec"
#: what lies across the chart is in it where it is no further than this from all else
_NEAR = 5.0
#: steps of an axis of few decades
_STEPS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))


@dataclass(frozen=True)
class Mark:
    """A point of a kind of `KINDS`; `number` is that of what it stands for, `text` says in words what that is. Without `y`, it
    lies on the band above the chart.
    """

    number: int
    kind: str
    x: float
    y: float | None
    text: str


@dataclass(frozen=True)
class Line:
    """A line of the kind "front" or "roof" through points, or "reference" across the chart at the height of one, with words
    beside it. A reference far from all else is left out.
    """

    kind: str
    points: tuple[tuple[float, float], ...]
    text: str


@dataclass(frozen=True)
class Chart(Displayed, drawn_by="mirage.drawing.chart"):
    """Marks and lines over two axes, all values above 0. `band` says what has no y; `legend` names the kinds of marks."""

    title: str
    x: str
    y: str
    marks: Sequence[Mark]
    lines: Sequence[Line] = ()
    band: str = ""
    legend: dict[str, str] = field(default_factory=dict)

    def picture(self) -> Picture:
        """The chart as parts of an SVG document."""
        return Picture(_WIDTH, _HEIGHT, list(_parts(self)))

    def element(self) -> str:
        """The chart as an element of a page: marks have the numbers `data-k`, and one name each."""
        head = (
            f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" class="chart" role="listbox" '
            f'aria-label="{safe(self.title)}: arrow keys move, Enter selects">'
        )
        return "".join([head, *self.picture().parts, "</svg>"])


@show.register
def _(chart: Chart) -> View:
    return View(svg=document(chart.title, chart.picture()))


@dataclass(frozen=True)
class _Scale:
    """From values to pixels, by their logarithms."""

    low: float
    high: float
    start: float
    end: float

    @staticmethod
    def of(values: Sequence[float], start: float, end: float) -> _Scale:
        low, high = min(values, default=1.0), max(values, default=10.0)
        if high < 1.5 * low:
            low, high = low / 1.3, high * 1.3
        room = (high / low) ** 0.06
        return _Scale(low / room, high * room, start, end)

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.start + (self.end - self.start) * share

    def ticks(self) -> list[float]:
        """Round values, as many as can be told apart."""
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        found: list[float] = []
        for steps in _STEPS:
            every = max((last - first) // 8, 1) if steps == (1.0,) else 1
            found = [s * 10.0**e for e in range(first, last + 1, every) for s in steps]
            found = [t for t in found if self.low <= t <= self.high]
            if len(found) >= 4:
                break
        return found


def _parts(chart: Chart) -> Iterator[str]:
    above = any(m.y is None for m in chart.marks)
    top = _TOP + (_BAND if above else 0.0)
    on = [m for m in chart.marks if m.y is not None]
    across = [line.points[0][1] for line in chart.lines if line.kind == "reference"]
    corners = [p for line in chart.lines if line.kind != "reference" for p in line.points]
    xs = [m.x for m in chart.marks] + [x for x, _ in corners]
    x = _Scale.of(xs, _LEFT, _WIDTH - _RIGHT)
    ys = [m.y for m in on if m.y is not None] + [v for _, v in corners]
    y = _Scale.of(ys + [v for v in across if not ys or min(ys) / _NEAR < v < max(ys) * _NEAR], _HEIGHT - _BOTTOM, top + 14)
    yield from _axes(chart, x, y, top)
    if above:
        size = f'width="{_WIDTH - _LEFT - _RIGHT:g}" height="{_BAND - 8:g}"'
        yield f'<rect class="band" x="{_LEFT:g}" y="{_TOP:g}" {size} fill="#eef1f6"/>'
        yield label(chart.band, _LEFT + 6, _TOP + 13, SMALL, color=MUTED)
    for line in chart.lines:
        if line.kind != "reference" or y.low < line.points[0][1] < y.high:
            yield from _line(line, x, y)
    # what runs is drawn over the others
    for m in sorted(chart.marks, key=lambda m: (m.kind == "runs", -m.number)):
        # spread by the golden ratio, so that neighbours lie apart
        height = y.at(m.y) if m.y else _TOP + 22 + (_BAND - 38) * (m.number * 0.618034 % 1)
        yield _mark(m, x.at(m.x), height)
    yield from _legend(chart)


def _axes(chart: Chart, x: _Scale, y: _Scale, top: float) -> Iterator[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    for t in x.ticks():
        yield f'<path class="grid" d="M{x.at(t):.1f} {top:g}V{bottom:g}" stroke="{_GRID}"/>'
        yield label(number(t), x.at(t), bottom + 15, SMALL, color=MUTED, anchor="middle")
    for t in y.ticks() if any(m.y is not None for m in chart.marks) or chart.lines else ():
        yield f'<path class="grid" d="M{_LEFT:g} {y.at(t):.1f}H{right:g}" stroke="{_GRID}"/>'
        yield label(number(t), _LEFT - 6, y.at(t) + 3, SMALL, color=MUTED, anchor="end")
    yield f'<path class="axis" d="M{_LEFT:g} {top:g}V{bottom:g}H{right:g}" fill="none" stroke="{MUTED}"/>'
    yield label(chart.x, (_LEFT + right) / 2, _HEIGHT - 10, 11, anchor="middle")
    middle = (top + bottom) / 2
    yield f'<g transform="translate(14 {middle:.1f}) rotate(-90)">{label(chart.y, 0, 0, 11, anchor="middle")}</g>'


def _line(line: Line, x: _Scale, y: _Scale) -> Iterator[str]:
    color, dash = _LINES[line.kind]
    if line.kind == "reference":
        height = y.at(line.points[0][1])
        points = [(x.start, height), (x.end, height)]
    else:
        points = [(x.at(u), y.at(v)) for u, v in line.points]
    path = "L".join(f"{u:.1f} {v:.1f}" for u, v in points)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    yield f'<path class="line {line.kind}" d="M{path}" fill="none" stroke="{color}" stroke-width="1.6"{dashes}/>'
    if line.text:
        # along what rises, and at the end of what does not
        (u, v), (s, t) = points[0], points[-1]
        turn = math.degrees(math.atan2(t - v, s - u))
        at = f"translate({u:.1f} {v:.1f}) rotate({turn:.1f})" if t != v else f"translate({s - 4:.1f} {t:.1f})"
        text = label(line.text, 10 if t != v else 0, -5, SMALL, color=color, anchor="start" if t != v else "end")
        yield f'<g class="name {line.kind}" transform="{at}">{text}</g>'


def _mark(m: Mark, x: float, y: float) -> str:
    fill, path = KINDS[m.kind]
    hollow = "" if m.y is not None else " hollow"
    inner, edge, width = ("#ffffff", fill, 1.6) if hollow else (fill, "#ffffff", 1)
    paint = f'fill="{inner}" stroke="{edge}" stroke-width="{width}"'
    return (
        f'<g class="mark {m.kind}{hollow}" data-k="{m.number}" role="option" aria-selected="false" tabindex="-1" '
        f'aria-label="{safe(m.text)}" transform="translate({x:.1f} {y:.1f})"><path d="{path}" {paint}/></g>'
    )


def _legend(chart: Chart) -> Iterator[str]:
    x = _LEFT
    for kind, text in chart.legend.items():
        fill, path = KINDS[kind]
        yield f'<path class="key {kind}" d="{path}" fill="{fill}" transform="translate({x + 6:.1f} 15)"/>'
        yield label(text, x + 18, 18.5, SMALL + 0.5, color=MUTED)
        x += 32 + text_width(text, SMALL + 0.5)


def number(value: float) -> str:
    """A value of an axis or of a mark, to three digits."""
    if value >= 1e6:
        return f"{value / 1e6:.3g}M"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
