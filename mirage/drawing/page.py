"""The page of a search: one file of HTML. No script, style, font or picture comes from elsewhere, and the page forbids it.

Pictures are drawn here. The script of the page only shows and hides: what a mark stands for, at the mouse, the keyboard or a row
of the table. Drawings and sources of many graphs are much alike: they lie compressed in the page, some graphs together, and are
unpacked when one of them is looked at.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from mirage.drawing.chart import Chart, Line, Mark, number
from mirage.drawing.html import folded, table
from mirage.drawing.pieces import printable, safe

#: graphs that are unpacked together
_CHUNK = 24
#: what marks stand for
_LEGEND = {"runs": "what a call runs", "kernels": "generated kernels", "library": "with library calls"}


@dataclass(frozen=True)
class Entry:
    """A graph of a search. `plans` are those of its kernels, `modelled_us` and `us` the microseconds of a call as the search
    models them and as they were measured (None where they were not), `intensity` the program's operations per byte that its
    kernels read and write (None where that is not known), `verdict` what its evidence comes to, `notes` what there is besides.
    """

    plans: str
    kernels: int
    library: bool
    runs: bool
    modelled_us: float
    us: float | None
    intensity: float | None
    verdict: str
    drawing: str
    text: str
    source: str
    notes: str

    @property
    def kind(self) -> str:
        """The kind of its marks."""
        return "runs" if self.runs else "library" if self.library else "kernels"


@dataclass(frozen=True)
class Rule:
    """What a rule of the search pruned: how often, what it means, and examples."""

    name: str
    meaning: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Roofs:
    """What the machine does at best: 10^9 operations per second, and 10^9 bytes per second by the memory that they come from; 0
    where that is not known.

    `flops` are the operations of the program. `note` says where the figures are from.
    """

    gflops: float
    gbs: Mapping[str, float]
    flops: int
    note: str


@dataclass(frozen=True)
class SearchPage:
    """What the page of a search shows. `time` is what `Entry.us` are: "measured", or by whose model. `baselines` are us of what
    competes, `report` and `counters` lines of what was done.
    """

    title: str
    verdict: str
    equal: bool
    best: str
    time: str
    entries: Sequence[Entry]
    baselines: Mapping[str, float]
    roofs: Roofs
    rules: Sequence[Rule]
    report: Sequence[tuple[str, str]]
    program: str
    program_drawing: str
    certificate: str


def costs(page: SearchPage) -> Chart:
    """The graphs by modelled and measured time, with the front: those that no other one beats in both."""
    marks = [
        Mark(k, e.kind, e.modelled_us, e.us, f"graph {k}, {e.plans}: {_times(e, page.time)}")
        for k, e in enumerate(page.entries)
    ]
    lines = [Line("reference", ((1.0, us),), f"{name}: {number(us)} us") for name, us in page.baselines.items()]
    front = _front([(e.modelled_us, e.us) for e in page.entries if e.us is not None])
    if len(front) > 1:
        lines.append(Line("front", _stairs(front), ""))
    return Chart(
        "Graphs by cost", "as the search models it (us)", f"{page.time} (us)", marks, lines, f"not {page.time}",
        {kind: text for kind, text in _LEGEND.items() if any(m.kind == kind for m in marks)},
    )  # fmt: skip


def roofline(page: SearchPage) -> Chart:
    """The measured graphs below the machine's roofs: the program's operations per second against those per byte that the kernels
    of the graph read and write (Williams et al., 2009).
    """
    roofs = page.roofs
    marks = [
        Mark(
            k, e.kind, e.intensity, roofs.flops / e.us / 1e3,
            f"graph {k}, {e.plans}: {number(roofs.flops / e.us / 1e3)} GFLOP/s at {number(e.intensity)} operations per byte",
        )
        for k, e in enumerate(page.entries)
        if e.us is not None and e.intensity and roofs.flops
    ]  # fmt: skip
    bandwidths = {name: gbs for name, gbs in roofs.gbs.items() if gbs > 0}
    ridges = {name: roofs.gflops / gbs for name, gbs in bandwidths.items() if roofs.gflops > 0}
    known = [*(m.x for m in marks), *ridges.values()] or [1.0]
    low, high = min(known) / 3, max(known) * 3
    lines = []
    for name, gbs in bandwidths.items():
        end = ridges.get(name, high)
        lines.append(Line("roof", ((low, low * gbs), (end, end * gbs)), f"{name}: {number(gbs)} GB/s"))
    if roofs.gflops > 0:
        top = ((low, roofs.gflops), (high, roofs.gflops))
        lines.append(Line("roof", top, f"arithmetic: {number(roofs.gflops)} GFLOP/s"))
    return Chart(
        "Roofline", "operations of the program per byte that kernels read and write", "10⁹ operations per second", marks,
        lines, legend={kind: text for kind, text in _LEGEND.items() if any(m.kind == kind for m in marks)},
    )  # fmt: skip


def page_html(page: SearchPage) -> str:
    """The page as the text of one file."""
    here = files(__package__)
    parts = {
        "title": safe(page.title),
        "style": here.joinpath("page.css").read_text(encoding="utf-8"),
        "script": here.joinpath("page.js").read_text(encoding="utf-8"),
        "tone": "good" if page.equal else "open",
        "verdict": safe(page.verdict),
        "best": safe(page.best),
        "facts": "".join(f"<li><b>{safe(value)}</b> {safe(what)}</li>" for what, value in _facts(page)),
        "costs": costs(page).element(),
        "roofline": roofline(page).element(),
        "roofs": safe(page.roofs.note),
        "time": safe(page.time),
        "rules": _rules(page.rules),
        "report": table(page.report, ["what", "figure"]),
        "program": page.program_drawing,
        "texts": folded("the program as text", page.program) + folded("the certificate", page.certificate),
        "data": _data(page.entries),
    }
    text = here.joinpath("page.html").read_text(encoding="utf-8")
    # each place once, and none in what was put in
    pieces = text.split("@@")
    return "".join(parts[piece] if k % 2 else piece for k, piece in enumerate(pieces))


def _facts(page: SearchPage) -> list[tuple[str, str]]:
    timed = [e.us for e in page.entries if e.us is not None]
    found = [(f"us, what a call runs ({page.time})", number(e.us)) for e in page.entries if e.runs and e.us is not None]
    found += [(f"us, {name}", number(us)) for name, us in page.baselines.items()]
    found.append(("graphs verified", f"{len(page.entries):,}"))
    found.append((page.time, f"{len(timed):,}"))
    found.append(("applications pruned", f"{sum(r.count for r in page.rules):,}"))
    return found


def _times(e: Entry, time: str) -> str:
    modelled = f"modelled {number(e.modelled_us)} us"
    return modelled if e.us is None else f"{modelled}, {time} {number(e.us)} us"


def _front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one is below and left of, from left to right."""
    found: list[tuple[float, float]] = []
    for x, y in sorted(points):
        if y < min((v for _, v in found), default=math.inf):
            found.append((x, y))
    return found


