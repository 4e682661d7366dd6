"""Connections to databases: SQLite's settings, a server's, and files that are damaged."""

from __future__ import annotations

import fcntl
import functools
import os
import sqlite3
import time
from contextlib import closing, suppress
from itertools import count
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from mirage.cache.sqlite import LOCK_TIMEOUT_S, set_up

CONNECT_S = 5
"""How long a server may take to answer a new connection."""

#: the execution option of a transaction that writes
WRITE = "mirage_write"
#: what SQLite says of a file that it cannot read as a database
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def make_engine(url: sa.URL) -> sa.Engine:
    """An engine for the results store; raises SQLAlchemy's errors, and ImportError without the database's driver."""
    if url.get_backend_name() != "sqlite":
        return _server_engine(url)
    if url.database in (None, "", ":memory:"):
        raise sa.exc.ArgumentError("a SQLite database in memory keeps nothing; name a file")
    # No pool: a connection must not cross a fork, and opening one costs less than a millisecond.
    engine = sa.create_engine(
        url, hide_parameters=True, poolclass=NullPool, connect_args={"timeout": LOCK_TIMEOUT_S}
    )
    sa.event.listen(engine, "connect", set_up)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


@functools.cache
def _server_engine(url: sa.URL) -> sa.Engine:
    """One per process: all stores of a server share its connections, which take longer to make than most statements."""
    connect = {"connect_timeout": CONNECT_S} if url.get_backend_name() == "postgresql" else {}
    if url.drivername == "postgresql":
        # the driver that the package asks for, whichever is SQLAlchemy's own default
        url = url.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(url, hide_parameters=True, pool_pre_ping=True, connect_args=connect)
    # the child would write to connections of the parent
    os.register_at_fork(after_in_child=lambda: engine.dispose(close=False))
    return engine


def clock(connection: sa.Connection) -> float:
    """Seconds since 1970: a server's own, as the clocks of its clients differ."""
    if connection.dialect.name == "postgresql":
        return float(connection.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())
    return time.time()


def is_damage(error: BaseException | None) -> bool:
    """Whether SQLite says that the file is damaged, or none of its own."""
    # an error whose message quotes a damaged name, which the driver cannot read
    if isinstance(error, UnicodeDecodeError):
        return True
    # the lower bits of an extended code are the code
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


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
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        return False


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads before it writes needs the write lock first, or two of them can't both go on.
    writes = connection.get_execution_options().get(WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
