"""`mirage jobs`, with searches and kernels: small programs, of which few kernels are tried."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage import api, subprograms
from mirage.errors import CompilerError
from mirage.frontends.files import load_function, load_member
from mirage.jobs import step
from mirage.jobs.journal import Journal
from mirage.search.jobs import INTERRUPTED
from tests.api.small import BUDGET, Run, searches

SOURCE = """
import mirage as mi

@mi.program(x=mi.tensor("m", "n"), sizes={"m": 3, "n": 5})
def rows(x):
    return mi.softmax(x)

@mi.program(x=mi.tensor("b", 8), w=mi.tensor(8, "n"), sizes={"b": 3, "n": 5})
def product(x, w):
    return mi.relu(x @ w)

@mi.function(x=mi.tensor("m", "n"), y=mi.tensor("m", "n"))
def both(x, y):
    return mi.where(x > 0, mi.softmax(x), mi.softmax(y) * 2)
"""
JOBS = """
round = 120.0
[[task]]
program = "user.py:rows"
name = "<b>rows</b> & [red]more"
search_steps = 20000
rounds = 1
[[task]]
program = "user.py:product"
search_steps = 20000
rounds = 1
weight = 2
"""


@pytest.fixture
def run(command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line in a folder with a job, whose state is there, too."""
    (tmp_path / "user.py").write_text(SOURCE)
    (tmp_path / "small.toml").write_text(JOBS)
    return lambda *words: command("jobs", *words, *(("--folder", "state") if words[0] != "from-model" else ()))


class _Texts(HTMLParser):
    """The tags of a page, and its texts."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of every program that `mirage.compile` asks for, whether the results store had it."""
    found: list[bool] = []
    real = api.superoptimize

    def asked(*args: Any, **options: Any) -> Any:
        result = real(*args, **options)
        found.append(result.cache_hit)
        return result

    monkeypatch.setattr(subprograms, "superoptimize", asked)
    return found


def test_a_job_from_its_file_to_its_report(run: Run, tmp_path: Path, searched: list[bool]) -> None:
    code, out, err = run("run", "small.toml", "--json", "--html", "report.html")
    assert code == 0, err
    found = json.loads(out)
    assert len(err.splitlines()) == 4
    assert (found["job"], found["state"], found["failed"]) == ("small", "complete", 0)
    assert all(t["state"] in ("complete", "all rounds") for t in found["tasks"])
    assert all(t["graphs"] and t["library_us"] >= t["best_us"] > 0 and t["ratio"] >= 1 for t in found["tasks"])
    assert found["gain"] == pytest.approx(found["library_us"] / found["best_us"])

    page = _Texts()
    page.feed((tmp_path / "report.html").read_text())
    assert "<b>rows</b> & [red]more" in page.texts
    # nothing from elsewhere, and nothing that runs
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "img", "iframe", "b"})
    assert not [a for _, attributes in page.tags for a in attributes if a in ("src", "href") or a.startswith("on")]

    # what is finished is not done again
    code, out, err = run("run", "small.toml")
    assert (code, err) == (0, "") and "<b>rows</b> & [red]more" in out and "2 of 2 tasks done" in out

    code, out, _ = run("status")
    assert code == 0 and out.startswith("small: complete")
    code, out, _ = run("status", "small", "--json")
    assert code == 0 and json.loads(out)["state"] == "complete"
    code, out, _ = run("results", "small", "--json")
    assert code == 0 and json.loads(out) == found
    assert run("stop", "small")[0] == 0

    # the same keys as those of `superoptimize`: whoever asks gets what the job has found
    before = searches()
    assert mi.superoptimize(load_function(tmp_path / "user.py", "product"), budget=BUDGET).cache_hit
    mi.compile(load_function(tmp_path / "user.py", "rows"), budget=BUDGET)
    assert searched == [True]
    assert searches() == before


def test_a_failed_task_is_told_and_the_others_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(program: Any, **options: Any) -> Any:
        if program.name == "rows":
            raise CompilerError("no [bold]luck")
        return api.superoptimize(program, **options)

    with monkeypatch.context() as patch:
        patch.setattr(step, "superoptimize", failing)
        code, out, err = run("run", "small.toml")
    assert code == 1
    assert "1 failed" in out and "no [bold]luck" in err
    assert run("status", "small")[0] == 1
    assert run("run", "small.toml")[0] == 0


def test_an_interrupt_keeps_what_was_found(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = step._tune

    def interrupted(*args: Any) -> Any:
        return {**real(*args), "stopped": INTERRUPTED}

    with monkeypatch.context() as patch:
        patch.setattr(step, "_tune", interrupted)
        code, _, err = run("run", "small.toml")
    assert code == 130 and err.endswith("mirage: interrupted; what was finished is kept, and is not done again\n")
    assert run("status", "small")[0] == 3
    code, _, err = run("run", "small.toml")
    assert code == 0
    assert len(err.splitlines()) == 1


def test_a_job_that_does_not_exist(run: Run) -> None:
    for words in (("status", "none"), ("results", "none"), ("stop", "none")):
        code, _, err = run(*words)
        assert code == 2 and err == "mirage: there is no job 'none' in state; there are: none\n"
    code, out, _ = run("status")
    assert (code, out) == (0, "there are no jobs\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "small.toml", "--executor", "ssh://host"), "is no executor; pass inline"),
        (("run", "small.toml", "--executor", "processes:0"), "is no executor"),
        (("run", "small.toml", "--executor", "inline:2"), "is no executor"),
        (("run", "small.toml", "--executor", "dask://nowhere"), "is no address of a scheduler"),
        (("run", "small.toml", "--name", "../x"), "is no name of a job"),
        (("run", "small.toml", "--html", "no/where.html"), "--html no/where.html: cannot be written"),
        (("run", "none.toml"), "none.toml: cannot be read"),
        (("from-model", "user.py:nothing"), "no 'nothing' in it"),
        (("from-model", "user.py:both", "--calls", "0"), "calls=0 must be at least 1"),
        (("from-model", "user.py:both", "--save", "plain"), "give the file of tasks a suffix"),
    ],
)
def test_bad_arguments(run: Run, words: tuple[str, ...], said: str) -> None:
    code, _, err = run(*words)
    assert code == 2 and said in err and err.count("\n") == 1


def test_the_subprograms_of_a_program_are_tasks_with_weights(run: Run, tmp_path: Path, searched: list[bool]) -> None:
    code, out, err = run("from-model", "user.py:both", "--save", "parts.toml", "--json")
    assert code == 0, err
    parts = json.loads(out)
    assert parts and all(p["calls"] >= 1 and 0 < p["share"] <= 1 and p["us"] > 0 for p in parts)
    assert [p["share"] for p in parts] == sorted((p["share"] for p in parts), reverse=True)
    (tmp_path / "limited.toml").write_text((tmp_path / "parts.toml").read_text().replace("weight", "rounds = 1\nweight"))
    code, _, err = run("run", "limited.toml")
    assert code == 0, err
    # the compiler finds them, without being told
    before = searches()
    mi.compile(load_member(tmp_path / "user.py", "both", (object,), ""), budget=BUDGET)
    assert searched == [True] * len(parts)
    assert searches() == before
    tasks = Journal("limited", tmp_path / "state").job().tasks
    assert [t.weight for t in tasks] == [p["calls"] for p in parts]
