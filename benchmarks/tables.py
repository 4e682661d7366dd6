"""Rows of measurements: as JSON, as a table of the terminal, and as one of a Markdown page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.table import Table as RichTable

from mirage.cli_shared import print_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")


def mean_text(ratios: Sequence[float]) -> str:
    """The geometric mean of ratios above 0, as in the tables; empty for none."""
    return f"{geometric_mean(ratios):.2f}" if ratios else ""


@dataclass(frozen=True)
class Table:
    """Cells as text; the first column holds names, the others are aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.header, ["---"] + ["---:"] * (len(self.header) - 1), *self.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def show(self) -> None:
        """Print it, with whole cells however wide the output is."""
        table = RichTable()
        for i, head in enumerate(self.header):
            table.add_column(head, justify="right" if i else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        console = Console()
        natural = console.measure(table, options=console.options.update(max_width=sys.maxsize)).maximum
        Console(width=max(console.width, natural)).print(table)


def as_rows(found: Iterable[DataclassInstance]) -> list[dict[str, Any]]:
    """Rows as JSON objects."""
    return [asdict(r) for r in found]


def emit_lines(lines: Iterable[str], as_json: bool) -> None:
    """Print lines on standard output as they come, or as one JSON list."""
    if as_json:
        print_json(list(lines))
        return
    for line in lines:
        print(line, flush=True)


def emit(rows: Sequence[Row], as_json: bool, *tables: Callable[[Sequence[Row]], Table]) -> None:
    """Print the rows of a benchmark on standard output, as tables or as JSON."""
    if as_json:
        print_json(as_rows(rows))
        return
    for table in tables:
        table(rows).show()
