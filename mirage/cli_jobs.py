"""The commands `mirage jobs run | status | results | stop | from-model`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mirage.cache import ResultStore
from mirage.cli_shared import AsJson, check_writable, err, out, print_json, tell
from mirage.folders import save_file
from mirage.jobs.journal import Job, Journal, jobs_folder, names_in
from mirage.jobs.report import EXIT, ending, event_text, job_json, page, summary, table
from mirage.jobs.schedule import TaskState
from mirage.jobs.task import Event, Task

app = typer.Typer(help="Many programs, searched and tuned in steps, on one machine or many.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The job.")]
Folder = Annotated[Path | None, typer.Option(help="Folder of the jobs' state; by default in the cache folder.")]


@app.command()
def run(
    file: Annotated[Path, typer.Argument(metavar="JOBS.toml", help="The tasks.")],
    name: Annotated[str | None, typer.Option(help="Name of the job; by default the file's.")] = None,
    folder: Folder = None,
    executor: Annotated[
        str, typer.Option(help="Where steps are done: inline, threads:N, processes:N or dask://HOST:PORT.")
    ] = "inline",
    html: Annotated[Path | None, typer.Option(help="Write a report to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a job, or go on with it. Exit code 0 when it is complete, 1 if tasks failed, 3 if it was stopped before."""
    from mirage.jobs.file import read_job
    from mirage.jobs.live import live
    from mirage.jobs.run import run_job
    from mirage.jobs.workers import workers

    check_writable("--html", html)
    job = read_job(file, _subprograms, name)
    journal = Journal(job.name, folder)
    named = {t.key: t for t in job.tasks}

    def told(event: Event) -> None:
        if not err.is_terminal:
            tell(event_text(event, named[event.task]))

    with workers(executor) as found, live(err) as shown:
        how = run_job(job, journal, found, ResultStore(), told=told, shown=shown)
    states = journal.states(job.tasks)
    if html is not None:
        save_file(html, page(job, states, how))
    if as_json:
        print_json(job_json(job, states, how))
    else:
        _print(job, states, how)
    raise typer.Exit(EXIT[how])


def _subprograms(what: str, folder: Path) -> list[Task]:
    # the compiler of whole programs is for jobs with models only
    from mirage.jobs.extract import subprograms

    return subprograms(what, folder)


@app.command()
def status(
    name: Annotated[str | None, typer.Argument(help="The job; all, if none is named.")] = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """How a job is: exit code 0 if it is complete, 1 if tasks failed, 3 if it is not finished. Without a name: all jobs."""
    names = [name] if name is not None else names_in(jobs_folder(folder))
    found = {}
    for each in names:
        journal = Journal(each, folder)
        job = journal.job()
        states = journal.states(job.tasks)
        found[each] = job, states, ending(job, states, journal.is_running)
    if as_json:
        rows = [job_json(*one) for one in found.values()]
        print_json(rows if name is None else rows[0])
    elif found:
        for one in found.values():
            out.print(summary(*one), highlight=False, soft_wrap=True)
    else:
        out.print("there are no jobs", highlight=False)
    if name is not None:
        raise typer.Exit(EXIT[found[name][2]])


@app.command()
def results(
    name: Name,
    folder: Folder = None,
    html: Annotated[Path | None, typer.Option(help="Write a report to this file.")] = None,
    as_json: AsJson = False,
) -> None:
    """What a job has found so far."""
    check_writable("--html", html)
    journal = Journal(name, folder)
    job = journal.job()
    states = journal.states(job.tasks)
    how = ending(job, states, journal.is_running)
    if html is not None:
        save_file(html, page(job, states, how))
    if as_json:
        print_json(job_json(job, states, how))
        return
    _print(job, states, how)


def _print(job: Job, states: Sequence[TaskState], how: str) -> None:
    out.print(table(states))
    out.print(summary(job, states, how), highlight=False, soft_wrap=True)
    for s in states:
        if s.failed:
            what = f"{s.failed.kind} failed after {s.failed.attempts} attempts"
            tell(f"task {s.task.name!r}: {what}: {s.failed.error}", style="red")


@app.command()
def stop(
    name: Name,
    folder: Folder = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for its end.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Have the process that works on a job stop after the steps under way. Exit code 0 where it did, or none was working on it;
    3 if it has not stopped yet.
    """
    journal = Journal(name, folder)
    journal.job()
    if not journal.stop():
        tell(f"no process works on the job {name!r}")
    end = time.monotonic() + wait
    while journal.is_running and time.monotonic() < end:
        time.sleep(0.1)
    running = journal.is_running
    if running:
        tell(f"the job {name!r} stops after the steps under way")
    if as_json:
        print_json({"job": name, "running": running})
    if running:
        raise typer.Exit(EXIT["running"])


@app.command("from-model")
def from_model(
    what: Annotated[
        str, typer.Argument(metavar="MODEL", help="FILE.py:function, MODEL.onnx, or whatever else `mirage compile` takes.")
    ],
    save: Annotated[Path, typer.Option(help="File to write; programs go to a folder beside it.")] = Path("jobs.toml"),
    target: Annotated[str, typer.Option(help="What the tasks are for.")] = "cpu",
    calls: Annotated[int, typer.Option(help="Calls of the model that are measured.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Write a job of every distinct subprogram of a model, those first that take most of its time; weights are calls per run."""
    from mirage.jobs.extract import survey, write_job

    check_writable("--save", save)
    found = survey(what, Path(), calls)
    write_job(save, found, target)
    if as_json:
        print_json([part.to_json() for part in found.parts])
        return
    title = f"{save}: {len(found.parts)} subprograms, {found.share:.0%} of {found.run_us:,.1f} us"
    shown = Table(title=title, title_justify="left")
    for column in ("task", "share", "calls", "us per call", "operators"):
        shown.add_column(column, justify="left" if column == "task" else "right")
    for part in found.parts:
        shown.add_row(
            part.task.name, f"{part.share:.1%}", f"{part.task.weight:g}", f"{part.us:,.1f}", str(part.operators)
        )
    out.print(shown)
