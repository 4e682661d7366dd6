"""The command line: every command, its exit codes, and errors of one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage import api, cli, demo
from mirage.errors import MirageError
from mirage.frontends.attention import gqa_decode, qknorm_attention
from mirage.kernels.profile import interleave
from tests.api.small import BUDGET, Run, loaded

SOURCE = '''
import mirage as mi

@mi.program(x=mi.tensor("m", "n"), y=mi.tensor("n"), sizes={"small": {"m": 3, "n": 5}, "large": {"m": 30, "n": 50}})
def scaled(x, y):
    """Rows scaled and summed."""
    return mi.sum(x * y, axis=1)

@mi.program(x=mi.tensor("m", "n"), y=mi.tensor("n"))
def matmul(x, y):
    return mi.sum(y * x, axis=1)

@mi.program(x=mi.tensor("m", "n"), y=mi.tensor("n"))
def other(x, y):
    return mi.sum(x + y, axis=1)

@mi.program(x=mi.tensor("m", "n"))
def broken(x):
    return x.missing

@mi.program(x=mi.tensor("m", "n"))
def boom(x):
    return [][0]

@mi.program(x=mi.tensor(6, "n"))
def straddling(x):
    return mi.reshape(mi.reshape(x, (2, 3, "n")), (3, 2, "n"))

def plain(x):
    return x

traced = mi.trace(plain, x=mi.tensor("m", 4))
'''

#: seconds that nothing takes, as a number of kernels ends tuning
ENOUGH = ("--budget", str(BUDGET))

FIELDS = {
    "program": str,
    "target": str,
    "search_seconds": float,
    "verify_seconds": float,
    "tune_seconds": float,
    "prefixes": int,
    "checks": int,
    "candidates": int,
    "verified": int,
    "stop_reason": str,
    "certificate": dict,
    "reference_us": float,
    "library_us": float,
    "best_us": float,
    "accuracy": list,
    "all_sizes": list,
    "threads": int,
    "compiled_versions": int,
    "versions": list,
    "tune_stop": str,
    "cache_hit": bool,
}


@pytest.fixture
def run(command: Run, tmp_path: Path) -> Run:
    """The command line in a folder with a file of programs."""
    (tmp_path / "user.py").write_text(SOURCE)
    return command


def fails(run: Run, *arguments: str, message: str = "") -> str:
    """The one line of an error."""
    code, out, err = run(*arguments)
    assert code == 2, (out, err)
    assert len(err.strip().splitlines()) == 1, err
    assert "Traceback" not in out + err
    assert err.startswith("mirage: ")
    assert message in err, err
    return err


# superoptimize


def test_superoptimize_json(run: Run) -> None:
    for hit in (False, True):
        code, out, err = run("superoptimize", "user.py:scaled", *ENOUGH, "--json")
        assert (code, err) == (0, "")
        obj = json.loads(out)
        for name, kind in FIELDS.items():
            assert type(obj[name]) is kind, name
        assert obj["program"] == "scaled"
        assert obj["sizes"] == {"m": 3, "n": 5}
        assert obj["certificate"]["equal"] is True
        assert all(set(a) == {"trial", "kernel", "program"} for a in obj["accuracy"]) and obj["accuracy"]
        assert min(obj["best_us"], obj["reference_us"], obj["library_us"]) > 0
        assert obj["verified"] <= obj["candidates"]
        assert obj["all_sizes"] == [obj["sizes"]]
        assert sum(v["kind"] == "mugraph" for v in obj["versions"]) >= obj["compiled_versions"]
        assert all(set(v) == {"at", "kind", "kernels", "tuned_for", "us"} for v in obj["versions"]) and obj["versions"]
        assert obj["cache_hit"] is hit


def test_superoptimize_prints_report_and_certificate(run: Run) -> None:
    code, out, err = run("superoptimize", "user.py:scaled", "--budget", "0.5", "--no-cache")
    assert (code, err) == (0, "")
    for word in ("scaled at m=3, n=5 on cpu", "candidates / verified / proved", "equal in", "proof for all sizes"):
        assert word in out
    assert "search" in out


def test_superoptimize_sizes(run: Run) -> None:
    def sizes(*arguments: str) -> dict[str, int]:
        code, out, err = run("superoptimize", "user.py:scaled", "--budget", "0.3", "--json", *arguments)
        assert (code, err) == (0, "")
        return json.loads(out)["sizes"]

    assert sizes("--sizes", "large") == {"m": 30, "n": 50}
    assert sizes("--sizes", "large", "--set", "m=7") == {"m": 7, "n": 50}
    assert sizes("--set", "m=7", "--set", "n = 9") == {"m": 7, "n": 9}


def test_superoptimize_for_several_sets_of_sizes(run: Run) -> None:
    command = ("superoptimize", "user.py:scaled", "--budget", "0.5", "--json", "--sizes", "small", "--sizes", "large")
    code, out, err = run(*command, "--set", "n=9", "--save", "r.json")
    assert (code, err) == (0, "")
    assert json.loads(out)["all_sizes"] == [{"m": 3, "n": 9}, {"m": 30, "n": 9}]
    # a saved result is tuned again at its own sizes
    code, out, err = run("superoptimize", "r.json", "--budget", "0.5", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["all_sizes"] == [{"m": 3, "n": 9}, {"m": 30, "n": 9}]


def test_superoptimize_of_a_program_object_and_its_options(run: Run) -> None:
    for pruner in ("none", "normal-form"):
        code, out, _ = run(
            *("superoptimize", "user.py:traced", "--set", "m=3", "--budget", "0.3", "--json", "--seed", "3"),
            *("--pruner", pruner, "--target", "cpu"),
        )
        assert code == 0
        assert json.loads(out)["certificate"]["checks"][0]["seed"] == 3


def test_superoptimize_errors(run: Run) -> None:
    base = ("superoptimize", "user.py:scaled", "--budget", "0.2")
    fails(run, *base, "--set", "q=3", message="'q' is not a dim of scaled")
    fails(run, *base, "--set", "m", message="write NAME=SIZE")
    fails(run, *base, "--set", "m=-3", message="write NAME=SIZE")
    fails(run, *base, "--set", "m=0", message="dim 'm' of scaled needs a positive size")
    fails(run, *base, "--set", "m=99999999999999999999", message="MiB")
    fails(run, *base, "--sizes", "huge", message="it has small, large")
    fails(run, *base, "--pruner", "x", message="no pruner is called 'x'")
    fails(run, *base, "--target", "cuda:", message="target 'cuda:' does not exist")
    fails(run, *base, "--seed", "-1", message="seed=-1")
    fails(run, *base, "--save", "no/such/folder.json", message="cannot be written")
    fails(run, "superoptimize", "user.py:other", "--budget", "0.2", message="dim 'm' of other needs")
    for budget in ("0", "-1", "nan", "inf"):
        fails(run, "superoptimize", "user.py:scaled", "--budget", budget, message="budget=")
    fails(run, "superoptimize", "user.py:straddling", "--set", "n=3", message="factor 2 straddles the new dim 3")


def test_wrong_files_and_functions(run: Run, tmp_path: Path) -> None:
    (tmp_path / "syntax.py").write_text("def f(:\n")
    (tmp_path / "raising.py").write_text("raise ValueError('two\\nlines')\n")
    (tmp_path / "exiting.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "importing.py").write_text("import no_such_module_of_anyone\n")
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "wrong.py").write_text("import mirage as mi\nmi.tensor('1x')\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "text.txt").write_text("this is no program\n")
    (tmp_path / "x.json").write_text("{")
    (tmp_path / "fields.json").write_text("{}")
    for what, message in (
        ("none.py:f", "none.py: no such file"),
        ("none.json", "none.json: no such file"),
        ("user.py", "say which function: user.py:scaled"),
        ("user.py:", "say which function"),
        ("user.py:nothing", "no 'nothing' in it; it has scaled"),
        ("user.py:plain", "is of type function; decorate"),
        ("user.py:broken", "tracing it failed: AttributeError"),
        # no symbol in its place
        ("user.py:boom", "user.py:boom: tracing it failed: IndexError"),
        ("empty.py:f", "it has no decorated functions"),
        ("empty.py", "it has none"),
        ("syntax.py:f", "SyntaxError"),
        ("raising.py:f", "ValueError: two lines"),
        ("exiting.py:f", "SystemExit"),
        ("importing.py:f", "no_such_module_of_anyone"),
        ("wrong.py:f", "1x"),
        ("binary.txt", "not a text file"),
        ("text.txt", "text.txt: line 1: "),
        ("x.json", "x.json: not valid JSON"),
        ("fields.json", "fields.json: "),
        (".", "no such file"),
    ):
        for command in ("superoptimize", "show"):
            fails(run, command, what, message=message)


def test_debug_shows_the_traceback(run: Run) -> None:
    with pytest.raises(MirageError, match="no such file"):
        run("--debug", "show", "none.py:f")
    fails(run, "show", "none.py:f")


def test_unknown_commands_and_options_are_usage_errors(run: Run) -> None:
    for arguments in (("optimise",), ("superoptimize",), ("show", "x", "--nothing"), ("demo", "--budget", "x")):
        code, out, err = run(*arguments)
        assert code == 2
        assert "Traceback" not in out + err


def test_version(run: Run) -> None:
    assert run("--version") == (0, version("mirage-superoptimizer") + "\n", "")


def test_help(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for command in ("superoptimize", "show", "verify", "demo", "cache"):
        assert command in out
        assert run(command, "--help")[0] == 0


# show


def test_show_prints_programs_that_show_reads_again(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("show", "user.py:scaled")
    assert code == 0
    assert "def scaled(x: float32[m, n], y: float32[n])" in out
    (tmp_path / "scaled.txt").write_text(out)
    assert run("show", "scaled.txt", "--svg", "scaled.svg") == (0, out, "")
    assert "matmul" not in (tmp_path / "scaled.svg").read_text() and "float32[m, n]" in (tmp_path / "scaled.svg").read_text()
    (tmp_path / "scaled.json").write_text('{"schema": 1, "name": "scaled", "nodes": []}')
    fails(run, "show", "scaled.json", message="pass a program as text")
    assert run("superoptimize", "scaled.txt", "--set", "m=3", "--set", "n=4", "--budget", "0.2", "--json")[0] == 0
    fails(run, "show", "user.py:scaled", "--source", message="only a saved result")
    fails(run, "show", "user.py:scaled", "--html", "none/x.html", message="there is no folder none")
    fails(run, "show", "user.py:scaled", "--set", "m=3", message="--set has a meaning for the page of a program only")
    fails(run, "show", "scaled.txt", "--svg", "no/x.svg", message="there is no folder no; make it first")


def test_saved_results_are_shown_verified_and_searched_again(run: Run, tmp_path: Path) -> None:
    code, _, err = run(
        *("superoptimize", "user.py:scaled", *ENOUGH, "--save", "r.json", "--svg", "r.svg"),
        *("--set", "m=300", "--set", "n=300"),
    )
    assert (code, err) == (0, "")
    best = loaded(tmp_path / "r.json").best
    code, out, _ = run("show", "r.json")
    assert code == 0
    assert out.strip()
    if best.kind == "mugraph":
        assert (tmp_path / "r.svg").read_text().startswith("<svg")
        assert "mirage_run" in run("show", "r.json", "--source")[1]
        assert run("show", "r.json", "--svg", "again.svg")[0] == 0
        assert run("show", "r.json", "--html", "r.html") == (0, out, "")
        assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")
        assert (tmp_path / "again.svg").read_text() == (tmp_path / "r.svg").read_text()
        fails(run, "show", "r.json", "--svg", "no/folder.svg", message="no/folder.svg")
    assert run("verify", "user.py:scaled", "r.json")[0] == 0
    assert run("verify", "user.py:other", "r.json")[0] == 1
    # its sizes are those of the result
    code, out, _ = run("superoptimize", "r.json", "--set", "m=300", *ENOUGH, "--json")
    assert code == 0
    assert json.loads(out)["cache_hit"] is True
    obj = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps({**obj, "graphs": 5}))
    fails(run, "show", "r.json", message="graphs: expected an array")


# verify


def test_verify_exit_codes(run: Run) -> None:
    code, out, _ = run("verify", "user.py:scaled", "user.py:matmul")
    assert code == 0
    assert out.startswith("proved equal, and equal in")
    code, out, _ = run("verify", "user.py:scaled", "user.py:other")
    assert code == 1
    assert out.startswith("different: output 0")
    fails(run, "verify", "user.py:scaled", "user.py:nothing")
    fails(run, "verify", "user.py:scaled", "user.py:traced", message="differ in type")


def test_verify_json(run: Run) -> None:
    code, out, _ = run("verify", "user.py:scaled", "user.py:matmul", "--json", "--seed", "5")
    obj = json.loads(out)
    assert (code, obj["equal"], obj["proof"], obj["checks"][0]["seed"]) == (0, True, "proved", 5)
    code, out, _ = run("verify", "user.py:scaled", "user.py:other", "--json")
    obj = json.loads(out)
    assert (code, obj["equal"], obj["verdict"]) == (1, False, "different")


# cache


def test_cache_commands(run: Run, tmp_path: Path) -> None:
    assert run("superoptimize", "user.py:scaled", *ENOUGH, "--json")[0] == 0
    code, out, _ = run("cache", "list")
    assert code == 0
    assert out.count("scaled") == 2
    assert run("cache", "export", "all.jsonl") == (0, "2 records written to all.jsonl\n", "")
    code, out, _ = run("cache", "clear")
    assert code == 0
    # tests share a folder of checkpoints
    assert re.fullmatch(r"2 records and \d+ checkpoints deleted\n", out)
    assert "scaled" not in run("cache", "list")[1]
    assert run("cache", "import", "all.jsonl") == (0, "2 records imported from all.jsonl\n", "")
    assert run("cache", "import", "all.jsonl") == (0, "0 records imported from all.jsonl\n", "")
    code, out, _ = run("superoptimize", "user.py:scaled", *ENOUGH, "--json")
    assert json.loads(out)["cache_hit"] is True
    (tmp_path / "bad.json").write_text("{}")
    fails(run, "cache", "import", "bad.json", message="bad.json")
    fails(run, "cache", "import", "none.json", message="none.json")
    fails(run, "cache", "export", "no/folder.json", message="no/folder.json")


@pytest.mark.filterwarnings("default::mirage.cache.StoreWarning")
def test_a_store_that_cannot_be_opened(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("sqlite:////no/such/folder/x.sqlite", "nonsense", "mysql+nothing://x"):
        monkeypatch.setenv("MIRAGE_CACHE_URL", url)
        fails(run, "cache", "list")
        code, out, err = run("superoptimize", "user.py:scaled", "--budget", "0.2", "--json")
        assert code == 0 and json.loads(out)
        # one line as of an error, not Python's form with a line of the source
        assert re.fullmatch(r"mirage: warning: [^\n]*nothing is recalled or kept\n", err)
    assert run("superoptimize", "user.py:scaled", "--budget", "0.2", "--no-cache", "--json")[0] == 0


# the whole program


def check_demo(run: Run, folder: Path, budget: str) -> None:
    code, out, err = run("demo", "--budget", budget, "--drawings", "pictures")
    assert code == 0, err
    for word in ("gqa_decode", "qknorm_attention", "NumPy", "mirage", "equal in"):
        assert word in out
    assert (folder / "pictures").is_dir()
    for drawing in (folder / "pictures").iterdir():
        assert drawing.read_text().startswith("<svg")


def test_demo(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for f in (gqa_decode, qknorm_attention):
        small = replace(f, sizes={"small": {"b": 1, "h": 2, "s": 1, "t": 64}})
        monkeypatch.setattr(demo, f.name, small)
    monkeypatch.setattr(
        demo, "interleave", lambda runs, seconds, **more: interleave(runs, seconds=seconds / 100, **more)
    )
    check_demo(run, tmp_path, "0.5")


def test_demo_into_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    fails(run, "demo", "--drawings", "file", message="--drawings file: no folder can be made there")


@pytest.mark.slow
def test_demo_at_its_own_sizes(run: Run, tmp_path: Path) -> None:
    check_demo(run, tmp_path, "5")


MODULE = pytest.param([sys.executable, "-m", "mirage"], id="module", marks=pytest.mark.slow)


@pytest.mark.parametrize("command", [pytest.param(["mirage"], id="script"), MODULE])
def test_in_a_process_of_its_own(tmp_path: Path, command: list[str], cache_dir: Path) -> None:
    (tmp_path / "user.py").write_text(SOURCE)
    env: dict[str, Any] = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def process(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *arguments], env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    done = process("verify", "user.py:scaled", "user.py:other")
    assert done.returncode == 1
    assert done.stdout.startswith("different: ")
    done = process("show", "user.py:none")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    done = process("--debug", "show", "user.py:none")
    assert done.returncode not in (0, 2)
    assert "Traceback" in done.stderr


def test_interrupt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "superoptimize", interrupted)
    code, out, err = run("superoptimize", "user.py:scaled")
    assert code == 130
    assert "interrupted" in err
    assert "Traceback" not in out + err


def test_result_json_of_a_program_without_graphs() -> None:
    r = mi.superoptimize(mi.trace(lambda x: x, x=mi.tensor("m")), sizes={"m": 3}, budget=0.2, cache=False)
    obj = cli.result_json(r)
    json.dumps(obj, allow_nan=False)
    assert obj["verified"] == 0
    assert obj["best"] in ("library", "reference")
