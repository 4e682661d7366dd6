"""Drawings of programs as flow charts: steps from top to bottom, arrows along the values, functions side by side."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

from mirage.drawing.layout import Box, layered
from mirage.drawing.pieces import COLORS, MUTED, PAD, SMALL, TEXT, Picture, box, document, label, path, rect, text_width

#: a value: the step that makes it, or the fields of a tuple
Value = int | tuple["Value", ...]

#: characters per line and lines of a box's text
_COLUMNS, _LINES = 38, 4
#: pixels between rows, and below the head of a function
_GAP, _HEAD = 26.0, 46.0
#: what the colours say, in the order of the legend
LEGEND = {
    "input": "argument",
    "kernel": "kernel",
    "matmul": "library",
    "operator": "operator",
    "effect": "effect",
    "control": "call, branch, loop",
    "output": "result",
}


@dataclass(frozen=True)
class _Step:
    kind: str
    title: str
    lines: tuple[str, ...]


class Flow:
    """The chart of one function, made step by step. Values have names, which are any hashable objects."""

    def __init__(self, title: str, caption: str = "") -> None:
        self.title, self.caption = title, caption
        self._steps: list[_Step] = []
        self._edges: dict[tuple[int, int], None] = {}
        self._values: dict[Hashable, Value] = {}

    def step(
        self,
        kind: str,
        title: str,
        lines: Iterable[str] = (),
        reads: Iterable[Hashable] = (),
        makes: Iterable[Hashable] = (),
    ) -> None:
        """A box of a kind of `LEGEND` that reads values and makes others. Long lines are broken, and cut after a few."""
        here = len(self._steps)
        self._steps.append(_Step(kind, title, tuple(_broken(lines))))
        for name in reads:
            self._edges.update(dict.fromkeys((k, here) for k in _sources(self._values.get(name, ()))))
        self._values.update(dict.fromkeys(makes, here))

    def alias(self, name: Hashable, value: Hashable) -> None:
        """Another name of a value."""
        self._values[name] = self._values.get(value, ())

    def group(self, name: Hashable, fields: Iterable[Hashable]) -> None:
        """A tuple of values, which is no step."""
        self._values[name] = tuple(self._values.get(f, ()) for f in fields)

    def item(self, name: Hashable, value: Hashable, index: int) -> None:
        """A field of a tuple, which is no step."""
        fields = self._values.get(value, ())
        self._values[name] = fields[index] if isinstance(fields, tuple) and index < len(fields) else fields

    def result(self, name: Hashable, lines: Iterable[str] = ()) -> None:
        """The results: a box, or one per field of a tuple; `lines` are their types."""
        value = self._values.get(name, ())
        fields = value if isinstance(value, tuple) and value else (value,)
        types = list(lines)
        for k, field in enumerate(fields):
            self._values[self, k] = field
            own = types[k : k + 1] if len(types) == len(fields) else types
            self.step("output", f"result {k}" if len(fields) > 1 else "result", own, [(self, k)])

    def picture(self) -> Picture:
        """The chart, in a frame."""
        pictures: dict[Box, Picture] = {k: box(s.kind, s.title, s.lines) for k, s in enumerate(self._steps)}
        rows = self._rows()
        row_of: Mapping[Box, int] = {b: k for k, row in enumerate(rows) for b in row}
        edges: list[tuple[Box, Box]] = list(self._edges)
        if not pictures:
            return _framed(self.title, self.caption, Picture(0, 0))
        layout = layered(rows, {b: p.width for b, p in pictures.items()}, edges)
        top: list[float] = []
        bottom: list[float] = []
        y = 0.0
        for row in rows:
            top.append(y)
            bottom.append(y + max(pictures[b].height for b in row))
            y = bottom[-1] + _GAP
        parts = []
        for a, b in edges:
            xs = [layout.center[a], *layout.lanes[a, b]]
            points = [(xs[0], top[row_of[a]] + pictures[a].height)]
            for k, x in enumerate(xs):
                if k:
                    points.append((x, top[row_of[a] + k]))
                points.append((x, bottom[row_of[a] + k]))
            points.append((layout.center[b], top[row_of[b]]))
            parts.append(path(points, upright=True))
        for b, p in pictures.items():
            parts += p.at(layout.center[b] - p.width / 2, top[row_of[b]])
        return _framed(self.title, self.caption, Picture(layout.breadth, bottom[-1], parts))

    def _rows(self) -> list[list[Box]]:
        """Each step one row below the last that it reads; arguments directly above their first reader."""
        row = [0] * len(self._steps)
        given = {k for k, s in enumerate(self._steps) if s.kind == "input"}
        readers: dict[int, list[int]] = {k: [] for k in given}
        for a, b in sorted(self._edges, key=lambda e: e[1]):
            row[b] = max(row[b], row[a] + 1)
            if a in given:
                readers[a].append(b)
        for k in given:
            row[k] = min((row[b] for b in readers[k]), default=1) - 1
        rows: list[list[Box]] = [[] for _ in range(max(row, default=-1) + 1)]
        for k, at in enumerate(row):
            rows[at].append(k)
        return [r for r in rows if r]


def to_svg(title: str, flows: Sequence[Flow]) -> str:
    """Charts of functions side by side, with a legend, as an SVG document: deterministic, without external references."""
    pictures = [f.picture() for f in flows]
    parts: list[str] = []
    legend = 0.0
    for kind, text in LEGEND.items():
        fill, stroke = COLORS[kind]
        parts.append(
            f'<rect x="{legend + 4:.1f}" y="0" width="11" height="11" rx="2" fill="{fill}" stroke="{stroke}"/>'
        )
        parts.append(label(text, legend + 20, 9.5, SMALL, color=MUTED))
        legend += 34 + text_width(text, SMALL)
    x = 0.0
    for p in pictures:
        parts += p.at(x, 24)
        x += p.width + 2 * PAD
    height = 24 + max((p.height for p in pictures), default=0.0)
    return document(title, Picture(max(x - 2 * PAD, legend), height, parts))


def _framed(title: str, caption: str, body: Picture) -> Picture:
    lines = wrap(caption, max(_COLUMNS, int(body.width / (0.66 * SMALL))))
    head = _HEAD + 12 * max(len(lines) - 1, 0)
    inner = max(body.width, text_width(title, TEXT + 1), *(text_width(t, SMALL) for t in [*lines, ""]))
    width = inner + 2 * PAD
    parts = [rect("block", 0, 0, width, head + body.height + PAD, 10), label(title, PAD, 19, TEXT + 1, bold=True)]
    parts += [label(t, PAD, 34 + 12 * k, SMALL, color=MUTED) for k, t in enumerate(lines)]
    parts += body.at(PAD + (inner - body.width) / 2, head)
    return Picture(width, head + body.height + PAD, parts)


def _sources(value: Value) -> list[int]:
    return [value] if isinstance(value, int) else [k for field in value for k in _sources(field)]


def _broken(lines: Iterable[str]) -> list[str]:
    found: list[str] = []
    for text in lines:
        parts = wrap(text, _COLUMNS)
        found += parts if len(parts) <= _LINES else [*parts[: _LINES - 1], "…"]
    return found
