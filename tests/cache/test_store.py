"""What the results store keeps, for how long, and what it does with a record that it can't trust."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.cache import CorruptRecordWarning, ResultStore
from mirage.cache.records import SCHEMA, canonical_json, sha256
from mirage.cache.sqlite import set_up
from mirage.errors import CacheError
from mirage.ir.codec import parse_json

KEY = sha256("attention")
OTHER = sha256("gated mlp")
PAYLOAD = {"graph": {"nodes": [1, 2, 3]}, "delta": 2.0**-40, "source": "int µ;\n"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "results.sqlite"


@pytest.fixture
def store(file: Path) -> ResultStore:
    return ResultStore(f"sqlite:///{file}")


def put(
    store: ResultStore, payload: Mapping[str, Any], best_us: float | None, key: str = KEY, **more: Any
) -> bool:
    return store.put(key, payload, program="attention", target="cpu", dtype="f32", best_us=best_us, **more) is not None


def execute(file: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(file)
    with connection:
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def test_what_is_put_is_got_by_another_store_of_the_same_file(store: ResultStore, file: Path) -> None:
    assert store.get(KEY) is None
    assert put(store, PAYLOAD, 12.5)
    assert ResultStore(f"sqlite:///{file}").get(KEY) == PAYLOAD
    assert store.get(OTHER) is None


def test_the_default_is_a_file_in_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "new" / "folder"))
    store = ResultStore()
    put(store, PAYLOAD, 1.0)
    assert store.place == str(tmp_path / "new" / "folder" / "results.sqlite")
    assert ResultStore().get(KEY) == PAYLOAD


def test_the_environment_can_name_another_database(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "unused"))
    monkeypatch.setenv("MIRAGE_CACHE_URL", f"sqlite:///{file}")
    put(ResultStore(), PAYLOAD, 1.0)
    assert ResultStore(f"sqlite:///{file}").get(KEY) == PAYLOAD
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (2.0, 1.0, "second"),
        (1.0, 2.0, "first"),
        (1.0, 1.0, "first"),
        (None, 5.0, "second"),
        (5.0, None, "first"),
        (None, None, "first"),
    ],
)
def test_the_faster_record_is_kept(
    store: ResultStore, first: float | None, second: float | None, kept: str
) -> None:
    assert put(store, {"from": "first"}, first)
    assert put(store, {"from": "second"}, second) == (kept == "second")
    assert store.get(KEY) == {"from": kept}
    assert [record.best_us for record in store.list()] == [first if kept == "first" else second]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ((None, 9.0), (100.0, 1.0), "first"),
        ((100.0, 1.0), (None, 9.0), "second"),
        ((30.0, 9.0), (3.0, 1.0), "first"),
        ((3.0, 1.0), (30.0, None), "second"),
        ((30.0, 9.0), (29.0, 1.0), "second"),
        ((30.0, 1.0), (31.0, 9.0), "first"),
        ((0.0, 1.0), (0.5, 9.0), "second"),
    ],
)
def test_what_is_farther_is_kept_and_of_what_is_as_far_the_faster(
    store: ResultStore, first: tuple[float | None, float], second: tuple[float | None, float], kept: str
) -> None:
    assert put(store, {"from": "first"}, first[1], cut_s=first[0])
    assert put(store, {"from": "second"}, second[1], cut_s=second[0]) == (kept == "second")
    assert store.get(KEY) == {"from": kept}


def test_what_replaces_a_record_by_its_checksum_is_kept_unless_another_came_between(store: ResultStore) -> None:
    first = store.put(KEY, {"n": 1}, program="p", target="cpu", dtype="f32", best_us=1.0)
    assert put(store, {"n": 2}, 9.0, cut_s=5.0, replaces=first)
    assert store.get(KEY) == {"n": 2}
    assert put(store, {"n": 3}, 2.0)
    assert not put(store, {"n": 4}, 9.0, cut_s=5.0, replaces=first)
    found = store.recall(KEY)
    assert found is not None and found.payload == {"n": 3} and found.checksum == store.checksum(KEY)


@pytest.mark.parametrize("cut_s", [-1.0, float("nan"), True, "1"])
def test_seconds_that_are_none_are_refused(store: ResultStore, cut_s: Any) -> None:
    with pytest.raises(CacheError, match="cut_s"):
        put(store, PAYLOAD, 1.0, cut_s=cut_s)


def test_records_of_a_family_are_found_by_it(store: ResultStore) -> None:
    family = sha256("a family")
    put(store, PAYLOAD, 1.0, family=family, processor="A")
    put(store, PAYLOAD, 2.0, OTHER, family=family, processor="B")
    put(store, PAYLOAD, 2.0, sha256("a third"), processor="C")
    assert {(r.key, r.processor) for r in store.family(family)} == {(KEY, "A"), (OTHER, "B")}
    with pytest.raises(CacheError, match="SHA-256"):
        put(store, PAYLOAD, 2.0, family="cpu")


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 10_000, "line\nline"])
def test_names_that_a_database_cannot_hold_are_changed_and_stop_nothing(store: ResultStore, name: str) -> None:
    store.put(KEY, PAYLOAD, program=name, target="cpu", dtype="f32", best_us=1.0)
    (found,) = store.list()
    assert found.program.isprintable() and len(found.program) <= 256
    assert store.get(KEY) == PAYLOAD


def test_list_says_what_each_record_is_about(store: ResultStore) -> None:
    store.put(OTHER, PAYLOAD, program="mlp", target="cpu", dtype="f16", best_us=None)
    store.put(KEY, PAYLOAD, program="attention", target="cuda", dtype="f32", best_us=3.5)
    first, second = store.list()
    assert (first.key, first.program, first.target, first.dtype) == (KEY, "attention", "cuda", "f32")
    assert (first.best_us, first.version, second.key, second.best_us) == (3.5, SCHEMA, OTHER, None)
    assert first.created.endswith("+00:00")


def test_clear_removes_every_record_and_counts_them(store: ResultStore) -> None:
    put(store, PAYLOAD, 1.0)
    put(store, PAYLOAD, 1.0, OTHER)
    assert store.clear() == 2
    assert (store.get(KEY), store.list(), store.clear()) == (None, [], 0)


DAMAGE: dict[str, tuple[str, list[object], str]] = {
    "payload cut off": ("UPDATE mirage_results SET payload = substr(payload, 1, 9)", [], "checksum"),
    "one byte flipped": ("UPDATE mirage_results SET payload = replace(payload, '3', '4')", [], "checksum"),
    "payload of another type": ("UPDATE mirage_results SET payload = x'ff00'", [], "checksum"),
    "text that is not UTF-8": ("UPDATE mirage_results SET payload = CAST(x'ff' AS TEXT)", [], "checksum"),
    "checksum of another payload": ("UPDATE mirage_results SET payload_sha256 = ?", [KEY], "checksum"),
    "not JSON": ("UPDATE mirage_results SET payload = ?, payload_sha256 = ?", ["{", sha256("{")], "not JSON"),
    "NaN": (
        "UPDATE mirage_results SET payload = ?, payload_sha256 = ?",
        ['{"a":NaN}', sha256('{"a":NaN}')],
        "NaN",
    ),
    "not an object": (
        "UPDATE mirage_results SET payload = ?, payload_sha256 = ?",
        ["[1]", sha256("[1]")],
        "not a JSON object",
    ),
    "nested too deeply": (
        "UPDATE mirage_results SET payload = ?, payload_sha256 = ?",
        ["[" * 10**6, sha256("[" * 10**6)],
        "not JSON",
    ),
    "another schema version": ("UPDATE mirage_results SET version = ?", [SCHEMA + 1], "schema version"),
    "seconds that are text": ("UPDATE mirage_results SET cut_s = 'long'", [], "cut_s"),
    "a time that is text": ("UPDATE mirage_results SET best_us = 'fast'", [], "best_us"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_corrupt_record_is_a_warning_and_a_miss_and_is_replaced(
    store: ResultStore, file: Path, damage: str
) -> None:
    statement, values, reason = DAMAGE[damage]
    put(store, PAYLOAD, 1.0)
    put(store, PAYLOAD, 1.0, OTHER)
    execute(file, f"{statement} WHERE key = '{KEY}'", *values)
    # also after what it was before the damage has been read
    assert store.get(OTHER) == PAYLOAD
    damaged = store.record(KEY)
    assert damaged is not None and reason in (damaged.fault() or "")
    with pytest.warns(CorruptRecordWarning, match=f"{KEY} is ignored: .*{reason}"):
        assert store.get(KEY) is None
    assert len(list(store.records())) == 2
    assert put(store, {"from": "a slower but sound record"}, 9.0)
    assert store.get(KEY) == {"from": "a slower but sound record"}


def test_a_block_of_many_calls_leaves_the_log_to_its_end(store: ResultStore, file: Path) -> None:
    log = file.with_name(f"{file.name}-wal")
    put(store, PAYLOAD, 2.0)
    assert not log.exists()
    with store.connected():
        put(store, {"faster": True}, 1.0)
        assert log.stat().st_size
        # neither readers nor writers wait for it
        other = ResultStore(f"sqlite:///{file}")
        assert other.get(KEY) == {"faster": True} and put(other, PAYLOAD, 1.0, OTHER)
    assert not log.exists()
    assert store.get(OTHER) == PAYLOAD


@pytest.mark.parametrize("key", ["", "abc", KEY.upper(), KEY + "0", 7])
def test_a_key_that_is_not_a_hash_is_refused(store: ResultStore, key: Any) -> None:
    with pytest.raises(CacheError, match="SHA-256"):
        put(store, PAYLOAD, 1.0, key)
    with pytest.raises(CacheError, match="SHA-256"):
        store.get(key)


@pytest.mark.parametrize(
    "payload", [{"x": float("nan")}, {"x": float("inf")}, {"x": {1, 2}}, {"x": b""}, [1], "text"]
)
def test_a_payload_that_json_cannot_hold_is_refused(store: ResultStore, payload: Any) -> None:
    with pytest.raises(CacheError, match="payload"):
        put(store, payload, 1.0)
    assert store.list() == []


@pytest.mark.parametrize("best_us", [0.0, -1.0, float("nan"), float("inf"), True, "1"])
def test_a_time_that_is_not_one_is_refused(store: ResultStore, best_us: Any) -> None:
    with pytest.raises(CacheError, match="best_us"):
        put(store, PAYLOAD, best_us)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON))
def test_canonical_json_parses_back_and_is_a_fixed_point(payload: dict[str, Any]) -> None:
    text = canonical_json(payload, "test")
    parsed = parse_json(text)
    assert parsed == payload
    assert canonical_json(parsed, "test") == text
    assert canonical_json(dict(reversed(payload.items())), "test") == text
    assert text == json.dumps(parsed, sort_keys=True, separators=(",", ":"))


class _Busy:
    """A connection to a file whose log another connection is switching, for so many attempts."""

    def __init__(self, attempts: int, message: str = "database is locked") -> None:
        self.attempts, self.message = attempts, message

    def execute(self, statement: str) -> None:
        if self.attempts and "journal_mode" in statement:
            self.attempts -= 1
            raise sqlite3.OperationalError(self.message)


def test_connections_that_switch_the_log_at_once_wait_for_each_other() -> None:
    busy = _Busy(3)
    set_up(busy, None)
    assert busy.attempts == 0
    with pytest.raises(sqlite3.OperationalError, match="disk"):
        set_up(_Busy(1, "disk I/O error"), None)
