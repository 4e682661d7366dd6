"""Several processes on one store, and one that dies in the middle of writing."""

from __future__ import annotations

import warnings

import pytest

from mirage.cache import ResultStore
from mirage.cache.records import sha256
from tests import forks

SHARED = [sha256(str(index)) for index in range(10)]

# Writes ten shared keys and one of its own, eight times; writer w's time in round r is 100 - r - w.
WRITER = """
import hashlib, sys, warnings
from mirage.cache import ResultStore
warnings.simplefilter("error")
url, writer = sys.argv[1], int(sys.argv[2])
input()
for r in range(8):
    for k in [*map(str, range(10)), f"writer {writer}"]:
        key = hashlib.sha256(k.encode()).hexdigest()
        ResultStore(url).put(key, {"writer": writer, "round": r, "ballast": "x" * 5000},
                             program="p", target="cpu", dtype="f32", best_us=100 - r - writer)
"""

# Writes ever faster records until it is killed, and says after each how far it is.
ENDLESS = """
import hashlib, itertools, sys, warnings
from mirage.cache import ResultStore
warnings.simplefilter("error")
store = ResultStore(sys.argv[1])
for n in itertools.count():
    key = hashlib.sha256(str(n % 10).encode()).hexdigest()
    payload = {"n": n, "ballast": "x" * 100_000}
    store.put(key, payload, program="p", target="cpu", dtype="f32", best_us=1 / (n + 1))
    print(n, flush=True)
"""


def test_writers_at_once_lose_nothing_and_the_fastest_record_wins(url: str) -> None:
    writers = [forks.start(WRITER, url, str(index)) for index in range(3)]
    for writer in writers:
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    store = ResultStore(url)
    assert len(store.list()) == len(SHARED) + len(writers)
    for key in SHARED:
        payload = store.get(key)
        assert payload is not None
        assert (payload["writer"], payload["round"]) == (2, 7)
    assert {record.best_us for record in store.list() if record.key in SHARED} == {100 - 7 - 2}


@pytest.mark.parametrize("moment", range(3))
def test_a_killed_writer_leaves_a_readable_store(url: str, moment: int) -> None:
    with forks.start(ENDLESS, url) as writer:
        for _ in range(20 + moment):
            done = int(writer.stdout.readline())
        writer.kill()
        done = max([done, *map(int, writer.stdout.read().split())])
    store = ResultStore(url)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        payloads = [store.get(key) for key in SHARED]
    # Everything that was reported as stored is there; of the one in progress, all or nothing.
    assert sorted(payload["n"] for payload in payloads if payload) in (
        list(range(done - 9, done + 1)),
        list(range(done - 8, done + 2)),
    )
    assert store.put(SHARED[0], {"n": "after"}, program="p", target="cpu", dtype="f32", best_us=1e-9)
    assert store.get(SHARED[0]) == {"n": "after"}
