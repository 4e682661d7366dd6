"""Stores for tests: of SQLite and of PostgreSQL, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cache import postgresql


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[postgresql.Server]:
    """A server, started once; skipped where none can be."""
    if why := postgresql.missing():
        pytest.skip(why)
    with postgresql.server() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a new database, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shared.sqlite"
    found: postgresql.Server = request.getfixturevalue("postgresql_server")
    return found.url()
