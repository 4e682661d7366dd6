"""Folders in the cache folder, and who may write them."""

from __future__ import annotations

import os
import shlex
import stat
import tempfile
from pathlib import Path

from mirage.errors import UnsafeCacheError
from mirage.settings import cache_dir


def private_folder(name: str) -> Path:
    """The folder `name` in the cache folder, created if it is not there; nobody but this user can write it.

    Raises UnsafeCacheError if another user could, and OSError if it cannot be created.
    """
    folder = cache_dir() / name
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)
    return folder


def check_private(path: Path) -> None:
    """Raises UnsafeCacheError if another user owns the file or folder or can write it."""
    status = path.stat()
    if status.st_uid != os.geteuid():
        raise UnsafeCacheError(
            f"{path} belongs to user {status.st_uid}, and this process runs as user {os.geteuid()}; "
            "set MIRAGE_CACHE_DIR to a folder of your own"
        )
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise UnsafeCacheError(
            f"{path} can be written by other users (mode {stat.S_IMODE(status.st_mode):o}); "
            f"check what is in it, then `chmod go-w {shlex.quote(str(path))}`, "
            "or set MIRAGE_CACHE_DIR to a folder of your own"
        )


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, so that a reader sees all of it or none; raises OSError where that fails."""
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.stem}-")
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
