"""One measurement at a time per machine, and no search beside it: a lock that processes of one user share."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mirage.errors import UnsafeCacheError


def lock_file() -> Path:
    """The file that is locked: in the machine's own folder for temporary files, as a cache folder may be shared by machines."""
    return Path(tempfile.gettempdir()) / f"mirage-quiet-{os.geteuid()}.lock"


@contextmanager
def quiet(alone: bool) -> Iterator[None]:
    """Wait for the machine: with `alone`, until no other process of this user is in here; else, until none is that is alone.

    The lock ends with the process, however that ends. Raises UnsafeCacheError if the file belongs to another user.
    """
    path = lock_file()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            raise UnsafeCacheError(f"{path} belongs to user {status.st_uid}; remove it, or set TMPDIR to a folder of your own")
        fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)
