"""Records as a JSON file, to carry results from one store to another."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mirage.cache.records import SCHEMA, Record, canonical_json, is_key, is_time
from mirage.errors import CacheError, CacheFormatError, InputError
from mirage.folders import save_file
from mirage.ir.codec import parse_json

FORMAT = "mirage-results"

_TEXT_FIELDS = ("key", "program", "target", "dtype", "created", "payload_sha256")
_FIELDS = {*_TEXT_FIELDS, "version", "best_us", "payload"}


def write_records(path: Path, records: Iterable[Record]) -> int:
    """Write sound records to `path`, whole or not at all; returns how many.

    Raises InputError if the file can't be written.
    """
    rows = [{**vars(record), "payload": parse_json(record.payload)} for record in records]
    text = json.dumps({"format": FORMAT, "schema": SCHEMA, "records": rows}, indent=1) + "\n"
    save_file(path, text)
    return len(rows)


def read_records(path: Path) -> list[Record]:
    """Every record of an exported file, all of them checked.

    Raises InputError if the file can't be read, CacheFormatError if it is not an export of this schema
    version or any record of it is not sound.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give a file written by an export") from error
    try:
        document = parse_json(data.decode("utf-8"))
    except ValueError as error:
        raise CacheFormatError(f"{path} is not JSON: {error}; give a file written by an export") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise CacheFormatError(f'{path} has no "format": "{FORMAT}"; give a file written by an export')
    if document.get("schema") != SCHEMA:
        raise CacheFormatError(
            f"{path} has schema version {document.get('schema')!r}, this package reads {SCHEMA}; "
            "export it again with the same version of the package"
        )
    rows = document.get("records")
    if not isinstance(rows, list):
        raise CacheFormatError(f'{path}: "records" is not a list; the file is damaged, export it again')
    return [_record(row, f"{path}, record {index}") for index, row in enumerate(rows)]


def _record(row: Any, where: str) -> Record:
    if not isinstance(row, dict) or set(row) != _FIELDS:
        fields = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise CacheFormatError(f"{where}: fields {fields}, expected {sorted(_FIELDS)}; export it again")
    for field in _TEXT_FIELDS:
        if not isinstance(row[field], str):
            raise CacheFormatError(f"{where}: {field} is {row[field]!r}, not text; export it again")
    if not is_key(row["key"]):
        raise CacheFormatError(f"{where}: key {row['key']!r} is not a SHA-256 in hex; export it again")
    if not is_time(row["best_us"]):
        raise CacheFormatError(f"{where}: best_us {row['best_us']!r} is not a time; export it again")
    try:
        record = Record(**{**row, "payload": canonical_json(row["payload"], where)})
    except CacheError as error:
        raise CacheFormatError(f"{error}; export it again") from error
    if fault := record.fault():
        raise CacheFormatError(f"{where} ({record.key}) can't be used: {fault}; export it again")
    return record
