"""MuGraphs as text, in Python's syntax, which `mirage.mugraph.parse` reads.

    def flash(q: float32[b, h*d8, s, d64], ..., *, b=b, h=h, d8=8, ...) -> [b, h*d8, s, d64_2]:
        with kernel(q, k, v, grid=[b, h, s]) as v3:
            for t in loop:
                w0: [b.tile, h.tile*d8, s.tile, d64] = load(q, imap={b: 0, h: 1, s: 2}, fmap={t: phi})
                ...
            w11: [b.tile, h.tile, d8, s.tile, d64_2] = div(w10, w8)
            store(w11, to=[b, h*d8, s, d64_2], omap={b: 0, h: 1, s: 2})
        return v3

The parameters are the inputs, and behind `*` the axes with their sizes; an input `y: x[b, n]` reads the argument of x again, and
`y: x.pad(...).windows(...)[b, n]` what is made of it by moving its elements; `w: int8.cast(dtype='float32')[k, n]` is stored in
8 bits, and widened where it is read. A shape is a list of products of axes. `a.tile` is the part of axis a that a block sees in
one iteration, `a.block` the part of a split axis that it sees in all of them, `a.thread` the part that a thread sees, and
`a.grid` numbers partial results. A map gives the position of the dim that a grid or loop axis partitions; phi means that it
partitions none (Mirage, section 2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword

from mirage.ir.axes import AxisDims, AxisProgram
from mirage.ir.dims import dim_text
from mirage.ir.moves import moves_text
from mirage.ir.operator import Level
from mirage.ir.text import attribute_texts
from mirage.mugraph.graph import Graph, MuGraph, Node, Role

_PART = {Level.BLOCK: "tile", Level.THREAD: "thread"}
_VERBS = {"input": "load", "accumulator": "accumulate", "graph": "graph"}
_NAMES = {Level.KERNEL: "v", Level.BLOCK: "w", Level.THREAD: "r"}
INDENT = "    "


def print_mugraph(graph: MuGraph) -> str:
    """The muGraph as text: per kernel its grid, loop, maps and operators, with shapes in parts of axes."""
    names = [plain(x.name) for x in graph.inputs]
    head = f"def {plain(graph.name)}{interface_text(graph)}:"
    return "\n".join([head, *_Printer(graph.kernel, names, INDENT).lines()]) + "\n"


def interface_text(graph: MuGraph | AxisProgram) -> str:
    """The inputs, axes and results of a muGraph, or of a program that one may be for, as the head of its text has them."""
    first: dict[str, str] = {}
    parameters: list[str] = []
    for x in graph.inputs:
        own = f"{x.dtype}.cast(dtype={graph.dtype!r})" if x.dtype else graph.dtype
        kind = first.get(x.argument, own) + moves_text(x.moved)
        first.setdefault(x.argument, plain(x.name))
        parameters.append(f"{plain(x.name)}: {kind}[{dims_text(x.dims)[1:-1] or '()'}]")
    axes = [f"{a}={dim_text(d)}" for a, d in graph.axes.items()]
    results = ", ".join(dims_text(o.dims) for o in graph.outputs)
    if len(graph.outputs) != 1:
        results = f"({results})"
    return f"({', '.join([*parameters, *(['*'] if axes else []), *axes])}) -> {results}"


def input_text(graph: MuGraph, k: int) -> str:
    """The name of input k, with that of the first input if it reads that one's argument again: `x_2 (= x)`."""
    x = graph.inputs[k]
    first = next(other for other in graph.inputs if other.argument == x.argument)
    return x.name if first is x else f"{x.name} (= {first.name}{moves_text(x.moved)})"


def dims_text(dims: AxisDims, parts: Mapping[str, str] | None = None) -> str:
    """Dims in brackets; `parts` renames the axes of which only a part is seen."""
    return axes_text("*".join((parts or {}).get(a, a) for a in d) or "1" for d in dims)


def part_names(graph: Graph, node: int) -> dict[str, str]:
    """Axis -> its name in the shape of a node: `a.tile` or `a.block` where the node sees only a part of a."""
    part = _PART.get(graph.level)
    after = node in graph.after_loop
    whole = {Role.WHOLE, Role.LOOP} if after else {Role.WHOLE}
    return {a: f"{a}.{'block' if after and r is Role.SPLIT else part}" for a, r in graph.roles if r not in whole}


def map_text(axes: Mapping[str, int | None]) -> str:
    """A map as `{b: 0, t: phi}`."""
    return "{" + ", ".join(f"{a}: {'phi' if i is None else i}" for a, i in axes.items()) + "}"


def operator_text(node: Node, loop: Sequence[str] = ()) -> str:
    """The operator, its attributes and the axes that it combines: `sum over t`, `maximum(value=0)`.

    `loop` are the loop axes of its graph.
    """
    attrs = "" if node.op in _VERBS else ", ".join(attribute_texts(node.op, node.attrs))
    name = _VERBS.get(node.op, node.op) + (f"({attrs})" if attrs else "")
    return " ".join(x for x in (name, _over(node, loop)) if x)


