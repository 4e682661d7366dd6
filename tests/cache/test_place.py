"""Places where no results store can be: the error names the place and the variable that changes it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mirage.cache import ResultStore
from mirage.cache.records import sha256
from mirage.errors import CacheError, InputError


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Not root, to whom no folder is read-only."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user can reach, read and write."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        yield folder


def test_a_read_only_folder(public_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(public_folder))
    public_folder.chmod(0o555)
    with (
        ordinary_user(),
        pytest.raises(CacheError, match=f"{public_folder}/results.sqlite: .*MIRAGE_CACHE_DIR"),
    ):
        ResultStore()
    public_folder.chmod(0o777)
    with ordinary_user():
        assert ResultStore().list() == []


def test_a_folder_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.raises(CacheError, match=r"file/folder/results\.sqlite: .*MIRAGE_CACHE_DIR"):
        ResultStore()


def test_a_file_that_is_not_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
    text = "a letter, not a database\n" * 100
    (tmp_path / "results.sqlite").write_text(text)
    with pytest.raises(CacheError, match=f"{tmp_path}/results.sqlite: file is not a database; .*remove"):
        ResultStore()
    assert (tmp_path / "results.sqlite").read_text() == text


def test_a_database_damaged_after_it_was_opened(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/results.sqlite")
    (tmp_path / "results.sqlite").write_bytes(b"\xff" * 8192)
    for use in (store.list, store.clear, lambda: store.get(sha256("x"))):
        with pytest.raises(CacheError, match=r"results\.sqlite"):
            use()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("results.sqlite", "parse"),
        ("nosuchdatabase://host/db", "nosuchdatabase"),
        ("sqlite://", "memory"),
        ("sqlite:////no/such/folder/results.sqlite", "unable to open"),
    ],
)
def test_a_url_that_leads_nowhere(url: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CACHE_URL", url)
    with pytest.raises(CacheError, match=f"{url}: .*{reason}.*MIRAGE_CACHE_URL"):
        ResultStore()


def test_a_url_that_was_given_is_not_looked_for_in_the_environment() -> None:
    for url in ("", "results.sqlite", "sqlite:////no/such/folder/results.sqlite"):
        with pytest.raises(CacheError, match="; give the SQLAlchemy URL"):
            ResultStore(url)


def test_what_is_no_url_no_path_and_no_store(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/results.sqlite")
    given: list[Any] = [5, tmp_path / "results.sqlite", "sqlite:///a\0b"]
    for url in given:
        with pytest.raises(CacheError, match="not a URL; give a text such as sqlite:"):
            ResultStore(url)
    paths: list[Any] = [5, None, "a\0b"]
    for path in paths:
        for use in (store.export, store.import_):
            with pytest.raises(InputError, match="is no path of a file"):
                use(path)
    other: Any = store.url
    with pytest.raises(CacheError, match=r"is not a results store; pass ResultStore\(url\)"):
        store.merge(other)


def test_a_driver_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(CacheError, match=r"psycopg.*; install the driver.*\[postgresql\]"):
        ResultStore("postgresql://127.0.0.1:1/no-such-results")


def test_a_password_is_not_shown() -> None:
    with pytest.raises(CacheError) as caught:
        ResultStore("postgresql://user:s3cret@127.0.0.1:1/results")
    assert "s3cret" not in str(caught.value)
    assert "postgresql://***@127.0.0.1:1/results" in str(caught.value)
