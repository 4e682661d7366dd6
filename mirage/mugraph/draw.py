"""Drawings of muGraphs as SVG, after Mirage, Fig. 4: kernels from left to right, each with its block graph.

A graph-defined kernel is a frame captioned with its grid and loop; its inputs show imap and fmap, its
outputs omap. The part that runs in every iteration of the loop lies on a band of its own, accumulators at
its end. Thread graphs are smaller frames. Under each operator stands the shape of its result.
"""

from __future__ import annotations

from collections.abc import Sequence

import networkx as nx

from mirage.drawing.layout import Box, layered
from mirage.drawing.pieces import (
    COLORS,
    MUTED,
    PAD,
    SMALL,
    TEXT,
    Picture,
    box,
    captioned,
    document,
    label,
    path,
    rect,
    text_width,
)
from mirage.drawing.show import View, show
from mirage.ir.operator import PRODUCTS, Level
from mirage.ir.text import attr_text
from mirage.mugraph.graph import Graph, MuGraph, Node
from mirage.mugraph.text import dims_text, input_text, map_text, operator_text, part_names


def to_svg(graph: MuGraph) -> str:
    """The muGraph as an SVG document: deterministic, with its own background, without external references."""
    return document(graph.name, _kernel_graph(graph))


@show.register
def _(graph: MuGraph) -> View:
    return View(svg=to_svg(graph))


def _phi(axes: dict[str, int | None] | dict[str, int]) -> str:
    return map_text(dict(axes)).replace("phi", "φ")


def _scalars(graph: Graph, n: Node) -> list[str]:
    """The scalar constants among a node's operands, as text: they are written into its box."""
    found = [(k, _scalar(graph.nodes[r.node])) for k, r in enumerate(n.operands)]
    return [f"operand {k + 1}: {value}" for k, value in found if value]


def _scalar(n: Node) -> str:
    """The value of a scalar constant as text; empty for any other node."""
    if n.op not in ("constant", "size"):
        return ""
    return attr_text("dim" if n.op == "size" else "number", n.attrs[0][1])


def _shown(graph: Graph) -> list[int]:
    return [i for i, n in enumerate(graph.nodes) if n.op not in ("constant", "size")]


def _edges(graph: Graph) -> list[tuple[int, int, int]]:
    """(source, its output, target) of every edge that is drawn, once."""
    shown = set(_shown(graph))
    return list(
        dict.fromkeys(
            (r.node, r.out, i) for i in _shown(graph) for r in graph.nodes[i].operands if r.node in shown
        )
    )


def _generations(graph: Graph, nodes: Sequence[int]) -> list[list[int]]:
    """The nodes in rows, each after those that it uses."""
    dag: nx.DiGraph[int] = nx.DiGraph()
    dag.add_nodes_from(nodes)
    dag.add_edges_from((a, b) for a, _, b in _edges(graph) if a in dag and b in dag)
    return [sorted(g) for g in nx.topological_generations(dag)]


# Block and thread graphs: from top to bottom.


def _rows(graph: Graph) -> tuple[list[list[int]], int]:
    """Rows of a block or thread graph, and how many of them belong to the loop."""
    shown = _shown(graph)
    inputs = [i for i in shown if graph.nodes[i].op == "input"]
    accumulators = [i for i in shown if graph.nodes[i].op == "accumulator"]
    after = [i for i in shown if i in graph.after_loop and i not in accumulators]
    inside = [i for i in shown if i not in graph.after_loop and i not in inputs]
    loop = [r for r in (inputs, *_generations(graph, inside), accumulators) if r]
    return [*loop, *_generations(graph, after)], len(loop) if graph.loop else 0


