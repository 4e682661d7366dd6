"""Programs from files: a user's Python file, a program's text."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from mirage.errors import FormatError, InputError, MirageError, TraceError
from mirage.folders import read_text
from mirage.frontends.spec import TensorFunction
from mirage.ir.codec import RESULT, parse_json
from mirage.ir.graph.deduce import located
from mirage.ir.program import Program
from mirage.ir.text import parse_program


def load_function(path: Path, name: str) -> TensorFunction | Program:
    """The decorated function (or Program) called `name` in the user's own Python file, which is imported.

    Raises InputError if there is no such file or name, TraceError if it is something else.
    """
    hint = "decorate the function with @mirage.program(...); whole programs are for `mirage compile`"
    value = load_member(path, name, (TensorFunction, Program), hint)
    assert isinstance(value, TensorFunction | Program)
    return value


def load_member(
    path: Path, name: str, kinds: tuple[type, ...], hint: str, *, offered: tuple[type, ...] | None = None
) -> Any:
    """What is called `name` in the user's own Python file, which is imported, and is of one of the kinds.

    Messages offer what is of the kinds `offered`, if not all do.

    Raises InputError if there is no such file or name, TraceError, with the hint, if it is something else.
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
    found = [n for n, v in vars(module).items() if isinstance(v, offered or kinds)]
    if not name:
        raise InputError(f"{path}: say which function: {', '.join(f'{path}:{n}' for n in found) or 'it has none'}")
    value = getattr(module, name, None)
    if value is None:
        raise InputError(f"{path}: no {name!r} in it; it has {', '.join(found) or 'no decorated functions'}")
    if not isinstance(value, kinds):
        raise TraceError(f"{path}:{name} is of type {type(value).__name__}; {hint}")
    return value


def load_program(path: Path) -> Program | None:
    """The program in a text file; None if it is a saved result.

    Raises ParseError or FormatError naming the path.
    """
    text = read_text(path, "a program's text, or a saved result")
    try:
        if not text.lstrip().startswith("{"):
            return parse_program(text)
        if RESULT.names(parse_json(text)):
            return None
    except MirageError as e:
        raise located(e, str(path)) from None
    except ValueError:
        raise FormatError(f"{path}: not valid JSON; write the file again") from None
    raise FormatError(f"{path}: JSON that is no saved result; pass a program as text, as `mirage show` prints it")
