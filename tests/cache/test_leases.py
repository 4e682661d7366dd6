"""Leases: one owner at a time, who keeps it by renewing it, and loses it by dying."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mirage.cache import Holder, Lease, ResultStore, engine, leases
from mirage.cache.database import Database
from mirage.cache.leases import LEASE_S, is_alive, new_owner
from mirage.cache.records import sha256
from tests import forks

KEY, OTHER = sha256("a key"), sha256("another key")

# Has the lease of a key, says so, and waits to be killed.
OWNER = """
import sys, time
from mirage.cache import Lease, ResultStore
lease = ResultStore(sys.argv[1]).acquire(sys.argv[2])
assert isinstance(lease, Lease), lease
print("has it", flush=True)
time.sleep(3600)
"""


@contextmanager
def owner(url: str) -> Iterator[forks.Forked]:
    """A process that has the lease of `KEY`."""
    with forks.start(OWNER, url, KEY) as process:
        try:
            assert process.stdout.readline() == "has it\n"
            yield process
        finally:
            process.kill()


def acquired(store: ResultStore, key: str = KEY) -> Lease:
    """The lease of a key that is free."""
    found = store.acquire(key)
    assert isinstance(found, Lease), found
    return found


def foreign(number: int = 1) -> str:
    """An owner on another machine."""
    return f"elsewhere\nboot:pid\n{number}\n1\n{'0' * 16}"


def test_one_has_it_until_it_is_released(url: str) -> None:
    store = ResultStore(url)
    assert store.holder(KEY) is None
    with acquired(store):
        found = ResultStore(url).acquire(KEY)
        assert isinstance(found, Holder) and 0 < found.left <= LEASE_S
        assert str(found).startswith(f"process {os.getpid()} of ")
        holder = store.holder(KEY)
        assert holder is not None and holder.owner == found.owner
        acquired(store, OTHER).release()
    assert store.holder(KEY) is None
    acquired(store).release()


def test_of_many_that_want_it_at_once_one_has_it(url: str) -> None:
    barrier = threading.Barrier(8)
    found: list[Lease | Holder] = []

    def want() -> None:
        store = ResultStore(url)
        barrier.wait()
        found.append(store.acquire(KEY))

    ResultStore(url)
    threads = [threading.Thread(target=want) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lease,) = (f for f in found if isinstance(f, Lease))
    assert len(found) == 8
    lease.release()


def test_a_killed_owner_of_this_machine_is_not_waited_for(url: str) -> None:
    store = ResultStore(url)
    with owner(url) as process:
        holder = store.holder(KEY)
        assert holder is not None and str(holder).startswith(f"process {process.pid} of ")
        os.kill(process.pid, signal.SIGSTOP)
        assert store.holder(KEY) is not None, "it may go on"
        process.kill()
        process.wait()
        assert store.holder(KEY) is None
        acquired(store).release()


def test_the_lease_of_another_machine_lasts_until_it_expires(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(url)
    now = 1e9
    monkeypatch.setattr("mirage.cache.database.clock", lambda _: now)
    assert database.acquire(KEY, foreign(1), 20.0) is None
    now += 19.0
    assert database.acquire(KEY, foreign(2), 20.0) == Holder(foreign(1), 1.0)
    assert database.renew(KEY, foreign(1), 20.0)
    now += 19.0
    assert database.holder(KEY) == Holder(foreign(1), 1.0)
    now += 1.0
    assert database.holder(KEY) is None
    assert database.acquire(KEY, foreign(2), 20.0) is None
    assert not database.renew(KEY, foreign(1), 20.0), "somebody else has it now"
    database.release(KEY, foreign(1))
    assert database.holder(KEY) == Holder(foreign(2), 20.0)


def test_a_lease_is_renewed_in_time_and_not_after_its_release(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 0.01)
    renewed = threading.Semaphore(0)
    store = ResultStore(url)

    class Table:
        left = 3

        def renew(self, key: str, owner: str, seconds: float) -> bool:
            assert (key, owner, seconds) == (KEY, "me", LEASE_S)
            self.left -= 1
            renewed.release()
            return self.left > 0

        def release(self, key: str, owner: str) -> None:
            assert (key, owner) == (KEY, "me")
            self.left = -1

    table = Table()
    lease = Lease(table, KEY, "me")
    for _ in range(3):
        assert renewed.acquire(timeout=600)
    lease.release()
    assert table.left == -1
    lease.release()
    assert store.holder(KEY) is None


@pytest.mark.parametrize("row", ["", "owner", "a\nb", b"\xff", foreign().replace("0" * 16, "x" * 16), None, 7])
def test_what_is_no_owner_holds_nothing(row: object) -> None:
    assert not is_alive(row)


def test_an_owner_is_alive_where_it_is_not_known_to_be_dead() -> None:
    mine = new_owner()
    assert is_alive(mine) and is_alive(foreign())
    host, space, process, began, nonce = mine.split("\n")
    if space:
        assert not is_alive("\n".join([host, space, process, f"{began}1", nonce])), "the id has another process now"
        assert not is_alive("\n".join([host, space, "4194305", began, nonce])), "no process has this id"
        assert is_alive("\n".join([host, "another:space", "4194305", began, nonce]))


@pytest.mark.parametrize("expires", ["'soon'", "1e300", "x'ff'"])
def test_a_lease_that_is_damaged_is_free(tmp_path_factory: pytest.TempPathFactory, expires: str) -> None:
    url = f"sqlite:///{tmp_path_factory.mktemp('leases')}/shared.sqlite"
    database = Database(url)
    database.acquire(KEY, foreign(), 20.0)
    with engine.make_engine(database._engine.url).begin() as connection:
        connection.exec_driver_sql(f"UPDATE mirage_leases SET expires = {expires}")
    assert database.holder(KEY) is None
    assert database.acquire(KEY, foreign(2), 20.0) is None
