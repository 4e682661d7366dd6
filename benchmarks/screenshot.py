"""Draws the page of a search as a browser shows it: `python -m benchmarks.screenshot` writes docs/figures/search-view.png.

It takes Chromium, and a quiet machine, as the page has measured times.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mirage as mi
from benchmarks.drawings import FIGURES
from mirage.errors import InputError

#: seconds of the search, and pixels of the picture
BUDGET = 40.0
SIZE = 1400, 1345


@mi.program(q=mi.tensor("s", 64), k=mi.tensor("t", 64), v=mi.tensor("t", 64), sizes={"s": 16, "t": 1024})
def attention(q: Any, k: Any, v: Any) -> Any:
    return mi.softmax(q @ k.mT / 8) @ v


def shoot(page: Path, picture: Path) -> None:
    """Write a picture of a page; raises InputError where there is no Chromium."""
    browser = shutil.which("chromium")
    if browser is None:
        raise InputError("there is no chromium to draw the page with; install it")
    width, height = SIZE
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}"]
    command = [browser, *options, "--virtual-time-budget=5000", f"--screenshot={picture}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


def main() -> None:
    result = mi.superoptimize(attention, budget=BUDGET, cache=False)
    with TemporaryDirectory() as folder:
        page = Path(folder) / "search.html"
        mi.explore(result).save(page)
        shoot(page, FIGURES / "search-view.png")


if __name__ == "__main__":
    main()
