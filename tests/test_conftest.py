"""The shared fixtures do what tests rely on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["pytester"]

CONFTEST = Path(__file__).with_name("conftest.py")


def test_the_cache_folder_is_not_the_users(cache_dir: Path) -> None:
    from mirage.settings import cache_dir as configured

    assert configured() == cache_dir
    assert cache_dir.is_dir() and cache_dir != Path.home() / ".cache" / "mirage"
    assert "MIRAGE_CACHE_URL" not in os.environ


def test_random_cases_are_the_same_on_every_run() -> None:
    assert settings.default is not None
    assert (settings.default.derandomize, settings.default.deadline) == (True, None)


def test_random_cases_do_not_depend_on_what_is_imported(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(imported="NUMBER = 918273645546372819")
    pytester.makepyfile(
        """
        from hypothesis import given, settings, strategies as st
        from imported import NUMBER

        @settings(max_examples=500)
        @given(st.integers())
        def test(number):
            assert number != NUMBER
        """
    )
    pytester.runpytest().assert_outcomes(passed=1)


def test_a_golden_file_that_is_missing_fails(golden: Callable[[str, str], None]) -> None:
    with pytest.raises(AssertionError, match="--update-golden"):
        golden("no-such-file.txt", "text")


def test_a_golden_file_is_written_on_request_and_compared_otherwise(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    test = "def test(golden):\n    golden('folder/file.txt', {!r})\n"
    pytester.makepyfile(test.format("µ\n"))
    pytester.runpytest("--update-golden").assert_outcomes(passed=1)
    assert (pytester.path / "golden" / "folder" / "file.txt").read_bytes() == "µ\n".encode()
    pytester.runpytest().assert_outcomes(passed=1)
    pytester.makepyfile(test.format("other\n"))
    pytester.runpytest().assert_outcomes(failed=1)
    assert (pytester.path / "golden" / "folder" / "file.txt").read_bytes() == "µ\n".encode()
