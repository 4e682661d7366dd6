"""MuGraphs and schedules carried over to another program of the same structure.

The results store keeps what was found for the canonical form of a program (`mirage.ir.canonical`); this maps
it to the names of the program at hand and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage.errors import GraphError
from mirage.ir.axes import AxisDims, AxisProgram
from mirage.ir.canonical import Renaming
from mirage.ir.moves import map_moves
from mirage.ir.operator import Level
from mirage.mugraph.graph import Graph, MuGraph, Node
from mirage.mugraph.schedule import KernelSchedule, Schedule

_PARTIAL = ".grid"


def rename_mugraph(graph: MuGraph, renaming: Renaming, program: AxisProgram) -> MuGraph:
    """The muGraph for `program`, whose axes, symbols and inputs `renaming` maps the graph's to.

    Raises GraphError where the graph's sizes, inputs or outputs are not those of `program` under the
    renaming.
    """
    axes = {renaming.axes[a]: renaming.dim(d) for a, d in graph.axes.items()}
    inputs = {
        renaming.inputs[k]: (_dims(x.dims, renaming.axes), map_moves(x.moved, renaming.dim), x.dtype)
        for k, x in enumerate(graph.inputs)
    }
    outputs = [_dims(o.dims, renaming.axes) for o in graph.outputs]
    if (
        axes != dict(program.axes)
        or inputs != {k: (x.dims, x.moved, x.dtype) for k, x in enumerate(program.inputs)}
        or not _same_arguments(graph, renaming, program)
        or outputs != [o.dims for o in program.outputs]
    ):
        raise GraphError(
            f"muGraph {graph.name}: its axes, inputs or outputs are not those of program {program.name}"
        )
    kernel = _graph(graph.kernel, renaming)
    return replace(
        graph,
        name=program.name,
        axes=program.axes,
        inputs=program.inputs,
        kernel=kernel,
        outputs=program.outputs,
        dtype=program.dtype,
    )


def _same_arguments(graph: MuGraph, renaming: Renaming, program: AxisProgram) -> bool:
    """Whether the same inputs read one argument."""
    pairs = {(x.argument, program.inputs[renaming.inputs[k]].argument) for k, x in enumerate(graph.inputs)}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def rename_schedule(schedule: Schedule, axes: Mapping[str, str]) -> Schedule:
    """The schedule with its axes renamed."""
    return Schedule(
        tuple(
            KernelSchedule(
                tuple((rename_axis(a, axes), n) for a, n in k.tiles),
                tuple((rename_axis(a, axes), n) for a, n in k.splits),
                k.lanes,
                tuple((operand, axes[a]) for operand, a in k.packed),
                k.padded,
                tuple((output, axes[a]) for output, a in k.last),
                tuple(replace(x, last=None if x.last is None else rename_axis(x.last, axes)) for x in k.layouts),
                tuple((i, rename_axis(a, axes)) for i, a in k.vectors),
                None if k.halved is None else (axes[k.halved[0]], axes[k.halved[1]]),
            )
            for k in schedule.kernels
        )
    )


def rename_axis(axis: str, axes: Mapping[str, str]) -> str:
    """A renamed axis; a partial axis follows the axis that it is a part of."""
    return rename_axis(axis.removesuffix(_PARTIAL), axes) + _PARTIAL if axis.endswith(_PARTIAL) else axes[axis]


def _dims(dims: AxisDims, axes: Mapping[str, str]) -> AxisDims:
    return tuple(_names(d, axes) for d in dims)


def _names(names: tuple[str, ...], axes: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(rename_axis(a, axes) for a in names)


def _graph(graph: Graph, r: Renaming) -> Graph:
    return Graph(
        graph.level,
        tuple(_node(n, graph.level, r) for n in graph.nodes),
        graph.outputs,
        tuple((rename_axis(a, r.axes), role) for a, role in graph.roles),
    )


def _node(n: Node, level: Level, r: Renaming) -> Node:
    attrs = n.attrs
    if n.op == "input" and level is Level.KERNEL:
        attrs = (("index", r.inputs[n.attr["index"]]),)
    elif n.op == "accumulator":
        attrs = tuple((k, rename_axis(v, r.axes) if k == "axis" else v) for k, v in attrs)
    elif n.op == "size":
        attrs = (("dim", r.dim(n.attr["dim"])),)
    return Node(
        n.op,
        n.operands,
        tuple(_dims(d, r.axes) for d in n.dims),
        attrs,
        _names(n.reduce, r.axes),
        None if n.joined is None else (rename_axis(n.joined[0], r.axes), _names(n.joined[1], r.axes)),
        None if n.graph is None else _graph(n.graph, r),
    )
