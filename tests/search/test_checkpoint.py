"""Checkpoints: what was put is there again, whatever happened to the file or to the process that wrote it."""

from __future__ import annotations

import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from mirage.cache import CorruptRecordWarning
from mirage.cache.records import sha256
from mirage.errors import CacheError, UnsafeCacheError
from mirage.ir.dims import Dim, to_dim
from mirage.search.checkpoint import KEPT_DAYS, Checkpoint, checkpoint_path, remove_checkpoints
from tests import forks

KEY = sha256("a search")
PAYLOAD = {"graphs": [{"cost": 1.5, "nodes": ["µ", None]}], "cut": ""}

# Puts units of its own until it is killed, and says after each how far it is.
WRITER = """
import itertools, sys, warnings
from pathlib import Path
from mirage.search.checkpoint import Checkpoint
warnings.simplefilter("error")
c = Checkpoint(Path(sys.argv[1]), sys.argv[2])
for n in itertools.count():
    if len(sys.argv) > 4 and n == int(sys.argv[4]):
        break
    c.put(f"{sys.argv[3]} {n}", {"n": n, "ballast": "x" * 20_000})
    print(n, flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"{KEY}.jsonl"


def start(*arguments: object) -> forks.Forked:
    return forks.start(WRITER, *map(str, arguments))


def test_what_was_put_is_read_again(path: Path) -> None:
    c = Checkpoint(path, KEY)
    assert c.get("loop t") is None
    assert not path.exists()
    c.put("loop t", PAYLOAD)
    c.put_all({"loop s": {}, "no loop": {"n": 2}})
    assert path.stat().st_mode & 0o777 == 0o600
    for found in (c, Checkpoint(path, KEY)):
        assert [found.get(u) for u in ("loop t", "loop s", "no loop", "other")] == [PAYLOAD, {}, {"n": 2}, None]


def test_a_unit_put_again_has_the_new_payload(path: Path) -> None:
    Checkpoint(path, KEY).put("u", {"n": 1})
    Checkpoint(path, KEY).put("u", {"n": 2})
    assert Checkpoint(path, KEY).get("u") == {"n": 2}


def test_discard(path: Path) -> None:
    c = Checkpoint(path, KEY)
    c.discard()
    c.put("u", {})
    c.discard()
    assert not path.exists()
    assert c.get("u") is None


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_torn_last_line_is_an_unfinished_unit(path: Path, cut: int) -> None:
    c = Checkpoint(path, KEY)
    c.put("first", PAYLOAD)
    c.put("second", PAYLOAD)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torn = Checkpoint(path, KEY)
        assert torn.get("first") == PAYLOAD
        assert torn.get("second") is None
        torn.put("second", PAYLOAD)
        assert path.read_bytes() == whole
        assert Checkpoint(path, KEY).get("second") == PAYLOAD


def damaged(line: bytes) -> dict[str, bytes]:
    """Lines that are not what `put` wrote, by what is wrong with them."""
    record = json.loads(line)
    nonsense = {**record, "payload": "{"}
    nonsense["sha256"] = sha256(json.dumps([KEY, record["unit"], "{"]))
    return {
        "it is not JSON": line[:-1],
        "checksum": line.replace(b"1.5", b"2.5"),
        "differs from its checksum": json.dumps({**record, "unit": "u2"}).encode(),
        "not a finished unit": b'{"unit": "u"}',
        "is not a finished": json.dumps({**record, "payload": PAYLOAD}).encode(),
        "utf-8": b"\xff\xff",
        "payload is not JSON": json.dumps(nonsense).encode(),
    }


@pytest.mark.parametrize("why", damaged(b'{"key":"","payload":"{}","sha256":"","unit":"u"}'))
def test_a_damaged_line_is_a_warning_and_an_unfinished_unit(path: Path, why: str) -> None:
    c = Checkpoint(path, KEY)
    c.put("u", PAYLOAD)
    line = path.read_bytes().rstrip()
    path.write_bytes(damaged(line)[why] + b"\n")
    with pytest.warns(CorruptRecordWarning, match=f"line 1 is ignored: .*{why}"):
        found = Checkpoint(path, KEY)
    assert found.get("u") is None
    found.put("v", PAYLOAD)
    with pytest.warns(CorruptRecordWarning):
        assert Checkpoint(path, KEY).get("v") == PAYLOAD


def test_a_checkpoint_of_another_search_is_refused(path: Path) -> None:
    Checkpoint(path, KEY).put("u", {})
    with pytest.raises(CacheError, match=f"{path} is of another search.*remove it"):
        Checkpoint(path, sha256("another"))


def test_what_is_not_json_is_refused(path: Path) -> None:
    c = Checkpoint(path, KEY)
    with pytest.raises(CacheError, match="unit 'u': the payload can't be written as JSON"):
        c.put("u", {"cost": float("nan")})
    with pytest.raises(CacheError, match="unit 'u'"):
        c.put("u", object())
    with pytest.raises(CacheError, match=r"unit 'u'.*cannot be saved"):
        c.put("u", [object()], list[Any])
    assert not path.exists()


def test_payloads_are_of_their_type(path: Path) -> None:
    Checkpoint(path, KEY).put("u", [to_dim("4*n")], list[Dim])
    found = Checkpoint(path, KEY)
    assert found.get("u") == ["4*n"] and found.get("u", list[Dim]) == [to_dim("4*n")]
    with pytest.warns(CorruptRecordWarning, match=r"unit 'u'\[0\]: expected an integer"):
        assert found.get("u", list[int]) is None


def test_a_place_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="remove it"):
        Checkpoint(tmp_path, KEY)
    with pytest.raises(CacheError, match="MIRAGE_CACHE_DIR"):
        Checkpoint(tmp_path / "no" / "folder", KEY).put("u", {})


def test_processes_at_once_lose_nothing(path: Path) -> None:
    writers = [start(path, KEY, name, 30) for name in "abc"]
    for writer in writers:
        writer.communicate(timeout=120)
        assert writer.returncode == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = Checkpoint(path, KEY)
    for name in "abc":
        for n in range(30):
            payload = c.get(f"{name} {n}")
            assert payload is not None and payload["n"] == n


@pytest.mark.parametrize("moment", range(3))
def test_a_killed_process_leaves_what_it_said_it_put(path: Path, moment: int) -> None:
    with start(path, KEY, "a") as writer:
        assert writer.stdout
        for _ in range(10 + moment):
            done = int(writer.stdout.readline())
        writer.kill()
        done = max([done, *map(int, writer.stdout.read().split())])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        c = Checkpoint(path, KEY)
        assert all(c.get(f"a {n}") for n in range(done + 1))
        assert c.get(f"a {done + 2}") is None
        c.put("b", {})
        assert Checkpoint(path, KEY).get("b") == {}


def test_the_folder_is_private_and_old_checkpoints_leave_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
    path = checkpoint_path(KEY)
    assert path.parent == tmp_path / "cache" / "checkpoints"
    assert path.parent.stat().st_mode & 0o777 == 0o700
    old, young = (path.with_name(f"{sha256(name)}.jsonl") for name in ("old", "young"))
    for file, days in ((old, KEPT_DAYS + 1), (young, KEPT_DAYS - 1)):
        Checkpoint(file, file.stem).put("u", {})
        os.utime(file, (time.time() - days * 86400,) * 2)
    checkpoint_path(KEY)
    assert not old.exists()
    assert young.exists()


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints").chmod(0o777)
    with pytest.raises(UnsafeCacheError, match="written by other users"):
        checkpoint_path(KEY)


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(CacheError, match="MIRAGE_CACHE_DIR"):
        checkpoint_path(KEY)


@pytest.mark.parametrize("key", ["", "../x", KEY.upper()])
def test_what_is_no_key(key: str) -> None:
    with pytest.raises(CacheError, match="not the key of a checkpoint"):
        checkpoint_path(key)


def test_all_checkpoints_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
    assert remove_checkpoints() == 0
    for name in "ab":
        path = checkpoint_path(sha256(name))
        Checkpoint(path, path.stem).put("u", {})
    assert remove_checkpoints(days=1) == 0
    assert remove_checkpoints() == 2
    assert list((tmp_path / "checkpoints").iterdir()) == []
