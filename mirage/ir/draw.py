"""Drawings of programs as SVG: a flow chart of their operators with the types of the results."""

from __future__ import annotations

from mirage.drawing.flow import Flow, to_svg
from mirage.drawing.show import View, show
from mirage.ir.program import Program
from mirage.ir.text import attribute_texts


@show.register
def _(program: Program) -> View:
    flow = Flow(program.name)
    for i, n in enumerate(program.nodes):
        if n.op == "input":
            flow.step("input", n.attr["name"], [str(n.type)], makes=[i])
            continue
        kind = "input" if n.op in ("constant", "size") else "operator"
        flow.step(kind, n.op, [*attribute_texts(n.op, n.attrs), str(n.type)], n.inputs, [i])
    flow.group("results", program.outputs)
    flow.result("results", [str(t) for t in program.output_types])
    return View(svg=to_svg(program.name, [flow]))
