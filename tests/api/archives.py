"""Saved executables, altered."""

from __future__ import annotations

import zipfile
from pathlib import Path

import mirage as mi


def saved_with(executable: mi.Executable, old: str, new: str, folder: Path) -> Path:
    """The executable in a file, `b.mirage`, in whose code one text stands for another."""
    executable.save(folder / "a.mirage")
    with zipfile.ZipFile(folder / "a.mirage") as archive:
        text = archive.read("executable.json").decode()
    assert old in text
    with zipfile.ZipFile(folder / "b.mirage", "w") as archive:
        archive.writestr("executable.json", text.replace(old, new))
    return folder / "b.mirage"
