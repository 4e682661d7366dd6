"""Leases: who searches for a key, so that others wait for what it finds and do not search themselves.

A lease is a row with its owner and the time when it expires. The owner renews it in a thread while it searches, and gives it up
at the end. Where the owner was killed, the lease expires; a process of the same machine sees sooner that it is dead.
"""

from __future__ import annotations

import functools
import os
import platform
import re
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from mirage.errors import CacheError

#: seconds until a lease expires that is not renewed, and between renewals: several may fail
LEASE_S, BEAT_S = 20.0, 4.0
#: seconds that no lease lasts: a clock or a row is wrong
FOREVER_S = 10 * LEASE_S

#: host, machine and process space, process id, when it began, which of its leases
_OWNER = re.compile(r"([^\n]{0,256})\n([0-9a-f:\[\]a-z-]{0,128})\n([0-9]{1,10})\n([0-9]{0,20})\n[0-9a-f]{16}")


@dataclass(frozen=True)
class Holder:
    """Who has a lease, and seconds until it expires if it is not renewed."""

    owner: str
    left: float

    def __str__(self) -> str:
        match = _OWNER.fullmatch(self.owner)
        if match is None:
            return "another process"
        return f"process {match[3]} of {match[1] if match[1].isprintable() else 'another machine'}"


def new_owner() -> str:
    """This process, for one lease more."""
    return f"{platform.node()}\n{_space()}\n{os.getpid()}\n{_began(os.getpid()) or ''}\n{secrets.token_hex(8)}"


def is_alive(owner: object) -> bool:
    """Whether an owner may still be at work: False only where it is known to be dead, or no owner."""
    match = _OWNER.fullmatch(owner) if isinstance(owner, str) else None
    if match is None:
        return False
    _, space, process, began = match.groups()
    if not space or space != _space() or not began:
        # of another machine: only its lease tells
        return True
    return _began(int(process)) == began


@functools.cache
def _space() -> str:
    """What tells apart whose process ids mean the same: the boot of a machine, and the namespace; "" where nothing does."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}:{os.readlink('/proc/self/ns/pid')}"
    except (OSError, ValueError):
        return ""


def _began(process: int) -> str | None:
    """When a process began, in ticks since the boot; None where there is none, or it is dead and only waited for."""
    try:
        # what follows the name, which may hold anything
        fields = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    except (OSError, IndexError):
        return None


def holder_of(owner: object, expires: object, now: float) -> Holder | None:
    """Who has the lease of a row; None where it is free, has expired, or its owner is known to be dead."""
    # SQLite keeps values of any type
    if not isinstance(owner, str) or not isinstance(expires, int | float) or not now < expires <= now + FOREVER_S:
        return None
    return Holder(owner, expires - now) if is_alive(owner) else None


class LeaseTable(Protocol):
    """Where leases are: `Database`, or the `StoreFile`."""

    def renew(self, key: str, owner: str, seconds: float) -> bool: ...

    def release(self, key: str, owner: str) -> None: ...


class Lease:
    """The lease of a key, which is had: renewed in a thread until it is released. Without a table there is nothing to hold.

    Where the table fails, or somebody else has taken a lease that had expired, it is not renewed any more.
    """

    def __init__(self, table: LeaseTable | None = None, key: str = "", owner: str = "") -> None:
        self._table, self._key, self._owner = table, key, owner
        self._ended = threading.Event()
        if table is not None:
            threading.Thread(target=self._renew, args=(table,), name="mirage-lease", daemon=True).start()

    def _renew(self, table: LeaseTable) -> None:
        with suppress(CacheError):
            while not self._ended.wait(BEAT_S):
                if not table.renew(self._key, self._owner, LEASE_S):
                    return

    def release(self) -> None:
        """Give it up; a table that fails forgets it by itself."""
        self._ended.set()
        table, self._table = self._table, None
        if table is not None:
            with suppress(CacheError):
                table.release(self._key, self._owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


