"""Draws graphs that a search finds as SVG files: `python -m benchmarks.drawings` writes docs/figures/."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.programs import PROGRAMS
from mirage.mugraph.degree import analyze
from mirage.mugraph.draw import to_svg
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.thread import with_threads
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from mirage.verify.safety import offered

FIGURES = Path(__file__).parents[1] / "docs" / "figures"

#: seconds for one search; the drawings are the same on every machine that needs less
BUDGET = 120.0

#: program -> the plan of which the cheapest graph is drawn
PLANS = {
    "gqa_decode": "loop t split over the grid; no loop",
    "qknorm_attention": "loop t",
    "lora": "loop d4096; no loop",
    "adapter_mlp": "loop d4096 split over the grid; no loop",
    "rmsnorm_linear": "loop d4096",
}
#: programs drawn down to their thread graphs; the others stop at the block graph, which is easier to read
WITH_THREADS = frozenset({"rmsnorm_linear"})


def searched(name: str, plan: str) -> MuGraph:
    """The cheapest graph (as modelled) of a plan that is proved equal to a benchmark program and safe to offer.

    Raises LookupError if the search finds none.
    """
    function = PROGRAMS[name]
    program = function.trace()
    verifier = Verifier(program)
    sizes = next(iter(function.sizes.values()))
    options, accept = SearchOptions(budget=BUDGET), partial(offered, program)
    for graph in generate(verifier.axis_program, sizes, options, accept=accept).graphs:
        if graph.origin != plan or not verifier.check(graph).equal:
            continue
        if prove(verifier.axis_program, graph) == "proved":
            return graph
    raise LookupError(f"{name}: no proved graph of the plan {plan!r}; the plans of PLANS are those of the search")


def write(graph: MuGraph, path: Path) -> None:
    """Draw the muGraph into an SVG file, making its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_svg(graph), encoding="utf-8")


def main() -> None:
    for name, plan in PLANS.items():
        graph = searched(name, plan)
        file = FIGURES / f"{name}.svg"
        write(with_threads(graph, analyze(graph)) if name in WITH_THREADS else graph, file)
        print(file)


if __name__ == "__main__":
    main()
