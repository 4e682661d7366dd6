"""Records as a JSON file, to carry results from one store to another."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mirage.cache.records import Record
from mirage.errors import CacheFormatError, FormatError
from mirage.folders import save_file
from mirage.ir.codec import EXPORT, read_json


@dataclass(frozen=True)
class _Export:
    records: tuple[Record, ...]


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write sound records to `path`, whole or not at all; returns how many.

    Raises InputError if the file can't be written.
    """
    found = _Export(tuple(records))
    save_file(path, json.dumps(EXPORT.to_json(found), indent=1) + "\n")
    return len(found.records)


def read_records(path: Path) -> tuple[Record, ...]:
    """Every record of an exported file, all of them checked.

    Raises InputError if the file can't be read, CacheFormatError if it is not an export of this schema
    version or any record of it is not sound.
    """
    try:
        found = EXPORT.from_json(_Export, read_json(path), str(path))
    except FormatError as error:
        raise CacheFormatError(f"{error}; give a file written by an export") from error
    for index, record in enumerate(found.records):
        if fault := record.fault():
            raise CacheFormatError(f"{path}, record {index} ({record.key}) can't be used: {fault}; export it again")
    return found.records