def _over(node: Node, loop: Sequence[str]) -> str:
    """The axes that an operator reduces, joins or accumulates over, in a graph with these loop axes."""
    if node.joined is not None:
        return f"along {' + '.join(node.joined[1])} = {node.joined[0]}"
    if node.op == "accumulator":
        axis = node.attr["axis"]
        return f"along {axis}" if node.attr["mode"] == "concat" else f"over {', '.join(loop or [axis])}"
    return f"over {', '.join(node.reduce)}" if node.reduce else ""


def plain(name: str) -> str:
    """A user's name without characters that could end a comment, a line or a name."""
    found = re.sub(r"\W", "_", name)
    return f"_{found}" if iskeyword(found) or not found.isidentifier() else found


def axes_text(axes: Iterable[str]) -> str:
    """Axes as a list."""
    return f"[{', '.join(axes)}]"


class _Printer:
    """Prints one graph; `operands` are the names of its inputs in the surrounding graph."""

    def __init__(self, graph: Graph, operands: Sequence[str], indent: str) -> None:
        self.graph = graph
        self.operands = operands
        self.indent = indent
        letter = _NAMES[graph.level]
        while graph.level is Level.KERNEL and any(re.fullmatch(rf"{letter}\d+(_\d+)?", x) for x in operands):
            letter += "v"  # no value is named as an input is
        self.names = [f"{letter}{i}" for i in range(len(graph.nodes))]
        if graph.level is Level.KERNEL:
            for i, n in enumerate(graph.nodes):
                if n.op == "input":
                    self.names[i] = operands[n.attr["index"]]

    def name(self, node: int, out: int) -> str:
        return f"{self.names[node]}_{out}" if len(self.graph.nodes[node].dims) > 1 else self.names[node]

    def lines(self) -> list[str]:
        before = [
            i for i in range(len(self.graph.nodes)) if i not in self.graph.after_loop or self.accumulates(i)
        ]
        after = [i for i in range(len(self.graph.nodes)) if i not in before]
        if not self.graph.loop:
            lines = self.nodes(before + after, self.indent)
        else:
            lines = [
                f"{self.indent}for {', '.join(self.graph.loop)} in loop:",
                *self.nodes(before, self.indent + INDENT),
                *self.nodes(after, self.indent),
            ]
        if self.graph.level is Level.KERNEL:
            lines.append(
                f"{self.indent}return {', '.join(self.name(r.node, r.out) for r in self.graph.outputs)}"
            )
        return lines

    def accumulates(self, i: int) -> bool:
        return self.graph.nodes[i].op == "accumulator"

    def nodes(self, indices: Sequence[int], indent: str) -> list[str]:
        lines: list[str] = []
        for i in indices:
            n = self.graph.nodes[i]
            if n.graph is not None:
                lines += self.nested(i, n.graph, indent)
            elif not (n.op == "input" and self.graph.level is Level.KERNEL):
                lines.append(indent + self.line(i, n))
        return lines

    def line(self, i: int, n: Node) -> str:
        shape = dims_text(n.dims[0], part_names(self.graph, i))
        args = [self.name(r.node, r.out) for r in n.operands]
        if n.op == "input":
            args = [self.operands[n.attr["index"]], f"imap={map_text(self.graph.imap(i))}"]
        elif n.op != "accumulator":
            args += attribute_texts(n.op, n.attrs)
        args += self.over(n)
        if n.op in ("input", "accumulator") and self.graph.loop:
            args.append(f"fmap={map_text(self.graph.fmap(i))}")
        return f"{self.names[i]}: {shape} = {_VERBS.get(n.op, n.op)}({', '.join(args)})"

    def over(self, n: Node) -> list[str]:
        """The axes that an operator reduces, joins or accumulates over, as arguments."""
        if n.joined is not None:
            return [f"along={axes_text(n.joined[1])}", f"into={n.joined[0]}"]
        if n.op == "accumulator":
            along = n.attr["mode"] == "concat"
            return [f"along={n.attr['axis']}" if along else f"over={axes_text(self.graph.loop)}"]
        return [f"over={axes_text(n.reduce)}"] if n.reduce else []

    def nested(self, i: int, graph: Graph, indent: str) -> list[str]:
        n = self.graph.nodes[i]
        args = [self.name(r.node, r.out) for r in n.operands]
        kind = "kernel" if graph.level is Level.BLOCK else "threads"
        names = ", ".join(self.name(i, k) for k in range(len(n.dims)))
        names = names if len(n.dims) == 1 else f"({names})"
        lines = [f"{indent}with {kind}({', '.join([*args, f'grid={axes_text(graph.grid)}'])}) as {names}:"]
        inner = _Printer(graph, args, indent + INDENT)
        lines += inner.lines()
        own = part_names(self.graph, i)
        for k, (ref, dims) in enumerate(zip(graph.outputs, n.dims, strict=True)):
            shape, where = dims_text(dims, own), map_text(graph.omap(k, dims))
            lines.append(f"{indent}{INDENT}store({inner.name(ref.node, ref.out)}, to={shape}, omap={where})")
        return lines
