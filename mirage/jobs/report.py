"""What became of a job: figures for programs, tables for people, and a page that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from mirage.jobs.journal import Job
from mirage.jobs.schedule import TaskState, spent
from mirage.jobs.task import Event, Failed, Lost, Task, at

#: how a job can be, and the exit code that says so
EXIT = {"complete": 0, "failed": 1, "stopped": 3, "running": 3, "interrupted": 130}


def gained(states: Sequence[TaskState]) -> tuple[float, float]:
    """The weighted sum of latencies (us) of the library versions and of the best versions, of the tasks that have both."""
    both = [(s.task.weight, s.library_us, s.latencies[-1]) for s in states if s.library_us and s.latencies]
    return sum(w * a for w, a, _ in both if a is not None), sum(w * b for w, _, b in both)


def ending(job: Job, states: Sequence[TaskState], running: bool) -> str:
    """How a job is, as its journal says."""
    if running:
        return "running"
    left = job.budget is None or spent(states) < job.budget
    if any(not s.done and (left or not s.rounds) for s in states):
        return "stopped"
    return "failed" if any(s.failed for s in states) else "complete"


def task_json(s: TaskState) -> dict[str, Any]:
    """The figures of a task."""
    last = s.rounds[-1] if s.rounds else None
    return {
        "task": s.task.name,
        "target": s.task.target,
        "sizes": [dict(one) for one in s.task.sizes],
        "weight": s.task.weight,
        "state": s.done or ("unfinished" if s.searched else "not begun"),
        "graphs": max([r.graphs for r in (s.searched, *s.rounds) if r is not None], default=0),
        "search": s.searched.stopped if s.searched else None,
        "rounds": len(s.rounds),
        "seconds": round(s.spent, 3),
        "machine": last.machine if last else None,
        "library_us": s.library_us,
        "best_us": s.latencies[-1] if s.latencies else None,
        "best": last.best if last else None,
        "ratio": s.ratio,
        "error": s.failed.error if s.failed else None,
        "records": s.records,
    }


def job_json(job: Job, states: Sequence[TaskState], how: str) -> dict[str, Any]:
    """The figures of a job."""
    before, after = gained(states)
    return {
        "job": job.name,
        "state": how,
        "seconds": round(spent(states), 3),
        "budget": job.budget,
        "library_us": before or None,
        "best_us": after or None,
        "gain": before / after if after else None,
        "failed": sum(s.failed is not None for s in states),
        "tasks": [task_json(s) for s in states],
    }


def event_text(event: Event, task: Task) -> str:
    """A finished or failed step in one line."""
    if isinstance(event, Failed):
        return f"{task.name}: {event.kind} failed after {event.attempts} attempts: {event.error}"
    if isinstance(event, Lost):
        return f"{task.name}: its results are not in the store any more; it begins anew"
    us = "" if event.best_us is None else f", {event.best} {event.best_us:,.1f} us"
    if event.library_us and event.best_us:
        us += f", {event.library_us / event.best_us:.2f} times as fast as the library"
    return f"{task.name}: {event.kind} in {event.seconds:.1f} s on {event.host}, {event.graphs} graphs{us}; {event.stopped}"


_TEXTS = ("task", "target", "state", "best")
#: columns that fit a narrow terminal
_SHOWN = ("task", "state", "graphs", "rounds", "seconds", "library us", "best us", "ratio")
_COLUMNS = ("task", "target", "weight", "state", "graphs", "rounds", "seconds", "library us", "best us", "ratio", "best")


def _row(s: TaskState) -> tuple[str, ...]:
    """A row of the table, as text."""
    f = task_json(s)
    us = ["-" if f[k] is None else f"{f[k]:,.1f}" for k in ("library_us", "best_us")]
    return (
        f["task"], f["target"], f"{f['weight']:g}", f["state"], str(f["graphs"]), str(f["rounds"]), f"{f['seconds']:.1f}",
        *us, "-" if f["ratio"] is None else f"{f['ratio']:.2f}", f["best"] or "-",
    )  # fmt: skip


def summary(job: Job, states: Sequence[TaskState], how: str) -> str:
    """One line: how the job is, and what is gained in all."""
    before, after = gained(states)
    done = sum(bool(s.done) and not s.failed for s in states)
    if how == "complete" and done < len(states):
        how = "complete as its budget is spent"
    gain = f"; {before:,.1f} us become {after:,.1f}, {before / after:.2f} times as fast (weighted)" if after else ""
    failed = sum(s.failed is not None for s in states)
    return (
        f"{job.name}: {how}, {done} of {len(states)} tasks done" + (f", {failed} failed" if failed else "")
        + f", {spent(states):.1f}{f' of {job.budget:g}' if job.budget else ''} s of tuning{gain}"
    )  # fmt: skip


def table(states: Sequence[TaskState]) -> Table:
    """The tasks, those first that cost most now."""
    found = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in _SHOWN:
        found.add_column(name, justify="right" if name not in _TEXTS else "left", no_wrap=name != "task")
    for s in sorted(states, key=_cost, reverse=True):
        row = dict(zip(_COLUMNS, _row(s), strict=True))
        found.add_row(*(Text(row[name]) for name in _SHOWN))
    return found


def _cost(s: TaskState) -> float:
    return s.task.weight * s.latencies[-1] if s.latencies else 0.0


_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1c1c1e }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse; width: 100% } td, th { padding: .3rem .6rem; border-bottom: 1px solid #ddd; text-align: right }
td:first-child, th:first-child, .t { text-align: left } tr.failed td { color: #b3261e }
pre { background: #f5f5f7; padding: .8rem; overflow-x: auto } svg { vertical-align: middle }
@media (prefers-color-scheme: dark) {
  body { background: #1c1c1e; color: #eee } td, th { border-color: #444 } pre { background: #2c2c2e }
  tr.failed td { color: #ff8a80 }
}
"""


