"""The command of a benchmark whose rows have names: all of them, or some, as tables, as JSON or as Markdown."""

# no annotations as text: typer reads those of a function that is made here
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer

from benchmarks.tables import Table, emit
from mirage.cli_shared import AsJson


def command(
    says: str,
    names: str,
    measure: Callable[[Sequence[str]], Iterable[Any]],
    section: Callable[[Sequence[Any]], str],
    *tables: Callable[[Sequence[Any]], Table],
) -> Callable[..., None]:
    """The command, for typer: `says` what it does, `names` what may be named; `section` gives Markdown, `tables` show them."""

    def main(
        only: Annotated[list[str] | None, typer.Option(help=f"{names}; all if none is named.")] = None,
        as_json: AsJson = False,
        markdown: Annotated[bool, typer.Option(help="Print Markdown tables.")] = False,
    ) -> None:
        rows = list(measure(only or ()))
        if markdown:
            print(section(rows))
        else:
            emit(rows, as_json, *tables)

    main.__doc__ = says
    return main
