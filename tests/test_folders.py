"""Files are written whole or not at all, and belong to who they are for."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirage.errors import InputError
from mirage.folders import build_folder, path_of, read_text, save_file, write_whole


@pytest.fixture
def umask() -> Iterator[int]:
    """The permissions that new files of this test do not get."""
    old = os.umask(0o027)
    yield 0o027
    os.umask(old)


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_files_of_the_package_are_private_and_saved_ones_are_not(tmp_path: Path, umask: int) -> None:
    write_whole(tmp_path / "own", b"1")
    save_file(tmp_path / "saved", "é")
    assert mode(tmp_path / "own") == 0o600
    assert mode(tmp_path / "saved") == 0o666 & ~umask
    assert (tmp_path / "saved").read_bytes() == "é".encode()


def test_a_link_to_a_file_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    save_file(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "text"


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder", "folder/none/file"):
        with pytest.raises(InputError, match=rf"{name}: cannot be written.*; choose"):
            save_file(tmp_path / name, "text")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["folder", "pipe"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_no_more_is_read_than_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("1234")
    assert read_text(tmp_path / "file", "less", 4) == "1234"
    with pytest.raises(InputError, match="larger than 3 bytes; pass less"):
        read_text(tmp_path / "file", "less", 3)
    with pytest.raises(InputError, match="larger than 100 bytes; pass less"):
        read_text(Path("/dev/zero"), "less", 100)
    with pytest.raises(InputError, match=r"none: cannot be read \(No such file.*; pass text"):
        read_text(tmp_path / "none", "text")


def test_a_write_that_fails_leaves_the_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("older")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        save_file(tmp_path / "file", "newer")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("file", "older")]


def test_a_build_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), build_folder(tmp_path) as build:
        (build / "part.o").write_bytes(b"")
        assert mode(build) == 0o700
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_what_killed_builds_left_goes_once_it_is_old(tmp_path: Path) -> None:
    names = (".build-old", ".build-new", "kernel.so")
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "part.o").write_bytes(b"")
    day = 24 * 3600
    for name, age in zip(names, (2 * day, 0.5 * day, 2 * day), strict=True):
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    with build_folder(tmp_path):
        pass
    assert sorted(p.name for p in tmp_path.iterdir()) == [".build-new", "kernel.so"]


@pytest.mark.parametrize("path", [None, 3, b"file", "fi\0le"])
def test_what_is_no_path_is_said_so(path: object) -> None:
    with pytest.raises(InputError, match="is no path of a file; pass a string"):
        path_of(path)
