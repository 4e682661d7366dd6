"""MuGraphs in files: JSON as in `mirage.mugraph.serial`, which says what it is in `schema` and `version`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mirage.errors import FormatError, InputError
from mirage.folders import save_file
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.serial import SCHEMA, mugraph_from_json, mugraph_to_json

#: bytes of a file, beyond which it is refused
MAX_BYTES = 64 << 20


def save_mugraph(graph: MuGraph, path: str | os.PathLike[str]) -> None:
    """Write a muGraph for `load_mugraph` and `mirage verify`; raises InputError where it cannot be written."""
    save_file(path, json.dumps(mugraph_to_json(graph), indent=1) + "\n")


def load_mugraph(path: str | os.PathLike[str]) -> MuGraph:
    """The muGraph of a file, validated; it does what it says, whatever it is meant to do.

    Raises InputError where the file cannot be read, FormatError where it is not a muGraph, GraphError where the muGraph
    breaks a rule.
    """
    obj = read_json(Path(path))
    if not is_mugraph(obj):
        raise FormatError(f"{path}: not a muGraph; pass a file that save_mugraph() wrote")
    try:
        return mugraph_from_json(obj)
    except FormatError as e:
        raise FormatError(f"{path}: {e}") from None


def is_mugraph(obj: Any) -> bool:
    """Whether a JSON value says that it is a muGraph."""
    return isinstance(obj, dict) and obj.get("schema") == SCHEMA


def read_json(path: Path) -> Any:
    """The JSON value of a file; raises InputError where it cannot be read, FormatError where it is no JSON."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: larger than {MAX_BYTES} bytes; pass a smaller file")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from None
    except (ValueError, RecursionError):
        raise FormatError(f"{path}: not valid JSON; write the file again") from None
