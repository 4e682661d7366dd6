"""Every notebook of `examples/` runs from its first cell to its last, and what is kept of its last run is small and of nobody."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mirage.errors import FormatError
from tests.docs.notebook import code_cells

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
#: run in every test run; the others take more than a few seconds
QUICK = {"first_kernel"}


def named(path: Path) -> str:
    return path.stem


def test_there_are_notebooks() -> None:
    assert {"first_kernel", "masked_attention", "operator_and_identity", "reading_a_search"} <= {p.stem for p in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_what_it_shows_is_of_a_whole_run(path: Path) -> None:
    cells = code_cells(path)
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    outputs = [o for c in cells for o in c["outputs"]]
    assert outputs and not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_what_it_shows_is_small_and_tells_nothing_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 400_000
    assert not re.search(r"/(home|root|tmp|Users)/|site-packages", text)


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=() if p.stem in QUICK else pytest.mark.slow, id=p.stem) for p in NOTEBOOKS]
)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    code = "".join("".join(c["source"]) for c in code_cells(path))
    for package in ("torch", "transformers"):
        if re.search(rf"^import {package}", code, re.MULTILINE):
            pytest.importorskip(package)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MIRAGE_CACHE_URL": f"sqlite:///{tmp_path}/results.sqlite"}
    command = [sys.executable, "-m", "tests.docs.notebook", str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr


def test_outputs_are_tidied_and_checked() -> None:
    pytest.importorskip("nbclient")
    from benchmarks.notebooks import MOST, check, tidied

    picture = {"output_type": "execute_result", "data": {"image/svg+xml": "<svg/>", "text/plain": "MuGraph(...)"}}
    both = {"output_type": "execute_result", "data": {"image/svg+xml": "<svg/>", "text/html": "<p/>", "text/plain": "Result"}}
    text = {"output_type": "stream", "name": "stdout", "text": "42\n"}
    warning = {"output_type": "stream", "name": "stderr", "text": "careful"}
    assert [o.get("data", o.get("text")) for o in tidied([picture, both, text, warning])] == [
        {"image/svg+xml": "<svg/>"}, {"text/html": "<p/>"}, "42\n",
    ]  # fmt: skip
    check("n", "of nobody", ["/somewhere", "/"])
    with pytest.raises(FormatError, match="n: an output has the path /somewhere"):
        check("n", "saved to /somewhere/file", ["/somewhere"])
    with pytest.raises(FormatError, match="show less"):
        check("n", "x" * (MOST + 1), [])
