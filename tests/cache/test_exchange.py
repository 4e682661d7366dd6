"""Export and import: the same records elsewhere, merged by the rule of `put`, whole or not at all."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirage.cache import CorruptRecordWarning, ResultStore
from mirage.cache.records import SCHEMA, sha256
from mirage.errors import CacheFormatError, InputError

KEYS = [sha256(name) for name in "abc"]


def new_store(folder: Path, name: str) -> ResultStore:
    return ResultStore(f"sqlite:///{folder}/{name}.sqlite")


def put(store: ResultStore, key: str, best_us: float | None, text: str) -> None:
    store.put(key, {"text": text, "third": 1 / 3}, program="p", target="cpu", dtype="f32", best_us=best_us)


def texts(store: ResultStore) -> list[Any]:
    return [payload and payload["text"] for payload in map(store.get, KEYS)]


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    store = new_store(tmp_path, "source")
    for key, text in zip(KEYS, ["one", "two", "µ\ud800"], strict=True):
        put(store, key, 5.0, text)
    assert store.export(tmp_path / "results.jsonl") == 3
    return tmp_path / "results.jsonl"


def test_an_import_into_an_empty_store_is_a_copy(exported: Path, tmp_path: Path) -> None:
    copy = new_store(tmp_path, "copy")
    assert copy.import_(exported) == 3
    assert copy.list() == new_store(tmp_path, "source").list()
    assert texts(copy) == ["one", "two", "µ\ud800"]
    copy.export(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == exported.read_bytes()


def test_an_import_keeps_the_faster_of_two(exported: Path, tmp_path: Path) -> None:
    store = new_store(tmp_path, "store")
    put(store, KEYS[0], 4.0, "faster")
    put(store, KEYS[1], 6.0, "slower")
    assert store.import_(exported) == 2
    assert texts(store) == ["faster", "two", "µ\ud800"]
    assert store.import_(exported) == 0


def test_an_export_leaves_out_a_damaged_record(exported: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "source.sqlite")
    with connection:
        connection.execute("UPDATE mirage_results SET payload = '{}' WHERE key = ?", [KEYS[1]])
    connection.close()
    with pytest.warns(CorruptRecordWarning, match=KEYS[1]):
        assert new_store(tmp_path, "source").export(exported) == 2
    assert new_store(tmp_path, "copy").import_(exported) == 2


def set_field(field: str, value: object) -> Callable[[list[Any]], None]:
    return lambda lines: lines[2].update({field: value})


FOREIGN: dict[str, tuple[Callable[[list[Any]], object], str]] = {
    "another format": (lambda r: r[2].update(format="pickle"), "not a mirage results export"),
    "another schema": (lambda r: r[2].update(schema=2), "schema 2 is not 3"),
    "a list of records": (lambda r: r.append([]), "line 4: .*not a mirage results export"),
    "a record that is a number": (lambda r: r.append(1), "line 4: .*not a mirage results export"),
    "a field too many": (set_field("note", ""), "line 3: .*expected an object"),
    "a field too few": (lambda r: r[2].pop("dtype"), "line 3: .*expected an object"),
    "a program that is a number": (set_field("program", 1), "program: expected a text, found 1"),
    "a program that is no name": (set_field("program", "a\0b"), "program: expected at most 256 printable"),
    "a key that is no hash": (set_field("key", "x"), "key: expected a SHA-256 in hex"),
    "a family that is no hash": (set_field("family", "x"), "family: expected a SHA-256 in hex"),
    "a time that is text": (set_field("best_us", "fast"), "best_us: expected a number"),
    "seconds below zero": (set_field("cut_s", -1), "cut_s: expected a number of 0"),
    "a payload changed by hand": (lambda r: r[2]["payload"].update(text="evil"), "checksum"),
    "a checksum changed by hand": (set_field("payload_sha256", KEYS[0]), "checksum"),
    "a payload that is a list": (set_field("payload", []), "payload is not a JSON object"),
    "a record of another version": (set_field("version", SCHEMA + 1), "schema version 2"),
}


@pytest.mark.parametrize("change", FOREIGN)
def test_a_foreign_file_changes_nothing(exported: Path, tmp_path: Path, change: str) -> None:
    edit, reason = FOREIGN[change]
    lines = [json.loads(line) for line in exported.read_text().splitlines()]
    edit(lines)
    exported.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    store = new_store(tmp_path, "store")
    with pytest.raises(CacheFormatError, match=rf"results\.jsonl.*{reason}"):
        store.import_(exported)
    assert store.list() == []


@pytest.mark.parametrize(
    "content", [b"\x80\x04]", b"SQLite format 3\0", b"[]", b"{}", b" ", b'{"schema": NaN}', b'{"key": "a"', b"[" * 10**6]
)
def test_a_file_that_is_no_export(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CacheFormatError, match="file written by an export"):
        new_store(tmp_path, "store").import_(tmp_path / "file")


def test_the_export_of_an_empty_store_is_an_empty_file(tmp_path: Path) -> None:
    assert new_store(tmp_path, "store").export(tmp_path / "results.jsonl") == 0
    assert (tmp_path / "results.jsonl").read_bytes() == b""
    assert new_store(tmp_path, "copy").import_(tmp_path / "results.jsonl") == 0


def test_a_record_is_a_line_and_lines_are_sorted_by_key(exported: Path) -> None:
    lines = exported.read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == sorted(KEYS)
    assert lines == sorted(lines), "so that diff and sort do what one expects"


def test_files_of_lines_from_several_exports_are_one(exported: Path, tmp_path: Path) -> None:
    store = new_store(tmp_path, "other")
    put(store, KEYS[0], 4.0, "faster")
    put(store, sha256("d"), 4.0, "fourth")
    store.export(tmp_path / "other.jsonl")
    (tmp_path / "both.jsonl").write_bytes((tmp_path / "other.jsonl").read_bytes() + exported.read_bytes())
    copy = new_store(tmp_path, "copy")
    # of the two of one key, the first is faster
    assert copy.import_(tmp_path / "both.jsonl") == 4
    assert texts(copy) == ["faster", "two", "µ\ud800"]


def test_a_store_is_merged_into_another_by_the_rule_of_put(tmp_path: Path) -> None:
    here, there = new_store(tmp_path, "here"), new_store(tmp_path, "there")
    put(here, KEYS[0], 4.0, "here, faster")
    put(there, KEYS[0], 5.0, "there")
    put(here, KEYS[1], 5.0, "here")
    put(there, KEYS[1], 4.0, "there, faster")
    put(there, KEYS[2], 1.0, "there alone")
    assert here.merge(there) == 2
    assert texts(here) == ["here, faster", "there, faster", "there alone"]
    assert here.merge(there) == 0
    assert there.merge(here) == 1
    assert there.list() == here.list()


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    store = new_store(tmp_path, "store")
    with pytest.raises(InputError, match=r"missing\.jsonl: cannot be read"):
        store.import_(tmp_path / "missing.jsonl")
    with pytest.raises(InputError, match=r"missing/results\.jsonl: cannot be written"):
        store.export(tmp_path / "missing" / "results.jsonl")


def test_a_failed_export_leaves_the_older_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results.jsonl").write_text("older")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(InputError, match="disk full"):
        new_store(tmp_path, "store").export(tmp_path / "results.jsonl")
    assert (tmp_path / "results.jsonl").read_text() == "older"
    assert [p.name for p in tmp_path.glob(".results*")] == []
