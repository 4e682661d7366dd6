"""Drawings: well-formed, complete, without overlaps or cut-off text."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mirage.drawing.pieces import text_width
from mirage.mugraph.draw import to_svg
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.text import operator_text
from mirage.mugraph.thread import construct_threads, thread_groups
from tests.mugraph.graphs import CASES, flash_attention, flash_decoding, library

SVG = "{http://www.w3.org/2000/svg}"
Rect = tuple[float, float, float, float]


def with_threads(graph: MuGraph) -> MuGraph:
    nodes = [
        replace(n, graph=construct_threads(n.graph, thread_groups(n.graph)))
        if n.graph is not None and not any(m.graph for m in n.graph.nodes)
        else n
        for n in graph.kernel.nodes
    ]
    return replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes)))


GRAPHS = {name: f().graph for name, f in CASES.items()} | {
    f"{name} with threads": with_threads(f().graph) for name, f in CASES.items()
}


def walk(
    element: ElementTree.Element, x: float = 0, y: float = 0
) -> Iterator[tuple[ElementTree.Element, float, float]]:
    """Every element with the position of its group."""
    for child in element:
        found = re.fullmatch(r"translate\((\S+) (\S+)\)", child.get("transform", ""))
        dx, dy = (float(found[1]), float(found[2])) if found else (0.0, 0.0)
        yield child, x + dx, y + dy
        yield from walk(child, x + dx, y + dy)


def rects(svg: ElementTree.Element) -> list[Rect]:
    found = []
    for e, x, y in walk(svg):
        if e.tag == SVG + "rect":
            left, top = x + float(e.attrib["x"]), y + float(e.attrib["y"])
            found.append((left, top, left + float(e.attrib["width"]), top + float(e.attrib["height"])))
    return found


def texts(svg: ElementTree.Element) -> list[str]:
    return [e.text or "" for e, _, _ in walk(svg) if e.tag == SVG + "text"]


def inside(a: Rect, b: Rect) -> bool:
    return a[0] >= b[0] - 0.2 and a[1] >= b[1] - 0.2 and a[2] <= b[2] + 0.2 and a[3] <= b[3] + 0.2


def apart(a: Rect, b: Rect) -> bool:
    return a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@pytest.mark.parametrize("name", GRAPHS)
def test_boxes_are_nested_or_apart(name: str) -> None:
    svg = ElementTree.fromstring(to_svg(GRAPHS[name]))
    for a, b in combinations(rects(svg), 2):
        assert inside(a, b) or inside(b, a) or apart(a, b), (a, b)


@pytest.mark.parametrize("name", GRAPHS)
def test_text_lies_within_the_drawing_and_apart_from_other_text(name: str) -> None:
    svg = ElementTree.fromstring(to_svg(GRAPHS[name]))
    width, height = (float(v) for v in svg.attrib["viewBox"].split()[2:])
    placed: list[Rect] = []
    for e, x, y in walk(svg):
        if e.tag != SVG + "text":
            continue
        size = float(e.attrib["font-size"])
        # the estimate is an upper one; four fifths of it are certainly covered
        w = text_width(e.text or "", size) * 0.8
        left = x + float(e.attrib["x"]) - (w / 2 if e.get("text-anchor") == "middle" else 0)
        base = y + float(e.attrib["y"])
        placed.append((left, base - 0.7 * size, left + w, base))
    for t in placed:
        assert inside(t, (0, 0, width, height))
    for a, b in combinations(placed, 2):
        assert apart(a, b), (a, b)


@pytest.mark.parametrize("name", CASES)
def test_everything_is_shown(name: str) -> None:
    graph = GRAPHS[name]
    found = texts(ElementTree.fromstring(to_svg(graph)))
    for n in graph.kernel.nodes:
        operators = [n] if n.graph is None else n.graph.nodes
        for m in operators:
            if m.op not in ("input", "constant", "graph"):
                assert operator_text(m) in found
        if n.graph is not None:
            grid = " · ".join(n.graph.grid)
            assert any(t.startswith(f"grid {grid}") for t in found)


def test_maps_and_shapes_are_shown_as_in_the_paper() -> None:
    found = texts(ElementTree.fromstring(to_svg(flash_decoding().graph)))
    assert "grid b · h · s · t,  loop t" in found
    assert "imap {b: 0, h: 1, s: φ, t: 2}" in found
    assert "fmap {t: 2}" in found
    assert "omap {b: 1, h: 2, s: 4, t: 0}" in found
    assert "[b.tile, h.tile, t.tile, d64]" in found
    assert "v3.0 [t.grid, b, h, d8, s]" in found
    assert "after the loop" in found
    assert "operand 2: 1/8" in found


def test_a_graph_without_loop_has_no_band() -> None:
    assert "after the loop" not in to_svg(library().graph)
    assert 'stroke-dasharray="5 4"' not in to_svg(library().graph)


def test_names_are_escaped() -> None:
    graph = flash_attention().graph
    name = "<script>&\"'é\ufffd"
    given = name.replace("\ufffd", "\0")
    inputs = (replace(graph.inputs[0], name=given), *graph.inputs[1:])
    text = to_svg(replace(graph, name=given, inputs=inputs))
    assert "<script" not in text
    svg = ElementTree.fromstring(text)
    assert texts(svg).count(name) == 3  # the title, the kernel's operand and its load
    assert svg.findtext(SVG + "title") == name


def test_deterministic_and_shown_by_notebooks() -> None:
    assert (
        to_svg(flash_attention().graph)
        == to_svg(flash_attention().graph)
        == flash_attention().graph._repr_svg_()
    )


def test_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    write = importlib.import_module("benchmarks.drawings").write
    file = tmp_path / "new" / "flash.svg"
    write(flash_attention().graph, file)
    assert file.read_text(encoding="utf-8") == to_svg(flash_attention().graph)
