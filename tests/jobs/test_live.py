"""What a terminal shows of a job, and the lines and tables of its figures."""

from __future__ import annotations

import io
from collections.abc import Callable

from rich.console import Console

from mirage.jobs.journal import Job
from mirage.jobs.live import ROWS, drawn, live
from mirage.jobs.report import ending, event_text, gained, page, summary, table
from mirage.jobs.run import View
from mirage.jobs.schedule import TaskState
from mirage.jobs.task import Failed, Lost
from tests.jobs.fakes import done, task


def states() -> list[TaskState]:
    """A task that is finished, one that failed, one that was searched, and one that was not begun."""
    a, b, c, d = (TaskState(task(name, weight=weight)) for name, weight in (("a[b]", 2.0), ("<b>", 1.0), ("c", 1.0), ("d", 1.0)))
    for s in (a, c):
        s.take(done(s.task, "search", graphs=7, complete=True, stopped="complete"))
    for us in (100.0, 50.0):
        a.take(done(a.task, graphs=2, library_us=200.0, best_us=us, best="mugraph", complete=us == 50.0, stopped="ended & done"))
    b.take(Failed(task=b.task.key, kind="search", ended=1.0, error="<script>alert(1)</script>", attempts=3))
    return [a, b, c, d]


JOB = Job(name="night", tasks=tuple(s.task for s in states()), budget=60.0)


def printed(value: object, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(value)
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_what_is_gained_is_weighted() -> None:
    assert gained(states()) == (400.0, 100.0)
    assert summary(JOB, states(), "running") == (
        "night: running, 1 of 4 tasks done, 1 failed, 2.0 of 60 s of tuning; 400.0 us become 100.0, 4.00 times as fast (weighted)"
    )
    assert summary(JOB, states(), "complete").startswith("night: complete as its budget is spent, 1 of 4 tasks done")


def test_how_a_job_is() -> None:
    every = states()
    assert ending(JOB, every, running=True) == "running"
    assert ending(JOB, every, running=False) == "stopped"
    assert ending(JOB, every[:2], running=False) == "failed"
    assert ending(JOB, every[:1], running=False) == "complete"


def test_the_table(golden: Callable[[str, str], None]) -> None:
    golden("jobs/table.txt", printed(table(states())))


def test_the_terminal_shows_what_is_under_way_first(golden: Callable[[str, str], None]) -> None:
    every = states()
    view = View(JOB, every)
    assert printed(drawn(view)).splitlines()[1].split()[0] == "a[b]"
    golden("jobs/live.txt", printed(drawn(view)))
    view.running[every[3].task.key] = "search", 0.0
    assert printed(drawn(view)).splitlines()[1].split()[:2] == ["d", "search"]


def test_the_terminal_shows_so_many_tasks() -> None:
    every = [TaskState(task(f"t{k}")) for k in range(ROWS + 5)]
    text = printed(drawn(View(JOB, every)))
    assert "and 5 more" in text
    assert len(text.splitlines()) == 1 + ROWS + 2


def test_a_terminal_is_written_to_and_a_file_is_not() -> None:
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal)
        with live(console) as shown:
            shown(View(JOB, states()))
            # no sooner than a moment later
            shown(View(JOB, states()))
        assert bool(console.file.getvalue()) is terminal  # type: ignore[attr-defined]


def test_the_page_escapes_what_is_the_users() -> None:
    text = page(JOB, states(), "failed")
    assert "<script" not in text and "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<b>" not in text and "ended &amp; done" in text
    assert "http" not in text


def test_events_in_one_line() -> None:
    t = task("a")
    assert event_text(done(t, "search", graphs=3, stopped="complete"), t) == "a: search in 1.0 s on here, 3 graphs; complete"
    tuned = done(t, library_us=100.0, best_us=40.0, best="mugraph", graphs=3, stopped="x")
    assert event_text(tuned, t) == "a: tune in 1.0 s on here, 3 graphs, mugraph 40.0 us, 2.50 times as fast as the library; x"
    failed = Failed(task=t.key, kind="tune", ended=1.0, error="no", attempts=3)
    assert event_text(failed, t) == "a: tune failed after 3 attempts: no"
    assert "begins anew" in event_text(Lost(task=t.key, ended=1.0), t)
