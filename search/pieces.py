"""Pieces of a program as programs of their own, and their kernel graphs joined to one of the whole program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from mirage.ir.axes import AxisDims, AxisInput, AxisNode, AxisOutput, AxisProgram
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, MuGraph, Node, Ref
from mirage.search.assemble import single_dims
from mirage.search.computed import SOURCES
from mirage.search.cuts import computed


@dataclass(frozen=True)
class Piece:
    """Some nodes of a program as a program over the same axes. `reads` are the whole program's nodes that its inputs are,
    `yields` those that its outputs are.
    """

    program: AxisProgram
    reads: tuple[int, ...]
    yields: tuple[int, ...]


def piece_of(program: AxisProgram, nodes: Sequence[int]) -> Piece:
    """The piece of these computed nodes, in order. It reads what they need of others, and has copies of the constants.

    Its results are those that outputs, or nodes outside that outputs need, read; a crossing value is stored with one dim per
    axis, or as the first output has it that has all of its axes.
    """
    own = set(nodes)
    operands = [j for i in nodes for j in program.nodes[i].operands if j not in own]
    reads = sorted(j for j in set(operands) if program.nodes[j].op not in ("constant", "size"))
    scalars = sorted(set(operands).difference(reads))
    wanted = {o.value for o in program.outputs}
    wanted |= {j for i in computed(program) if i not in own for j in program.nodes[i].operands}
    yields = tuple(i for i in nodes if i in wanted)
    inputs = _inputs(program, reads)
    order = [*reads, *scalars, *nodes]
    place = {i: k for k, i in enumerate(order)}
    read = [
        AxisNode("input", (), (("name", x.name),), program.nodes[i].axes) for x, i in zip(inputs, reads, strict=True)
    ]
    kept = [
        replace(program.nodes[i], operands=tuple(place[j] for j in program.nodes[i].operands))
        for i in order[len(read) :]
    ]
    used = {a for n in (*read, *kept) for a in (*n.axes, *n.reduce, *(n.joined[1] if n.joined else ()))}
    axes = {a: program.axes[a] for a in program.order(used | {a for x in inputs for a in x.axes})}
    outputs = tuple(AxisOutput(place[i], _stored(program, i)) for i in yields)
    whole = AxisProgram(program.name, axes, inputs, (*read, *kept), outputs, program.dtype)
    return Piece(whole, tuple(reads), yields)


def _inputs(program: AxisProgram, reads: Iterable[int]) -> tuple[AxisInput, ...]:
    """The inputs that a piece reads: the program's, and one for each value that crosses into it."""
    given = {x.name: x for x in program.inputs}
    taken = given.keys() | {x.argument for x in program.inputs}
    found = []
    for i in reads:
        n = program.nodes[i]
        if n.op == "input":
            x = given[n.attr["name"]]
            # to a piece, what moving elements makes of an argument is one of its own, as no input may read the argument as it is
            found.append(AxisInput(x.name, x.dims, dtype=x.dtype) if x.moved else x)
        else:
            name = f"v{i}"
            while name in taken:
                name += "_"
            found.append(AxisInput(name, _stored(program, i)))
    return tuple(found)


def _stored(program: AxisProgram, value: int) -> AxisDims:
    axes = program.nodes[value].axes
    own = (o.dims for o in program.outputs if o.value == value and {a for d in o.dims for a in d} == set(axes))
    return next(own, single_dims(axes))


def join(program: AxisProgram, parts: Iterable[tuple[Piece, MuGraph]]) -> MuGraph:
    """The muGraph of the whole program that runs the kernels of its pieces' graphs, which come in an order in which all that a
    piece reads exists.
    """
    nodes = [Node("input", (), (x.dims,), (("index", k),)) for k, x in enumerate(program.inputs)]
    places = {x.name: k for k, x in enumerate(program.inputs)}
    where = {i: Ref(places[n.attr["name"]]) for i, n in enumerate(program.nodes) if n.op == "input"}
    origins = []
    for piece, graph in parts:
        new: dict[Ref, Ref] = {}
        for i, n in enumerate(graph.kernel.nodes):
            if n.op == "input":
                new[Ref(i)] = where[piece.reads[n.attr["index"]]]
                continue
            nodes.append(replace(n, operands=tuple(new[r] for r in n.operands)))
            new.update((Ref(i, out), Ref(len(nodes) - 1, out)) for out in range(len(n.dims)))
        where.update((i, new[r]) for i, r in zip(piece.yields, graph.kernel.outputs, strict=True))
        origins.append(graph.origin)
    for value in dict.fromkeys(o.value for o in program.outputs):
        source = program.nodes[value]
        if source.op in SOURCES and value not in where:
            nodes.append(Node(source.op, (), ((),), source.attrs))
            where[value] = Ref(len(nodes) - 1)
    kernel = Graph(Level.KERNEL, tuple(nodes), tuple(where[o.value] for o in program.outputs))
    origin = " | ".join(origins)
    return MuGraph(program.name, dict(program.axes), program.inputs, kernel, program.outputs, program.dtype, origin)
