"""Folders in the cache folder, and who may write them."""

from __future__ import annotations

import functools
import os
import secrets
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mirage.errors import FormatError, InputError, UnsafeCacheError
from mirage.settings import cache_dir

#: bytes of a file that is read whole, beyond which it is refused
MAX_BYTES = 64 << 20
#: what names of folders begin with that are removed after a build
_BUILD = ".build-"
#: seconds after which no process still builds in one
_OLD_S = 24 * 3600.0


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


@contextmanager
def build_folder(folder: Path) -> Iterator[Path]:
    """A folder in this one for files under construction, removed at the end; raises OSError where there can be none.

    Those that killed processes left are removed, too, once they are old.
    """
    _remove_old_builds(folder)
    with tempfile.TemporaryDirectory(prefix=_BUILD, dir=folder) as build:
        yield Path(build)


@functools.cache
def _remove_old_builds(folder: Path) -> None:
    """Once per process: it looks at all names in the folder."""
    for build in folder.glob(f"{_BUILD}*"):
        # another process may remove it at the same time
        with suppress(OSError):
            if time.time() - build.stat().st_mtime > _OLD_S:
                shutil.rmtree(build, ignore_errors=True)


def write_whole(file: Path, content: str | bytes, mode: int = 0o600) -> None:
    """Write a file, text as UTF-8, so that a reader sees all of it or none; raises OSError where that fails.

    `mode` are the permissions of the file, from which the user's umask takes some.
    """
    name = file.with_name(f".{file.stem}-{secrets.token_hex(8)}")
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(content.encode() if isinstance(content, str) else content)
        os.replace(name, file)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def path_of(path: object) -> Path:
    """The path that a user gave; raises InputError for what is none."""
    if not isinstance(path, str | os.PathLike) or "\0" in os.fspath(path):
        raise InputError(f"{path!r} is no path of a file; pass a string or a pathlib.Path")
    return Path(path)


def save_file(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file that the user asked for, whole or not at all, with the permissions of new files.

    Raises InputError if it cannot be written.
    """
    # a link stays one, as with open()
    file = path_of(path).resolve()
    if file.exists() and not file.is_file():
        raise InputError(f"{path}: cannot be written: it exists and is not a file; choose another name")
    try:
        write_whole(file, content, 0o666)
    except OSError as e:
        raise InputError(f"{path}: cannot be written ({e.strerror or e}); choose a folder that you can write") from e


def read_text(path: Path, wanted: str, most: int = MAX_BYTES) -> str:
    """The text of a file; raises InputError if it has more than `most` bytes or cannot be read, FormatError if it is no text."""
    try:
        size = path.stat().st_size
        with path.open(encoding="utf-8") as file:
            # pipes and devices do not tell their size, and may never end
            text = file.read(most + 1) if size <= most else ""
    except OSError as e:
        raise InputError(f"{path}: cannot be read ({e.strerror}); pass {wanted}") from None
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not a text file; pass {wanted}") from None
    if size > most or len(text) > most:
        raise InputError(f"{path}: larger than {most} bytes; pass {wanted}")
    return text
