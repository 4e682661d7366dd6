"""Layered layout: boxes of a row do not overlap, and neither do edges that pass them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mirage.drawing.layout import GAP, LANE, Box, layered


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[list[Box]], dict[Box, float], list[tuple[Box, Box]]]:
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    rows: list[list[Box]] = [[(k, i) for i in range(n)] for k, n in enumerate(counts)]
    boxes = [b for row in rows for b in row]
    breadth = {b: float(draw(st.integers(5, 200))) for b in boxes}
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[i:] if a[0] < b[0]]  # type: ignore[index]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=12)) if pairs else []
    return rows, breadth, edges


@given(graphs())
def test_nothing_overlaps(case: tuple[list[list[Box]], dict[Box, float], list[tuple[Box, Box]]]) -> None:
    rows, breadth, edges = case
    layout = layered(rows, breadth, edges)
    assert layout.center.keys() >= breadth.keys()
    row_of = {b: k for k, row in enumerate(rows) for b in row}
    for k, row in enumerate(rows):
        spans = [(layout.center[b], breadth[b]) for b in row]
        passing = {(a, layout.lanes[a, b][k - row_of[a] - 1]) for a, b in edges if row_of[a] < k < row_of[b]}
        spans = sorted([*spans, *((x, LANE) for _, x in passing)])
        for (x, w), (y, v) in pairwise(spans):
            assert y - x >= (w + v) / 2 + GAP - 1e-6
        assert spans[0][0] - spans[0][1] / 2 >= -1e-6
        assert spans[-1][0] + spans[-1][1] / 2 <= layout.breadth + 1e-6
    for a, b in edges:
        assert len(layout.lanes[a, b]) == row_of[b] - row_of[a] - 1


def test_a_chain_is_straight_and_a_pair_is_centered() -> None:
    layout = layered(
        [["a", "b"], ["c"], ["d"]], {"a": 40, "b": 60, "c": 10, "d": 30}, [("a", "c"), ("b", "c"), ("c", "d")]
    )
    assert abs(layout.center["c"] - layout.center["d"]) < 0.1
    assert abs(layout.center["c"] - (layout.center["a"] + layout.center["b"]) / 2) < 0.1


def test_crossed_pairs_are_uncrossed() -> None:
    layout = layered([["a", "b"], ["c", "d"]], dict.fromkeys("abcd", 10.0), [("a", "d"), ("b", "c")])
    assert (layout.center["a"] < layout.center["b"]) == (layout.center["d"] < layout.center["c"])
