"""What a long call says while it runs: lines of text, which a terminal shows as one bar per phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

#: gets the lines; those of this package are `Step`s
Say = Callable[[str], None]


class Step(str):
    """A line of progress, `text`, of a phase of which `done` of `total` parts are done; `total` is 0 if it is not known."""

    phase: str
    text: str
    done: int
    total: int

    def __new__(cls, phase: str, text: str = "", done: int = 0, total: int = 0) -> Step:
        parts = [f"{done} of {total}" if total else "", text]
        step = super().__new__(cls, ": ".join(filter(None, [phase, ", ".join(filter(None, parts))])))
        step.phase, step.text, step.done, step.total = phase, text, done, total
        return step


@contextmanager
def bars(console: Console) -> Iterator[Say]:
    """Shows progress on a terminal, a bar per phase; nothing where the console is none."""
    if not console.is_terminal:
        yield lambda _: None
        return
    # only terminals show bars
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn(
            "{task.fields[text]}", markup=False, table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
        ),
    )
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=console, transient=True, expand=True) as progress:

        def show(line: str) -> None:
            step = line if isinstance(line, Step) else Step(line)
            if step.phase not in tasks:
                for task in tasks.values():
                    progress.stop_task(task)
                tasks[step.phase] = progress.add_task(step.phase, total=None, text="")
            progress.update(tasks[step.phase], completed=step.done, total=step.total or None, text=step.text)

        yield show
