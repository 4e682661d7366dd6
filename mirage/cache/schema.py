"""The version of a store's tables: made, migrated or refused when the store is opened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import sqlalchemy as sa

from mirage.cache.sqlite import REVISIONS
from mirage.cache.tables import METADATA, RESULTS, SCHEMA
from mirage.errors import CacheError, NewerCacheError

MIGRATIONS = Path(__file__).parent / "migrations"
#: of the advisory lock of a server that lets one process migrate at a time
_LOCK = 0x6D697261


def no_store(place: str) -> CacheError:
    """The error for a place where there is no store yet, and none is to be made."""
    return CacheError(f"results store {place}: there is none; give the URL of one, such as sqlite:////path/results.sqlite")


def prepare(
    engine: sa.Engine, writing: Callable[[], AbstractContextManager[sa.Connection]], place: str, create: bool = True
) -> None:
    """Make the tables where there are none, and migrate older ones; `writing` begins a transaction that writes.

    Raises CacheError where there are none and they are not to be made (`create`), NewerCacheError for tables of a later release,
    and the errors of the database.
    """
    if _version(engine, place) == REVISIONS[-1]:
        return
    with writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        inspector = sa.inspect(connection)
        if not inspector.has_table(RESULTS.name):
            if not create:
                raise no_store(place)
            METADATA.create_all(connection)
            connection.execute(sa.insert(SCHEMA).values(version_num=REVISIONS[-1]))
        # another process may have done it meanwhile
        elif not inspector.has_table(SCHEMA.name) or _read(connection) != REVISIONS[-1]:
            migrate(connection)


def migrate(connection: sa.Connection) -> None:
    """Bring older tables to the last revision, in the connection's transaction."""
    # only older stores need it
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    # the file of options has a syntax of its own
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    command.upgrade(config, "head")


def _version(engine: sa.Engine, place: str) -> str | None:
    """The revision of a store's tables, None without one."""
    with engine.connect() as connection:
        try:
            found = _read(connection)
        except (sa.exc.OperationalError, sa.exc.ProgrammingError):
            connection.rollback()
            if not sa.inspect(connection).has_table(SCHEMA.name):
                return None
            # another process may have made it meanwhile
            found = _read(connection)
    if found is not None and found not in REVISIONS:
        raise NewerCacheError(
            f"results store {place}: its tables have version {found!r}, and this release of mirage knows those up to "
            f"{REVISIONS[-1]}; upgrade mirage-superoptimizer, or set MIRAGE_CACHE_URL or MIRAGE_CACHE_DIR to another store"
        )
    return found


def _read(connection: sa.Connection) -> str | None:
    return connection.execute(sa.select(SCHEMA.c.version_num)).scalar()
