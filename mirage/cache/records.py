"""One record of the results store: its fields, what makes it sound, and which of two is kept.

The payload is JSON text in one canonical spelling, so that its SHA-256 is the same in a database and in
an exported file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from mirage.errors import CacheError, MirageWarning
from mirage.ir.codec import above_zero, parse_json

SCHEMA = 1
"""Version of the payload's layout; records of another version are never read."""

_KEY = re.compile(r"[0-9a-f]{64}")


def is_key(value: object) -> bool:
    """Whether `value` is a SHA-256 in lowercase hex."""
    return isinstance(value, str) and _KEY.fullmatch(value) is not None


def check_key(value: str) -> None:
    """A check of texts, for `Annotated`."""
    if not is_key(value):
        raise ValueError("a SHA-256 in hex")


class CorruptRecordWarning(MirageWarning):
    """A stored record that is damaged or of another schema version; it is treated as absent."""


@dataclass(frozen=True)
class RecordInfo:
    """What a record is about, without its payload."""

    key: Annotated[str, check_key]
    """SHA-256, in hex, of what was searched: subprogram, target, dtype and version."""
    program: str
    target: str
    dtype: str
    version: int
    created: str
    """UTC, ISO 8601."""
    best_us: Annotated[float, above_zero] | None
    """Measured time of the best kernel in microseconds; None if ranked by the cost model only."""


@dataclass(frozen=True)
class Record(RecordInfo):
    """A record with its payload as JSON text and that text's SHA-256 in hex."""

    payload: str
    payload_sha256: str

    def content(self) -> dict[str, Any]:
        """The payload; raises ValueError, which says why, if the record can't be used."""
        if self.version != SCHEMA:
            raise ValueError(f"it has schema version {self.version}, this package reads {SCHEMA}")
        if not is_time(self.best_us):
            raise ValueError(f"its best_us is {self.best_us!r}, not a time in microseconds")
        if not isinstance(self.payload, str) or sha256(self.payload) != self.payload_sha256:
            raise ValueError("its payload differs from its checksum")
        try:
            payload = parse_json(self.payload)
        except ValueError as error:
            raise ValueError(f"its payload is not JSON ({error})") from None
        if not isinstance(payload, dict):
            raise ValueError("its payload is not a JSON object")
        return payload

    def fault(self) -> str | None:
        """Why the record can't be used, or None if it is sound."""
        try:
            self.content()
        except ValueError as error:
            return str(error)
        return None

    def beats(self, other: Record) -> bool:
        """Whether this record replaces `other`, of the same key: that is unsound, or this is measured faster.

        On a tie the older record stays, so repeated runs keep their choice.
        """
        if other.fault():
            return True
        return self.best_us is not None and (other.best_us is None or self.best_us < other.best_us)


def is_time(value: object) -> bool:
    """Whether `value` is a time in microseconds, or None for "not measured"."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


def sha256(text: str) -> str:
    """SHA-256 of the text's UTF-8, in hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def canonical_json(payload: Mapping[str, Any], where: str) -> str:
    """The one JSON text of `payload`: sorted keys, no spaces, ASCII.

    Raises CacheError, naming `where`, if `payload` is not a mapping of JSON values (no NaN, no infinity).
    """
    if not isinstance(payload, Mapping):
        raise CacheError(f"{where}: the payload is {type(payload).__name__}, not a dict of JSON values")
    try:
        return json.dumps(dict(payload), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise CacheError(f"{where}: the payload can't be written as JSON: {error}") from error
