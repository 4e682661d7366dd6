"""How records are used, and which of them go when there are too many: what was used longest ago."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mirage.cache import ResultStore, uses
from mirage.cache.records import DAY_S, canonical_json, sha256
from mirage.errors import SettingError

KEYS = [sha256(name) for name in "abcd"]
PAYLOAD = {"ballast": "x" * 1000}
BYTES = len(canonical_json(PAYLOAD, "test"))


class Now:
    """Moves the clock of the database."""

    def __init__(self) -> None:
        self.seconds = 1e9

    def __call__(self, _: object) -> float:
        return self.seconds


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    found = Now()
    monkeypatch.setattr(uses, "clock", found)
    return found


@pytest.fixture
def store(url: str, now: Now) -> ResultStore:
    """Four records, written one day after the other."""
    found = ResultStore(url)
    for key in KEYS:
        found.put(key, PAYLOAD, program="p", target="cpu", dtype="f32", best_us=1.0)
        now.seconds += DAY_S
    return found


def left(store: ResultStore) -> list[str]:
    return [name for name, key in zip("abcd", KEYS, strict=True) if store.record(key)]


def test_reads_are_counted(store: ResultStore, now: Now) -> None:
    written = 1e9
    assert store.uses()[KEYS[0]] == uses.Use(BYTES, written, 0)
    for _ in range(3):
        assert store.get(KEYS[0]) == PAYLOAD
    assert store.uses()[KEYS[0]] == uses.Use(BYTES, now.seconds, 3)
    assert store.uses()[KEYS[1]].hits == 0
    store.put(KEYS[0], {}, program="p", target="cpu", dtype="f32", best_us=0.5)
    assert store.uses()[KEYS[0]] == uses.Use(2, now.seconds, 3)
    store.discard(KEYS[0])
    assert KEYS[0] not in store.uses()


def test_nothing_is_written_once_reads_are_counted(store: ResultStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever removes a store's file would find it there again."""
    whole, begun, go = uses.touch, threading.Event(), threading.Event()
    ended: list[str] = []

    def slow(connection: Any, key: str) -> None:
        begun.set()
        assert go.wait(60)
        whole(connection, key)
        ended.append(key)

    monkeypatch.setattr(uses, "touch", slow)
    store.get(KEYS[0])
    assert begun.wait(60) and not ended
    threading.Timer(0.05, go.set).start()
    store.settle()
    assert ended == [KEYS[0]]


def test_what_was_used_longest_ago_goes_first(store: ResultStore) -> None:
    store.get(KEYS[0])
    assert store.evict(max_bytes=2 * BYTES) == 2
    assert left(store) == ["a", "d"]
    assert store.evict(max_bytes=2 * BYTES) == 0
    assert store.evict(max_bytes=1) == 2
    assert store.uses() == {}


def test_what_was_not_used_for_long_goes(store: ResultStore) -> None:
    store.get(KEYS[1])
    assert store.evict(max_days=1.5) == 2
    assert left(store) == ["b", "d"]


def test_a_process_looks_at_its_first_write_and_seldom_after(
    store: ResultStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_MAX_BYTES", str(2 * BYTES))
    other = ResultStore(url)
    assert left(other) == ["a", "b", "c", "d"], "reading removes nothing"
    other.put(KEYS[0], PAYLOAD, program="p", target="cpu", dtype="f32", best_us=0.5)
    assert left(other) == ["a", "d"]
    for key in KEYS:
        other.put(key, PAYLOAD, program="p", target="cpu", dtype="f32", best_us=0.1)
    assert left(other) == ["a", "b", "c", "d"]


def test_evictions_and_writes_at_once_stop_nobody(url: str) -> None:
    ResultStore(url)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            store = ResultStore(url)
            for i in range(10):
                key = sha256(f"{number % 2} {i}")
                store.put(key, PAYLOAD, program="p", target="cpu", dtype="f32", best_us=1.0 / (number + 1))
                store.get(key)
                store.evict(max_bytes=3 * BYTES)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert len(ResultStore(url).list()) <= 3


@pytest.mark.parametrize("variable", ["MIRAGE_CACHE_MAX_BYTES", "MIRAGE_CACHE_MAX_DAYS"])
@pytest.mark.parametrize("text", ["0", "-1", "much", "nan"])
def test_limits_that_are_none_are_told_when_the_store_is_opened(
    url: str, variable: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError, match=f"{variable}='{text}'.*positive"):
        ResultStore(url)


def test_a_reader_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    """The writer of this test never ends: who waited for it would wait for a minute, and fail."""
    store = ResultStore(f"sqlite:///{tmp_path}/shared.sqlite")
    store.put(KEYS[0], PAYLOAD, program="p", target="cpu", dtype="f32", best_us=1.0)
    with closing(sqlite3.connect(tmp_path / "shared.sqlite", isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE mirage_results SET best_us = 7")
        assert store.get(KEYS[0]) == PAYLOAD
        assert store.holder(KEYS[0]) is None
        assert store.uses()[KEYS[0]].hits == 0
        writer.execute("ROLLBACK")
    assert store.uses()[KEYS[0]].hits == 0, "it was not counted"
    store.get(KEYS[0])
    assert store.uses()[KEYS[0]].hits == 1


def test_uses_that_are_damaged_count_as_old(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/shared.sqlite")
    for key in KEYS[:2]:
        store.put(key, PAYLOAD, program="p", target="cpu", dtype="f32", best_us=1.0)
    with closing(sqlite3.connect(tmp_path / "shared.sqlite")) as connection, connection:
        connection.execute("UPDATE mirage_uses SET used = 'long ago', bytes = 'many', hits = x'ff' WHERE key = ?", [KEYS[0]])
    assert store.uses()[KEYS[0]] == uses.Use(0, 0.0, 0)
    assert store.evict(max_days=1) == 1
    assert left(store) == ["b"]


