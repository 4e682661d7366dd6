"""Races of the benchmarks, and the caches that are emptied for them."""

from __future__ import annotations

import threading
from dataclasses import replace
from itertools import groupby

import pytest

from benchmarks import timing
from benchmarks.caches import CacheEvictor
from benchmarks.timing import Cold, race
from mirage.kernels.cpu.processor import processor
from tests.work import ByHand


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ByHand:
    """The clock of races, which wait for nothing."""
    found = ByHand()
    monkeypatch.setattr(timing, "time", found)
    monkeypatch.setattr(timing, "at_rest", lambda: True)
    return found


def test_race_orders_versions_and_leaves_out_the_hopeless(clock: ByHand) -> None:
    calls = {"fast": 0, "slow": 0, "hopeless": 0}

    def version(name: str, seconds: float) -> None:
        calls[name] += 1
        clock.sleep(seconds)

    times = race(
        {
            "fast": lambda: version("fast", 0.004),
            "slow": lambda: version("slow", 0.008),
            "hopeless": lambda: version("hopeless", 0.4),
        },
        seconds=0.5,
    )
    assert [(t.min_us, t.median_us) for t in times.values()] == [pytest.approx((us, us)) for us in (4e3, 8e3, 4e5)]
    assert calls["hopeless"] == 2 and times["hopeless"].runs == 1
    assert times["slow"].runs >= 2


def test_a_long_first_call_alone_is_not_hopeless(clock: ByHand) -> None:
    calls = []

    def compiling() -> None:
        calls.append(0)
        clock.sleep(0.5 if len(calls) == 1 else 0.002)

    times = race({"fast": lambda: clock.sleep(0.002), "compiling": compiling}, seconds=0.3)
    assert times["compiling"].runs >= 5 and times["compiling"].min_us == pytest.approx(2e3)


def test_what_runs_beside_a_race_leaves_nobody_out(clock: ByHand) -> None:
    versions = {"slow": lambda: clock.sleep(0.02), "nothing": lambda: clock.sleep(1e-6)}
    assert race(versions, seconds=0.3)["slow"].runs < race(versions, seconds=0.3, beside=["nothing"])["slow"].runs


def test_who_was_disturbed_in_the_first_calls_has_turns(clock: ByHand) -> None:
    calls = {"steady": 0, "unlucky": 0}

    def version(name: str, seconds: float) -> None:
        calls[name] += 1
        clock.sleep(0.05 if name == "unlucky" and calls[name] <= 4 else seconds)

    times = race(
        {"steady": lambda: version("steady", 0.002), "unlucky": lambda: version("unlucky", 0.001)}, seconds=0.3
    )
    assert times["unlucky"].min_us < times["steady"].min_us
    assert times["unlucky"].runs >= 5


def test_cold_calls_follow_an_eviction_and_a_call_of_the_copy(clock: ByHand) -> None:
    log: list[str] = []
    alive: list[str] = []

    class Result:
        """Of a copy: alive until the timed call is over."""

        def __init__(self, name: str) -> None:
            self.name = name
            log.append(f"copy of {name}")
            alive.append(name)

        def __del__(self) -> None:
            alive.remove(self.name)

    def timed(name: str) -> None:
        assert alive == [name]
        log.append(name)
        clock.sleep(0.001)

    names = ("a", "b")
    cold = Cold(lambda: log.append("evict"), {n: lambda n=n: Result(n) for n in names})  # type: ignore[misc]
    times = race({n: lambda n=n: timed(n) for n in names}, seconds=0.3, cold=cold)  # type: ignore[misc]
    threes = [log[i : i + 3] for i in range(0, len(log), 3)]
    assert all(three == ["evict", f"copy of {three[2]}", three[2]] for three in threes)
    # every version's turns have several calls, between which the caches are emptied
    assert max(len(list(g)) for _, g in groupby(three[2] for three in threes)) >= 4
    # a timing for every call of a turn; the first four of each only tell how many fit in one
    assert sum(t.runs for t in times.values()) == len(threes) - 8


def test_an_eviction_reads_more_than_the_caches_hold() -> None:
    # caches of hundreds of megabytes take seconds to fill
    target = replace(processor(), l3_bytes=16 << 20)
    with CacheEvictor(target) as evict:
        assert sum(evict.core_bytes) >= 2 * target.cache_bytes
        assert all(size >= 4 * target.l2_bytes for size in evict.core_bytes)
        assert all((b == 1).all() for b in evict._buffers), "pages of its own"
        before = [b.copy() for b in evict._buffers]
        evict()
        assert all((b == old).all() for b, old in zip(evict._buffers, before, strict=True)), "reads only"


def test_the_threads_of_an_evictor_end() -> None:
    before = threading.active_count()
    with CacheEvictor(replace(processor(), l3_bytes=16 << 20)):
        assert threading.active_count() > before
    assert threading.active_count() == before
