"""A second demonstration shows what the first one measured, says so, and measures again where that is not of what runs now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import mirage as mi
from mirage import demo
from mirage.demo import Shown, run_demo
from mirage.kernels.profile import Timing
from tests.api.small import BUDGET, adapter


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Shown]]:
    """What the demonstration of a small program shows, of which each comparison has times of its own."""
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir(mode=0o700)
    result = mi.superoptimize(adapter, budget=BUDGET, cache=False)
    monkeypatch.setattr("mirage.api.superoptimize", lambda *_, **__: result)
    count = iter(range(1, 100))

    def compared(*_: Any) -> dict[str, Timing]:
        us = float(next(count))
        return {"mirage": Timing(us, us, 3), "NumPy": Timing(9 * us, 9 * us, 3)}

    monkeypatch.setattr(demo, "comparison", compared)
    for name in ("qknorm_attention", "gqa_decode"):
        monkeypatch.setattr(demo, name, replace(adapter, name=name))
    return lambda: list(run_demo(Console(quiet=True), BUDGET, tmp_path / "drawings"))


def text(found: Shown) -> str:
    return str(found.table().title)


def test_the_comparison_of_an_earlier_run_is_shown_with_its_date(shown: Callable[[], list[Shown]]) -> None:
    first, second = shown(), shown()
    assert [s.timings for s in first] == [s.timings for s in second]
    assert [s.earlier for s in (*first, *second)] == [False, False, True, True]
    for before, after in zip(first, second, strict=True):
        assert "earlier" not in text(before)
        assert f"measured by an earlier run at {before.comparison.measured} UTC" in text(after)


def test_another_version_or_library_is_measured_again(
    shown: Callable[[], list[Shown]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shown()
    monkeypatch.setattr(demo, "_version", lambda package: f"another {package}")
    second = shown()
    assert not any(s.earlier for s in second) and first[0].timings != second[0].timings
    result = second[0].result
    best = replace(result.best, timing=Timing(1.0, 2.0, 3))
    monkeypatch.setitem(vars(result), "best", best)
    assert not any(s.earlier for s in shown())
    assert all(s.earlier for s in shown())


def test_a_damaged_file_is_measured_again(shown: Callable[[], list[Shown]], tmp_path: Path) -> None:
    shown()
    for file in (tmp_path / "cache").glob("demo-*.json"):
        file.write_text('{"what": 1}')
    assert not any(s.earlier for s in shown())
    assert all(s.earlier for s in shown())


def test_numpy_is_compared_as_written_and_in_its_best_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "COMPARISON_S", 0.01)
    monkeypatch.setattr(demo, "torch_versions", lambda *_: {})
    result = mi.superoptimize(adapter, budget=BUDGET, cache=False)
    assert list(demo.comparison(adapter, result)) == ["mirage", "NumPy", "NumPy, in its best form"]
