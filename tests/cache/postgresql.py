"""A PostgreSQL server of the tests' own: in a temporary folder, reached through a socket there, and by nobody else."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path

#: where Debian keeps the commands
DEBIAN = Path("/usr/lib/postgresql")
#: users as whom a server may run where root starts it, which it refuses to be
USERS = ("postgres", "nobody")


def missing() -> str:
    """Why no server can be started here, or ""."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed"
    if binaries() is None:
        return "no initdb and pg_ctl of PostgreSQL, neither in PATH nor in /usr/lib/postgresql"
    return ""


def binaries() -> Path | None:
    """The folder of initdb and pg_ctl."""
    found = shutil.which("pg_ctl")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(DEBIAN.glob("*/bin"), key=lambda p: int(p.parent.name) if p.parent.name.isdecimal() else 0, reverse=True)
    return next((p for p in places if all((p / name).is_file() for name in ("initdb", "pg_ctl", "postgres"))), None)


def _user() -> str | None:
    """As whom the server runs, None for this user."""
    if os.geteuid() != 0:
        return None
    known = {p.pw_name for p in pwd.getpwall()}
    return next(name for name in USERS if name in known)


class Server:
    """A server in a folder, with a database per test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.user = _user()
        self._names = (f"mirage{i}" for i in count())
        if self.user is not None:
            shutil.chown(folder, self.user)
        self._call("initdb", "-D", str(self.data), "-U", "mirage", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def _call(self, command: str, *arguments: str) -> None:
        place = binaries()
        assert place is not None
        # its own log: a server that inherits a pipe keeps it open
        with (self.folder.parent / f"{self.folder.name}.out").open("ab") as log:
            subprocess.run(
                [str(place / command), *arguments], user=self.user, check=True, stdout=log, stderr=log, cwd="/",
                stdin=subprocess.DEVNULL, env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
            )  # fmt: skip

    def start(self) -> None:
        """Until it answers."""
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off -c max_connections=200"
        self._call("pg_ctl", "start", "-w", "-t", "300", "-D", str(self.data), "-l", str(self.folder / "log"), "-o", options)

    def stop(self) -> None:
        """At once, as a crash would."""
        self._call("pg_ctl", "stop", "-w", "-t", "300", "-m", "immediate", "-D", str(self.data))

    def url(self, database: str = "") -> str:
        """Of an empty database, or of that one."""
        if not database:
            import psycopg

            database = next(self._names)
            with psycopg.connect(f"host={self.folder} user=mirage dbname=postgres", autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE {database}")
        return f"postgresql://mirage@/{database}?host={self.folder}"


@contextmanager
def server() -> Iterator[Server]:
    """A server that runs."""
    with tempfile.TemporaryDirectory(prefix="mirage-postgresql-") as outer:
        # root may own the outer one: the server's user only has to pass through
        Path(outer).chmod(0o755)
        folder = Path(outer) / "server"
        folder.mkdir(mode=0o700)
        found = Server(folder)
        found.start()
        try:
            yield found
        finally:
            if (found.data / "postmaster.pid").exists():
                found.stop()
