"""Stores that fail in every way: no call stops, and nothing that is wrong is used."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mirage.cache import CallStore, CorruptRecordWarning, Lease, ResultStore, StoreWarning
from mirage.cache.engine import set_aside
from mirage.cache.records import canonical_json, sha256
from mirage.errors import CacheError
from tests.cache import postgresql

KEYS = [sha256(str(i)) for i in range(4)]
ABOUT: dict[str, Any] = {"program": "p", "target": "cpu", "dtype": "float32", "best_us": 1.5, "processor": "here"}


def payload(key: str) -> dict[str, Any]:
    return {"key": key, "graphs": [{"nodes": list(range(20)), "text": "exp(x) µ"}], "timing": 1 / 3}


@pytest.fixture
def server() -> Iterator[postgresql.Server]:
    """A server of this test's own, as it is stopped."""
    if why := postgresql.missing():
        pytest.skip(why)
    with postgresql.server() as found:
        yield found


def test_a_server_that_goes_away_stops_no_call(server: postgresql.Server) -> None:
    url = server.url()
    store = CallStore(ResultStore(url))
    assert store.put(KEYS[0], payload(KEYS[0]), **ABOUT)
    lease = store.acquire(KEYS[0])
    assert isinstance(lease, Lease)
    server.stop()
    with pytest.warns(StoreWarning, match="nothing is recalled or kept"):
        assert store.recall(KEYS[0]) is None
    assert store.put(KEYS[1], payload(KEYS[1]), **ABOUT) is None
    lease.release()
    with pytest.warns(StoreWarning, match=r"postgresql://\*\*\*@.*nothing is recalled or kept"):
        other = CallStore(_unopened(url))
        assert isinstance(other.acquire(KEYS[0]), Lease)
    server.start()
    # the connections of before are dead, which the next call does not notice
    found = CallStore(ResultStore(url)).recall(KEYS[0])
    assert found is not None and found.payload == payload(KEYS[0]), "what was kept outlives a crash of the server"
    assert ResultStore(url).checksum(KEYS[1]) is None


def _unopened(url: str) -> Any:
    """A store that is opened when it is used."""

    class Unopened:
        def __init__(self) -> None:
            self.url = url

        def acquire(self, key: str) -> Any:
            return ResultStore(url).acquire(key)

    return Unopened()


def test_a_database_that_is_read_only_is_read_and_stops_no_call(postgresql_server: postgresql.Server) -> None:
    url = postgresql_server.url()
    ResultStore(url).put(KEYS[0], payload(KEYS[0]), **ABOUT)
    read_only = f"{url}&options=-c%20default_transaction_read_only%3Don"
    store = CallStore(ResultStore(read_only))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = store.recall(KEYS[0])
        assert found is not None and found.payload == payload(KEYS[0])
    with pytest.warns(StoreWarning, match="read-only"):
        assert isinstance(store.acquire(KEYS[1]), Lease)
    assert store.put(KEYS[1], payload(KEYS[1]), **ABOUT) is None


def test_a_forked_process_has_connections_of_its_own(postgresql_server: postgresql.Server) -> None:
    """In a process of its own, as this one has threads."""
    script = """
import os, sys
from mirage.cache import ResultStore
store = ResultStore(sys.argv[1])
key = "0" * 64
store.put(key, {"n": 0}, program="p", target="cpu", dtype="f32", best_us=1.0)
children = []
for i in range(3):
    if not (child := os.fork()):
        for _ in range(20):
            assert store.get(key) == {"n": 0}
        os._exit(0)
    children.append(child)
for _ in range(20):
    assert store.get(key) == {"n": 0}
assert [os.waitpid(c, 0)[1] for c in children] == [0, 0, 0]
"""
    subprocess.run([sys.executable, "-c", script, postgresql_server.url()], check=True)


