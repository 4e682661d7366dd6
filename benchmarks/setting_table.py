"""The table of all settings in `docs/settings.md`: `python -m benchmarks.setting_table` writes it again."""

from __future__ import annotations

from pathlib import Path

from benchmarks.page import with_end
from mirage.settings import markdown

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"


def written(page: str) -> str:
    """The page with the table, which stands at its end, made anew."""
    return with_end(page, "## All settings", markdown().splitlines())


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
