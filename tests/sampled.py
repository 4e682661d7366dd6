"""Parameters of tests of which a part runs always, and all where slow tests do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def crossed(first: Iterable[Any], second: Iterable[Any], step: int = 1) -> list[Any]:
    """All pairs, of which always run: each of `first`, or one in `step`, with one of `second`, in turn."""
    others = list(second)
    return [
        pytest.param(a, b, marks=[pytest.mark.slow] * (i % step != 0 or k != i // step % len(others)))
        for i, a in enumerate(first)
        for k, b in enumerate(others)
    ]


def thinned(cases: Iterable[Any], step: int = 2, start: int = 0) -> list[Any]:
    """All cases, of which always run: one in `step`, from number `start` on. Cases that are tuples are several parameters."""
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=[pytest.mark.slow] * (i % step != start))
        for i, case in enumerate(cases)
    ]