def _stairs(front: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    points = [front[0]]
    for x, y in front[1:]:
        points += [(x, points[-1][1]), (x, y)]
    return tuple(points)


def _rules(rules: Sequence[Rule]) -> str:
    """A bar per rule, as long as the logarithm of its count, with its examples behind it."""
    most = max((math.log1p(r.count) for r in rules), default=1.0)
    found = []
    for r in sorted(rules, key=lambda r: -r.count):
        share = 100 * math.log1p(r.count) / most if most else 0.0
        examples = "".join(f"<li><code>{safe(text)}</code></li>" for text in r.examples)
        inner = f"<ul>{examples}</ul>" if examples else "<p>no examples</p>"
        found.append(
            f'<details class="rule"><summary><span class="name">{safe(r.name)}</span><span class="count">{r.count:,}</span>'
            f'<span class="bar" aria-hidden="true"><span style="width:{share:.1f}%"></span></span>'
            f'<span class="meaning">{safe(r.meaning)}</span></summary>{inner}</details>'
        )
    return "".join(found) or "<p>nothing was pruned</p>"


def _data(entries: Sequence[Entry]) -> str:
    """The entries as JSON: what the table shows, and the rest in compressed chunks."""
    def lines(text: str) -> str:
        return "\n".join(map(printable, text.split("\n")))

    rows = [
        [
            printable(e.plans), e.kernels, round(e.modelled_us, 3), None if e.us is None else round(e.us, 3),
            printable(e.verdict), e.kind,
        ]
        for e in entries
    ]  # fmt: skip
    chunks = []
    for start in range(0, len(entries), _CHUNK):
        own = entries[start : start + _CHUNK]
        # drawing after drawing, as what is alike has to lie near to be compressed
        columns = [[e.drawing for e in own], *([lines(getattr(e, part)) for e in own] for part in ("text", "source", "notes"))]
        packed = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        data = packed.compress(json.dumps(columns, ensure_ascii=False).encode()) + packed.flush()
        chunks.append(base64.b64encode(data).decode("ascii"))
    text = json.dumps({"chunk": _CHUNK, "rows": rows, "chunks": chunks}, ensure_ascii=True)
    # inside of a script element, only its end tag and comments mean something
    return text.replace("<", "\\u003c")
