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
    assert store.export(tmp_path / "results.json") == 3
    return tmp_path / "results.json"


def test_an_import_into_an_empty_store_is_a_copy(exported: Path, tmp_path: Path) -> None:
    copy = new_store(tmp_path, "copy")
    assert copy.import_(exported) == 3
    assert copy.list() == new_store(tmp_path, "source").list()
    assert texts(copy) == ["one", "two", "µ\ud800"]
    copy.export(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == exported.read_bytes()


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


def set_field(field: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["records"][2].update({field: value})


FOREIGN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda d: d.update(format="pickle"), "not a mirage results export"),
    "another schema": (lambda d: d.update(schema=1), "schema 1 is not 2"),
    "no list of records": (lambda d: d.update(records={}), "records: expected an array"),
    "a record that is a number": (lambda d: d["records"].append(1), r"records\[3\]: expected an object"),
    "a field too many": (set_field("note", ""), r"records\[2\]: expected an object"),
    "a field too few": (lambda d: d["records"][2].pop("dtype"), r"records\[2\]: expected an object"),
    "a program that is a number": (set_field("program", 1), "program: expected a text, found 1"),
    "a key that is no hash": (set_field("key", "x"), "key: expected a SHA-256 in hex"),
    "a time that is text": (set_field("best_us", "fast"), "best_us: expected a number"),
    "a payload changed by hand": (set_field("payload", '{"text": "evil"}'), "checksum"),
    "a payload that is a list": (set_field("payload", []), "payload: expected a text"),
    "a record of another version": (set_field("version", SCHEMA + 1), "schema version 2"),
}


@pytest.mark.parametrize("change", FOREIGN)
def test_a_foreign_file_changes_nothing(exported: Path, tmp_path: Path, change: str) -> None:
    edit, reason = FOREIGN[change]
    document = json.loads(exported.read_text())
    edit(document)
    exported.write_text(json.dumps(document))
    store = new_store(tmp_path, "store")
    with pytest.raises(CacheFormatError, match=f"results.json.*{reason}"):
        store.import_(exported)
    assert store.list() == []


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04]", b"SQLite format 3\0", b"[]", b"{}", b'{"schema": NaN}']
)
def test_a_file_that_is_no_export(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CacheFormatError, match="file written by an export"):
        new_store(tmp_path, "store").import_(tmp_path / "file")


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    store = new_store(tmp_path, "store")
    with pytest.raises(InputError, match=r"missing\.json: cannot be read"):
        store.import_(tmp_path / "missing.json")
    with pytest.raises(InputError, match=r"missing/results\.json: cannot be written"):
        store.export(tmp_path / "missing" / "results.json")


def test_a_failed_export_leaves_the_older_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "results.json").write_text("older")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(InputError, match="disk full"):
        new_store(tmp_path, "store").export(tmp_path / "results.json")
    assert (tmp_path / "results.json").read_text() == "older"
    assert [p.name for p in tmp_path.glob(".results*")] == []
