"""Kernels as users have them: compiled with all optimizations."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def optimized(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a test's cases, every third is compiled so, whichever parameter tells them apart, and all of the slow ones: that takes
    twice as long.
    """
    case = getattr(request.node, "callspec", None)
    if case is None or sum(case.indices.values()) % 3 == 0 or request.node.get_closest_marker("slow"):
        monkeypatch.delenv("MIRAGE_CFLAGS")
