"""Draws graphs of a search, equal terms and a compiled program: `python -m benchmarks.drawings` writes SVGs to docs/figures/."""

from __future__ import annotations

from pathlib import Path

import mirage as mi
from benchmarks.graphs.programs import SMALL
from benchmarks.programs import PROGRAMS
from mirage.drawing.show import picture
from mirage.ir.axes import to_axes
from mirage.mugraph.degree import analyze, program_is_stable
from mirage.mugraph.draw import to_svg
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.thread import with_threads
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from mirage.verify.rules.saturate import saturate
from mirage.verify.rules.terms import Terms, read

FIGURES = Path(__file__).parents[1] / "docs" / "figures"

#: seconds for one search; the drawings are the same on every machine that needs less
BUDGET = 120.0

#: program -> the plans of the kernels of the graph that is drawn, and an operator that it has
PICTURES = {
    "gqa_decode": ("loop t split over the grid; no loop", "exp"),
    "qknorm_attention": ("loop t", "exp"),
    "lora": ("loop d4096", "concat_matmul"),
    "adapter_mlp": ("loop d4096 split over the grid; no loop", "relu"),
    "rmsnorm_linear": ("loop d4096", "rsqrt"),
}
#: the program whose classes of equal terms are drawn
CLASSES = "rms_norm"
#: programs drawn down to their thread graphs; the others stop at the block graph, which is easier to read
WITH_THREADS = frozenset({"rmsnorm_linear"})


def searched(name: str, plans: str, op: str) -> MuGraph:
    """The cheapest graph (as modelled) of these plans with this operator that is proved equal to a benchmark program.

    It is safe to offer. Raises LookupError if the search finds none.
    """
    function = PROGRAMS[name]
    verifier = Verifier(function.trace())
    sizes = next(iter(function.sizes.values()))
    safe = program_is_stable(verifier.program)
    found = generate(verifier.axis_program, sizes, SearchOptions(budget=BUDGET), safe=safe).graphs
    for graph in found:
        if graph.origin != plans or op not in operators(graph) or not verifier.check(graph).equal:
            continue
        if prove(verifier.axis_program, graph) == "proved":
            return graph
    origins = ", ".join(sorted({repr(g.origin) for g in found}))
    raise LookupError(f"{name}: no proved graph of the plans {plans!r} with {op}; the search found {origins}")


def compiled(name: str) -> str:
    """The drawing of a compiled program as fusion alone makes it, which is the same on every machine."""
    program = SMALL[name]
    fast = mi.compile(
        program.fn, program.specs, bounds=program.bounds, constants=program.constants, without=("superoptimize",)
    )
    return picture(fast)


def saturated(name: str) -> str:
    """The drawing of the terms that are equal to those of a benchmark program, all of them."""
    program = to_axes(PROGRAMS[name].trace())
    terms = Terms(program.axes)
    return picture(saturate(terms, read(terms, program).outputs, seconds=BUDGET))


def operators(graph: MuGraph) -> set[str]:
    """The operators of all block graphs."""
    return {n.op for k in graph.kernels if k.graph is not None for n in k.graph.nodes}


def write(graph: MuGraph, path: Path) -> None:
    """Draw the muGraph into an SVG file, making its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_svg(graph), encoding="utf-8")


def main() -> None:
    for name, (plans, op) in PICTURES.items():
        graph = searched(name, plans, op)
        file = FIGURES / f"{name}.svg"
        write(with_threads(graph, analyze(graph)) if name in WITH_THREADS else graph, file)
        print(file)
    for kind, drawn in (("llama_decode", compiled("llama_decode")), (f"{CLASSES}-classes", saturated(CLASSES))):
        file = FIGURES / f"{kind}.svg"
        file.write_text(drawn, encoding="utf-8")
        print(file)


if __name__ == "__main__":
    main()
