"""`--json` is one option: every command and every benchmark declares it alike, and prints one document and nothing else."""

from __future__ import annotations

import ast
import functools
import importlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pytest
import typer

from benchmarks.imports import ImportRow, import_table
from benchmarks.tables import emit, emit_lines
from mirage.cache import ResultStore
from mirage.cli import app
from mirage.cli_shared import AsJson
from tests.api.small import BUDGET, Run

ROOT = Path(__file__).parents[2]
SOURCE = """
import mirage as mi

@mi.program(x=mi.tensor("m", 4), y=mi.tensor(4), sizes={"m": 3})
def scaled(x, y):
    return mi.sum(x * y, axis=1)

@mi.program(x=mi.tensor("m", 4), y=mi.tensor(4), sizes={"m": 3})
def added(x, y):
    return mi.sum(x + y, axis=1)
"""
BUDGETED = ("--budget", str(BUDGET))
#: each command with cheap arguments, in an order in which they find what they need, and its exit code
LINES: Sequence[tuple[str, int]] = (
    (f"superoptimize user.py:scaled {' '.join(BUDGETED)} --save result.json", 0),
    ("compile user.py:scaled --without superoptimize", 0),
    ("show user.py:scaled", 0),
    ("show result.json", 0),
    ("verify user.py:scaled user.py:scaled", 0),
    ("verify user.py:scaled user.py:added", 1),
    ("cache list", 0),
    ("cache show KEY", 0),
    ("cache stats", 0),
    ("cache verify", 0),
    ("cache export all.jsonl", 0),
    ("cache import all.jsonl", 0),
    ("cache merge sqlite:///other.sqlite", 0),
    ("cache evict", 0),
    ("cache clear", 0),
    ("settings", 0),
)
#: commands that are run elsewhere: by a slow test, and by `tests/jobs/test_cli.py`
ELSEWHERE = {"demo", *(f"jobs {name}" for name in ("run", "status", "results", "stop", "from-model"))}


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every command of the command line, with its words."""
    for name, command in (group or cast(Any, typer.main.get_command(app))).commands.items():
        words = f"{before} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, words)
        else:
            yield words, command


@functools.cache
def mains() -> dict[str, str]:
    """The benchmarks' functions `main` with such an option, read from the source: some import what is not installed."""
    found = {}
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        body = ast.parse(text).body
        written = any(isinstance(n, ast.FunctionDef) and n.name == "main" for n in body) and "json" in text
        # or made by `benchmarks.command`
        if written or any(isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "main" for n in body):
            found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = text
    return found


@pytest.mark.parametrize(("words", "command"), [*commands()], ids=lambda x: x if isinstance(x, str) else "")
def test_every_command_takes_the_one_option(words: str, command: Any) -> None:
    (option,) = [p for p in command.params if "--json" in p.opts]
    assert option.help == get_args(AsJson)[1].help
    assert words in ELSEWHERE or any(line.startswith(words) for line, _ in LINES), "run it in this test"


def test_every_command_prints_one_document_and_nothing_else(command: Run, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(SOURCE)
    ResultStore(f"sqlite:///{tmp_path}/other.sqlite").list()
    for line, wanted in LINES:
        if "KEY" in line:
            line = line.replace("KEY", ResultStore().list()[0].key)
        code, out, err = command(*line.split(), "--json")
        assert code == wanted, f"{line}: {err}"
        assert out.endswith("\n") and out.count("\n") == 1, f"{line}: {out}"
        assert json.loads(out) is not None
        plain = command(*line.split())
        assert plain[0] == wanted and plain[1] != out


def test_an_error_leaves_standard_output_empty(command: Run) -> None:
    code, out, err = command("show", "nowhere.py:f", "--json")
    assert (code, out) == (2, "") and "nowhere.py" in err


@pytest.mark.parametrize("module", mains())
def test_every_benchmark_that_prints_rows_takes_the_one_option(module: str) -> None:
    pytest.importorskip("torch")
    hints = get_type_hints(importlib.import_module(module).main, include_extras=True)
    if module == "benchmarks.run":
        # it writes pages, and prints no rows
        assert "as_json" not in hints
    else:
        assert hints["as_json"] == AsJson
    assert '"--json"' not in mains()[module], "declare the option as AsJson of mirage.cli_shared"


@pytest.mark.parametrize("as_json", [False, True])
def test_rows_and_lines_of_benchmarks_are_one_document(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [ImportRow("Python", 0.25, 0.5), ImportRow("NumPy", 0.5, 1.0)]
    emit(rows, as_json, import_table)
    shown = capsys.readouterr().out
    emit_lines(["one", "two"], as_json)
    lines = capsys.readouterr().out
    if as_json:
        assert json.loads(shown) == [asdict(r) for r in rows] and json.loads(lines) == ["one", "two"]
    else:
        assert "NumPy" in shown and lines == "one\ntwo\n"


@pytest.mark.slow
def test_the_demonstration_prints_one_document(command: Run) -> None:
    code, out, err = command("demo", *BUDGETED, "--json")
    assert code == 0, err
    first, second = json.loads(out)
    assert (first["program"], second["program"]) == ("qknorm_attention", "gqa_decode")
    assert {"mirage", "NumPy"} <= set(first["median_us"])
