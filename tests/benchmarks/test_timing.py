"""Races of the benchmarks, and the caches that are emptied for them."""

from __future__ import annotations

import threading
import time
from itertools import groupby

from benchmarks.caches import CacheEvictor
from benchmarks.timing import Cold, race
from mirage.kernels.target import get_target


def test_race_orders_versions_and_leaves_out_the_hopeless() -> None:
    calls = {"fast": 0, "slow": 0, "hopeless": 0}

    def version(name: str, seconds: float) -> None:
        calls[name] += 1
        time.sleep(seconds)

    times = race(
        {
            "fast": lambda: version("fast", 0.004),
            "slow": lambda: version("slow", 0.008),
            "hopeless": lambda: version("hopeless", 0.4),
        },
        seconds=0.5,
    )
    assert 3_900 <= times["fast"].min_us <= times["fast"].median_us
    assert times["fast"].min_us < times["slow"].min_us < times["hopeless"].min_us
    assert calls["hopeless"] == times["hopeless"].runs == 1
    assert times["slow"].runs >= 2


def test_what_runs_beside_a_race_leaves_nobody_out() -> None:
    versions = {"slow": lambda: time.sleep(0.02), "nothing": lambda: None}
    assert race(versions, seconds=0.3)["slow"].runs < race(versions, seconds=0.3, beside=["nothing"])["slow"].runs


def test_who_was_disturbed_in_the_first_calls_has_turns() -> None:
    calls = {"steady": 0, "unlucky": 0}

    def version(name: str, seconds: float) -> None:
        calls[name] += 1
        time.sleep(0.05 if name == "unlucky" and calls[name] <= 4 else seconds)

    times = race(
        {"steady": lambda: version("steady", 0.002), "unlucky": lambda: version("unlucky", 0.001)}, seconds=0.3
    )
    assert times["unlucky"].min_us < times["steady"].min_us
    assert times["unlucky"].runs >= 5


def test_cold_calls_follow_an_eviction_and_a_call_of_the_copy() -> None:
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
    target = get_target("cpu")
    with CacheEvictor(target) as evict:
        assert sum(evict.core_bytes) >= 2 * target.cache_bytes
        assert all(size >= 4 * target.l2_bytes for size in evict.core_bytes)
        assert all((b == 1).all() for b in evict._buffers), "pages of its own"
        before = [b.copy() for b in evict._buffers]
        evict()
        assert all((b == old).all() for b, old in zip(evict._buffers, before, strict=True)), "reads only"


def test_an_eviction_makes_the_next_read_slower() -> None:
    import numpy as np

    data = np.ones(1 << 19, np.float32)  # 2 MiB

    def read() -> float:
        start = time.perf_counter()
        data.max()
        return time.perf_counter() - start

    def after_eviction() -> float:
        evict()
        return read()

    with CacheEvictor(get_target("cpu")) as evict:
        cold = min(after_eviction() for _ in range(15))
        hot = min(read() for _ in range(15))
    assert cold > 1.2 * hot


def test_the_threads_of_an_evictor_end() -> None:
    before = threading.active_count()
    with CacheEvictor(get_target("cpu")):
        assert threading.active_count() > before
    assert threading.active_count() == before