def _frame(graph: Graph, title: str, names: Sequence[str], outputs: Sequence[Picture]) -> Picture:
    """A block or thread graph as a frame, given its operands' names and the boxes of its results."""
    pictures: dict[Box, Picture] = {i: _node(graph, i, names) for i in _shown(graph)}
    ends: list[Box] = [("out", k) for k in range(len(outputs))]
    pictures.update(zip(ends, outputs, strict=True))
    found, looped = _rows(graph)
    rows: list[list[Box]] = [*(list[Box](r) for r in found), ends]
    edges: list[tuple[Box, Box]] = [(a, b) for a, _, b in _edges(graph)]
    edges += [(r.node, end) for r, end in zip(graph.outputs, ends, strict=True) if r.node in pictures]
    edges = list(dict.fromkeys(edges))
    layout = layered(rows, {b: p.width for b, p in pictures.items()}, edges)

    caption = f"grid {' · '.join(graph.grid) or '1'}" + (
        f",  loop {' · '.join(graph.loop)}" if graph.loop else ""
    )
    head = 46.0
    inner = max(layout.breadth, text_width(caption, SMALL), text_width(title, TEXT + 1))
    shift = PAD * 2 + (inner - layout.breadth) / 2
    top: list[float] = []
    bottom: list[float] = []
    y = head + (20 if looped else 0)
    for k, row in enumerate(rows):
        top.append(y)
        bottom.append(y + max((pictures[b].height for b in row), default=0))
        y = bottom[-1] + (44 if looped and k == looped - 1 else 26)
    width, height = inner + 4 * PAD, bottom[-1] + PAD
    kind = "block" if graph.level is Level.BLOCK else "thread"
    parts = [
        rect(kind, 0, 0, width, height, 10),
        label(title, PAD, 19, TEXT + 1, bold=True),
        label(caption, PAD, 34, SMALL + 0.5, color=MUTED),
    ]
    if looped:
        parts.append(
            rect("band", PAD, head, width - 2 * PAD, bottom[looped - 1] + 8 - head, 7, dashed=True)
        )
        parts.append(
            label(f"for {', '.join(graph.loop)}", PAD + 7, head + 13, SMALL, bold=True, color=MUTED)
        )
    row_of = {b: k for k, row in enumerate(rows) for b in row}
    comes_from = {(a, b): (layout.lanes[a, b] or (layout.center[a],))[-1] for a, b in edges}
    into = {b: sorted((e for e in edges if e[1] == b), key=comes_from.__getitem__) for b in pictures}
    for a, b in edges:
        x = layout.center[b] + _arrival(pictures[b], into[b].index((a, b)), len(into[b]))
        xs = [layout.center[a], *layout.lanes[a, b]]
        points = [(xs[0] + shift, top[row_of[a]] + pictures[a].height)]
        for k, at in enumerate(xs):
            if k:
                points.append((at + shift, top[row_of[a] + k]))
            points.append((at + shift, bottom[row_of[a] + k]))
        points.append((x + shift, top[row_of[b]]))
        parts.append(path(points, upright=True))
    for b, p in pictures.items():
        parts += p.at(layout.center[b] + shift - p.width / 2, top[row_of[b]])
    if looped:
        # over the edges that pass it
        halo = f'<g paint-order="stroke" stroke="{COLORS[kind][0]}" stroke-width="4">'
        text = label("after the loop", PAD + 7, bottom[looped - 1] + 22, SMALL, bold=True, color=MUTED)
        parts += [halo, text, "</g>"]
    return Picture(width, height, parts)


def _arrival(target: Picture, port: int, count: int) -> float:
    """Where, from the middle of its upper side, the edge to a port of a box ends."""
    return min(target.width, 160.0) * 0.8 * ((port + 1) / (count + 1) - 0.5)


def _node(graph: Graph, i: int, names: Sequence[str]) -> Picture:
    n = graph.nodes[i]
    shape = dims_text(n.dims[0], part_names(graph, i))
    if n.graph is not None:
        loads = [_scalar(graph.nodes[r.node]) or "load" for r in n.operands]
        return captioned(
            _frame(n.graph, "thread graph", loads, [box("output", "store", [_omap(n, 0)])]), shape
        )
    if n.op == "input":
        lines = [f"imap {_phi(graph.imap(i))}"] + ([f"fmap {_phi(graph.fmap(i))}"] if graph.loop else [])
        title = names[n.attr["index"]]
        return captioned(box("input", title, lines), shape) if n.axes() else box("input", title)
    lines = [f"fmap {_phi(graph.fmap(i))}"] if n.op == "accumulator" else _scalars(graph, n)
    kind = _kind(n)
    return captioned(box(kind, operator_text(n, graph.loop), lines), shape)


def _kind(n: Node) -> str:
    """The colour of an operator's box."""
    return "matmul" if n.op in PRODUCTS else n.op if n.op in COLORS else "operator"


def _omap(n: Node, k: int) -> str:
    assert n.graph is not None
    return f"omap {_phi(n.graph.omap(k, n.dims[k]))}"


# The kernel graph: from left to right.


