"""Saturated e-graphs as SVG: a box per class of equal terms, below those that its terms are applied to."""

from __future__ import annotations

from mirage.drawing.flow import Flow, to_svg
from mirage.drawing.show import View, show
from mirage.verify.rules.saturate import Saturated


@show.register
def _(found: Saturated) -> View:
    """The classes that the outputs depend on. A term that is made of its own class or a larger one has its arrow left out."""
    graph = found.graph
    names = graph.names()
    roots = [graph.find(x) for x in found.roots]
    reached = dict.fromkeys(roots)
    for root in (waiting := list(reached)):
        fresh = [x for x in graph.below(root) if x not in reached]
        reached |= dict.fromkeys(fresh)
        waiting += fresh
    flow = Flow("Classes of equal terms", f"{found.nodes} terms in {len(names)} classes; {found.stop_reason}")
    for root in sorted(reached, key=lambda r: (graph.terms.count[graph.best[r]], r)):
        kind = "operator" if graph.below(root) else "input"
        flow.step(kind, names[root], graph.texts(root, names), graph.below(root), [root])
    flow.group("outputs", roots)
    flow.result("outputs", [names[root] for root in roots])
    return View(svg=to_svg("classes of equal terms", [flow]))
