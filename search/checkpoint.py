"""Checkpoints: the finished units of a search, so that a killed search goes on where it was.

One file per search, `<cache folder>/checkpoints/<key>.jsonl`. A line holds the key, a unit's name, its payload, and the
SHA-256 of all three; it is appended in one write and never changed. So a killed process leaves at most one torn line, the
last one, and processes that search the same program at once each find what the others have finished.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

from mirage.cache.records import CorruptRecordWarning, is_key, sha256
from mirage.errors import CacheError, DegradedWarning, FormatError, MirageError
from mirage.folders import private_folder
from mirage.ir.codec import Json, decode, encode, parse_json

#: days after which a checkpoint that nobody went on with is removed
KEPT_DAYS = 14


def checkpoint_path(key: str) -> Path:
    """Where the checkpoint of a search belongs; checkpoints older than `KEPT_DAYS` are removed from there.

    Raises CacheError if the folder cannot be made or `key` is not a SHA-256 in hex, UnsafeCacheError if another user could
    write it.
    """
    if not is_key(key):
        raise CacheError(f"{key!r} is not the key of a checkpoint; keys are SHA-256 in lowercase hex")
    remove_checkpoints(KEPT_DAYS)
    return _folder() / f"{key}.jsonl"


def remove_checkpoints(days: float = 0) -> int:
    """Remove the checkpoints that nobody has written for so many days; returns how many. Raises as `checkpoint_path`."""
    removed = 0
    for file in _folder().glob("*.jsonl"):
        # another process may be removing the same ones
        with suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime >= days * 86400:
                file.unlink()
                removed += 1
    return removed


def _folder() -> Path:
    try:
        return private_folder("checkpoints")
    except OSError as e:
        raise CacheError(f"checkpoints: {e}; set MIRAGE_CACHE_DIR to a folder that you can write") from e


class Checkpoint:
    """The payloads of a search's finished units, in a file that is created when the first one is put.

    `key` is the SHA-256 of everything that the payloads depend on. Lines that are torn or damaged are a
    CorruptRecordWarning, except for a torn last line, which a killed process leaves; their units count as unfinished.
    Raises CacheError if the file cannot be read or is of another key.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key
        self._prefix = ""
        self._payloads: dict[str, Any] = {}
        self._read()

    def part(self, name: str) -> Checkpoint:
        """The same file for a part of the search, whose units have names of their own."""
        part = copy(self)
        part._prefix = f"{self._prefix}{name}: "
        return part

    def get(self, unit: str, kind: Any = Json) -> Any:
        """The payload of a finished unit, of that type, or None; one that is of another type is a CorruptRecordWarning."""
        data = self._payloads.get(self._prefix + unit)
        try:
            return None if data is None else decode(kind, data, f"{self.path}, unit {unit!r}")
        except MirageError as e:
            warnings.warn(f"a finished unit is ignored: {e}", CorruptRecordWarning, stacklevel=2)
            return None

    def units(self) -> list[str]:
        """The names of the finished units, in the order in which they were put."""
        return [u.removeprefix(self._prefix) for u in self._payloads if u.startswith(self._prefix)]

    def put(self, unit: str, payload: Any, kind: Any = Json) -> None:
        """Keep a finished unit; when this returns, it outlives the process and the machine.

        Raises CacheError if the payload cannot be written by its type, or the file cannot be written.
        """
        self.put_all({unit: payload}, kind)

    def put_all(self, payloads: Mapping[str, Any], kind: Any = Json) -> None:
        """Keep several finished units with one write, as `put`."""
        texts = {self._prefix + unit: self._text(unit, payload, kind) for unit, payload in payloads.items()}
        lines = "".join(self._line(unit, text) for unit, text in texts.items()).encode()
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # a write is whole or torn only by a crash; the lock is for looking at what is there before it
                fcntl.flock(fd, fcntl.LOCK_EX)
                size = os.fstat(fd).st_size
                if size and os.pread(fd, 1, size - 1) != b"\n":
                    # what a killed process left of its last line
                    os.ftruncate(fd, os.pread(fd, size, 0).rfind(b"\n") + 1)
                while lines:
                    lines = lines[os.write(fd, lines) :]
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as e:
            raise CacheError(
                f"checkpoint {self.path}: {e}; make room there, or set MIRAGE_CACHE_DIR to a folder that you can write"
            ) from e
        self._payloads.update({unit: parse_json(text) for unit, text in texts.items()})

    def keep(self, payloads: Mapping[str, Any], kind: Any = Json) -> bool:
        """As `put_all`, but False, with a warning, where that fails: hours of work do not end for want of a copy."""
        try:
            self.put_all(payloads, kind)
        except CacheError as e:
            warnings.warn(f"{e}; the search goes on without its checkpoint", DegradedWarning, stacklevel=4)
            return False
        return True

    def discard(self) -> None:
        """Remove the file: the search is complete, and its result is kept elsewhere or not wanted."""
        self._payloads.clear()
        with suppress(FileNotFoundError):
            self.path.unlink()

    def _line(self, unit: str, payload: str) -> str:
        """A line of the file; the payload is JSON text."""
        fields = {"key": self.key, "payload": payload, "sha256": self._digest(unit, payload), "unit": unit}
        return json.dumps(fields) + "\n"

    def _text(self, unit: str, payload: Any, kind: Any) -> str:
        try:
            return json.dumps(encode(payload, kind), separators=(",", ":"), allow_nan=False)
        except (FormatError, TypeError, ValueError, RecursionError) as e:
            raise CacheError(f"{self.path.name}, unit {unit!r}: the payload can't be written as JSON: {e}") from e

    def _digest(self, unit: str, payload: str) -> str:
        return sha256(json.dumps([self.key, unit, payload]))

    def _read(self) -> None:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as e:
            raise CacheError(f"checkpoint {self.path}: {e}; remove it, and the search starts anew") from e
        lines = data.split(b"\n")
        # what follows the last line end is empty, or the line that a killed process was writing
        for number, line in enumerate(lines[:-1], 1):
            if fault := self._take(line):
                warnings.warn(f"{self.path}, line {number} is ignored: {fault}", CorruptRecordWarning, stacklevel=3)

    def _take(self, line: bytes) -> str:
        """Remember a line; returns what is wrong with it."""
        try:
            record = parse_json(line.decode())
        except ValueError as e:
            return f"it is not JSON ({e})"
        if not isinstance(record, dict) or set(record) != {"key", "payload", "sha256", "unit"}:
            return "it is not a finished unit"
        unit, text = record["unit"], record["payload"]
        if not isinstance(unit, str) or not isinstance(text, str):
            return "it is not a finished unit"
        if is_key(record["key"]) and record["key"] != self.key:
            raise CacheError(
                f"checkpoint {self.path} is of another search ({record['key'][:12]}, not {self.key[:12]}); remove it"
            )
        if record["sha256"] != self._digest(unit, text):
            return "it differs from its checksum"
        try:
            payload = parse_json(text)
        except ValueError as e:
            return f"its payload is not JSON ({e})"
        self._payloads[unit] = payload
        return ""
