"""Random decision trees and sizes."""

from __future__ import annotations

from hypothesis import strategies as st

from mirage.kernels.decision import MAX_DEPTH, MAX_THRESHOLD, Split, Tree

SYMBOLS = ("b", "s", "t")

thresholds = st.one_of(st.integers(1, 64), st.integers(1, 1 << 24), st.integers(1, MAX_THRESHOLD))
#: sizes as they are, and such whose products are more than a 64-bit integer holds
numbers = st.one_of(st.integers(1, 64), st.integers(1, 1 << 24), st.integers(1, 1 << 62))


@st.composite
def trees(draw: st.DrawFn, depth: int = MAX_DEPTH) -> Tree:
    """A tree over `SYMBOLS` with up to 8 versions."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.integers(0, 7))
    dims = draw(st.lists(st.sampled_from(SYMBOLS), min_size=1, max_size=2, unique=True))
    return Split(tuple(dims), draw(thresholds), draw(trees(depth - 1)), draw(trees(depth - 1)))