def page(job: Job, states: Sequence[TaskState], how: str) -> str:
    """One HTML file with all figures, without scripts or anything from elsewhere; every text of the user's is escaped."""
    e = html.escape
    head = "".join(f"<th{_left(name)}>{e(name)}</th>" for name in (*_COLUMNS, "rounds"))
    rows, details = [], []
    for s in sorted(states, key=_cost, reverse=True):
        cells = "".join(f"<td{_left(n)}>{e(c)}</td>" for n, c in zip(_COLUMNS, _row(s), strict=True))
        rows.append(f"<tr{' class=failed' if s.failed else ''}>{cells}<td>{_curve(s.latencies)}</td></tr>")
        details.append(_details(s))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{e(job.name)}</title><style>{_STYLE}</style></head><body>\n"
        f"<h1>{e(job.name)}</h1><p>{e(summary(job, states, how))}</p>\n"
        f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(rows) + "\n</tbody></table>\n"
        "<p>Times are of a call at a task's first sizes, in microseconds; the sums are weighted. A curve is the best latency "
        "after each round, in proportion to the library version.</p>\n" + "\n".join(details) + "\n</body></html>\n"
    )  # fmt: skip


def _left(name: str) -> str:
    return ' class="t"' if name in _TEXTS else ""


def _details(s: TaskState) -> str:
    e = html.escape
    lines = [f"sizes: {'; '.join(at(one) for one in s.task.sizes)}"]
    if s.task.constants:
        lines.append(f"constants: {', '.join(s.task.constants)}")
    if s.searched:
        lines.append(f"search: {s.searched.graphs} graphs in {s.searched.seconds:.2f} s, {s.searched.stopped}")
    for k, r in enumerate(s.rounds, 1):
        us = "" if r.best_us is None else f", {r.best} {r.best_us:,.1f} us"
        library = "" if r.library_us is None else f", library {r.library_us:,.1f} us"
        lines.append(f"round {k} on {r.host}: {r.seconds:.1f} s, {r.compiled} kernels compiled{us}{library}; {r.stopped}")
    if s.failed:
        lines.append(f"failed after {s.failed.attempts} attempts ({s.failed.kind}): {s.failed.error}")
    body = "".join(f"<li>{e(line)}</li>" for line in lines)
    return f"<details><summary>{e(s.task.name)}</summary><ul>{body}</ul><pre>{e(s.task.program)}</pre></details>"


def _curve(values: Sequence[float], width: int = 80, height: int = 18) -> str:
    """A small curve, from 0 to the largest value."""
    if not values:
        return ""
    top = max(values)
    points = [(width * k / max(len(values) - 1, 1), height * (1 - v / top)) for k, v in enumerate(values)]
    if len(points) == 1:
        points.append((width, points[0][1]))
    drawn = " ".join(f"{x:.1f},{y + 1:.1f}" for x, y in points)
    return (
        f'<svg width="{width}" height="{height + 2}"><polyline points="{drawn}" fill="none" stroke="#3367d6" '
        'stroke-width="1.5"/></svg>'
    )
