"""The results store: verified results by key, shared by processes and, with a server's URL, by machines."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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


class ResultStore:
    """Records in a database; several processes may use it at once, and one that is killed leaves it readable.

    `url` is a SQLAlchemy URL; by default `MIRAGE_CACHE_URL`, else the file `results.sqlite` in
    `MIRAGE_CACHE_DIR` or in the user's cache folder. Every method raises CacheError if the database can't
    be used.
    """

    def __init__(self, url: str | None = None) -> None:
        # SQLAlchemy is imported for the first store, and not by processes that have none
        from mirage.cache.database import Database

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
        record = self._database.find(key)
        if record is None:
            return None
        try:
            return record.content()
        except ValueError as fault:
            _warn(record, str(fault))
            return None

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
        return self._database.merge([record]) == 1

    def discard(self, key: str) -> bool:
        """Remove the record of `key`; returns whether there was one."""
        _check_key(key)
        return self._database.delete(key) > 0

    def list(self) -> builtins.list[RecordInfo]:
        """Every record without its payload, by program, target, dtype and key."""
        return sorted(self._database.infos(), key=lambda r: (r.program, r.target, r.dtype, r.key))

    def export(self, path: str | Path) -> int:
        """Write every sound record to a JSON file, whole or not at all; returns how many.

        Others are left out with a CorruptRecordWarning. Raises InputError if the file can't be written.
        """
        sound = []
        for record in self._database.records():
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
        return self._database.merge(read_records(Path(path)))

    def clear(self) -> int:
        """Remove every record; returns how many there were."""
        return self._database.delete()


def check_cache(cache: object) -> None:
    """Raises CacheError for an argument `cache` that `store_of` does not take."""
    if not isinstance(cache, ResultStore | bool):
        raise CacheError(
            f"cache={cache!r} is not a results store; pass a ResultStore, True for the default one, or False"
        )


def _check_key(key: str) -> None:
    if not is_key(key):
        raise CacheError(f"{key!r} is not a cache key; keys are SHA-256 in lowercase hex")


def _warn(record: Record, fault: str) -> None:
    warnings.warn(f"stored record {record.key} is ignored: {fault}", CorruptRecordWarning, stacklevel=3)
