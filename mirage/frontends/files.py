"""Programs from files: a user's Python file, a program's text, a program's JSON."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from mirage.errors import FormatError, InputError, MirageError, TraceError
from mirage.frontends.spec import TensorFunction
from mirage.ir.program import Program
from mirage.ir.serial import program_from_json
from mirage.ir.text import parse_program

#: bytes of a program file, beyond which it is refused
MAX_BYTES = 64 << 20


def load_function(path: Path, name: str) -> TensorFunction | Program:
    """The decorated function (or Program) called `name` in the user's own Python file, which is imported.

    Raises InputError if there is no such file or name, TraceError if it is something else.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; pass FILE.py:function")
    module_name = f"_mirage_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # its dataclasses and annotations look their module up by name
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except MirageError:
        raise
    except (Exception, SystemExit) as e:
        raise InputError(f"{path}: importing it failed: {type(e).__name__}: {e}") from e
    found = [n for n, v in vars(module).items() if isinstance(v, TensorFunction | Program)]
    if not name:
        raise InputError(f"{path}: say which function: {', '.join(f'{path}:{n}' for n in found) or 'it has none'}")
    value = getattr(module, name, None)
    if value is None:
        raise InputError(f"{path}: no {name!r} in it; it has {', '.join(found) or 'no decorated functions'}")
    if not isinstance(value, TensorFunction | Program):
        raise TraceError(f"{path}:{name} is a {type(value).__name__}; decorate the function with @mirage.program(...)")
    return value


def load_program(path: Path) -> Program | None:
    """The program in a text or JSON file; None if the JSON is that of a saved result.

    Raises ParseError or FormatError.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: larger than {MAX_BYTES} bytes; pass a program or a saved result")
        text = path.read_text()
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror})") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not a text file; pass a program's text or JSON, or a saved result") from None
    if not text.lstrip().startswith("{"):
        return parse_program(text)
    try:
        obj: Any = json.loads(text)
    except (ValueError, RecursionError):
        raise FormatError(f"{path}: not valid JSON") from None
    return None if isinstance(obj, dict) and obj.get("format") == "mirage result" else program_from_json(obj)
