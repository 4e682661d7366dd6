"""Logging: nothing by itself, what the environment names, as text and as JSON lines."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mirage as mi
from mirage.errors import MirageWarning, SettingError
from mirage.logs import JsonLines, configure, told
from mirage.settings import PARTS, TORCH_LOGS
from tests.test_layers import MODULES

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("MIRAGE_LOG", raising=False)
    monkeypatch.delenv("MIRAGE_PRINT_AFTER", raising=False)
    yield
    monkeypatch.undo()
    configure()


def test_imports_leave_logging_as_it_is() -> None:
    code = (
        "import logging; import mirage, mirage.api, mirage.cli, mirage.compilation\n"
        "top = logging.getLogger('mirage')\n"
        "print(logging.root.handlers, top.handlers, top.level, top.propagate)"
    )
    environment = os.environ | {"MIRAGE_LOG": "all:debug"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[] [] 0 True\n", "")


def test_named_parts_are_printed_from_their_level_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = [*logging.root.handlers]
    monkeypatch.setenv("MIRAGE_LOG", "search:debug, cache,graphs")
    configure()
    for name in ("search", "cache", "kernels", "torch.graphs", "torch.fallbacks"):
        logger = logging.getLogger(f"mirage.{name}")
        logger.debug("debug")
        logger.info("info")
        logger.warning("warning")
    shown = {f"mirage.search: {level}" for level in ("debug", "info", "warning")}
    shown |= {f"mirage.{name}: {level}" for name in ("cache", "torch.graphs") for level in ("info", "warning")}
    # warnings of what is not named as well
    shown |= {"mirage.kernels: warning", "mirage.torch.fallbacks: warning"}
    assert set(capsys.readouterr().err.splitlines()) == shown
    assert logging.root.handlers == root


def test_another_environment_takes_the_place_of_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIRAGE_LOG", "search")
    configure()
    monkeypatch.setenv("MIRAGE_LOG", "cache")
    configure()
    configure()
    logging.getLogger("mirage.search").info("no")
    logging.getLogger("mirage.cache").info("yes")
    assert capsys.readouterr().err == "mirage.cache: yes\n"
    monkeypatch.delenv("MIRAGE_LOG")
    configure()
    top = logging.getLogger("mirage")
    assert (top.handlers, top.propagate, logging.getLogger("mirage.cache").level) == ([], True, logging.NOTSET)


def test_json_lines_have_what_was_given_as_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIRAGE_LOG", "all")
    monkeypatch.setenv("MIRAGE_LOG_FORMAT", "json")
    configure()
    logging.getLogger("mirage.search").info("two\nlines of %s", "text", extra={"seconds": 1.5, "sizes": {"n": 3}})
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("mirage.search").exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first.pop("time"))
    assert first == {
        "level": "info", "logger": "mirage.search", "message": "two\nlines of text", "seconds": 1.5, "sizes": {"n": 3},
    }  # fmt: skip
    assert second["level"] == "error" and "ValueError: why" in second["exception"]


def test_a_record_has_no_members_by_itself() -> None:
    row = json.loads(JsonLines().format(logging.makeLogRecord({"msg": "text", "name": "mirage"})))
    assert set(row) == {"time", "level", "logger", "message"}


@pytest.mark.parametrize("text", ["serch", "search:loud", "search:", ":debug", "mirage.search"])
def test_unknown_names_and_levels_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_LOG", text)
    with pytest.raises(SettingError, match=r"MIRAGE_LOG=.*names are graphs.*search.*levels debug"):
        mi.compile(lambda x: x + 1, {"x": mi.tensor("n")})


def test_every_part_logs() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in MODULES.values())
    for part in (*PARTS, *TORCH_LOGS):
        assert f'getLogger("mirage.{part}")' in text or part in ("torch", *TORCH_LOGS)
    used = set(re.findall(r'getLogger\("mirage\.(\w+)', text))
    assert used <= set(PARTS), "a logger that MIRAGE_LOG cannot name; add its part to PARTS of mirage/settings.py"


def test_the_library_prints_nothing_by_itself() -> None:
    """What is told goes through `logging`, `warnings` and the command line, never a bare print to stderr."""
    for module, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        assert "file=sys.stderr" not in text, f"{module} prints to stderr; log it"
        assert "basicConfig" not in text and "captureWarnings" not in text, (
            f"{module} configures logging for the application"
        )
        if not module.startswith("mirage.cli"):
            assert "RuntimeWarning" not in text or module == "mirage.errors", f"{module}: warnings are MirageWarnings"


def test_warnings_have_one_base_class() -> None:
    from mirage import errors
    from mirage.cache import CorruptRecordWarning, StoreWarning

    for kind in (errors.SettingWarning, errors.DegradedWarning, CorruptRecordWarning, StoreWarning):
        assert issubclass(kind, MirageWarning)


def test_progress_goes_to_the_log_as_well(caplog: pytest.LogCaptureFixture) -> None:
    lines: list[str] = []
    logger = logging.getLogger("mirage.search")
    with caplog.at_level(logging.DEBUG, "mirage.search"):
        told(lines.append, logger)("one")
        told(None, logger)("two")
    assert lines == ["one"] and caplog.messages == ["one", "two"]


def test_the_phases_of_a_compilation_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "mirage.compiler"):
        mi.compile(lambda x: x + 1, {"x": mi.tensor("n")}, without=("superoptimize",), cache=False)
    assert any(getattr(r, "pass", None) == "fuse" for r in caplog.records)
    assert any("compiled in" in r.getMessage() for r in caplog.records)
