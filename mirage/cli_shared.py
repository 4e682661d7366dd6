"""What commands of the command line share: consoles, and the reading and checking of arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mirage.errors import DimError, InputError

#: columns of what is not printed on a terminal: a file or a pipe has room for whole lines
FILE_COLUMNS = 200


def _console(stderr: bool) -> Console:
    """A console. Names of the user's are printed as they are: ":boom:" may be part of a program's, and "[b]" of a folder's."""
    console = Console(stderr=stderr, emoji=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = FILE_COLUMNS
    return console


out = _console(stderr=False)
err = _console(stderr=True)


#: the option of every command, and of every benchmark that prints rows
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on standard output; all else goes to standard error.")
]


def print_json(value: object) -> None:
    """Print what `--json` asks for: one document on standard output, the only one of a command."""
    print(json.dumps(value))


def tell(text: str, style: str | None = None) -> None:
    """Print one line on standard error, whatever the width of a terminal is."""
    err.print(f"mirage: {text}".replace("\n", " "), style=style, highlight=False, soft_wrap=True)


def sizes_of(option: str, pairs: Sequence[str]) -> dict[str, int]:
    """The sizes that an option gives as NAME=SIZE, several times."""
    sizes: dict[str, int] = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        if not value.strip().isdecimal():
            raise DimError(f"{option} {pair!r}: write NAME=SIZE, such as {option} t=4096")
        sizes[name.strip()] = int(value)
    return sizes


def check_writable(option: str, path: Path | None) -> None:
    """Raises InputError if a file that a long command is to write at its end cannot be written."""
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise InputError(f"{option} {path}: cannot be written: there is no folder {folder}; make it first")
    if (path.exists() and not path.is_file()) or not os.access(path if path.exists() else folder, os.W_OK):
        raise InputError(f"{option} {path}: cannot be written; choose a file in a folder that you can write")
