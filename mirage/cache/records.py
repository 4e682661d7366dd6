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
from typing import Annotated, Any, get_type_hints

from mirage.errors import CacheError, FormatError, MirageWarning
from mirage.ir.codec import MAX_TEXT, above_zero, decode, parse_json, short, within
from mirage.remember import remember

SCHEMA = 1
"""Version of the payload's layout; records of another version are never read."""

#: seconds of a day, in which ages are told
DAY_S = 86400.0

#: checksums of payloads that were read: whoever works on many records looks at each again and again
_objects: dict[str, None] = {}
MAX_KNOWN = 65536

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
    program: Annotated[str, short]
    target: Annotated[str, short]
    dtype: Annotated[str, short]
    version: int
    created: Annotated[str, short]
    """UTC, ISO 8601."""
    best_us: Annotated[float, above_zero] | None
    """Measured time of the best kernel in microseconds; None if ranked by the cost model only."""
    cut_s: Annotated[float, within(0, 1e12)] | None
    """Seconds after which the work was cut short; None if it is complete."""
    family: Annotated[str, check_key] | None
    """The key but for the processor, of a record that was measured on one."""
    processor: Annotated[str, short] | None
    """That processor, as its target names it."""

    def fault(self) -> str | None:
        """Why the record can't be used, or None if it is sound as far as is seen here: databases keep values of any type."""
        try:
            for name, kind in _KINDS.items():
                decode(kind, getattr(self, name), f"its {name}")
        except FormatError as error:
            return str(error)
        return None


_KINDS: Mapping[str, Any] = get_type_hints(RecordInfo, include_extras=True)


@dataclass(frozen=True)
class Record(RecordInfo):
    """A record with its payload as JSON text and that text's SHA-256 in hex."""

    payload: str
    payload_sha256: str

    def content(self) -> dict[str, Any]:
        """The payload; raises ValueError, which says why, if the record can't be used."""
        self._check()
        try:
            payload = parse_json(self.payload)
        except ValueError as error:
            raise ValueError(f"its payload is not JSON ({error})") from None
        if not isinstance(payload, dict):
            raise ValueError("its payload is not a JSON object")
        remember(_objects, self.payload_sha256, None, MAX_KNOWN)
        return payload

    def _check(self) -> None:
        """Raises ValueError if the record can't be used, whatever its payload says."""
        if self.version != SCHEMA:
            raise ValueError(f"it has schema version {self.version}, this package reads {SCHEMA}")
        if fault := super().fault():
            raise ValueError(fault)
        if not isinstance(self.payload, str) or sha256(self.payload) != self.payload_sha256:
            raise ValueError("its payload differs from its checksum")

    def fault(self) -> str | None:
        """Why the record can't be used, or None if it is sound with its payload."""
        try:
            if self.payload_sha256 in _objects:
                # what has the checksum of a JSON object is one
                self._check()
            else:
                self.content()
        except ValueError as error:
            return str(error)
        return None

    def beats(self, other: Record) -> bool:
        """Whether this record replaces `other`, of the same key: that is unsound, less far, or as far and slower.

        Complete is farthest; what was cut short is as far as what took as many seconds, to a power of two. On a tie the older
        record stays, so that repeated runs keep their choice.
        """
        if other.fault():
            return True
        mine, others = _far(self), _far(other)
        if mine != others:
            return mine > others
        return self.best_us is not None and (other.best_us is None or self.best_us < other.best_us)


def _far(record: Record) -> float:
    if record.cut_s is None:
        return math.inf
    return math.floor(math.log2(record.cut_s)) if record.cut_s > 0 else -math.inf


def is_time(value: object) -> bool:
    """Whether `value` is a time in microseconds, or None for "not measured"."""
    if value is None:
        return True
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


def is_seconds(value: object) -> bool:
    """Whether `value` is a time in seconds, or None for "complete"."""
    return value is None or value == 0 or is_time(value)


def label(text: str) -> str:
    """A text as records keep it: short and printable, which every database can hold."""
    return "".join(c if c.isprintable() else "?" for c in text[:MAX_TEXT])


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
