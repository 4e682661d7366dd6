"""Candidate schedules: tile and split sizes that suit caches and threads, ranked by a small cost model.
 The model only orders candidates; the best few are for a profiler to time (Mirage, section 6: tile sizes are
chosen after the search).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from mirage.ir.operator import PRODUCTS, Elementwise, get_operator, reduced_axes
from mirage.ir.types import DTYPES, compute_dtype
from mirage.kernels.cpu.emit import Emitter, bind_hints, hint_sizes
from mirage.kernels.cpu.emit import scratch_bytes as _scratch_bytes
from mirage.kernels.cpu.emit_matmul import efficiency
from mirage.kernels.cpu.emit_plan import VECTOR_BYTES
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import Graph, MuGraph, Node, Role
from mirage.mugraph.schedule import KernelSchedule, Schedule
from mirage.mugraph.thread import inline_threads, is_elementwise

# Machine model, per thread and cycle.
_CACHE_BYTES = 24.0
_MEMORY_BYTES = 6.0
_NODE_CYCLES = 60.0
_CELL_CYCLES = 300.0

#: tiles tried, by what an axis is to the kernel
_ROWS = (1, 8, 32, 128)
_CONTIGUOUS = (64, 256, 1024, 4096)
_LOOP = (32, 64, 128, 256, 512)
_NESTED_LOOP = (8, 16, *_LOOP)
_SPLITS = (1, 2, 4)


def scratch_bytes(mugraph: MuGraph, schedule: Schedule, sizes: Mapping[str, int]) -> list[int]:
    """Bytes of scratch of a cell of each kernel, at these sizes of the dim symbols, for 64-byte vectors."""
    emitter = Emitter(mugraph, schedule, analyze(mugraph), sizes)
    return [_scratch_bytes(emitter, k, sizes) for k in range(len(schedule.kernels))]


def schedules(
    mugraph: MuGraph, hints: Mapping[str, int], l2_bytes: int, threads: int, count: int = 6
) -> list[Schedule]:
    """At most `count` schedules for these typical sizes of the dim symbols, the most promising first.

    The scratch of a cell fits `l2_bytes`, where any candidate's does; the k-th schedule has the k-th best
    sizes of every kernel. Kernels that split one axis split it as the first of them does.
    """
    chosen: list[list[KernelSchedule]] = []
    graphs = [n.graph for n in mugraph.kernels if n.graph is not None]
    smallest = [_smallest(g) for g in graphs]
    split: set[str] = set()
    for k, graph in enumerate(graphs):
        own = {a for a, r in graph.roles if r is Role.SPLIT}

        def best(rank: int, number: int, k: int = k) -> list[KernelSchedule]:
            before = [_at(c, rank) for c in chosen]
            rest = _agreeing(smallest[k:], before)
            return _kernel_schedules(mugraph, k, [*before, *rest], hints, l2_bytes, threads, number)

        # how later kernels see partial results depends on the splits chosen before them
        chosen.append([best(i, 1)[0] for i in range(max(map(len, chosen)))] if own & split else best(0, count))
        split |= own
    found = [Schedule(tuple(_at(c, i) for c in chosen)) for i in range(max((len(c) for c in chosen), default=1))]
    found = list(dict.fromkeys(found))
    bound = bind_hints(mugraph, hints)
    fitting = [s for s in found if max(scratch_bytes(mugraph, s, bound), default=0) <= l2_bytes]
    return fitting or found


def _at(ranked: Sequence[KernelSchedule], rank: int) -> KernelSchedule:
    """The schedule of this rank, or the last one."""
    return ranked[min(rank, len(ranked) - 1)]


def _agreeing(kernels: Sequence[KernelSchedule], before: Sequence[KernelSchedule]) -> list[KernelSchedule]:
    """The schedules with the numbers of splits of those before them, where they split the same axes."""
    fixed = {a: n for s in before for a, n in s.splits}
    return [replace(s, splits=tuple((a, fixed.get(a, n)) for a, n in s.splits)) for s in kernels]


def default_schedule(mugraph: MuGraph, hints: Mapping[str, int], cache_bytes: int, threads: int = 2) -> Schedule:
    """The most promising schedule for these typical sizes of the dim symbols, with scratch that fits `cache_bytes`."""
    return schedules(mugraph, hints, cache_bytes, threads, 1)[0]


def _smallest(graph: Graph) -> KernelSchedule:
    tiles = tuple((a, 1) for a, r in graph.roles if r is not Role.WHOLE)
    return KernelSchedule(tiles, tuple((a, 1) for a, r in graph.roles if r is Role.SPLIT))


def _kernel_schedules(
    mugraph: MuGraph,
    k: int,
    kernels: Sequence[KernelSchedule],
    hints: Mapping[str, int],
    l2_bytes: int,
    threads: int,
    count: int,
) -> list[KernelSchedule]:
    sizes = hint_sizes(mugraph, Schedule(tuple(kernels)), hints)
    model = _Model(mugraph, k, sizes, threads, l2_bytes)
    candidates = _agreeing(list(model.candidates()), kernels[:k])
    ranked = sorted({s: model.cycles(s) for s in candidates}.items(), key=lambda item: item[1])
    bound = bind_hints(mugraph, hints)
    fitting: list[KernelSchedule] = []
    smallest: tuple[int, KernelSchedule] | None = None
    maximum = analyze(mugraph)
    for schedule, _ in ranked[: 4 * count + 8]:
        whole = Schedule((*kernels[:k], schedule, *_agreeing(kernels[k + 1 :], [schedule])))
        size = _scratch_bytes(Emitter(mugraph, whole, maximum, hints), k, bound)
        if size <= l2_bytes:
            fitting.append(schedule)
            if len(fitting) == count:
                break
        elif smallest is None or size < smallest[0]:
            smallest = size, schedule
    if fitting or smallest is None:
        return fitting
    return [smallest[1]]


@dataclass
class _Work:
    """A compute node: the axes that it iterates over, and its cost per element in cycles of one lane.

    It runs in `depth` of the loops, outermost first. Or one of the products of a node: the axes of its two `factors`,
    and those that it sums.
    """

    axes: frozenset[str]
    depth: int
    flops: float
    factors: tuple[frozenset[str], ...] = ()
    reduce: tuple[str, ...] = ()


class _Model:
    """Estimated cycles of a kernel."""

    def __init__(self, mugraph: MuGraph, k: int, sizes: Mapping[str, int], threads: int, l2_bytes: int) -> None:
        node = mugraph.kernels[k]
        assert node.graph is not None
        self.graph = inline_threads(node.graph)
        self.sizes = sizes
        self.threads = threads
        self.itemsize = DTYPES[mugraph.dtype].itemsize
        self.lanes = VECTOR_BYTES // compute_dtype(DTYPES[mugraph.dtype]).itemsize
        self.l2_bytes = l2_bytes
        g = self.graph
        self.work = _work(g)
        self.inputs = [frozenset(g.nodes[i].axes()) for i in g.inputs]
        outputs = [dims for dims in node.dims]
        self.outputs = [frozenset(a for d in dims for a in d) for dims in outputs]
        tensors = [g.nodes[i].dims[0] for i in g.inputs] + outputs
        self.contiguous = {[a for d in dims for a in d][-1] for dims in tensors if any(dims)}
        products = [w for w in self.work if w.factors]
        self.batch = {
            a
            for a in g.role
            if any(a in w.axes for w in products)
            and all(all(a in x for x in w.factors) for w in products if a in w.axes)
        }

    def candidates(self) -> Iterator[KernelSchedule]:
        """All combinations of one tile per kind of parallel axis and per looped axis; one axis is split over threads."""
        roles = self.graph.roles
        tried = _LOOP if len(self.graph.loop) < 2 else _NESTED_LOOP
        loop_tiles = [dict.fromkeys(min(t, max(self.sizes[a], 1)) for t in tried) for a in self.graph.loop]
        splits = [(a, n) for a, r in roles if r is Role.SPLIT for n in _SPLITS]
        for rows, wide, loop, (divided, per_thread) in itertools.product(
            _ROWS, _CONTIGUOUS, itertools.product(*loop_tiles), splits or [("", 1)]
        ):
            looped = dict(zip(self.graph.loop, loop, strict=True))
            tiles: list[tuple[str, int]] = []
            counts: list[tuple[str, int]] = []
            for a, r in roles:
                size = self.sizes[a]
                if r is Role.WHOLE:
                    continue
                if r is Role.PARALLEL:
                    tile = 1 if a in self.batch else wide if a in self.contiguous else rows
                else:
                    tile = looped[a]
                tile = max(1, min(tile, size))
                tiles.append((a, tile))
                if r is Role.SPLIT:
                    cells = per_thread * self.threads if a == divided else 1
                    counts.append((a, max(1, min(cells, -(-size // tile)))))
            yield KernelSchedule(tuple(tiles), tuple(counts), self.lanes)

    def cycles(self, s: KernelSchedule) -> float:
        """Estimated cycles until the last thread is done."""
        g = self.graph
        cells = prod(s.bounds(g, a, self.sizes[a])[0] for a in g.grid)
        block = {a: min(s.bounds(g, a, self.sizes[a])[1], self.sizes[a]) for a in g.role}
        inner = {a: min(s.tile[a], n) if a in g.loop else n for a, n in block.items()}
        iterations = [-(-block[a] // max(inner[a], 1)) for a in g.loop]
        compute = _CELL_CYCLES
        for w in self.work:
            extents = inner if w.depth else block
            compute += prod(iterations[: w.depth]) * (self._compute(w, extents) + _NODE_CYCLES)
        memory = 0.0
        for axes in [*self.inputs, *self.outputs]:
            total = self.itemsize * prod(self.sizes[a] for a in axes)
            part = self.itemsize * prod(block.get(a, 1) for a in axes)
            # what other cells read too is in a cache that they share
            first = min(part, total / cells) / _MEMORY_BYTES
            memory += first + max(part - total / cells, 0) / _CACHE_BYTES
        rounds = -(-cells // self.threads)
        # loads overlap with arithmetic, but not wholly
        return rounds * (max(compute, memory) + 0.25 * min(compute, memory))

    def _compute(self, w: _Work, extents: Mapping[str, int]) -> float:
        elements = prod(extents[a] for a in w.axes)
        if not w.factors:
            return w.flops * elements / self.lanes
        x, y = w.factors
        out = w.axes - set(w.reduce)
        m = max((extents[a] for a in (x - y) & out), default=1)
        n = max((extents[a] for a in (y - x) & out), default=1)
        k = max((extents[a] for a in w.reduce), default=1)
        best = max(efficiency(dot, *mn, k, self.lanes) for dot in (False, True) for mn in ((m, n), (n, m)))
        return elements / (2 * self.lanes * best) + _NODE_CYCLES * elements / (m * n * k)


def _work(graph: Graph) -> list[_Work]:
    """What the compute nodes do, accumulators apart: an entry each, or one per product."""
    found: list[_Work] = []
    for i in graph.compute_nodes():
        n, depth = graph.nodes[i], graph.depth[i]
        operands = [frozenset(graph.nodes[r.node].axes()) for r in n.operands]
        summed = reduced_axes(n.op, operands, n.reduce)
        if n.op in PRODUCTS:
            for (x, y), over in zip(PRODUCTS[n.op], summed, strict=True):
                space = frozenset((*n.axes(), *over))
                found.append(_Work(space, depth, 1.0, (operands[x], operands[y]), over))
        elif n.op != "accumulator":
            found.append(_Work(frozenset((*n.axes(), *n.reduce)), depth, _flops(n)))
    return found


def _flops(n: Node) -> float:
    if is_elementwise(n):
        op = get_operator(n.op)
        assert isinstance(op, Elementwise)
        return float(op.flops) + 1
    return 1.0