def _kernel_graph(graph: MuGraph) -> Picture:
    g = graph.kernel
    shown = _shown(g)
    inputs = [i for i in shown if g.nodes[i].op == "input"]
    columns: list[list[Box]] = [
        list(c) for c in (inputs, *_generations(g, [i for i in shown if i not in inputs])) if c
    ]
    labels = {i: _value_labels(graph, i) for i in shown}
    pictures: dict[Box, Picture] = {i: _kernel_node(graph, i) for i in shown}
    ends: list[Box] = [("out", k) for k in range(len(g.outputs))]
    columns.append(ends)
    for k, end in enumerate(ends):
        pictures[end] = box(
            "output", f"output {k}" if len(ends) > 1 else "output", [dims_text(graph.outputs[k].dims)]
        )
    # one box per kernel, one edge per tensor that another kernel reads
    tensors: list[tuple[int, int, Box]] = [*_edges(g)]
    tensors += [(r.node, r.out, end) for r, end in zip(g.outputs, ends, strict=True) if r.node in pictures]
    edges = list(dict.fromkeys((a, b) for a, _, b in tensors))
    layout = layered(columns, {b: p.height for b, p in pictures.items()}, edges)

    def after(b: Box) -> float:
        """Breadth of the gap that holds the labels of a box's results."""
        return max((text_width(t, SMALL) for t in labels[b]), default=0) if isinstance(b, int) else 0

    left: list[float] = []
    right: list[float] = []
    x = 0.0
    for c in columns:
        left.append(x)
        right.append(x + max(pictures[b].width + after(b) + 8 for b in c))
        x = right[-1] + 46
    column_of = {b: k for k, c in enumerate(columns) for b in c}
    width = max(left[column_of[b]] + p.width for b, p in pictures.items())
    parts: list[str] = []
    drawn: set[tuple[int, int]] = set()
    for a, out, b in tensors:
        count = len(g.nodes[a].dims)
        offset = (out - (count - 1) / 2) * 26
        into = sorted({(layout.center[s], s, o) for s, o, t in tensors if t == b})
        port = next(k for k, (_, s, o) in enumerate(into) if (s, o) == (a, out))
        end_offset = (port - (len(into) - 1) / 2) * min(26.0, pictures[b].height / (len(into) + 1))
        ys = [layout.center[a] + offset, *layout.lanes[a, b]]
        start = left[column_of[a]] + pictures[a].width
        points = [(start, ys[0])]
        for k, y in enumerate(ys):
            if k:
                points.append((left[column_of[a] + k], y))
            points.append((right[column_of[a] + k], y))
        points.append((left[column_of[b]], layout.center[b] + end_offset))
        parts.append(path(points, upright=False))
        if (a, out) not in drawn:
            drawn.add((a, out))
            parts.append(label(labels[a][out], start + 6, ys[0] - 5, SMALL, color=MUTED))
    for b, p in pictures.items():
        parts += p.at(left[column_of[b]], layout.center[b] - p.height / 2)
    return Picture(width, layout.breadth, parts)


def _value_labels(graph: MuGraph, i: int) -> list[str]:
    """The text beside each result of a kernel-level node: its name, where it has several, and its shape."""
    n = graph.kernel.nodes[i]
    shapes = [dims_text(d) for d in n.dims]
    return shapes if n.op != "graph" else [f"{_value_name(graph, i, k)} {s}" for k, s in enumerate(shapes)]


def _value_name(graph: MuGraph, i: int, out: int) -> str:
    n = graph.kernel.nodes[i]
    if n.op == "input":
        k: int = n.attr["index"]
        return graph.inputs[k].name
    return f"v{i}.{out}" if len(n.dims) > 1 else f"v{i}"


def _kernel_node(graph: MuGraph, i: int) -> Picture:
    n = graph.kernel.nodes[i]
    if n.op == "input":
        return box("input", input_text(graph, n.attr["index"]))
    if n.graph is None:
        return box(_kind(n), operator_text(n), _scalars(graph.kernel, n))
    names = [_value_name(graph, r.node, r.out) for r in n.operands]
    outputs = [box("output", _value_name(graph, i, k), [_omap(n, k)]) for k in range(len(n.dims))]
    kernels = [k for k, m in enumerate(graph.kernel.nodes) if m.op == "graph"]
    return _frame(n.graph, f"kernel {kernels.index(i) + 1}", names, outputs)
