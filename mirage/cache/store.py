"""The results store: verified results by key, shared by processes and, with a server's URL, by machines."""

from __future__ import annotations

import builtins
import json
import warnings
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from mirage.cache.database import TABLE, Database
from mirage.cache.exchange import read_records, write_records
from mirage.cache.records import (
    SCHEMA,
    CorruptRecordWarning,
    Record,
    RecordInfo,
    canonical_json,
    is_key,
    is_time,
    sha256,
)
from mirage.errors import CacheError

_INFO = [TABLE.c[name] for name in RecordInfo.__dataclass_fields__]


class ResultStore:
    """Records in a database; several processes may use it at once, and one that is killed leaves it readable.

    `url` is a SQLAlchemy URL; by default `MIRAGE_CACHE_URL`, else the file `results.sqlite` in
    `MIRAGE_CACHE_DIR` or in the user's cache folder. Every method raises CacheError if the database can't
    be used.
    """

    def __init__(self, url: str | None = None) -> None:
        self._database = Database(url)

    @property
    def place(self) -> str:
        """Where the records are: a file, or a URL without its password."""
        return self._database.place

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database, with its password: for processes of one's own."""
        return self._database.url

    def get(self, key: str) -> dict[str, Any] | None:
        """The payload stored under `key`, or None.

        A record that is damaged or of another schema version is a CorruptRecordWarning and a miss.
        """
        _check_key(key)
        with self._database.reading() as connection:
            row = connection.execute(sa.select(TABLE).where(TABLE.c.key == key)).one_or_none()
        if row is None:
            return None
        record = Record(**row._mapping)
        if fault := record.fault():
            _warn(record, fault)
            return None
        payload: dict[str, Any] = json.loads(record.payload)
        return payload

    def put(
        self,
        key: str,
        payload: Mapping[str, Any],
        *,
        program: str,
        target: str,
        dtype: str,
        best_us: float | None,
    ) -> bool:
        """Store `payload`, a dict of JSON values, unless a sound record of `key` is as fast.

        Returns whether it was stored. `best_us` is the best kernel's measured time in microseconds; None
        (ranked by the cost model only) loses to every measured time. Raises CacheError for a key, payload or
        time that can't be stored.
        """
        _check_key(key)
        if not is_time(best_us):
            raise CacheError(f"record {key}: best_us={best_us!r} is not a time in microseconds or None")
        text = canonical_json(payload, f"record {key}")
        created = datetime.now(UTC).isoformat(timespec="seconds")
        record = Record(key, program, target, dtype, SCHEMA, created, best_us, text, sha256(text))
        return self._merge([record]) == 1

    def discard(self, key: str) -> bool:
        """Remove the record of `key`; returns whether there was one."""
        _check_key(key)
        with self._database.writing() as connection:
            return connection.execute(sa.delete(TABLE).where(TABLE.c.key == key)).rowcount > 0

    def list(self) -> builtins.list[RecordInfo]:
        """Every record without its payload, by program, target, dtype and key."""
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(*_INFO)).all()
        records = [RecordInfo(**row._mapping) for row in rows]
        return sorted(records, key=lambda r: (r.program, r.target, r.dtype, r.key))

    def export(self, path: str | Path) -> int:
        """Write every sound record to a JSON file, whole or not at all; returns how many.

        Others are left out with a CorruptRecordWarning. Raises InputError if the file can't be written.
        """
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(TABLE).order_by(TABLE.c.key)).all()
        sound = []
        for record in (Record(**row._mapping) for row in rows):
            if fault := record.fault():
                _warn(record, fault)
            else:
                sound.append(record)
        return write_records(Path(path), sound)

    def import_(self, path: str | Path) -> int:
        """Merge an exported file into the store by the rule of `put`, all of it or nothing.

        Returns how many records were new or faster. Raises InputError if the file can't be read, CacheFormatError
        if it is not an export of this schema version or any record of it is damaged.
        """
        return self._merge(read_records(Path(path)))

    def clear(self) -> int:
        """Remove every record; returns how many there were."""
        with self._database.writing() as connection:
            return connection.execute(sa.delete(TABLE)).rowcount

    def _merge(self, records: Iterable[Record]) -> int:
        # In the order of keys, so that two merges on a server can't wait for each other's rows.
        ordered = sorted(records, key=lambda record: record.key)
        while True:
            try:
                with self._database.writing() as connection:
                    return sum(_merge_one(connection, record) for record in ordered)
            except sa.exc.IntegrityError:
                # Another writer inserted one of these keys after we looked: it is there to compare with now.
                continue


def _merge_one(connection: sa.Connection, record: Record) -> bool:
    same_key = TABLE.c.key == record.key
    row = connection.execute(sa.select(TABLE).where(same_key).with_for_update()).one_or_none()
    if row is None:
        connection.execute(sa.insert(TABLE).values(vars(record)))
        return True
    if not record.beats(Record(**row._mapping)):
        return False
    connection.execute(sa.update(TABLE).where(same_key).values(vars(record)))
    return True


def check_cache(cache: object) -> None:
    """Raises CacheError for an argument `cache` that `store_of` does not take."""
    if not isinstance(cache, ResultStore | bool):
        raise CacheError(
            f"cache={cache!r} is not a results store; pass a ResultStore, True for the default one, or False"
        )


def store_of(cache: ResultStore | bool) -> ResultStore | None:
    """The store that an argument `cache` means: itself, the default one for True, none for False.

    Raises CacheError for anything else.
    """
    check_cache(cache)
    return cache if isinstance(cache, ResultStore) else ResultStore() if cache else None


def _check_key(key: str) -> None:
    if not is_key(key):
        raise CacheError(f"{key!r} is not a cache key; keys are SHA-256 in lowercase hex")


def _warn(record: Record, fault: str) -> None:
    warnings.warn(f"stored record {record.key} is ignored: {fault}", CorruptRecordWarning, stacklevel=3)
