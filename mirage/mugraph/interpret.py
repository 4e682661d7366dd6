"""The meaning of a muGraph: grid, loop and maps executed literally, over any arithmetic.

Sizes need not be multiples of the tiles: the last block and the last iteration see what is left.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import reduce as fold
from typing import Any, Generic, TypeVar

import numpy as np

from mirage.errors import GraphError
from mirage.ir.arithmetic import Arithmetic
from mirage.ir.axes import AxisDims
from mirage.ir.operator import FOLDS, PRODUCTS, Elementwise, Level, get_operator, reduced_axes
from mirage.mugraph.graph import Graph, MuGraph, Node, Role, partial_axis
from mirage.mugraph.schedule import KernelSchedule, Schedule

A = TypeVar("A")


class Named(Generic[A]):
    """An array whose dims are named axes (behind the arithmetic's lead)."""

    __slots__ = ("axes", "data")

    def __init__(self, axes: tuple[str, ...], data: A) -> None:
        self.axes = axes
        self.data = data


class NamedOps(Generic[A]):
    """Operators over named arrays in one arithmetic, with the arithmetic's weights of the axes, or those of a tile."""

    def __init__(self, ar: Arithmetic[A], weights: Mapping[str, Named[A]] | None = None) -> None:
        self.ar = ar
        self.weights = {a: Named((a,), w) for a, w in ar.weights.items()} if weights is None else weights

    def within(self, bounds: Mapping[str, tuple[int, int]]) -> NamedOps[A]:
        """The same over a tile, whose elements are numbered from 0."""
        return NamedOps(self.ar, {a: self.take(w, bounds) for a, w in self.weights.items()})

    def align(self, x: Named[A], axes: Sequence[str]) -> A:
        """The array with exactly these axes in this order; absent ones have size 1."""
        lead = self.ar.lead
        if x.axes == axes:
            return x.data
        if not x.axes:
            return self.ar.lift(x.data, 0, len(axes))
        present = [a for a in axes if a in x.axes]
        perm = (*range(lead), *(lead + x.axes.index(a) for a in present))

        def move(a: np.ndarray) -> np.ndarray:
            t = a.transpose(perm)
            it = iter(t.shape[lead:])
            return t.reshape(t.shape[:lead] + tuple(next(it) if n in x.axes else 1 for n in axes))

        return self.ar.apply(move, x.data)

    def take(self, x: Named[A], bounds: Mapping[str, tuple[int, int]]) -> Named[A]:
        """The slice start:stop along each named axis."""
        if not any(a in bounds for a in x.axes):
            return x
        index = (slice(None),) * self.ar.lead + tuple(slice(*bounds[a]) if a in bounds else slice(None) for a in x.axes)
        return Named(x.axes, self.ar.apply(lambda a: a[index], x.data))

    def compute(
        self, node: Node, args: Sequence[Named[A]], bounds: Mapping[str, tuple[int, int]] | None = None
    ) -> Named[A]:
        """One registered operator, over the tile within these bounds."""
        axes = node.axes()
        if node.op in PRODUCTS:
            groups = reduced_axes(node.op, [x.axes for x in args], node.reduce)
            products = []
            for (i, j), group in zip(PRODUCTS[node.op], groups, strict=True):
                x, y = self.weighted([args[i], args[j]], group, bounds or {})
                products.append(self.product(x, y, axes))
            return fold(self.add, products)
        if node.op in FOLDS:
            (x,) = args
            along = tuple(x.axes.index(a) - len(x.axes) for a in node.reduce)

            def weighted(data: A) -> A:
                return self.weighted([Named(x.axes, data)], node.reduce, bounds or {})[0].data

            found = self.ar.sum(weighted(x.data), along) if node.op == "sum" else self.ar.max(x.data, along, weighted)
            return Named(axes, self.align(Named(tuple(a for a in x.axes if a not in node.reduce), found), axes))
        if node.op == "concat":
            assert node.joined is not None
            joined, parts = node.joined
            pos = axes.index(joined) - len(axes)
            others = [a for a in axes if a != joined]
            shapes = [dict(zip(x.axes, self.ar.shape(x.data), strict=True)) for x in args]
            full = {a: max(s.get(a, 1) for s in shapes) for a in others}
            blocks = []
            for x, part, s in zip(args, parts, shapes, strict=True):
                want = tuple(s[part] if a == joined else full[a] for a in axes)
                aligned = self.align(x, [part if a == joined else a for a in axes])
                blocks.append(
                    self.ar.apply(lambda a, want=want: np.broadcast_to(a, a.shape[: self.ar.lead] + want), aligned)
                )
            return Named(axes, self.ar.apply(lambda *xs: np.concatenate(xs, axis=pos), *blocks))
        op = get_operator(node.op)
        if not isinstance(op, Elementwise):
            raise GraphError(f"{node.op}: not an operator of a muGraph; expand the program first")
        return Named(axes, op.apply(self.ar, [self.align(x, axes) for x in args], node.attr))

    def weighted(
        self, factors: Sequence[Named[A]], reduce: Sequence[str], bounds: Mapping[str, tuple[int, int]]
    ) -> list[Named[A]]:
        """Factors of what is summed over axes, one of them multiplied by the weights of each axis."""
        found = list(factors)
        for a in reduce:
            if a in self.weights:
                w = self.take(self.weights[a], bounds)
                k = min((k for k, x in enumerate(found) if a in x.axes), key=lambda k: len(found[k].axes))
                found[k] = Named(found[k].axes, self.ar.mul(found[k].data, self.align(w, found[k].axes)))
        return found

    def product(self, x: Named[A], y: Named[A], axes: tuple[str, ...]) -> Named[A]:
        """x * y summed over the axes that are not among `axes`."""
        lab = {a: i for i, a in enumerate(sorted(set(x.axes) | set(y.axes)))}
        ls = [[lab[a] for a in axes_] for axes_ in (x.axes, y.axes, axes)]
        return Named(axes, self.ar.einsum(x.data, y.data, *ls))

    def add(self, x: Named[A], y: Named[A]) -> Named[A]:
        return Named(x.axes, self.ar.add(x.data, self.align(y, x.axes)))

    def write(self, target: Named[A], value: Named[A], bounds: Mapping[str, tuple[int, int]]) -> None:
        """Store a block's output into its part of the kernel-level tensor."""
        index = (slice(None),) * self.ar.lead + tuple(
            slice(*bounds[a]) if a in bounds else slice(None) for a in target.axes
        )

        def put(t: np.ndarray, v: np.ndarray) -> np.ndarray:
            t[index] = v
            return t

        self.ar.apply(put, target.data, self.align(value, target.axes))


def run_graph(
    graph: Graph,
    inputs: Sequence[Named[A]],
    outputs: Sequence[AxisDims],
    sizes: Mapping[str, int],
    schedule: KernelSchedule,
    ops: NamedOps[A],
) -> list[Named[A]]:
    """Run a block (or thread) graph for every point of its grid and every iteration of its loop."""
    ar = ops.ar
    results: list[Named[A]] = []
    for dims in outputs:
        axes = tuple(a for d in dims for a in d)
        results.append(Named(axes, ar.zeros([sizes[a] for a in axes])))
    grid = [range(schedule.bounds(graph, a, sizes[a])[0]) for a in graph.grid]
    for cell in itertools.product(*grid):
        at = dict(zip(graph.grid, cell, strict=True))
        block: dict[str, tuple[int, int]] = {}
        for a, role in graph.roles:
            per = schedule.bounds(graph, a, sizes[a])[1] if role is not Role.WHOLE else sizes[a]
            start = min(at.get(a, 0) * per, sizes[a])
            block[a] = (start, min(start + per, sizes[a]))
        values = _run_block(graph, inputs, block, sizes, schedule, ops)
        where = {partial_axis(a): (g, g + 1) for a, g in at.items()}
        for out, ref in zip(results, graph.outputs, strict=True):
            bounds = {a: b for a, b in {**block, **where}.items() if a in out.axes}
            ops.write(out, values[ref.node], bounds)
    return results


def _run_block(
    graph: Graph,
    inputs: Sequence[Named[A]],
    block: Mapping[str, tuple[int, int]],
    sizes: Mapping[str, int],
    schedule: KernelSchedule,
    ops: NamedOps[A],
) -> dict[int, Named[A]]:
    steps = []
    for a in graph.loop:
        start, stop = block[a]
        tile = schedule.tile[a]
        # an empty range still runs once, on empty tiles, so that accumulators exist
        steps.append([(s, min(s + tile, stop)) for s in range(start, stop, tile)] or [(start, start)])
    # per accumulator, its pieces by their range of the axis along which they are put side by side, if there is one
    pieces: dict[int, dict[tuple[int, int] | None, Named[A]]] = {
        i: {} for i, n in enumerate(graph.nodes) if n.op == "accumulator"
    }
    values: dict[int, Named[A]] = {}
    for step in itertools.product(*steps):
        here = {**block, **dict(zip(graph.loop, step, strict=True))}
        values = {}
        local = {a: stop - start for a, (start, stop) in here.items()}
        for i, n in enumerate(graph.nodes):
            if n.op == "accumulator":
                x, own = values[n.operands[0].node], pieces[i]
                at = here[n.attr["axis"]] if n.attr["mode"] == "concat" else None
                own[at] = ops.add(own[at], x) if at in own else Named(n.axes(), ops.align(x, n.axes()))
            elif i not in graph.after_loop:
                values[i] = _run_node(n, values, inputs, here, local, sizes, schedule, ops)
    for i, own in pieces.items():
        n, (first, *rest) = graph.nodes[i], own.values()
        values[i] = first
        if rest:
            pos = n.axes().index(n.attr["axis"]) - len(n.axes())
            parts = [x.data for x in own.values()]
            values[i] = Named(n.axes(), ops.ar.apply(lambda *a, pos=pos: np.concatenate(a, axis=pos), *parts))
    local = {a: stop - start for a, (start, stop) in block.items()}
    for i, n in enumerate(graph.nodes):
        if i not in values:
            values[i] = _run_node(n, values, inputs, block, local, sizes, schedule, ops)
    return values


def _run_node(
    n: Node,
    values: Mapping[int, Named[A]],
    inputs: Sequence[Named[A]],
    bounds: Mapping[str, tuple[int, int]],
    local: Mapping[str, int],
    sizes: Mapping[str, int],
    schedule: KernelSchedule,
    ops: NamedOps[A],
) -> Named[A]:
    if n.op == "input":
        x = inputs[n.attr["index"]]
        return Named(n.axes(), ops.align(ops.take(x, bounds), n.axes()))
    args = [values[r.node] for r in n.operands]
    if n.op != "graph":
        return ops.compute(n, args, bounds)
    assert n.graph is not None
    # a thread graph: the block's tile is its whole tensor; lanes run along the last parallel axis
    lanes = n.graph.grid[-1:]
    tiles = tuple((a, schedule.lanes if a in lanes else max(local[a], 1)) for a, _ in n.graph.roles)
    own = KernelSchedule(tiles, (), schedule.lanes)
    return run_graph(n.graph, args, n.dims, {**sizes, **local}, own, ops.within(bounds))[0]


def to_named(x: A, dims: AxisDims, sizes: Mapping[str, int], ar: Arithmetic[A]) -> Named[A]:
    """A program-level array (dims may be products of axes) as one with a dim per axis."""
    axes = tuple(a for d in dims for a in d)
    shape = tuple(sizes[a] for a in axes)
    return Named(axes, ar.apply(lambda a: a.reshape(a.shape[: ar.lead] + shape), x))


def from_named(x: Named[A], dims: AxisDims, sizes: Mapping[str, int], ops: NamedOps[A]) -> A:
    """The program-level array under these dims; axes that the value lacks are broadcast."""
    axes = tuple(a for d in dims for a in d)
    lead = ops.ar.lead
    full = tuple(sizes[a] for a in axes)
    shape = tuple(int(np.prod([sizes[a] for a in d], dtype=np.int64)) for d in dims)

    def pack(a: np.ndarray) -> np.ndarray:
        return np.broadcast_to(a, a.shape[:lead] + full).reshape(a.shape[:lead] + shape)

    return ops.ar.apply(pack, ops.align(x, axes))


def run_mugraph(graph: MuGraph, schedule: Schedule, inputs: Sequence[A], ar: Arithmetic[A]) -> list[A]:
    """The outputs of a muGraph for program-level arrays, one per input, of the shapes that `ar.sizes` binds."""
    schedule.check(graph)
    sizes = schedule.axis_sizes(graph, ar.sizes)
    ops = NamedOps(ar)
    values: dict[tuple[int, int], Named[A]] = {}
    kernels = iter(schedule.kernels)
    for i, n in enumerate(graph.kernel.nodes):
        if n.op == "input":
            k: int = n.attr["index"]
            values[i, 0] = to_named(inputs[k], graph.inputs[k].dims, sizes, ar)
            continue
        args = [values[r.node, r.out] for r in n.operands]
        if n.op == "graph":
            assert n.graph is not None and n.graph.level is Level.BLOCK
            for k, v in enumerate(run_graph(n.graph, args, n.dims, sizes, next(kernels), ops)):
                values[i, k] = v
        else:
            values[i, 0] = ops.compute(n, args)
    results: list[Any] = []
    for out, ref in zip(graph.outputs, graph.kernel.outputs, strict=True):
        results.append(from_named(values[ref.node, ref.out], out.dims, sizes, ops))
    return results