def damage(file: Path, rng: random.Random) -> str:
    """Change one byte of what is stored of a record: in a column, or anywhere in the file."""
    if rng.random() < 0.5:
        data = bytearray(file.read_bytes())
        place = rng.randrange(len(data))
        data[place] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        return f"byte {place} of the file"
    with closing(sqlite3.connect(file)) as connection, connection:
        table = rng.choice(["mirage_results", "mirage_results", "mirage_uses", "mirage_schema"])
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        column = rng.choice(columns)
        key = connection.execute(f"SELECT rowid, CAST({column} AS BLOB) FROM {table} ORDER BY random() LIMIT 1").fetchone()
        text = bytearray(key[1] or b"\0")
        place = rng.randrange(len(text) or 1)
        text[place : place + 1] = bytes([(text[place] if text else 0) ^ 1 << rng.randrange(8)])
        kind = rng.choice(["TEXT", "BLOB"])
        connection.execute(f"UPDATE OR REPLACE {table} SET {column} = CAST(? AS {kind}) WHERE rowid = ?", [bytes(text), key[0]])
        return f"{table}.{column}, byte {place}, {kind}"


def check(folder: Path, rng: random.Random) -> None:
    """Damage a store, and fail unless each of its records is recalled as it was, or not at all; and new ones are kept."""
    file = folder / "store.sqlite"
    where = damage(file, rng)
    store = CallStore(_default(file))
    for key in KEYS:
        found = store.recall(key)
        assert found is None or found.payload == payload(key), where
        assert store.holder(key) is None, where
    lease = store.acquire(KEYS[0])
    assert isinstance(lease, Lease), where
    lease.release()
    if store.put(KEYS[0], payload(KEYS[0]), **{**ABOUT, "best_us": 1e-6}):
        found = store.recall(KEYS[0])
        assert found is not None and found.payload == payload(KEYS[0]), where


def _default(file: Path) -> Any:
    """The store of a file, which may not open."""
    try:
        return ResultStore(f"sqlite:///{file}")
    except CacheError as e:
        if hasattr(e, "file"):
            set_aside(file)
            return ResultStore(f"sqlite:///{file}")
        return None


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The file of a store with four records."""
    file = tmp_path_factory.mktemp("sound") / "store.sqlite"
    store = ResultStore(f"sqlite:///{file}")
    for key in KEYS:
        store.put(key, payload(key), **ABOUT)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file.read_bytes()


@pytest.mark.filterwarnings("ignore::mirage.cache.CorruptRecordWarning", "ignore::mirage.cache.StoreWarning")
@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.slow)])
def test_one_changed_byte_is_refused_or_harmless(
    sound: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    for seed in range(count):
        folder = tmp_path / str(seed)
        folder.mkdir()
        (folder / "store.sqlite").write_bytes(sound)
        monkeypatch.setenv("MIRAGE_CACHE_DIR", str(folder))
        monkeypatch.setenv("MIRAGE_CACHE_URL", f"sqlite:///{folder}/store.sqlite")
        check(folder, random.Random(seed))


@pytest.mark.parametrize("name", [b"mirage_uses", b"INDEX mirage_results_family"])
def test_a_damaged_name_of_a_table_is_damage(sound: bytes, tmp_path: Path, name: bytes) -> None:
    """The driver cannot read the error's message, which has the name."""
    file = tmp_path / "store.sqlite"
    assert name in sound
    file.write_bytes(sound.replace(name, b"\xa9" + name[1:]))
    with pytest.raises(CacheError, match=r"store\.sqlite"):
        ResultStore(f"sqlite:///{file}").put(KEYS[0], {}, **{**ABOUT, "best_us": 0.1})


def test_the_damage_of_these_tests_is_noticed(sound: bytes, tmp_path: Path) -> None:
    """Most changes of a payload are: this is what the test above could not tell."""
    file = tmp_path / "store.sqlite"
    file.write_bytes(sound)
    with closing(sqlite3.connect(file)) as connection, connection:
        text = canonical_json(payload(KEYS[0]), "test").replace("exp", "exq")
        connection.execute("UPDATE mirage_results SET payload = ? WHERE key = ?", [text, KEYS[0]])
    with pytest.warns(CorruptRecordWarning):
        assert ResultStore(f"sqlite:///{file}").get(KEYS[0]) is None
