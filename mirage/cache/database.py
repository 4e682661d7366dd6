"""The database behind the results store: its table, its statements, its engine, and its errors in our words."""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from mirage import settings
from mirage.cache.records import Record, RecordInfo
from mirage.errors import CacheError, DamagedCacheError

LOCK_TIMEOUT_S = 60
"""How long a SQLite writer waits for another one."""

TABLE = sa.Table(
    "mirage_results",
    sa.MetaData(),
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("program", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("dtype", sa.Text, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("created", sa.Text, nullable=False),
    sa.Column("best_us", sa.Float(53)),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("payload_sha256", sa.String(64), nullable=False),
)

_INFO = [TABLE.c[name] for name in RecordInfo.__dataclass_fields__]
_WRITE = "mirage_write"
#: what SQLite says of a file that it cannot read as a database
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Database:
    """A database with the results table, which is created if it is not there.

    `url` is a SQLAlchemy URL; by default `MIRAGE_CACHE_URL`, else a SQLite file in `MIRAGE_CACHE_DIR`.
    Raises CacheError if the database can't be opened.
    """

    def __init__(self, url: str | None = None) -> None:
        url = url or settings.cache_url()
        self._file: Path | None = None
        if url is None:
            file = settings.cache_dir() / "results.sqlite"
            self.place = str(file)
            self._advice = "set MIRAGE_CACHE_DIR to a folder that you can write, or remove a damaged file"
            with self._reported():
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            parsed = sa.URL.create("sqlite", database=str(file))
        else:
            self.place = re.sub(r"://[^/]*@", "://***@", url)
            self._advice = "check MIRAGE_CACHE_URL, a SQLAlchemy URL such as sqlite:////path/file.sqlite"
            with self._reported():
                parsed = sa.make_url(url)
        with self._reported():
            self._engine = _engine(parsed)
            self._file = Path(parsed.database) if parsed.database and parsed.get_backend_name() == "sqlite" else None
            if not sa.inspect(self._engine).has_table(TABLE.name):
                # PostgreSQL reports a duplicate when two processes create the table at once.
                with suppress(sa.exc.IntegrityError), self._writing() as connection:
                    connection.execute(sa.schema.CreateTable(TABLE, if_not_exists=True))

    @property
    def url(self) -> str:
        """The SQLAlchemy URL, with its password: nothing to print."""
        return self._engine.url.render_as_string(hide_password=False)

    def find(self, key: str) -> Record | None:
        """The record of that key."""
        with self._reading() as connection:
            return _record_of(connection, sa.select(TABLE), key)

    def records(self) -> list[Record]:
        """Every record, by key."""
        with self._reading() as connection:
            return [Record(**row._mapping) for row in connection.execute(sa.select(TABLE).order_by(TABLE.c.key))]

    def infos(self) -> list[RecordInfo]:
        """Every record without its payload, in any order."""
        with self._reading() as connection:
            return [RecordInfo(**row._mapping) for row in connection.execute(sa.select(*_INFO))]

    def delete(self, key: str | None = None) -> int:
        """Removes the record of that key, or all; returns how many there were."""
        statement = sa.delete(TABLE)
        with self._writing() as connection:
            return connection.execute(statement if key is None else statement.where(TABLE.c.key == key)).rowcount

    def merge(self, records: Iterable[Record]) -> int:
        """Stores the records that are new or beat those of their keys, all of them or none; returns how many."""
        # In the order of keys, so that two merges on a server can't wait for each other's rows.
        ordered = sorted(records, key=lambda record: record.key)
        while True:
            try:
                with self._writing() as connection:
                    return sum(_merge_one(connection, record) for record in ordered)
            except sa.exc.IntegrityError:
                # Another writer inserted one of these keys after we looked: it is there to compare with now.
                continue

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        """A connection for one read; raises CacheError if the database fails."""
        with self._reported(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        """A transaction that reads and writes, undone if it raises; SQLite lets in one at a time.

        Raises CacheError if the database fails; IntegrityError if another writer inserted the key first.
        """
        engine = self._engine.execution_options(**{_WRITE: True})
        with self._reported(), engine.begin() as connection:
            yield connection

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.IntegrityError:
            raise
        except (sa.exc.SQLAlchemyError, ImportError, OSError) as error:
            cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            message = f"results store {self.place}: {cause}; {self._advice}"
            if isinstance(cause, sqlite3.DatabaseError) and _is_damage(cause) and self._file:
                raise DamagedCacheError(message, self._file) from error
            raise CacheError(message) from error


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    # the lower bits of an extended code are the code
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def set_aside(file: Path) -> Path | None:
    """Give a damaged SQLite file, and its log, another name, which is returned; None where another process did.

    Raises OSError where that is not possible.
    """
    with file.with_name(f"{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists() or _is_sound(file):
            return None
        aside = next(p for i in count(1) if not (p := file.with_name(f"{file.name}.damaged-{i}")).exists())
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.replace(f"{file}{suffix}", f"{aside}{suffix}")
        return aside


def _is_sound(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(file, timeout=LOCK_TIMEOUT_S)) as connection:
            return bool(connection.execute("PRAGMA quick_check").fetchone() == ("ok",))
    except sqlite3.DatabaseError:
        return False


def _record_of(connection: sa.Connection, statement: sa.Select[Any], key: str) -> Record | None:
    row = connection.execute(statement.where(TABLE.c.key == key)).one_or_none()
    return None if row is None else Record(**row._mapping)


def _merge_one(connection: sa.Connection, record: Record) -> bool:
    stored = _record_of(connection, sa.select(TABLE).with_for_update(), record.key)
    if stored is None:
        connection.execute(sa.insert(TABLE).values(vars(record)))
        return True
    if not record.beats(stored):
        return False
    connection.execute(sa.update(TABLE).where(TABLE.c.key == record.key).values(vars(record)))
    return True


def _engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() != "sqlite":
        return sa.create_engine(url, hide_parameters=True, pool_pre_ping=True)
    if url.database in (None, "", ":memory:"):
        raise sa.exc.ArgumentError("a SQLite database in memory keeps nothing; name a file")
    # No pool: a connection must not cross a fork, and opening one costs less than a millisecond.
    engine = sa.create_engine(
        url, hide_parameters=True, poolclass=NullPool, connect_args={"timeout": LOCK_TIMEOUT_S}
    )
    sa.event.listen(engine, "connect", _set_up_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # Damaged text must come out as text that fails its checksum, not as an error of the whole query.
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    # The driver's own BEGIN is deferred; ours (below) says at once whether it will write.
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


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads before it writes needs the write lock first, or two of them can't both go on.
    writes = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
