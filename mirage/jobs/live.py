"""A job on a terminal while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mirage.jobs.report import summary
from mirage.jobs.run import View

#: tasks that are shown: those under way, and those that ended last
ROWS = 20
#: seconds between two pictures
EVERY_S = 0.2


@contextmanager
def live(console: Console) -> Iterator[Callable[[View], None]]:
    """Shows a job on a terminal; nothing where the console is none."""
    if not console.is_terminal:
        yield lambda _: None
        return
    with Live(console=console, transient=True, auto_refresh=False) as shown:
        drawn_at = 0.0

        def show(view: View) -> None:
            nonlocal drawn_at
            if time.monotonic() - drawn_at >= EVERY_S:
                shown.update(drawn(view), refresh=True)
                drawn_at = time.monotonic()

        yield show


def drawn(view: View) -> Group:
    """The tasks under way and those that ended last, with their best ratios, and what is gained in all."""
    found = Table(box=None, pad_edge=False)
    for name in ("task", "now", "graphs", "rounds", "best us", "ratio"):
        found.add_column(name, justify="left" if name in ("task", "now") else "right", no_wrap=True)

    def last(s: object) -> float:
        rounds = getattr(s, "rounds", [])
        searched = getattr(s, "searched", None)
        return rounds[-1].ended if rounds else searched.ended if searched else 0.0

    order = sorted(view.states, key=lambda s: (s.task.key in view.running, last(s)), reverse=True)
    for s in order[:ROWS]:
        under_way = view.running.get(s.task.key)
        now = f"{under_way[0]} {time.monotonic() - under_way[1]:.0f} s" if under_way else s.done or "waits"
        graphs = max([r.graphs for r in (s.searched, *s.rounds) if r is not None], default=0)
        best = f"{s.latencies[-1]:,.1f}" if s.latencies else "-"
        ratio = f"{s.ratio:.2f}" if s.ratio else "-"
        found.add_row(Text(s.task.name), now, str(graphs), str(len(s.rounds)), best, ratio)
    more = [Text(f"and {len(order) - ROWS} more")] if len(order) > ROWS else []
    return Group(found, *more, Text(summary(view.job, view.states, "running")))
