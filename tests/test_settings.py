"""Settings: one declaration each, read when they are needed, wrong ones named."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.setting_table import PAGE, written
from mirage import settings
from mirage.cli import app, main
from mirage.errors import SettingError, SettingWarning
from mirage.settings import SETTINGS, Setting

ROOT = Path(__file__).parent.parent


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, where unknown variables were not looked for yet."""
    monkeypatch.setattr(settings, "_checked", [])


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_a_default_and_takes_its_example(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = SETTINGS[name]
    monkeypatch.delenv(one.variable, raising=False)
    default = one()
    assert one.origin == "default"
    monkeypatch.setenv(one.variable, "")
    assert (one(), one.origin) == (default, "default")
    monkeypatch.setenv(one.variable, one.example)
    assert one.origin == "environment"
    assert one() != default or one() == one.parse(one.example)


def test_variables_are_declared_once_and_begin_alike() -> None:
    variables = [one.variable for one in SETTINGS.values()]
    assert len(variables) == len(set(variables))
    assert [v for v in variables if not v.startswith("MIRAGE_")] == ["CC"]


def test_every_variable_that_the_package_names_is_a_setting() -> None:
    known = {one.variable for one in SETTINGS.values()}
    for folder in ("mirage", "search", "verify", "kernels", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"\bMIRAGE_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")):
                assert name in known, f"{path} names {name}, which mirage/settings.py does not declare"


@pytest.mark.parametrize(
    ("variable", "text", "says"),
    [
        ("MIRAGE_NUM_THREADS", "0", "a positive integer"),
        ("MIRAGE_NUM_THREADS", "-1", "a positive integer"),
        ("MIRAGE_NUM_THREADS", "²", "a positive integer"),
        ("MIRAGE_SEARCH_WORKERS", "two", "a positive integer"),
        ("MIRAGE_CFLAGS", "'-O1", "as a shell reads them.*No closing quotation"),
        ("CC", 'gcc "', "a command line"),
        ("MIRAGE_LOG", "graph", "graphs.*'graph'"),
        ("MIRAGE_CACHE_DIR", "~nobody-of-this-name/cache", "a path"),
    ],
)
def test_a_wrong_value_names_variable_value_and_what_is_allowed(
    variable: str, text: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = (s for s in SETTINGS.values() if s.variable == variable)
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError, match=f"(?s){variable}={re.escape(repr(text))} is not .*{says}.*unset it"):
        one()


def test_flags_are_read_as_a_shell_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_CFLAGS", "-O1 '-DTEXT=a b'")
    assert settings.extra_cflags() == ("-O1", "-DTEXT=a b")


def test_a_path_may_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("MIRAGE_CACHE_DIR", "~/cache")
    assert settings.cache_dir() == Path("/home/somebody/cache")


@pytest.mark.usefixtures("unchecked")
def test_an_unknown_variable_is_warned_of_once_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_NUM_THREAD", "2")
    with pytest.warns(SettingWarning, match=r"MIRAGE_NUM_THREAD is no setting.*MIRAGE_NUM_THREADS"):
        settings.num_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        settings.num_threads()


@pytest.mark.usefixtures("unchecked")
def test_known_variables_are_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_NUM_THREADS", "2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert settings.num_threads() == 2


def test_imports_read_no_settings() -> None:
    environment = os.environ | {"MIRAGE_NUM_THREADS": "none", "MIRAGE_NO_SUCH": "1", "MIRAGE_LOG": "nothing"}
    code = "import mirage, mirage.settings, mirage.cli, mirage.torch"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_tells_values_and_where_they_are_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_NUM_THREADS", "3")
    monkeypatch.delenv("MIRAGE_SEARCH_WORKERS", raising=False)
    done = CliRunner().invoke(app, ["settings", "--json"])
    rows = {row["setting"]: row for row in json.loads(done.stdout)}
    assert done.exit_code == 0 and list(rows) == list(SETTINGS)
    assert (rows["num_threads"]["value"], rows["num_threads"]["origin"]) == (3, "environment")
    assert rows["search_workers"]["origin"] == "default"
    table = CliRunner().invoke(app, ["settings"]).stdout
    assert "MIRAGE_NUM_THREADS" in table and "environment" in table


def test_the_command_tells_all_settings_even_if_one_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIRAGE_NUM_THREADS", "all")
    monkeypatch.setattr(sys, "argv", ["mirage", "settings", "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert end.value.code == 2 and "MIRAGE_NUM_THREADS='all'" in err
    rows = json.loads(out)
    assert [row["value"] for row in rows if row["variable"] == "MIRAGE_NUM_THREADS"] == [None]
    assert len(rows) == len(SETTINGS)


def test_the_table_of_the_documentation_is_that_of_the_declarations() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == written(page), "run `make docs`"
    for one in SETTINGS.values():
        assert f"| `{one.variable}` |" in page


def test_every_declaration_is_found() -> None:
    assert {id(v) for v in vars(settings).values() if isinstance(v, Setting)} == {id(s) for s in SETTINGS.values()}
