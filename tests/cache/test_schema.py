"""Versions of a store's tables: older ones are migrated when they are opened, later ones are refused and stop no call."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from mirage.cache import CallStore, ResultStore, StoreWarning, schema
from mirage.cache.engine import make_engine
from mirage.cache.records import SCHEMA, canonical_json, sha256
from mirage.cache.sqlite import REVISIONS
from mirage.cache.tables import METADATA
from mirage.errors import NewerCacheError
from tests import forks

KEY = sha256("a key")
PAYLOAD = {"graph": [1, 2, 3]}

#: the tables of releases before they had a version
OLDEST = """CREATE TABLE mirage_results (
    key VARCHAR(64) NOT NULL, program TEXT NOT NULL, target TEXT NOT NULL, dtype TEXT NOT NULL, version INTEGER NOT NULL,
    created TEXT NOT NULL, best_us FLOAT, payload TEXT NOT NULL, payload_sha256 VARCHAR(64) NOT NULL,
    PRIMARY KEY (key)
)"""
INSERT = sa.text(
    "INSERT INTO mirage_results (key, program, target, dtype, version, created, best_us, payload, payload_sha256) "
    "VALUES (:key, 'p', 'cpu', 'float32', :version, '2025-01-01T00:00:00+00:00', 2.5, :payload, :sha)"
)

#: opens a store when it is told to
OPEN = """
import sys, warnings
from mirage.cache import ResultStore
warnings.simplefilter("error")
print("ready", flush=True)
input()
print(len(ResultStore(sys.argv[1]).list()))
"""


def engine(url: str) -> sa.Engine:
    return make_engine(sa.make_url(url))


def insert(connection: sa.Connection, key: str) -> None:
    """As releases before 0002 do."""
    text = canonical_json(PAYLOAD, "test")
    connection.execute(INSERT, {"key": key, "version": SCHEMA, "payload": text, "sha": sha256(text)})


@pytest.fixture
def old(url: str) -> str:
    """A store of before, with a record."""
    with engine(url).begin() as connection:
        connection.exec_driver_sql(OLDEST)
        insert(connection, KEY)
    return url


def differences(url: str) -> Any:
    with engine(url).connect() as connection:
        return compare_metadata(MigrationContext.configure(connection, opts={"version_table": "mirage_schema"}), METADATA)


def test_the_revisions_are_those_of_the_migrations() -> None:
    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    revisions = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(reversed([r.revision for r in revisions])) == REVISIONS


def test_a_new_store_has_the_tables_that_are_defined(url: str) -> None:
    ResultStore(url)
    assert differences(url) == []


def test_an_old_store_is_migrated_when_it_is_opened_and_keeps_its_records(old: str) -> None:
    store = ResultStore(old)
    assert differences(old) == []
    assert store.get(KEY) == PAYLOAD
    (record,) = store.list()
    assert (record.best_us, record.cut_s, record.family, record.processor) == (2.5, None, None, None)
    assert store.uses()[KEY].bytes == len(canonical_json(PAYLOAD, "test"))
    assert ResultStore(old).get(KEY) == PAYLOAD


def test_a_store_that_is_new_needs_no_migration(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "migrate", lambda _: pytest.fail("migrated"))
    for _ in range(2):
        ResultStore(url)


def test_a_store_that_another_process_makes_meanwhile_is_opened(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = schema._read

    def late(connection: sa.Connection) -> str | None:
        """What is read before the tables are there, which another process makes at once."""
        monkeypatch.setattr(schema, "_read", read)
        try:
            return read(connection)
        finally:
            ResultStore(url).list()

    monkeypatch.setattr(schema, "_read", late)
    assert ResultStore(url).list() == []


def test_processes_that_open_an_old_store_at_once_migrate_it_once(old: str) -> None:
    processes = [forks.start(OPEN, old) for _ in range(2)]
    for p in processes:
        assert p.stdout.readline() == "ready\n"
    for p in processes:
        p.stdin.write("go\n")
        p.stdin.flush()
    assert [p.communicate(timeout=600)[0] for p in processes] == ["1\n", "1\n"]
    assert differences(old) == []


def test_a_failed_migration_changes_nothing(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate = schema.migrate

    def fail(connection: sa.Connection) -> None:
        migrate(connection)
        raise OSError("the machine went down")

    monkeypatch.setattr(schema, "migrate", fail)
    with pytest.raises(Exception, match="went down"):
        ResultStore(old)
    with engine(old).connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["mirage_results"]
    monkeypatch.undo()
    assert ResultStore(old).get(KEY) == PAYLOAD


def test_an_older_release_may_go_on_writing(old: str) -> None:
    store = ResultStore(old)
    with engine(old).begin() as connection:
        insert(connection, sha256("later"))
    assert store.get(sha256("later")) == PAYLOAD
    assert store.evict(max_bytes=1) == 2, "also what an older release wrote"


def test_a_store_of_a_later_release_is_refused_and_stops_no_call(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ResultStore(url).put(KEY, PAYLOAD, program="p", target="cpu", dtype="float32", best_us=1.0)
    with engine(url).begin() as connection:
        connection.exec_driver_sql("UPDATE mirage_schema SET version_num = '0999'")
    with pytest.raises(NewerCacheError, match=r"version '0999'.*upgrade mirage-superoptimizer"):
        ResultStore(url)
    monkeypatch.setenv("MIRAGE_CACHE_URL", url)
    store = CallStore()
    with pytest.warns(StoreWarning, match="upgrade mirage-superoptimizer"):
        assert store.recall(KEY) is None
    assert store.put(KEY, PAYLOAD, program="p", target="cpu", dtype="float32", best_us=1.0) is None
