"""A store that fails stops no call: it is set aside, or done without, and a warning says so."""

from __future__ import annotations

import sqlite3
import threading
import warnings
from contextlib import closing
from pathlib import Path

import pytest

from mirage.cache import CallStore, CorruptRecordWarning, Holder, Lease, ResultStore, StoreWarning
from mirage.cache.records import sha256

KEY = sha256("a key")
ABOUT = {"program": "p", "target": "cpu", "dtype": "float32", "best_us": 1.0}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default store's file."""
    monkeypatch.delenv("MIRAGE_CACHE_URL", raising=False)
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
    return tmp_path / "results.sqlite"


def damage(file: Path) -> bytes:
    """Overwrite a store that has a record, but for its header."""
    ResultStore(f"sqlite:///{file}").put(sha256("another"), {"x": 1}, **ABOUT)  # type: ignore[arg-type]
    text = file.read_bytes()[:100] + b"\xff" * 8192
    file.write_bytes(text)
    return text


def test_a_damaged_store_gets_another_name_and_a_new_one_is_begun(file: Path) -> None:
    text = damage(file)
    store = CallStore()
    with pytest.warns(StoreWarning, match=r"results\.sqlite.*results\.sqlite\.damaged-1") as caught:
        assert store.recall(KEY) is None
    assert len(caught) == 1
    assert file.with_name("results.sqlite.damaged-1").read_bytes() == text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.put(KEY, {"x": 2}, **ABOUT)
        found = CallStore().recall(KEY)
        assert found is not None and found.payload == {"x": 2}


def test_a_store_of_the_user_that_is_damaged_is_begun_anew_in_its_place(file: Path) -> None:
    own = ResultStore(f"sqlite:///{file}")
    store = CallStore(own)
    assert store.recall(KEY) is None
    file.write_bytes(b"\xff" * 8192)
    with pytest.warns(StoreWarning, match="damaged-1"):
        assert store.put(KEY, {"x": 1}, **ABOUT)
    assert own.get(KEY) == {"x": 1}


def test_several_damaged_stores_are_kept(file: Path) -> None:
    for _ in range(2):
        damage(file)
        with pytest.warns(StoreWarning):
            CallStore().recall(KEY)
    assert {p.name for p in file.parent.glob("*.damaged-?")} == {f"results.sqlite.damaged-{i}" for i in (1, 2)}


def test_a_store_that_cannot_be_opened_is_done_without(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_URL", "sqlite:////no/such/folder/results.sqlite")
    store = CallStore()
    with pytest.warns(StoreWarning, match="no/such/folder.*MIRAGE_CACHE_URL.*nothing is recalled or kept"):
        assert store.recall(KEY) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not store.put(KEY, {"x": 1}, **ABOUT)
        assert store.recall(KEY) is None


# The default store's file, read without SQLAlchemy.


@pytest.fixture
def no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the store was opened")

    monkeypatch.setattr("mirage.cache.call.ResultStore", fail)


def test_what_comes_before_a_search_opens_no_store(file: Path, request: pytest.FixtureRequest) -> None:
    own = ResultStore()
    family = sha256("a family")
    checksum = own.put(KEY, {"x": 1}, family=family, **ABOUT)  # type: ignore[arg-type]
    request.getfixturevalue("no_database")
    store = CallStore()
    found = store.recall(KEY)
    # a read is not counted where something else is written meanwhile
    for thread in threading.enumerate():
        if thread.name == "mirage-reads":
            thread.join()
    assert found is not None and found.payload == {"x": 1} and found.checksum == checksum
    assert store.checksum(KEY) == checksum and store.checksum(sha256("none")) is None
    assert store.recall(sha256("none")) is None
    assert [r.key for r in store.family(family)] == [KEY] and not store.family(KEY)
    lease = store.acquire(KEY)
    assert isinstance(lease, Lease) and own.holder(KEY) is not None
    assert isinstance(CallStore().acquire(KEY), Holder)
    lease.release()
    assert own.holder(KEY) is None
    assert own.uses()[KEY].hits == 1


def test_a_damaged_record_is_a_warning_and_none_without_the_store(file: Path, request: pytest.FixtureRequest) -> None:
    ResultStore().put(KEY, {"x": 1}, **ABOUT)  # type: ignore[arg-type]
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE mirage_results SET payload = '{}'")
        connection.commit()
    request.getfixturevalue("no_database")
    with pytest.warns(CorruptRecordWarning, match="checksum"):
        assert CallStore().recall(KEY) is None


@pytest.mark.parametrize("version", ["0001", "9999"])
def test_tables_of_another_release_are_for_the_store(file: Path, version: str, no_database: None) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE mirage_schema (version_num VARCHAR(32) PRIMARY KEY)")
        connection.execute("INSERT INTO mirage_schema VALUES (?)", (version,))
        connection.commit()
    with pytest.raises(AssertionError, match="the store was opened"):
        CallStore().recall(KEY)


@pytest.mark.parametrize("url", ["sqlite:////tmp/other.sqlite", None])
def test_another_store_or_none_is_not_read_by_itself(
    file: Path, url: str | None, no_database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url is not None:
        file.write_bytes(b"")
        monkeypatch.setenv("MIRAGE_CACHE_URL", url)
    with pytest.raises(AssertionError, match="the store was opened"):
        CallStore().recall(KEY)
