"""Kernels as users have them: compiled with all optimizations."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIRAGE_CFLAGS")
