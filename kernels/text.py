"""Kernels as text: JSON objects that say their form and its version; they hold no code."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mirage.cache.records import parse_json
from mirage.errors import FormatError


def kernel_fields(text: str, fields: Collection[str], form: str, schema: int) -> dict[str, Any]:
    """The JSON object of a kernel, which has just these fields, this "format" and this "schema".

    Raises FormatError for any other text.
    """
    try:
        obj = parse_json(text)
    except ValueError as e:
        raise FormatError(f"kernel: not JSON ({e}); compile the program again") from None
    if not isinstance(obj, dict) or set(obj) != set(fields) or obj["format"] != form:
        raise FormatError(f"kernel: expected {', '.join(sorted(fields))}; compile the program again")
    if obj["schema"] != schema:
        raise FormatError(f"kernel: schema {obj['schema']!r} is not {schema}; compile the program again")
    return obj
