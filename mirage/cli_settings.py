"""`mirage settings`: every setting with its value and where it is from."""

from __future__ import annotations

import os

from rich.table import Table

from mirage.cli_shared import AsJson, out, print_json
from mirage.errors import SettingError
from mirage.settings import SETTINGS, warn_of_unknown

_COLUMNS = ("setting", "variable", "value", "origin", "default", "help")


def rows() -> tuple[list[dict[str, object]], list[SettingError]]:
    """A row per setting, for programs, and the errors of those whose text is not allowed; their value is None."""
    found: list[dict[str, object]] = []
    wrong: list[SettingError] = []
    for name, one in SETTINGS.items():
        try:
            value = one()
        except SettingError as e:
            wrong.append(e)
            value = None
        plain = list(value) if isinstance(value, tuple) else value if isinstance(value, int | dict | None) else str(value)
        cells = (name, one.variable, plain, one.origin, one.default_help, one.help)
        found.append(dict(zip(_COLUMNS, cells, strict=True)))
    return found, wrong


def settings(as_json: AsJson = False) -> None:
    """Every setting: its environment variable, its value, and where that is from. Exit code 2 if a value is not allowed."""
    warn_of_unknown()
    found, wrong = rows()
    if as_json:
        print_json(found)
    else:
        table = Table(title="settings", title_justify="left")
        for column in ("variable", "value", "origin", "help"):
            table.add_column(column, overflow="fold")
        for row in found:
            table.add_row(str(row["variable"]), _text(row), str(row["origin"]), str(row["help"]))
        out.print(table)
    if wrong:
        raise wrong[0]


def _text(row: dict[str, object]) -> str:
    """The value as people read it; as it stands in the environment, where it is from there."""
    value = row["value"]
    if row["origin"] == "environment":
        return os.environ[str(row["variable"])]
    return str(row["default"]) if not value else str(value)
