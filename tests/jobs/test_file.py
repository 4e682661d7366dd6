"""Files of jobs: what they describe, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage.errors import InputError, JobFileError, MirageError, UnknownJobError
from mirage.ir.program import Program
from mirage.jobs.file import read_job
from mirage.jobs.journal import Job, Journal, jobs_folder, names_in
from mirage.jobs.task import Task
from tests.jobs.fakes import task

SOURCE = """
import mirage as mi

@mi.program(x=mi.tensor("m", "n"), w=mi.tensor("n"), sizes={"small": {"m": 3, "n": 5}, "large": {"m": 30, "n": 50}})
def scaled(x, w):
    return x * w

@mi.program(x=mi.tensor("m", "n"))
def broken(x):
    return x.missing

@mi.program(x=mi.tensor("m", "n"))
def unsized(x):
    return mi.exp(x)
"""


def models(what: str, folder: Path) -> list[Task]:
    """Stands for the subprograms of a model."""
    if not (folder / what.partition(":")[0]).is_file():
        raise InputError(f"{what}: no such file")
    return [task("one", weight=2.0), task("two")]


def read(folder: Path, text: str, name: str | None = None) -> Job:
    (folder / "user.py").write_text(SOURCE)
    file = folder / "nightly.toml"
    file.write_text(text)
    return read_job(file, models, name)


def test_a_job_is_read(tmp_path: Path) -> None:
    job = read(
        tmp_path,
        """
        budget = 60
        round = 2.5
        seed = 7
        [[task]]
        program = "user.py:scaled"
        sizes = ["large", { m = 7, n = 9 }]
        constants = ["w"]
        weight = 3
        rounds = 4
        search_steps = 100
        [[task]]
        name = "again"
        program = "user.py:scaled"
        """,
    )
    assert (job.name, job.budget, job.round, job.seed) == ("nightly", 60.0, 2.5, 7)
    first, second = job.tasks
    assert first.sizes == ({"m": 30, "n": 50}, {"m": 7, "n": 9})
    assert (first.name, first.constants, first.weight, first.rounds, first.search_steps) == ("scaled", ("w",), 3.0, 4, 100)
    assert (second.name, second.sizes, second.constants) == ("again", ({"m": 3, "n": 5},), ())


def test_a_program_may_be_text(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text(task().program)
    job = read(tmp_path, '[[task]]\nprogram = "p.txt"\nsizes = { m = 2, n = 3 }')
    assert Program.from_text(job.tasks[0].program) == Program.from_text(task().program)
    assert job.tasks[0].sizes == task().sizes


def test_a_model_is_a_task_per_subprogram(tmp_path: Path) -> None:
    job = read(tmp_path, '[[model]]\nmodel = "user.py:make"\nweight = 10\ntarget = "cuda:sm_90"\nrounds = 2')
    assert [(t.name, t.weight, t.target, t.rounds) for t in job.tasks] == [
        ("make/one", 20.0, "cuda:sm_90", 2),
        ("make/two", 10.0, "cuda:sm_90", 2),
    ]


def test_the_name_of_a_job(tmp_path: Path) -> None:
    text = 'name = "mine"\n[[task]]\nprogram = "user.py:scaled"'
    assert read(tmp_path, text).name == "mine"
    assert read(tmp_path, text, "other").name == "other"


TASK = '[[task]]\nprogram = "user.py:scaled"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[task]", "nightly.toml: not valid TOML"),
        ("", "there is no task; write one under [[task]]"),
        ('task = "a"', "key 'task': write each one as a table of its own, under [[task]]"),
        ("task = [1]", "key 'task': write each one as a table"),
        ("budgets = 3\n" + TASK, "unknown key 'budgets'; did you mean 'budget'?"),
        ("zzz = 3\n" + TASK, "unknown key 'zzz'; the keys are name, budget, round, seed, task, model"),
        ("budget = -3\n" + TASK, "nightly.toml: key budget: expected a positive number, found -3"),
        ("budget = true\n" + TASK, "key budget: expected a number"),
        ("round = 0\n" + TASK, "key round: expected a positive number"),
        ("seed = 1.5\n" + TASK, "key seed: expected an integer"),
        ("budget = 1979-05-27\n" + TASK, "key budget: expected a number"),
        ("budget = nan\n" + TASK, "key budget: expected a positive number"),
        ('[[task]]\nname = "x"', "task 'x': the key 'program' is missing"),
        ("[[task]]\nweight = 2", "task 1: the key 'program' is missing"),
        ("[[task]]\nprogram = 3", "task 1: key program: expected a text"),
        ('[[task]]\nprogram = "none.py:f"', "task 'none.py:f': key 'program': "),
        ('[[task]]\nprogram = "none.txt"', "task 'none.txt': key 'program': "),
        ('[[task]]\nprogram = "user.py"', "say which function"),
        ('[[task]]\nprogram = "user.py:nothing"', "no 'nothing' in it"),
        ('[[task]]\nprogram = "user.py:broken"', "task 'user.py:broken': key 'program': "),
        (TASK + "wieght = 2", "task 'user.py:scaled': unknown key 'wieght'; did you mean 'weight'?"),
        (TASK + "weight = -1", "task 'user.py:scaled': key weight: expected"),
        (TASK + 'weight = "2"', "key weight: expected a number"),
        (TASK + "budget = -1", "task 'user.py:scaled': key budget: expected a positive number, found -1"),
        (TASK + "rounds = 0", "key rounds: expected"),
        (TASK + "search_steps = 1.5", "key search_steps: expected an integer"),
        (TASK + 'target = "tpu"', "task 'user.py:scaled': key 'target': "),
        (TASK + 'sizes = "huge"', "key 'sizes': the program has no sizes 'huge'; it has small, large"),
        (TASK + "sizes = { m = 3, k = 5 }", "key 'sizes': sizes: 'k' is not a dim"),
        (TASK + "sizes = { m = 0 }", "key sizes"),
        (TASK + "sizes = 3", "key sizes"),
        ('[[task]]\nprogram = "user.py:unsized"', "task 'user.py:unsized': key 'sizes': sizes: dim 'm'"),
        (TASK + 'constants = ["v"]', "task 'user.py:scaled': key 'constants': scaled: constant 'v' is not an input"),
        (TASK + 'constants = "w"', "key constants: expected an array"),
        (TASK + TASK, "task 'scaled': key 'name': two tasks have this name"),
        (TASK + TASK + 'name = "b"', "task 'b': key 'program': task 'scaled' is the same program"),
        ('[[model]]\nmodel = "none.py:f"', "model 'none.py:f': key 'model': none.py:f: no such file"),
        ('[[model]]\nprogram = "user.py:f"', "unknown key 'program'"),
        ('[[model]]\nmodel = "user.py:f"\nsizes = ["small"]', "model 'user.py:f': unknown key 'sizes'"),
    ],
)
def test_what_is_wrong_names_the_task_and_the_key(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(JobFileError) as e:
        read(tmp_path, text)
    assert said in str(e.value)
    assert "nightly.toml" in str(e.value)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(MirageError, match="cannot be read"):
        read_job(tmp_path / "none.toml", models)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 101, "a\n"])
def test_a_name_that_is_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnknownJobError, match="no name of a job"):
        Journal(name, tmp_path)


def test_a_job_that_does_not_exist_and_those_that_do(tmp_path: Path) -> None:
    journal = Journal("a", tmp_path / "jobs")
    with journal.writing():
        journal.begin(Job(name="a", tasks=(task(),)))
    assert journal.job().tasks == (task(),)
    assert names_in(jobs_folder(tmp_path / "jobs")) == ["a"]
    with pytest.raises(UnknownJobError, match=r"there is no job 'b' .*; there are: a"):
        Journal("b", tmp_path / "jobs").job()


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(MirageError, match="can be written by other users"):
        Journal("a", folder)


def test_the_key_of_a_task_is_that_of_its_program_sizes_and_constants() -> None:
    assert task(weight=2.0, rounds=3).key == task().key
    assert task(sizes=({"n": 3, "m": 2},)).key == task().key
    others = [task("b"), task(target="cuda"), task(sizes=({"m": 2, "n": 4},)), task(constants=("x",))]
    assert len({t.key for t in (task(), *others)}) == 5
