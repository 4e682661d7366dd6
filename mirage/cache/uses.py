"""How records are used, and which of them go when there are too many."""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import sqlalchemy as sa

from mirage import settings
from mirage.cache.engine import clock
from mirage.cache.records import DAY_S
from mirage.cache.tables import RESULTS, USES
from mirage.errors import CacheError

#: seconds between two times that a process looks whether there is too much
EVERY_S = 600.0
#: of the advisory lock of a server that lets one process evict at a time
_LOCK = 0x6D697262


@dataclass(frozen=True)
class Use:
    """Of one record: bytes of its payload, when it was last read or written (seconds since 1970), how often it was read."""

    bytes: int
    used: float
    hits: int


@dataclass
class Evictor:
    """When a process looks whether there is too much: at its first write, and seldom after that. The limits are those of the
    settings.
    """

    max_bytes: float = field(default_factory=settings.cache_max_bytes)
    max_days: float = field(default_factory=settings.cache_max_days)
    _next: float = -1.0

    def is_due(self) -> bool:
        """Whether it is time to look; the next time is later."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + EVERY_S
        return True


class Reads:
    """Reads of records that are yet to be counted: in a thread, as writing takes longer than reading."""

    def __init__(self, touch: Callable[[str], None]) -> None:
        self._touch = touch
        self._keys: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, key: str) -> None:
        """Count one, soon."""
        self._keys.put(key)
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._count, name="mirage-reads")
            # the interpreter may be about to end
            with suppress(RuntimeError):
                self._thread.start()

    def _count(self) -> None:
        # a store that cannot be written is read all the same
        with suppress(queue.Empty, CacheError):
            while True:
                self._touch(self._keys.get_nowait())

    def wait(self) -> None:
        """Until all are counted."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join()
        self._count()


def note_written(connection: sa.Connection, key: str, size: int) -> None:
    """A record of so many bytes was written."""
    values = {"bytes": size, "used": clock(connection)}
    if not connection.execute(sa.update(USES).where(USES.c.key == key).values(values)).rowcount:
        connection.execute(sa.insert(USES).values(key=key, hits=0, **values))


def touch(connection: sa.Connection, key: str) -> None:
    """Note that a record was read; nothing where another process writes: no reader waits for it."""
    if connection.dialect.name == "sqlite":
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.execute("PRAGMA busy_timeout=0")
    try:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text("SET LOCAL lock_timeout = '50ms'"))
        change = {"used": clock(connection), "hits": USES.c.hits + 1}
        connection.execute(sa.update(USES).where(USES.c.key == key).values(change))
        connection.commit()
    except sa.exc.DBAPIError:
        # it is counted the next time
        connection.rollback()


def all_uses(connection: sa.Connection) -> dict[str, Use]:
    """How each record is used, by its key."""
    rows = connection.execute(sa.select(USES))
    return {r.key: Use(int(_number(r.bytes)), _number(r.used), int(_number(r.hits))) for r in rows}


def _number(value: object) -> float:
    """A number of the table: SQLite keeps values of any type, which count as 0."""
    return value if isinstance(value, int | float) and abs(value) < 1e18 else 0


def evict(connection: sa.Connection, max_bytes: float, max_days: float) -> int:
    """Remove what was not used for so many days, and what was used longest ago until no more than so many bytes are left;
    returns how many records.
    """
    if connection.dialect.name == "postgresql":
        # one at a time: two that remove the same rows in another order would wait for each other
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    now = clock(connection)
    # earlier releases do not note what they write
    noted = sa.select(USES.c.key)
    columns = [RESULTS.c.key, sa.func.length(RESULTS.c.payload), sa.literal(now), sa.literal(0)]
    missing = sa.select(*columns).where(RESULTS.c.key.not_in(noted))
    connection.execute(sa.insert(USES).from_select(["key", "bytes", "used", "hits"], missing))
    rows = connection.execute(sa.select(USES.c.key, USES.c.bytes, USES.c.used).order_by(USES.c.used.desc(), USES.c.key))
    gone: list[str] = []
    left = 0.0
    for key, size, used in rows.all():
        left += _number(size)
        if left > max_bytes or now - _number(used) > max_days * DAY_S:
            gone.append(key)
    for start in range(0, len(gone), 500):
        some = gone[start : start + 500]
        connection.execute(sa.delete(RESULTS).where(RESULTS.c.key.in_(some)))
        connection.execute(sa.delete(USES).where(USES.c.key.in_(some)))
    return len(gone)
