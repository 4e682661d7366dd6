"""Saved executables, altered."""

from __future__ import annotations

import zipfile
from pathlib import Path

import mirage as mi
from mirage.runtime.archive import digest


def members(file: Path) -> dict[str, bytes]:
    """The contents of a saved executable, without its digest."""
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name != "digest"}


def write(file: Path, contents: dict[str, bytes]) -> None:
    """A saved executable with these contents, whose digest is made anew."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in (*contents.items(), ("digest", digest(contents).encode())):
            archive.writestr(name, content)


def saved_with(executable: mi.Executable, old: str, new: str, folder: Path) -> Path:
    """The executable in a file, `b.mirage`, in whose code one text stands for another; its digest is made anew."""
    executable.save(folder / "a.mirage")
    contents = members(folder / "a.mirage")
    text = contents["executable.json"].decode()
    assert old in text
    write(folder / "b.mirage", contents | {"executable.json": text.replace(old, new).encode()})
    return folder / "b.mirage"
