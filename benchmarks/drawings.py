"""Draws muGraphs as SVG files: `python -m benchmarks.drawings` writes docs/figures/."""

from __future__ import annotations

from pathlib import Path

from mirage.mugraph.draw import to_svg
from mirage.mugraph.graph import MuGraph
from tests.mugraph.graphs import flash_attention, flash_decoding

FIGURES = Path(__file__).parents[1] / "docs" / "figures"


def write(graph: MuGraph, path: Path) -> None:
    """Draw the muGraph into an SVG file, making its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_svg(graph), encoding="utf-8")


def main() -> None:
    for case in (flash_attention(), flash_decoding()):
        file = FIGURES / f"{case.graph.name}.svg"
        write(case.graph, file)
        print(file)


if __name__ == "__main__":
    main()
