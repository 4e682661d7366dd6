"""The default store's file by SQLite alone: what a call does before its search, without the import of SQLAlchemy.

That takes 0.15 s, five times as long as the answer of a hit, and as long as a first kernel is compiled. Only a sound file with
tables of this release is read here: whatever else there is, is for `Database` to tell, to migrate, or to set aside.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from mirage import settings
from mirage.cache.leases import LEASE_S, Holder, holder_of
from mirage.cache.records import Record, RecordInfo
from mirage.errors import CacheError

#: the revisions of `migrations/`, oldest first; the last one is what `tables.py` defines
REVISIONS = ("0001", "0002")
LOCK_TIMEOUT_S = 60
"""How long a SQLite writer waits for another one."""


class Unsuited(CacheError):
    """The file is not for this module; the general way tells what is wrong with it, if anything is."""


def set_up(connection: Any, _record: object = None) -> None:
    """What every connection to SQLite begins with."""
    # Damaged text must come out as text that fails its checksum, not as an error of the whole query.
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    # The driver's own BEGIN is deferred; ours says at once whether it will write.
    connection.isolation_level = None
    # The write-ahead log lets readers and one writer work together, and survives a killed process.
    _use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous=NORMAL")


def _use_write_ahead_log(connection: Any) -> None:
    """Switch to the write-ahead log. SQLite does not wait where two connections to a new file do so at once: we do."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


class StoreFile:
    """The file of the default store; its methods are as those of `Database`, and raise `Unsuited`."""

    def __init__(self) -> None:
        # a wrong setting is told before any work is done
        settings.cache_max_bytes()
        settings.cache_max_days()
        self._file = settings.cache_dir() / "results.sqlite"
        if settings.cache_url() is not None or not self._file.exists():
            raise Unsuited

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            # no file is made where another process removed it
            url = f"{self._file.absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(url, timeout=LOCK_TIMEOUT_S, uri=True)) as connection:
                set_up(connection)
                version = connection.execute("SELECT version_num FROM mirage_schema").fetchone()
                if version != (REVISIONS[-1],):
                    raise Unsuited
                yield connection
        except (sqlite3.Error, UnicodeError, ValueError) as e:
            raise Unsuited from e

    def _records(self, kind: type[Any], where: str, value: str) -> list[Any]:
        names = list(kind.__dataclass_fields__)
        with self._connected() as connection:
            rows = connection.execute(f"SELECT {', '.join(names)} FROM mirage_results WHERE {where} = ? ORDER BY key", (value,))
            return [kind(**dict(zip(names, row, strict=True))) for row in rows]

    def find(self, key: str) -> Record | None:
        found = self._records(Record, "key", key)
        return found[0] if found else None

    def checksum(self, key: str) -> str | None:
        with self._connected() as connection:
            row = connection.execute("SELECT payload_sha256 FROM mirage_results WHERE key = ?", (key,)).fetchone()
            return None if row is None else row[0]

    def family(self, family: str) -> Sequence[RecordInfo]:
        return self._records(RecordInfo, "family", family)

    def touch(self, key: str) -> None:
        """Note that a record was read, in a thread; nothing where another process writes: no reader waits for it."""
        thread = threading.Thread(target=self._touch, args=(key,), name="mirage-reads")
        # the interpreter may be about to end
        with suppress(RuntimeError):
            thread.start()

    def _touch(self, key: str) -> None:
        with suppress(Unsuited), self._connected() as connection:
            connection.execute("PRAGMA busy_timeout=0")
            connection.execute("UPDATE mirage_uses SET used = ?, hits = hits + 1 WHERE key = ?", (time.time(), key))

    # leases

    def acquire(self, key: str, owner: str) -> Holder | None:
        """Have the lease of a key; or who has it, which stays so."""
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            now = time.time()
            row = connection.execute("SELECT owner, expires FROM mirage_leases WHERE key = ?", (key,)).fetchone()
            if row is not None and (holder := holder_of(row[0], row[1], now)) is not None:
                return holder
            values = (key, owner, now + LEASE_S)
            connection.execute("INSERT OR REPLACE INTO mirage_leases (key, owner, expires) VALUES (?, ?, ?)", values)
            connection.execute("COMMIT")
            return None

    def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Have the lease for so many seconds from now; whether it was still the owner's."""
        with self._connected() as connection:
            values = (time.time() + seconds, key, owner)
            return connection.execute("UPDATE mirage_leases SET expires = ? WHERE key = ? AND owner = ?", values).rowcount > 0

    def release(self, key: str, owner: str) -> None:
        """Give the lease up, if it is the owner's."""
        with self._connected() as connection:
            connection.execute("DELETE FROM mirage_leases WHERE key = ? AND owner = ?", (key, owner))
