"""The choice among kernels that are close with warm caches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage.kernels.cpu.launch.cold import ColdCall
from mirage.kernels.profile import Timing
from mirage.search import cold
from tests.work import ByHand

CACHE = 1 << 20
INPUTS = [np.ones(1 << 15, np.float32)]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, float]], list[str]]:
    """`compared(us)`: cold calls of kernels take so long; returns which are timed."""

    def install(us: Mapping[str, float]) -> list[str]:
        asked: list[str] = []

        def interleave(calls: Mapping[str, Any], *, seconds: float, **_: Any) -> dict[str, Timing]:
            assert 0 < seconds <= cold.SECONDS
            asked.extend(calls)
            return {name: Timing(us[name], us[name], 1) for name in calls}

        monkeypatch.setattr(cold, "interleave", interleave)
        monkeypatch.setattr(ColdCall, "__init__", lambda *_: None)
        monkeypatch.setattr(cold, "can_flush", lambda: True)
        monkeypatch.setattr(cold, "wall_ns", lambda _: 0)
        return asked

    return install


def kernels(*names: str, library: tuple[str, ...] = ()) -> dict[str, Any]:
    return {name: SimpleNamespace(calls_library=name in library) for name in names}


def choose(
    times: Mapping[str, float], of: Mapping[str, Any], seconds: float = 1.0, inputs: Any = INPUTS
) -> dict[str, float]:
    return cold.in_both_states(times, of, inputs, {}, CACHE, seconds)


def test_the_order_is_that_of_geometric_means(compared: Any) -> None:
    asked = compared({"a": 300.0, "b": 200.0, "c": 310.0})
    times = {"a": 100.0, "b": 110.0, "c": 100.5, "library": 500.0}
    found = choose(times, kernels("a", "b", "c"))
    assert sorted(asked) == ["a", "b", "c"]
    # the fastest with warm caches keeps its time, so that they compare with what was not measured
    assert found["a"] == 100.0
    assert sorted(found, key=found.__getitem__) == ["b", "a", "c"]
    assert found["b"] == pytest.approx(110.0 * (200 / 300) ** 0.5)


def test_only_close_kernels_are_compared(compared: Any) -> None:
    asked = compared(dict.fromkeys("abcdefghi", 1.0))
    times = {"a": 100.0, "b": 119.0, "c": 121.0, "d": 100.0, "library": 101.0}
    choose(times, kernels("a", "b", "c", "d", library=("d",)))
    assert asked == ["a", "b"]
    asked.clear()
    choose(dict.fromkeys("abcdefghi", 1.0), kernels(*"abcdefghi"))
    assert len(asked) == cold.RIVALS


@pytest.mark.parametrize(("seconds", "names"), [(0.01, "abc"), (0.05, "ab"), (0.1, "")])
def test_where_it_takes_long_to_flush_fewer_are_compared(
    seconds: float, names: str, compared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds fit half a second, with what is packed of the arguments."""
    asked = compared(dict.fromkeys("abc", 1.0))
    monkeypatch.setattr(cold, "time", ByHand())
    monkeypatch.setattr(cold, "wall_ns", lambda _: int(1e9 * seconds))
    choose({"a": 100.0, "b": 101.0, "c": 102.0}, kernels(*"abc"))
    assert "".join(asked) == names


@pytest.mark.parametrize("why", ["alone", "library", "small", "large", "late", "nothing", "other processors"])
def test_where_there_is_nothing_to_choose(why: str, compared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = compared({"a": 1.0, "b": 1.0})
    times = {"a": 10.0, "b": 11.0, "library": 9.0 if why == "library" else 12.0}
    of = kernels("a") if why == "alone" else kernels("a", "b")
    count = {"small": 100, "large": 2 * CACHE}.get(why, 1 << 15)
    if why == "other processors":
        monkeypatch.setattr(cold, "can_flush", lambda: False)
    found = choose({} if why == "nothing" else times, of, 0.01 if why == "late" else 1.0, [np.ones(count, np.float32)])
    assert found == {} and not asked
