"""Every notebook of `examples/` runs from its first cell to its last, and its last run left no error in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_what_it_shows_is_of_a_whole_run(path: Path) -> None:
    cells = code_cells(path)
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    assert not [o for c in cells for o in c["outputs"] if o["output_type"] == "error"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_it_runs(path: Path) -> None:
    for package in ("torch", "transformers"):
        pytest.importorskip(package)
    names: dict[str, Any] = {}
    for k, cell in enumerate(code_cells(path)):
        exec(compile("".join(cell["source"]), f"{path.name}[{k}]", "exec"), names)
