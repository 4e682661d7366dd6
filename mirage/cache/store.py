"""The results store: verified results by key, shared by processes and, with a server's URL, by machines."""

from __future__ import annotations

import builtins
import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mirage.cache.exchange import read_records, write_records
from mirage.cache.leases import LEASE_S, Holder, Lease, new_owner
from mirage.cache.records import (
    SCHEMA,
    CorruptRecordWarning,
    Record,
    RecordInfo,
    canonical_json,
    is_key,
    is_seconds,
    is_time,
    label,
    sha256,
)
from mirage.errors import CacheError
from mirage.folders import path_of

if TYPE_CHECKING:
    from mirage.cache.uses import Use

R = TypeVar("R", bound=RecordInfo)


@dataclass(frozen=True)
class Recalled:
    """A payload, and the checksum of the record that holds it."""

    payload: dict[str, Any]
    checksum: str


class ResultStore:
    """Records in a database; several processes may use it at once, and one that is killed leaves it readable.

    `url` is a SQLAlchemy URL; by default `MIRAGE_CACHE_URL`, else the file `results.sqlite` in
    `MIRAGE_CACHE_DIR` or in the user's cache folder. Where there is no store yet, one is made, or with `create=False` it is a
    CacheError. A store of an earlier release is migrated. Every method raises CacheError if the database can't be used, the first
    one NewerCacheError if it is of a later release.
    """

    def __init__(self, url: str | None = None, *, create: bool = True) -> None:
        # SQLAlchemy is imported for the first store, and not by processes that have none
        from mirage.cache.database import Database

        self._database = Database(url, create)

    @property
    def place(self) -> str:
        """Where the records are: a file, or a URL without its password."""
        return self._database.place

    @property
    def url(self) -> str:
        """The SQLAlchemy URL of the database, with its password: for processes of one's own."""
        return self._database.url

    def connected(self) -> AbstractContextManager[None]:
        """A block in which many calls are made: a connection stays open, so that the end of none of them waits for the disk."""
        return self._database.connected()

    def get(self, key: str) -> dict[str, Any] | None:
        """The payload stored under `key`, or None.

        A record that is damaged or of another schema version is a CorruptRecordWarning and a miss.
        """
        found = self.recall(key)
        return None if found is None else found.payload

    def recall(self, key: str) -> Recalled | None:
        """As `get`, with the checksum by which `put` replaces the record."""
        _check_key(key)
        found = recalled(self._database.find(key))
        if found is not None:
            self._database.reads.add(key)
        return found

    def record(self, key: str) -> Record | None:
        """The record of `key` as it is, sound or not."""
        _check_key(key)
        return self._database.find(key)

    def checksum(self, key: str) -> str | None:
        """The checksum of the record of `key`: whether it has changed."""
        _check_key(key)
        return self._database.checksum(key)

    def put(
        self,
        key: str,
        payload: Mapping[str, Any],
        *,
        program: str,
        target: str,
        dtype: str,
        best_us: float | None,
        cut_s: float | None = None,
        family: str | None = None,
        processor: str | None = None,
        replaces: str | None = None,
    ) -> str | None:
        """Store `payload`, a dict of JSON values, unless a sound record of `key` is farther, or as far and as fast.

        `best_us` is the best kernel's measured time in microseconds; None (ranked by the cost model only) loses to every
        measured time. `cut_s` are the seconds after which the work was cut short, None if it is complete. Records of one
        `family`, a key, differ in their `processor` only. The record with the checksum `replaces` is replaced in any case.

        Returns the checksum of what was stored, None if it was not. Raises CacheError for a key, payload or time that can't be
        stored.
        """
        _check_key(key)
        if family is not None:
            _check_key(family)
        if not is_time(best_us):
            raise CacheError(f"record {key}: best_us={best_us!r} is not a time in microseconds or None")
        if not is_seconds(cut_s):
            raise CacheError(f"record {key}: cut_s={cut_s!r} is not a time in seconds or None")
        text = canonical_json(payload, f"record {key}")
        created = datetime.now(UTC).isoformat(timespec="seconds")
        record = Record(
            key=key, program=label(program), target=label(target), dtype=label(dtype), version=SCHEMA, created=created,
            best_us=best_us, cut_s=cut_s, family=family, processor=None if processor is None else label(processor),
            payload=text, payload_sha256=sha256(text),
        )  # fmt: skip
        return record.payload_sha256 if self._database.merge([record], () if replaces is None else (replaces,)) else None

    def acquire(self, key: str) -> Lease | Holder:
        """The lease of `key`, which nobody else has until it is released; or who has it."""
        _check_key(key)
        owner = new_owner()
        holder = self._database.acquire(key, owner, LEASE_S)
        return Lease(self._database, key, owner) if holder is None else holder

    def holder(self, key: str) -> Holder | None:
        """Who has the lease of `key`; None where it is free, has expired, or its owner is known to be dead."""
        _check_key(key)
        return self._database.holder(key)

    def discard(self, key: str, checksum: str | None = None) -> bool:
        """Remove the record of `key`, if it has that checksum; returns whether there was one."""
        _check_key(key)
        return self._database.delete(key, checksum) > 0

    def list(self) -> builtins.list[RecordInfo]:
        """Every record without its payload, by program, target, dtype and key; those that cannot be read are left out with a
        CorruptRecordWarning.
        """
        return sorted(sound(self._database.infos()), key=lambda r: (r.program, r.target, r.dtype, r.key))

    def family(self, family: str) -> builtins.list[RecordInfo]:
        """The records that differ in their processors only, without payloads, as `list` has them."""
        _check_key(family)
        return builtins.list(sound(self._database.family(family)))

    def matching(self, prefix: str = "") -> builtins.list[str]:
        """The keys that begin with `prefix`, in order."""
        return self._database.matching(prefix)

    def uses(self) -> dict[str, Use]:
        """How each record is used, by its key."""
        return self._database.uses()

    def records(self) -> Iterator[Record]:
        """Every record as it is, sound or not, by key; what is removed meanwhile is left out."""
        for key in self._database.matching():
            if (record := self._database.find(key)) is not None:
                yield record

    def settle(self) -> None:
        """Wait until reads are counted, which a thread does: nothing writes to the database by itself then: its files may go."""
        self._database.reads.wait()

    def sound_records(self) -> Iterator[Record]:
        """Every sound record, by key; others are left out with a CorruptRecordWarning."""
        return sound(self.records())

    def export(self, path: str | Path) -> int:
        """Write every sound record to a file of JSON lines, whole or not at all; returns how many.

        Others are left out with a CorruptRecordWarning. Raises InputError if the file can't be written.
        """
        return write_records(path_of(path), self.sound_records())

    def import_(self, path: str | Path) -> int:
        """Merge an exported file into the store by the rule of `put`, all of it or nothing.

        Returns how many records were new or better. Raises InputError if the file can't be read, CacheFormatError
        if it is not an export of this schema version or any record of it is damaged.
        """
        return self.add(read_records(path_of(path)))

    def merge(self, other: ResultStore) -> int:
        """Merge the sound records of another store by the rule of `put`; returns how many were new or better.

        Others are left out with a CorruptRecordWarning.
        """
        if not isinstance(other, ResultStore):
            raise CacheError(f"{other!r} is not a results store; pass ResultStore(url)")
        return self.add(other.sound_records())

    def add(self, records: Iterable[Record], replaces: Collection[str] = ()) -> int:
        """Merge sound records by the rule of `put`, all or none of them; returns how many were new or better.

        The records with the checksums `replaces` are replaced in any case.
        """
        return self._database.merge(records, replaces)

    def evict(self, *, max_bytes: float = math.inf, max_days: float = math.inf) -> int:
        """Remove what was not used for so many days, and what was used longest ago until no more than so many bytes of payloads
        are left; returns how many records. Raises CacheError for a limit that is negative or no number.
        """
        for limit, value in {"max_bytes": max_bytes, "max_days": max_days}.items():
            if not isinstance(value, int | float) or not value >= 0:
                raise CacheError(f"{limit}={value!r} limits nothing; give a number that is not negative; nothing was removed")
        return self._database.evict(max_bytes, max_days)

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


def recalled(record: Record | None) -> Recalled | None:
    """What a record holds; None without one, and, with a CorruptRecordWarning, where it is not sound."""
    if record is None:
        return None
    try:
        return Recalled(record.content(), record.payload_sha256)
    except ValueError as fault:
        _warn(record, str(fault))
        return None


def sound(records: Iterable[R]) -> Iterator[R]:
    """The sound ones of these records; a CorruptRecordWarning for each of the others."""
    for record in records:
        if fault := record.fault():
            _warn(record, fault)
        else:
            yield record


def _warn(record: RecordInfo, fault: str) -> None:
    text = f"stored record {record.key} is ignored: {fault}; `mirage cache verify --remove` deletes it"
    warnings.warn(text, CorruptRecordWarning, stacklevel=4)
