"""Runs the notebooks of `examples/` and writes their outputs: `python -m benchmarks.notebooks [NAME...]`.

Each runs in a kernel of its own, in an empty folder and with empty caches. What is written has no warnings, no times of execution
and no paths of the machine.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient

from mirage.errors import FormatError

EXAMPLES = Path(__file__).parents[1] / "examples"
#: seconds for a cell
LONGEST = 600
#: characters of all outputs of a notebook
MOST = 400_000


def run(path: Path) -> None:
    """Run a notebook and write it with its outputs; raises FormatError for outputs that are too large or have a path in them, and
    nbclient's CellExecutionError where a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "MIRAGE_CACHE_DIR": f"{folder}/cache", "PYTHONPATH": str(EXAMPLES.parent)}
        client = NotebookClient(notebook, timeout=LONGEST, kernel_name="python3", resources={"metadata": {"path": folder}})
        client.execute(env=environment)
        for k, cell in enumerate(notebook.cells):
            cell["id"] = f"cell-{k}"
            cell["metadata"] = {}
            if cell["cell_type"] == "code":
                cell["outputs"] = tidied(cell["outputs"])
        check(path.name, nbformat.writes(notebook), [folder, str(EXAMPLES.parent), str(Path.home()), sys.prefix])
    notebook["metadata"].pop("widgets", None)
    notebook["metadata"]["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


def tidied(outputs: Sequence[Any]) -> list[Any]:
    """Outputs without warnings, and of what is shown as a picture or a table only that."""
    found = []
    for output in outputs:
        if output.get("name") == "stderr":
            continue
        data = output.get("data", {})
        if "text/html" in data or "image/svg+xml" in data:
            data.pop("text/plain", None)
            if "text/html" in data:
                # a page shows the richest form, and it holds the picture
                data.pop("image/svg+xml", None)
        found.append(output)
    return found


def check(name: str, text: str, paths: Sequence[str]) -> None:
    """Raises FormatError where a notebook is too large to commit, or tells where it was run."""
    if len(text) > MOST:
        raise FormatError(f"{name}: {len(text):,} characters; show less, {MOST:,} are enough")
    for path in paths:
        if path != "/" and path in text:
            raise FormatError(f"{name}: an output has the path {path}; print names, not paths")


def main() -> None:
    for name in sys.argv[1:] or sorted(p.stem for p in EXAMPLES.glob("*.ipynb")):
        run(EXAMPLES / f"{name}.ipynb")
        print(name)


if __name__ == "__main__":
    main()
