"""The command line as a function, which tests of its commands share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mirage import cli
from tests.api.small import Run


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache_dir: Path) -> Run:
    """`command(*arguments)` of `mirage` -> exit code, standard output, standard error.

    It runs in `tmp_path`, with a results store there.
    """
    monkeypatch.setenv("MIRAGE_CACHE_URL", f"sqlite:///{tmp_path}/store.sqlite")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mirage", *arguments])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as e:
            code = e.code if isinstance(e.code, int) else int(bool(e.code))
        text = capsys.readouterr()
        return code, text.out, text.err

    return call
