"""The command `mirage compile`: what it takes, prints and writes; its errors of one line."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import mirage as mi
from tests.api.small import BUDGET, Judge, Run, races_by
from tests.api.test_cli import fails

SOURCE = """
import mirage as mi

@mi.function(x=mi.tensor("b", 8), w=mi.tensor(8, "n"))
def scores(x, w):
    return mi.softmax(mi.rms_norm(x) @ w)

@mi.program(x=mi.tensor("b", 8), sizes={"b": 4})
def norm(x):
    return mi.rms_norm(x)

@mi.function(x=mi.tensor("b"))
def broken(x):
    return x if x.sum() > 0 else -x

def plain(x):
    return x

module = mi.trace_module(plain, {"x": mi.tensor("n")})
"""
QUICK = ("--without", "superoptimize")


@pytest.fixture
def run(command: Run, tmp_path: Path) -> Run:
    """The command line in a folder with a file of programs."""
    (tmp_path / "user.py").write_text(SOURCE)
    return command


def test_compile_explains(run: Run) -> None:
    code, out, err = run("compile", "user.py:scores", *QUICK, "--bound", "b=1:64", "--bound", "n=32")
    assert (code, err) == (0, "")
    for text in (
        "scores(x: float32[b, 8], w: float32[8, n]) -> float32[b, n]",
        "b <= 64",
        "b >= 1",
        "n <= 32",
        "kernels",
        "an arena of",
    ):
        assert text in out


@pytest.mark.parametrize("name", ["scores", "norm", "module"])
def test_compile_takes_all_kinds_of_definitions(run: Run, name: str) -> None:
    code, out, err = run("compile", f"user.py:{name}", *QUICK)
    assert (code, err) == (0, "")
    assert "guards" in out


@pytest.mark.slow
def test_compile_superoptimizes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    races_by(Judge("full", "found"), monkeypatch.setattr)
    options = ("--budget", str(BUDGET), "--set", "b=4", "--set", "n=16", "--constant", "w", "--seed", "3", "--json")
    code, out, _ = run("compile", "user.py:scores", *options)
    assert code == 0
    assert "superoptimize" in json.loads(out)["seconds"]
    assert any("operators" in text for text in json.loads(out)["kernels"].values()), out


def test_compile_takes_the_text_of_a_module(run: Run, tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text(
        "def main(x: float32[n]) -> float32[n]:\n    with dataflow():\n        a = exp(x)\n    return a\n"
    )
    code, out, _ = run("compile", "m.txt", *QUICK, "--json")
    assert code == 0
    assert json.loads(out)["signature"] == "main(x: float32[n]) -> float32[n]"


def test_compile_saves_and_explains_what_was_saved(run: Run, tmp_path: Path) -> None:
    code, first, err = run("compile", "user.py:scores", *QUICK, "--bound", "b=64", "--save", "s.mirage", "--json")
    assert (code, err) == (0, "")
    assert set(json.loads(first)) == {
        "signature",
        "target",
        "interrupted",
        "parameters",
        "guards",
        "functions",
        "kernels",
        "fallbacks",
        "memory",
        "seconds",
    }
    code, again, err = run("compile", "s.mirage", "--json", "--svg", "s.svg")
    assert (code, err) == (0, "")
    assert json.loads(again) == json.loads(first)
    assert ElementTree.parse(tmp_path / "s.svg").getroot().tag.endswith("svg")
    x, w = np.ones((2, 8), np.float32), np.ones((8, 4), np.float32)
    np.testing.assert_allclose(mi.load_executable(tmp_path / "s.mirage")(x, w), np.full((2, 4), 0.25), rtol=1e-6)


def test_compile_prints_after_passes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_PRINT_AFTER", "")
    code, _, err = run("compile", "user.py:scores", *QUICK, "--print-after", "canonicalize", "--print-after", "fuse")
    assert code == 0
    assert err.count("# after canonicalize") == 3
    assert "# after fuse" in err and "# after cse" not in err
    # the setting is as before
    assert run("compile", "user.py:scores", *QUICK)[2] == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py:f",), "nowhere.py: no such file"),
        (("user.py",), "say which function: user.py:scores, user.py:norm, user.py:broken, user.py:module"),
        (("user.py:missing",), "no 'missing' in it"),
        (("user.py:plain",), "decorate the function with @mirage.function"),
        (("user.py:broken",), "choose between functions with mirage.cond"),
        (("nowhere.txt",), "nowhere.txt: no such file"),
        (("user.py:scores", "--bound", "b"), "write NAME=SIZE or NAME=LOW:HIGH"),
        (("user.py:scores", "--bound", "b=1:2:3"), "write NAME=SIZE or NAME=LOW:HIGH"),
        (("user.py:scores", "--bound", "q=3"), "'q' is not a dim of scores; its dims are b, n"),
        (("user.py:scores", "--bound", "b=²"), "write NAME=SIZE or NAME=LOW:HIGH"),
        (("user.py:scores", "--set", "b=x"), "write NAME=SIZE"),
        (("user.py:scores", "--set", "b=²"), "write NAME=SIZE"),
        (("user.py:scores", "--set", "q=3"), "'q' is not a dim"),
        (("user.py:scores", "--constant", "v"), "constant 'v' is not an input; the inputs are x, w"),
        (("user.py:scores", "--without", "speed"), "the optimizations are merge"),
        (("user.py:scores", "--budget", "0"), "positive number of seconds"),
        (("user.py:scores", "--target", "tpu"), "tpu"),
        (("user.py:scores", "--print-after", "magic"), "there is no pass 'magic'"),
        (("user.py:scores", "--svg", "no/where.svg"), "there is no folder no"),
        (("user.py:scores", "--save", "no/where.mirage"), "there is no folder no"),
        (("user.py:scores", "--save", "."), "cannot be written"),
    ],
)
def test_compile_errors_are_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    fails(run, "compile", *arguments, message=message)


def test_compile_refuses_damaged_files_and_options_without_meaning(run: Run, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    fails(run, "compile", "binary", message="not a text file")
    (tmp_path / "text").write_text("hello")
    fails(run, "compile", "text", message="text: line 1: expected def NAME")
    run("compile", "user.py:scores", *QUICK, "--save", "s.mirage")
    for option in (("--bound", "b=3"), ("--set", "b=3"), ("--constant", "w"), QUICK, ("--print-after", "all")):
        fails(run, "compile", "s.mirage", *option, message="compile its source")


def test_superoptimize_checks_files_before_the_search(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: object, **__: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("mirage.api.superoptimize", search)
    for option in ("--svg", "--save"):
        fails(run, "superoptimize", "user.py:norm", option, "no/where", message="there is no folder no")


def test_superoptimize_bounds_the_kernels(run: Run) -> None:
    fails(run, "superoptimize", "user.py:norm", "--max-kernels", "0", message="max_kernels")
    code, out, _ = run("superoptimize", "user.py:norm", "--budget", "0.5", "--max-kernels", "1", "--no-cache", "--json")
    assert code == 0
    assert set(json.loads(out)["verified_by_kernels"]) <= {"1"}
