"""The database behind the results store: its statements, and its errors in our words."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from mirage import settings
from mirage.cache import uses
from mirage.cache.engine import WRITE, clock, is_damage, make_engine
from mirage.cache.leases import Holder, holder_of
from mirage.cache.records import Record, RecordInfo
from mirage.cache.schema import no_store, prepare
from mirage.cache.tables import LEASES, RESULTS, USES
from mirage.errors import CacheError, DamagedCacheError

_INFO = [RESULTS.c[name] for name in RecordInfo.__dataclass_fields__]
_RECORD = [RESULTS.c[name] for name in Record.__dataclass_fields__]


class Database:
    """A database with the tables of `tables.py`, which are made or migrated if need be.

    `url` is a SQLAlchemy URL; by default `MIRAGE_CACHE_URL`, else a SQLite file in `MIRAGE_CACHE_DIR`.
    Raises CacheError if the database can't be opened, or has no such tables and is not to be given any (`create`);
    NewerCacheError for one of a later release.
    """

    def __init__(self, url: str | None = None, create: bool = True) -> None:
        source = "give" if url is not None else "set MIRAGE_CACHE_URL to"
        url = settings.cache_url() if url is None else url
        if url is not None and (not isinstance(url, str) or "\0" in url):
            raise CacheError(f"results store {url!r}: not a URL; {source} a text such as sqlite:////path/file.sqlite")
        # a wrong setting is told before any work is done
        self._evictor = uses.Evictor()
        #: of which records are read
        self.reads = uses.Reads(self._touch)
        self._file: Path | None = None
        if url is None:
            file = settings.cache_dir() / "results.sqlite"
            self.place = str(file)
            self._advice = "set MIRAGE_CACHE_DIR to a folder that you can write, with room on its disk"
            with self._reported():
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            parsed = sa.URL.create("sqlite", database=str(file))
        else:
            self.place = re.sub(r"://[^/]*@", "://***@", url)
            self._advice = f"{source} the SQLAlchemy URL of a database that you can use, such as sqlite:////path/file.sqlite"
            with self._reported():
                parsed = sa.make_url(url)
        with self._reported():
            self._engine = make_engine(parsed)
            self._file = Path(parsed.database) if parsed.database and parsed.get_backend_name() == "sqlite" else None
            # SQLite makes files that it does not find
            if not create and self._file is not None and not self._file.exists():
                raise no_store(self.place)
            prepare(self._engine, self._writing, self.place, create)

    @property
    def url(self) -> str:
        """The SQLAlchemy URL, with its password: nothing to print."""
        return self._engine.url.render_as_string(hide_password=False)

    # records

    def find(self, key: str) -> Record | None:
        """The record of that key."""
        with self._reading() as connection:
            return _record_of(connection, key)

    def checksum(self, key: str) -> str | None:
        """That of the record of a key, which is read for less than the record."""
        with self._reading() as connection:
            return connection.execute(sa.select(RESULTS.c.payload_sha256).where(RESULTS.c.key == key)).scalar()

    def family(self, family: str) -> list[RecordInfo]:
        """The records that differ in their processors only, without payloads."""
        with self._reading() as connection:
            statement = sa.select(*_INFO).where(RESULTS.c.family == family).order_by(RESULTS.c.key)
            return [RecordInfo(**row._mapping) for row in connection.execute(statement)]

    def matching(self, prefix: str = "") -> list[str]:
        """The keys that begin with a text, in order."""
        with self._reading() as connection:
            statement = sa.select(RESULTS.c.key).where(RESULTS.c.key.startswith(prefix, autoescape=True))
            return sorted(map(str, connection.execute(statement).scalars()))

    def infos(self) -> list[RecordInfo]:
        """Every record without its payload, in any order."""
        with self._reading() as connection:
            return [RecordInfo(**row._mapping) for row in connection.execute(sa.select(*_INFO))]

    def delete(self, key: str | None = None, checksum: str | None = None) -> int:
        """Removes the record of that key, if it has this checksum, or all; returns how many there were."""
        chosen = sa.true() if key is None else RESULTS.c.key == key
        if checksum is not None:
            chosen &= RESULTS.c.payload_sha256 == checksum
        with self._writing() as connection:
            found = connection.execute(sa.delete(RESULTS).where(chosen)).rowcount
            connection.execute(sa.delete(USES).where(USES.c.key.not_in(sa.select(RESULTS.c.key))))
            return found

    def merge(self, records: Iterable[Record], replaces: Collection[str] = ()) -> int:
        """Stores the records that are new, beat those of their keys, or are of what had one of the checksums `replaces`: all of
        them or none; returns how many.
        """
        # In the order of keys, so that two merges on a server can't wait for each other's rows.
        ordered = sorted(records, key=lambda record: record.key)
        while True:
            try:
                with self._writing() as connection:
                    stored = sum(_merge_one(connection, record, replaces) for record in ordered)
                break
            except sa.exc.IntegrityError:
                # Another writer inserted one of these keys after we looked: it is there to compare with now.
                continue
        if stored and self._evictor.is_due():
            # what was stored is stored, whatever becomes of this
            with suppress(CacheError):
                self.evict(self._evictor.max_bytes, self._evictor.max_days)
        return stored

    # uses

    def _touch(self, key: str) -> None:
        """Note that a record is read, where nobody writes at this moment."""
        with self._reported(), self._engine.connect() as connection:
            connection = connection.execution_options(**{WRITE: True})
            uses.touch(connection, key)

    def uses(self) -> dict[str, uses.Use]:
        """How each record is used, by its key."""
        self.reads.wait()
        with self._reading() as connection:
            return uses.all_uses(connection)

    def evict(self, max_bytes: float, max_days: float) -> int:
        """Remove what was not used for so many days, and what was used longest ago until no more than so many bytes are left;
        returns how many records.
        """
        self.reads.wait()
        while True:
            try:
                with self._writing() as connection:
                    return uses.evict(connection, max_bytes, max_days)
            except sa.exc.IntegrityError:
                # another process noted the use of a record after we looked
                continue

    # leases

    def acquire(self, key: str, owner: str, seconds: float) -> Holder | None:
        """Have the lease of a key for so many seconds; or who has it, which stays so."""
        while True:
            try:
                with self._writing() as connection:
                    now = clock(connection)
                    row = _lease_of(connection, key, lock=True)
                    holder = _holder(row, now)
                    if holder is not None and holder.owner != owner:
                        return holder
                    if row is None:
                        connection.execute(sa.insert(LEASES).values(key=key, owner=owner, expires=now + seconds))
                    else:
                        chosen = sa.update(LEASES).where(LEASES.c.key == key)
                        connection.execute(chosen.values(owner=owner, expires=now + seconds))
                    return None
            except sa.exc.IntegrityError:
                # another process had it first
                continue

    def renew(self, key: str, owner: str, seconds: float) -> bool:
        """Have the lease for so many seconds from now; whether it was still the owner's."""
        with self._writing() as connection:
            mine = (LEASES.c.key == key) & (LEASES.c.owner == owner)
            found = connection.execute(sa.update(LEASES).where(mine).values(expires=clock(connection) + seconds))
            return found.rowcount > 0

    def release(self, key: str, owner: str) -> None:
        """Give the lease up, if it is the owner's."""
        with self._writing() as connection:
            connection.execute(sa.delete(LEASES).where(LEASES.c.key == key, LEASES.c.owner == owner))

    def holder(self, key: str) -> Holder | None:
        """Who has the lease of a key; None where it is free, has expired, or its owner is known to be dead."""
        with self._reading() as connection:
            return _holder(_lease_of(connection, key), clock(connection))

    # transactions

    @contextmanager
    def connected(self) -> Iterator[None]:
        """A block in which a connection to a SQLite file stays open: it takes its log in whenever the last one is closed."""
        if self._file is None:
            # connections to servers are kept in any case
            yield
            return
        with ExitStack() as stack:
            with self._reported():
                connection = stack.enter_context(self._engine.connect())
                connection.execute(sa.select(RESULTS.c.key).limit(1)).all()
                # an open transaction would keep the log from being taken in at all
                connection.rollback()
            yield

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
        engine = self._engine.execution_options(**{WRITE: True})
        with self._reported(), engine.begin() as connection:
            yield connection

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.IntegrityError:
            raise
        except ImportError as error:
            driver = "install the driver of that database, for PostgreSQL `pip install 'mirage-superoptimizer[postgresql]'`"
            raise CacheError(f"results store {self.place}: {error}; {driver}") from error
        except (sa.exc.SQLAlchemyError, OSError, UnicodeDecodeError) as error:
            cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
            # servers say more than a line
            said = f"results store {self.place}: {' '.join(str(cause).split())}"
            if self._file and is_damage(cause):
                advice = "rename or remove the file, and the next search begins a new store"
                raise DamagedCacheError(f"{said}; {advice}", self._file) from error
            raise CacheError(f"{said}; {self._advice}") from error


def _record_of(connection: sa.Connection, key: str, lock: bool = False) -> Record | None:
    statement = sa.select(*_RECORD).where(RESULTS.c.key == key)
    row = connection.execute(statement.with_for_update() if lock else statement).one_or_none()
    return None if row is None else Record(**row._mapping)


def _merge_one(connection: sa.Connection, record: Record, replaces: Collection[str]) -> bool:
    stored = _record_of(connection, record.key, lock=True)
    if stored is not None and stored.payload_sha256 not in replaces and not record.beats(stored):
        return False
    if stored is None:
        connection.execute(sa.insert(RESULTS).values(vars(record)))
    else:
        connection.execute(sa.update(RESULTS).where(RESULTS.c.key == record.key).values(vars(record)))
    uses.note_written(connection, record.key, len(record.payload))
    return True


def _lease_of(connection: sa.Connection, key: str, lock: bool = False) -> Any:
    statement = sa.select(LEASES.c.owner, LEASES.c.expires).where(LEASES.c.key == key)
    return connection.execute(statement.with_for_update() if lock else statement).one_or_none()


def _holder(row: Any, now: float) -> Holder | None:
    return None if row is None else holder_of(row.owner, row.expires, now)
