"""The page of measured figures, with those of several processors beside each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mirage.folders import save_file
from mirage.kernels.cpu import processor as machine

#: the line before what was measured on a processor
_ON = re.compile(r"^<!-- on (.*) -->\n", re.MULTILINE)


def processor() -> str:
    """The processor of this machine, by which figures are kept apart."""
    target = machine.processor()
    return f"{target.cpu}, {target.cores} {'core' if target.cores == 1 else 'cores'}"


def with_end(text: str, heading: str, lines: Iterable[str]) -> str:
    """A page whose end, from that heading on, is these lines; raises ValueError where it lacks the heading."""
    head, mark, _ = text.partition(f"{heading}\n")
    if not mark:
        raise ValueError(f"the page lacks the heading {heading!r}; add it where its tables begin")
    return f"{head}{mark}\n" + "\n".join(lines) + "\n"


def _parts(text: str, name: str) -> tuple[str, str, str]:
    """The text up to the marker of that name, between its markers, and from the second on; raises ValueError without them."""
    begin, end = f"<!-- {name}: written by make bench -->", f"<!-- end of {name} -->"
    before, found, rest = text.partition(begin)
    body, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"docs/benchmarks.md lacks the lines {begin!r} and {end!r}; put them where {name} belongs")
    return before + begin, body, end + after


def fill(text: str, name: str, body: str, on: str) -> str:
    """The text where between the markers of that name, what was measured `on` a processor is this body.

    What was measured on others stays. Raises ValueError where the markers are missing.
    """
    before, old, after = _parts(text, name)
    _, *found = _ON.split(old.lstrip("\n"))
    blocks = dict(zip(found[::2], (b.strip("\n") for b in found[1::2]), strict=True)) | {on: body}
    return f"{before}\n" + "\n".join(f"<!-- on {p} -->\n{b}\n" for p, b in blocks.items()) + after


class Page:
    """benchmarks.md and benchmarks.json of a folder, where each part is written as soon as it is measured on a processor."""

    def __init__(self, docs: Path, on: str) -> None:
        self.page, self.data, self._on = docs / "benchmarks.md", docs / "benchmarks.json", on

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The rows of that name that were measured on this processor before."""
        found: list[dict[str, Any]] = self._read().get(name, {}).get(self._on, [])
        return found

    def write(self, parts: Mapping[str, str], rows: Mapping[str, list[dict[str, Any]]]) -> None:
        """Replace this processor's part between the markers of these names, and its rows of these names in the JSON object.

        Raises ValueError where markers are missing.
        """
        text = self.page.read_text(encoding="utf-8")
        for name, body in parts.items():
            text = fill(text, name, f"**{self._on}**, {datetime.now(UTC):%Y-%m-%d}:\n\n{body}", self._on)
        data = self._read()
        for name, of in rows.items():
            data[name] = data.get(name, {}) | {self._on: of}
        save_file(self.page, text)
        save_file(self.data, json.dumps(data, indent=1) + "\n")

    def _read(self) -> dict[str, dict[str, list[dict[str, Any]]]]:
        found: dict[str, dict[str, list[dict[str, Any]]]] = (
            json.loads(self.data.read_text(encoding="utf-8")) if self.data.exists() else {}
        )
        return found
