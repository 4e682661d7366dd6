"""Records as lines of JSON, to carry results from one store to another.

A line is a record, lines are sorted by key, and a record has one text: so files of the same records are equal, and `diff`, `sort
-u` and version control do what one expects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mirage.cache.records import Record, RecordInfo, canonical_json
from mirage.errors import CacheFormatError, FormatError
from mirage.folders import read_text, save_file
from mirage.ir.codec import EXPORT, Json, parse_json

#: bytes of an exported file that is read
MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class _Line(RecordInfo):
    """A record whose payload is a JSON value."""

    payload: Json
    payload_sha256: str


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write sound records to `path`, whole or not at all; returns how many.

    Raises InputError if the file can't be written.
    """
    lines = [_line(r) for r in sorted(records, key=lambda r: r.key)]
    save_file(path, "".join(f"{line}\n" for line in lines))
    return len(lines)


def _line(record: Record) -> str:
    values = {f.name: getattr(record, f.name) for f in fields(Record)}
    written = EXPORT.to_json(_Line(**{**values, "payload": Json(parse_json(record.payload))}))
    # the key first, by which lines are sorted
    return json.dumps({"key": record.key, **dict(sorted(written.items()))}, separators=(",", ":"), allow_nan=False)


def read_records(path: Path) -> list[Record]:
    """Every record of an exported file, all of them checked.

    Raises InputError if the file can't be read, CacheFormatError, which names the line, if it is not an export of this schema
    version or any record of it is not sound.
    """
    try:
        text = read_text(path, "a file written by an export", MAX_BYTES)
    except FormatError as error:
        raise CacheFormatError(f"{error}") from error
    found = [_record(line, f"{path}, line {i}") for i, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not found and text.strip("\n"):
        raise CacheFormatError(f"{path}: not a {EXPORT.name}; {EXPORT.remedy}")
    return found


def _record(text: str, where: str) -> Record:
    try:
        data = parse_json(text)
    except ValueError as error:
        raise CacheFormatError(f"{where}: not valid JSON ({error}); {EXPORT.remedy}") from None
    try:
        line = EXPORT.from_json(_Line, data, where)
    except FormatError as error:
        raise CacheFormatError(str(error)) from None
    if not isinstance(line.payload, Mapping):
        raise CacheFormatError(f"{where}: its payload is not a JSON object; export it again")
    values: dict[str, Any] = {f.name: getattr(line, f.name) for f in fields(Record)}
    record = Record(**{**values, "payload": canonical_json(line.payload, where)})
    if fault := record.fault():
        raise CacheFormatError(f"{where}, record {record.key[:12]}, can't be used: {fault}; export it again")
    return record
