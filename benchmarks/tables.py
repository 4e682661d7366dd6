"""Rows of measurements: as JSON, as a table of the terminal, and as one of a Markdown page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table as RichTable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Row = TypeVar("Row", bound="DataclassInstance")

#: the option of every benchmark that prints rows
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON list of the rows, and no table.")]


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


def emit(rows: Sequence[Row], as_json: bool, *tables: Callable[[Sequence[Row]], Table]) -> None:
    """Print the rows of a benchmark on standard output, as tables or as JSON."""
    if as_json:
        print(json.dumps(as_rows(rows), indent=1))
        return
    for table in tables:
        table(rows).show()
