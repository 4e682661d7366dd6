"""The cost model of schedules: what a kernel does, counted per resource, times what each count costs on this machine.

The estimate is linear in the counts (`FEATURES`), so that measured kernels fit its coefficients by least squares (see
`fit.py`). Counts follow from the tiles and the caches alone; all candidates of a kernel are counted at once, as arrays.
It orders candidates for a profiler (Mirage, section 6: layouts and sizes are chosen after the search, by profiling).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from mirage.ir.operator import FOLDS, PRODUCTS, Elementwise, get_operator, reduced_axes
from mirage.ir.types import DTYPES, compute_dtype
from mirage.kernels.cpu.emit.hidden import mask_axes
from mirage.kernels.cpu.emit.matmul import (
    BYTES_AT_ONCE,
    CALL,
    COPY,
    FEW_TERMS,
    STREAM_ELEMENTS,
    block_vectors,
    efficiency,
    stream_rows,
)
from mirage.kernels.cpu.emit.plan import VECTOR_BYTES
from mirage.mugraph.graph import Graph, MuGraph, Node, Role, partial_axis
from mirage.mugraph.schedule import KernelSchedule
from mirage.mugraph.symmetry import Pair
from mirage.mugraph.thread import inline_threads, stored, thread_groups

#: what is counted, each with the ns that one costs where nothing has been measured: fitted to 424 kernels of all programs that
#: are benchmarked (`benchmarks.kernels.model`). Counts are those of the busiest thread, but for launches
FEATURES: dict[str, float] = {
    "launch": 2300.0,  # a kernel is started
    "cell": 53.0,  # a grid cell
    "operator": 2.6,  # an operator of a block graph runs once (per iteration, in a loop)
    "call": 13.0,  # a micro-kernel is called
    "row": 0.22,  # a vector loop of an elementwise group starts
    "reduce": 0.32,  # a row is reduced to one number: a sum, or the maximum that an exp subtracts
    "fma": 0.12,  # a vector of multiply-adds
    "load": 0.038,  # a vector that a micro-kernel loads, or a scalar that it broadcasts
    "store": 0.19,  # a vector of sums is stored by a micro-kernel
    "total": 1.0,  # 16 vectors of partial sums are added up, each to a number
    "copy": 0.035,  # an element is copied so that a micro-kernel finds it contiguous
    "light": 0.046,  # a vector operation of elementwise operators and sums
    "heavy": 0.053,  # the same, of operators such as exp that take ten or more
    "access": 0.13,  # a vector that an elementwise group loads or stores
    "l2": 0.0044,  # a byte that comes from the second-level cache
    "l3": 0.005,  # from the third
    "memory": 0.03,  # from memory
    "run": 4.0,  # a contiguous run of elements of a kernel's input or output begins, on another page than the last
    "far_run": 4.1,  # the same where the tensor is in memory
    "panel": 1.2,  # a row of a panel of a kernel's input is read by a micro-kernel, on another page than the last
    "far_panel": 2.0,  # the same where the tensor is in memory
    "library": 3500.0,  # a predefined operator is called
    "library_fma": 0.1,  # its vectors of multiply-adds
    "library_access": 1.4,  # its vectors of elements read and written
}
_INDEX = {name: i for i, name in enumerate(FEATURES)}
#: operations per element from which an elementwise operator is heavy
_HEAVY = 8
#: rows and columns of a tile below which what more of a mask is passed over does not pay for more tiles
_FINE = 64
#: most rows of a register tile (mirage_gemm_block.h)
_MR = 8
#: bytes of a page of memory: processors do not prefetch beyond
_PAGE = 4096
#: columns that mi_gemm_stream reads at once
_STREAM_COLUMNS = 4096
#: rows from which mi_gemm_outer copies panels, and the vectors of one
_PACK_ROWS, _PANEL_VECTORS = 24, 3

Counts = np.ndarray
Extents = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Machine:
    """Threads, and bytes of the caches: first and second level of one core, third level of all."""

    threads: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int

    @property
    def share(self) -> int:
        """Bytes of the last level of the caches, per core."""
        return max(self.l2_bytes, self.l3_bytes // self.threads)


@dataclass(frozen=True)
class _Tensor:
    """A tensor as a block sees it: the node, its axes, the contiguous one last, and in how many of the loops it changes."""

    node: int
    axes: tuple[str, ...]
    depth: int


@dataclass(frozen=True)
class _Product:
    """A contraction of two operands, the inputs of the kernel of these numbers or, where None, block tensors; `units` are
    the axes along which inputs are contiguous. `node` is the operator's, `sources` are the operands', `stored` is the one in
    whose memory the result is.
    """

    node: int
    sources: tuple[int, int]
    stored: int
    operands: tuple[tuple[str, ...], tuple[str, ...]]
    inputs: tuple[int | None, int | None]
    units: tuple[str | None, str | None]
    out: tuple[str, ...]
    reduce: tuple[str, ...]
    depth: int


@dataclass(frozen=True)
class _Group:
    """Elementwise operators and sums over one space: operations per element, passes over it, numbers to which each of
    its rows may be reduced, and the tensors read and stored: their axes, the nodes that they are, and the axes along which those
    are contiguous that are inputs.
    """

    members: tuple[int, ...]
    space: tuple[str, ...]
    depth: int
    light: float
    heavy: float
    passes: int
    reductions: int
    tensors: tuple[tuple[str, ...], ...]
    nodes: tuple[int, ...]
    units: tuple[str | None, ...]


@dataclass(frozen=True)
class KernelWork:
    """What one kernel does, whatever the sizes."""

    graph: Graph
    inputs: tuple[_Tensor, ...]
    outputs: tuple[tuple[str, ...], ...]
    products: tuple[_Product, ...]
    groups: tuple[_Group, ...]
    #: block tensors that are stored
    held: tuple[_Tensor, ...]
    #: axes that every product over them has in all its operands: nothing is gained by tiles of several
    batch: frozenset[str]
    #: axes along which kernel-level tensors are contiguous
    contiguous: frozenset[str]
    #: axes that some operator sums over
    summed: frozenset[str]
    #: axes of a mask of scores, whose hidden tiles are passed over
    masked: frozenset[str]

    @staticmethod
    def of(node: Node) -> KernelWork:
        """The work of a graph-defined kernel."""
        assert node.graph is not None
        g = inline_threads(node.graph)
        inputs = tuple(_Tensor(i, g.nodes[i].axes(), g.depth[i]) for i in g.inputs)
        outputs = tuple(tuple(a for d in dims for a in d) for dims in node.dims)
        number = {i: k for k, i in enumerate(g.inputs)}
        unit = {i: g.nodes[i].axes()[-1] for i in g.inputs if g.nodes[i].axes()}
        products: list[_Product] = []
        held: list[_Tensor] = []
        for i in g.compute_nodes():
            n = g.nodes[i]
            if n.op in PRODUCTS:
                operands = [g.nodes[r.node].axes() for r in n.operands]
                summed = reduced_axes(n.op, operands, n.reduce)
                for (x, y), over in zip(PRODUCTS[n.op], summed, strict=True):
                    sources = n.operands[x].node, n.operands[y].node
                    given = number.get(sources[0]), number.get(sources[1])
                    units = unit.get(sources[0]), unit.get(sources[1])
                    pair = operands[x], operands[y]
                    products.append(_Product(i, sources, _stored_in(g, i), pair, given, units, n.axes(), over, g.depth[i]))
            if n.op in PRODUCTS or n.op == "accumulator":
                held.append(_Tensor(i, n.axes(), g.depth[i]))
        groups = [_group(g, members) for members in thread_groups(g)]
        held += [_Tensor(i, g.nodes[i].axes(), g.depth[i]) for m in thread_groups(g) for i in stored(g, m)]
        tensors = [*(t.axes for t in inputs), *outputs]
        batch = frozenset(
            a
            for a in g.role
            if any(a in p.out for p in products)
            and all(all(a in x for x in p.operands) for p in products if a in (*p.out, *p.reduce))
        )
        contiguous = frozenset(axes[-1] for axes in tensors if axes)
        own = inputs, outputs, tuple(products), tuple(groups), tuple(held)
        sums = frozenset(a for n in g.nodes for a in n.reduce)
        return KernelWork(g, *own, batch, contiguous, sums, mask_axes(g))


def divided(
    role: Role, size: np.ndarray, tile: np.ndarray, split: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(number of blocks along an axis of that size, elements of the longest of them), as `KernelSchedule.bounds`."""
    if role in (Role.WHOLE, Role.LOOP):
        return np.ones_like(size), size
    count = np.ceil(size / tile)
    if role is Role.PARALLEL:
        return count, np.minimum(tile, size)
    return split, np.minimum(tile * np.ceil(count / split), size)


def _group(g: Graph, members: Sequence[int]) -> _Group:
    light = heavy = 0.0
    for i in members:
        flops = _flops(g.nodes[i])
        light, heavy = (light, heavy + flops) if flops >= _HEAVY else (light + flops, heavy)
    first = g.nodes[members[0]]
    read = {r.node for i in members for r in g.nodes[i].operands} - set(members)
    nodes = [*sorted(read), *(_stored_in(g, i) for i in stored(g, members))]
    tensors = tuple(g.nodes[i].axes() for i in nodes)
    units = tuple(axes[-1] if axes and i in g.inputs else None for i, axes in zip(nodes, tensors, strict=True))
    space = tuple(dict.fromkeys((*first.axes(), *first.reduce)))
    # before an exp, a pass finds the maximum that it subtracts
    maxima = sum(g.nodes[i].op == "exp" for i in members)
    sums = sum(g.nodes[i].op in FOLDS for i in members)
    depth = g.depth[members[0]]
    return _Group(tuple(members), space, depth, light, heavy, 1 + maxima, sums + maxima, tensors, tuple(nodes), units)


def _stored_in(g: Graph, i: int) -> int:
    """The node in whose memory i's result is: itself, or the accumulator that it goes into."""
    return next((j for j, n in enumerate(g.nodes) if n.op == "accumulator" and n.operands[0].node == i), i)


def _flops(n: Node) -> float:
    """Operations per element of an elementwise operator, a sum or a maximum."""
    if n.op in FOLDS:
        return 1.0
    op = get_operator(n.op)
    assert isinstance(op, Elementwise)
    return float(max(op.flops, 1))


class CostModel:
    """Estimates the time of kernels on a machine; `coefficients` are ns per feature, in the order of `FEATURES`."""

    def __init__(self, machine: Machine, coefficients: np.ndarray | None = None) -> None:
        self.machine = machine
        self.coefficients = np.array(list(FEATURES.values())) if coefficients is None else coefficients
        self._work: dict[Node, KernelWork] = {}

    def work(self, node: Node) -> KernelWork:
        """What the kernel does; graphs share kernels, so they are remembered."""
        found = self._work.get(node)
        if found is None:
            found = self._work[node] = KernelWork.of(node)
        return found

    def ns(self, counts: Counts) -> np.ndarray:
        """Estimated nanoseconds for counts [features, candidates] (or [features])."""
        estimate: np.ndarray = self.coefficients @ counts
        return estimate

    def library(self, mugraph: MuGraph, sizes: Mapping[str, int], once: Collection[int] = ()) -> Counts:
        """Counts [features] of the predefined operators of a muGraph, for these sizes of its axes; of none that run `once`."""
        counts = np.zeros(len(FEATURES))
        lanes = VECTOR_BYTES // compute_dtype(DTYPES[mugraph.dtype]).itemsize
        nodes = mugraph.kernel.nodes
        for i, n in enumerate(nodes):
            if i in once or n.op in ("input", "graph", "constant", "size"):
                continue
            operands = [nodes[r.node].axes(r.out) for r in n.operands]
            counts[_INDEX["library"]] += 1
            volume = sum(prod(sizes[a] for a in axes) for axes in (*operands, n.axes()))
            counts[_INDEX["library_access"]] += volume / lanes
            if n.op in PRODUCTS:
                for (x, y), over in zip(PRODUCTS[n.op], reduced_axes(n.op, operands, n.reduce), strict=True):
                    space = {*operands[x], *operands[y], *over}
                    counts[_INDEX["library_fma"]] += prod(sizes[a] for a in space) / lanes
        return counts

    def home(self, mugraph: MuGraph, sizes: Mapping[str, int], once: Collection[int] = ()) -> str:
        """Where the kernel-level tensors of a muGraph are between two calls, by the bytes of all of them: the feature that
        counts what comes from there. What only operators that run `once` read does not count.
        """
        nodes = mugraph.kernel.nodes
        read = {r.node for i, n in enumerate(nodes) if i not in once for r in n.operands}
        unread = {i for i, n in enumerate(nodes) if i in once or n.op == "input"} - read if once else set()
        size = sum(
            mugraph.itemsize(i) * prod(sizes[a] for a in n.axes(k))
            for i, n in enumerate(nodes)
            if i not in unread
            for k in range(len(n.dims))
        )
        near = size <= self.machine.l2_bytes * self.machine.threads
        return "l2" if near else "l3" if size <= self.machine.l3_bytes else "memory"

    def kernel(
        self,
        work: KernelWork,
        tiles: Mapping[str, np.ndarray],
        splits: Mapping[str, np.ndarray],
        sizes: Mapping[str, int],
        home: str,
        itemsize: int,
        packed: Mapping[int, str] | None = None,
        units: Mapping[int, str] | None = None,
        vectors: Mapping[int, str] | None = None,
        lasts: Mapping[int, str] | None = None,
        halved: Pair | None = None,
        stored: Mapping[int, int] | None = None,
    ) -> tuple[Counts, np.ndarray]:
        """Counts [features, candidates] of a kernel whose k-th candidate has the k-th tiles and splits, and about how many
        bytes of scratch a cell of it needs.

        `home` is that of its muGraph, `packed` are inputs of the kernel that are stored tile after tile of an axis, `units` those
        that are contiguous along another axis than their last. `vectors` and `lasts` are what a schedule decides about operators:
        along which axis vectors lie, and which axis of their results is stored last; `halved` are rows and columns of which one
        triangle is computed. `stored` are bytes of an element of those inputs that have others than `itemsize`.
        """
        decided = vectors or {}, lasts or {}, halved, stored or {}
        counter = _Counter(self.machine, work, tiles, splits, sizes, home, itemsize, packed or {}, units or {}, *decided)
        return counter.count(), counter.scratch

    def schedule(
        self,
        work: KernelWork,
        schedule: KernelSchedule,
        sizes: Mapping[str, int],
        home: str,
        itemsize: int,
        units: Mapping[int, str] | None = None,
        stored: Mapping[int, int] | None = None,
    ) -> Counts:
        """Counts [features] of a kernel with one schedule; `units` and `stored` as in `kernel`."""
        tiles = {a: np.array([float(n)]) for a, n in schedule.tiles}
        splits = {a: np.array([float(n)]) for a, n in schedule.splits}
        lasts = {x.node: x.last for x in schedule.layouts if x.last is not None}
        decided = dict(schedule.vectors), lasts, schedule.halved, stored
        counts, _ = self.kernel(work, tiles, splits, sizes, home, itemsize, dict(schedule.packed), units, *decided)
        found: Counts = counts[:, 0]
        return found


class _Counter:
    """Counts of the candidates of one kernel."""

    def __init__(
        self,
        machine: Machine,
        work: KernelWork,
        tiles: Mapping[str, np.ndarray],
        splits: Mapping[str, np.ndarray],
        sizes: Mapping[str, int],
        home: str,
        itemsize: int,
        packed: Mapping[int, str],
        units: Mapping[int, str],
        vectors: Mapping[int, str],
        lasts: Mapping[int, str],
        halved: Pair | None,
        stored: Mapping[int, int],
    ) -> None:
        self.machine, self.work, self.sizes = machine, work, sizes
        self.home, self.itemsize, self.packed, self.stored = home, itemsize, packed, stored
        #: axes along which inputs are contiguous, where it is not their last
        self.units = {**units, **packed}
        self.vectors, self.lasts = vectors, lasts
        #: bytes of an element in registers and scratch
        self.real = max(itemsize, DTYPES["float32"].itemsize)
        self.lanes = VECTOR_BYTES // self.real
        g = work.graph
        length = max((len(t) for t in tiles.values()), default=1)
        self.ones = np.ones(length)
        #: extents in a block, and in an iteration
        self.block: dict[str, np.ndarray] = {}
        self.inner: dict[str, np.ndarray] = {}
        #: whether kernel-level tensors are in memory between calls
        self.far = home == "memory"
        #: of the axes of partial results that the kernel writes, their sizes
        self.parts: dict[str, np.ndarray] = {}
        self.cells = self.ones
        fill = self.ones
        for a, role in g.roles:
            size = max(sizes[a], 1)
            blocks, block = divided(role, self.ones * size, tiles.get(a, self.ones), splits.get(a, self.ones))
            if role in (Role.PARALLEL, Role.SPLIT):
                if role is Role.SPLIT:
                    self.parts[partial_axis(a)] = blocks
                self.cells = self.cells * blocks
                fill = fill * np.minimum(size / (block * blocks), 1)
            self.block[a] = block
            self.inner[a] = np.minimum(tiles[a], block) if role in (Role.LOOP, Role.SPLIT) else block
        self.iterations = [np.ceil(self.block[a] / self.inner[a]) for a in g.loop]
        #: cells of the busiest thread, whole ones
        self.rounds = np.maximum(np.ceil(self.cells / machine.threads) * fill, 1)
        self.halved = halved
        if halved is not None:
            # blocks are as long as their rows need, half as long as they could be on the average
            self.rounds = self.rounds * (1 + self.block[halved[0]] / max(sizes[halved[0]], 1)) / 2
        self.counts = np.zeros((len(FEATURES), length))
        self.seen = self._seen()

    def _seen(self) -> np.ndarray:
        """The share of iterations in which a tile of a masked kernel is not hidden, as if its mask were causal."""
        for loop in self.work.graph.loop:
            for a in sorted(self.work.masked - {loop}):
                if self.sizes[a] == self.sizes[loop] > 0:
                    tile = np.maximum(np.maximum(self.block[a], self.inner[loop]), _FINE)
                    share: np.ndarray = np.minimum((1 + tile / self.sizes[loop]) / 2, 1)
                    return share
        return self.ones

    def _add(self, name: str, value: np.ndarray | float) -> None:
        self.counts[_INDEX[name]] += value

    def _volume(self, axes: Sequence[str], extents: Extents) -> np.ndarray:
        found = self.ones
        for a in axes:
            # partial axes, which the kernel's own graph does not have
            if a in extents:
                found = found * extents[a]
        return found

    def _extents(self, depth: int) -> Extents:
        return self.inner if depth else self.block

    def _times(self, depth: int) -> np.ndarray:
        """How often the busiest thread runs what varies with so many loops."""
        found = self.rounds * self.seen if depth else self.rounds
        for n in self.iterations[:depth]:
            found = found * n
        return found

    def count(self) -> Counts:
        self._add("launch", 1.0)
        self._add("cell", np.ceil(self.cells / self.machine.threads))
        held = [self._volume(t.axes, self._extents(t.depth)) for t in self.work.held]
        tiles = [self._bytes(k) * self._volume(t.axes, self._extents(t.depth)) for k, t in enumerate(self.work.inputs)]
        self.scratch = self.real * sum(held, np.zeros(len(self.ones)))
        used = self.scratch + sum(tiles, np.zeros(len(self.ones)))
        #: what operators move within a block comes from the second-level cache, or the third, if the first is too small
        self.from_l2 = (used > self.machine.l1_bytes) & (used <= self.machine.l2_bytes)
        self.from_l3 = used > self.machine.l2_bytes
        for p in self.work.products:
            self._product(p)
        for group in self.work.groups:
            self._group(group)
        for k, t in enumerate(self.work.inputs):
            self._transfer(t.axes, t.depth, self._bytes(k))
            if k not in self.packed:
                self._runs(t.axes, t.depth, self._bytes(k))
        for axes in self.work.outputs:
            self._transfer(axes, 0, self.itemsize)
            self._runs(axes, 0, self.itemsize)
            if self.halved is not None:
                self._mirrored(axes, self.halved)
        return self.counts

    def _mirrored(self, axes: tuple[str, ...], halved: Pair) -> None:
        """The other triangle of a result, which is copied in runs of as many elements as a block has rows."""
        elements = self._volume(axes, self.block) * self._times(0)
        self._add("copy", elements)
        self._add(self.home, elements * self.itemsize)
        self._add("far_run" if self.far else "run", elements / self.block[halved[0]])

    def _moved(self, elements: np.ndarray) -> None:
        """So many elements are moved between an operator and the block's tensors."""
        self._add("l2", elements * self.real * self.from_l2)
        self._add("l3", elements * self.real * self.from_l3)

    def _bytes(self, k: int | None) -> int:
        """Of an element of input k."""
        return self.itemsize if k is None else self.stored.get(k, self.itemsize)

    def _transfer(self, axes: tuple[str, ...], depth: int, size: int) -> None:
        """A kernel-level tensor, of elements of so many bytes, is read or written by all cells."""
        whole = self.ones * size
        for a in axes:
            whole = whole * (self.parts[a] if a in self.parts else max(self.sizes[a], 1))
        own = self._volume(axes, self.block) * size
        # what several cells read, and what a cell reads in every iteration
        again = np.maximum(self.rounds * own - whole / self.machine.threads, 0)
        repeated = self._volume(axes, self._extents(depth)) * size * self._times(depth) - self.rounds * own
        first = np.minimum(whole / self.machine.threads, self.rounds * own)
        self._add(self.home, first)
        # what all cells read again is in the caches of the cores, if it fits there
        near = whole <= self.machine.l2_bytes
        far = ~near & (whole > self.machine.l3_bytes)
        self._add("l2", again * near)
        self._add("l3", again * ~(near | far))
        self._add("memory", again * far)
        fits = own <= self.machine.l2_bytes
        self._add("l2", np.maximum(repeated, 0) * (fits & (own > self.machine.l1_bytes / 2)))
        self._add("l3", np.maximum(repeated, 0) * ~fits)

    def _runs(self, axes: tuple[str, ...], depth: int, size: int) -> None:
        """The tile of a kernel-level tensor is contiguous in runs, each on pages of its own where rows are long."""
        if axes and axes[-1] in self.block:
            unit = self._extents(depth)[axes[-1]]
            short = unit < self.sizes[axes[-1]]
            runs = self._volume(axes, self._extents(depth)) / np.maximum(unit, 1) * self._times(depth)
            paged = self.sizes[axes[-1]] * size >= _PAGE
            self._add("far_run" if self.far else "run", runs * (short & paged))

    def _group(self, group: _Group) -> None:
        extents, times = self._extents(group.depth), self._times(group.depth)
        elements = self._volume(group.space, extents)
        # the axis along which vectors are filled best, a long one if several are
        waste, rows = self.ones * np.inf, elements
        vector = next((self.vectors[i] for i in group.members if i in self.vectors), None)
        for a in group.space if vector is None else (vector,):
            own = np.ceil(extents[a] / self.lanes) * self.lanes / extents[a]
            better = own <= waste
            rows = np.where(better, elements / extents[a], rows)
            waste = np.minimum(own, waste)
        vectors = elements * (waste if group.space else self.ones) / self.lanes
        self._add("operator", times)
        self._add("row", rows * group.passes * times)
        if vector is None or vector in self.work.summed:
            self._add("reduce", rows * group.reductions * times)
        self._add("light", vectors * group.light * times)
        self._add("heavy", vectors * group.heavy * times)
        touched, single = np.zeros(len(self.ones)), np.zeros(len(self.ones))
        for axes, i, unit in zip(group.tensors, group.nodes, group.units, strict=True):
            volume = self._volume(axes, extents)
            touched = touched + volume
            # vectors across a tensor's rows are put together element by element
            last = self.lasts.get(i, unit)
            if vector in axes and last not in (vector, None):
                single = single + volume * (extents[str(vector)] > 1)
        self._add("access", ((touched - single) / self.lanes + single) * times)
        self._moved(touched * times)

    def _product(self, p: _Product) -> None:
        """The plan that `emit_matmul` would choose, as it sees it: one row, column and contracted axis, the others loops."""
        extents, times = self._extents(p.depth), self._times(p.depth)
        out = [a for a in p.out if a in extents]
        own: list[list[str | None]] = [
            [a for a in out if a in p.operands[i] and a not in p.operands[1 - i]] or [None] for i in (0, 1)
        ]
        space = self._volume([*out, *p.reduce], extents)

        def extent(a: str | None) -> np.ndarray:
            return self.ones if a is None else extents[a]

        best = self.ones * np.inf
        found = {name: np.zeros(len(self.ones)) for name in ("call", "fma", "load", "store", "total", "copy", "moved", "panel")}
        for swap, dot in itertools.product((False, True), (False, True)):
            first, second = (1, 0) if swap else (0, 1)
            for m, n, k in itertools.product(own[first], own[second], p.reduce):
                if (n is None and not dot) or not self._wanted(p, n, k, dot):
                    continue
                columns, rows, depth = extent(n), extent(m), extent(k)
                calls = space / (rows * columns * depth)
                # bytes are multiplied as such
                whole = dot and all(self._bytes(p.inputs[i]) == 1 and self._unit(p, i) == k for i in (0, 1))
                copied = self.ones * 0
                for i in (first, second):
                    unit = self._unit(p, i)
                    # rows of narrow elements are copied to be converted
                    convert = i == first and self._bytes(p.inputs[i]) < self.real and not whole
                    if unit is not None and (convert or ((dot or i == second) and unit != (k if dot else n))):
                        copied = copied + self._volume(p.operands[i], extents)
                speed = BYTES_AT_ONCE if whole else 1.0
                cost = space / speed / efficiency(dot, rows, columns, depth, self.lanes) + CALL * calls + COPY * copied
                better = cost < best
                best = np.minimum(cost, best)
                packed = p.inputs[second] in self.packed
                far = not dot and p.units[second] == n and not packed
                panel = self._panels(n, rows, columns, depth, self._bytes(p.inputs[second])) if far else self.ones * 0
                # four bytes are a lane
                terms = depth / 4 if whole else depth
                one = self._dot(rows, columns, terms) if dot else self._outer(rows, columns, depth, packed)
                plan = {name: calls * value for name, value in (one | {"panel": panel}).items()}
                plan |= {"call": calls, "copy": copied}
                for name, value in plan.items():
                    found[name] = np.where(better, value, found[name])
        self._add("operator", times)
        self._moved(found.pop("moved") * times)
        self._add("far_panel" if self.far else "panel", found.pop("panel") * times)
        for name, value in found.items():
            self._add(name, value * times)

    def _wanted(self, p: _Product, n: str | None, k: str, dot: bool) -> bool:
        """Whether a plan with these columns and contracted axis is one that the schedule wants."""
        vector, last = self.vectors.get(p.node), self.lasts.get(p.stored)
        if last is not None and n not in (last, None):
            return False
        columns = [a for a in p.out if sum(a in x for x in p.operands) == 1]
        return vector not in (*columns, *p.reduce) or vector == (k if dot else n)

    def _unit(self, p: _Product, operand: int) -> str | None:
        """The axis along which an operand is contiguous, None where the plan may choose."""
        source = p.inputs[operand]
        if source is not None:
            return self.units.get(source, p.units[operand])
        return self.lasts.get(p.sources[operand], p.units[operand])

    def _panels(self, n: str | None, m: np.ndarray, columns: np.ndarray, k: np.ndarray, size: int) -> np.ndarray:
        """Rows of panels that a micro-kernel reads of an input, of elements of so many bytes and contiguous along n, whose rows
        are on pages of their own.
        """
        if n is None or self.sizes[n] * size < _PAGE:
            return self.ones * 0
        across = np.ceil(columns / self.lanes / block_vectors(m))
        passes = np.where(m >= _PACK_ROWS, 1, _tiles(m)[0])
        few = m <= stream_rows(m, columns, self.lanes)
        streamed = few & (k > FEW_TERMS) & (k * columns >= STREAM_ELEMENTS)
        return np.asarray(k * np.where(streamed, np.ceil(columns / _STREAM_COLUMNS), across * passes))

    def _outer(self, m: np.ndarray, n: np.ndarray, k: np.ndarray, packed: bool) -> dict[str, np.ndarray]:
        """Counts of mi_gemm_outer: a register tile of up to 8 rows holds sums, with 3 vectors or, of fewer rows, more. Whether y
        is stored tile after tile of its columns.
        """
        vectors = np.ceil(n / self.lanes)
        down, rows = _tiles(m)
        across = np.ceil(vectors / block_vectors(m))
        # with enough rows, a panel of y is copied first, if it is none
        copied = (m >= _PACK_ROWS) * 2 * k * vectors * (1 - packed * (n == _PANEL_VECTORS * self.lanes))
        return {
            "fma": vectors * rows * k,
            "load": k * (vectors * down + rows * across) + copied,
            "store": rows * vectors,
            "total": self.ones * 0,
            "moved": k * n * down + m * k,
        }

    def _dot(self, m: np.ndarray, n: np.ndarray, k: np.ndarray) -> dict[str, np.ndarray]:
        """Counts of mi_gemm_dot: with 4 or 8 rows, a vector holds terms of all of them, and each vector of a group of columns
        is one of sums; with one row or two, and for the columns that are left, each sum is a vector that is added up at last.
        """
        steps = np.ceil(k / self.lanes)
        grouped = np.floor(n / self.lanes)
        left = n - grouped * self.lanes
        rest = m % _MR
        eights, fours = np.floor(m / _MR) + (rest > 5), (rest > 2) & (rest <= 5)
        few = np.where(rest <= 2, rest, rest == 5)
        found = dict.fromkeys(("fma", "load", "store", "total", "moved"), self.ones * 0)

        def add(blocks: np.ndarray, **counts: np.ndarray) -> None:
            for name, value in counts.items():
                found[name] = found[name] + blocks * value

        for each, blocks in ((_MR, eights), (_MR // 2, fours)):
            # so many terms of each row are in a vector; x is rearranged once
            terms, pack = np.ceil(k / (self.lanes / each)), 2 * each * steps * (grouped > 0)
            add(blocks * grouped, fma=terms * self.lanes, load=terms * (1 + self.lanes), total=self.ones, store=self.ones * each)
            add(blocks, load=pack, moved=grouped * self.lanes * k)
        # pairs of rows, and a last one: of all rows in the columns that are left, else of those that are left
        for rows, columns in ((m, left), (few, n - left)):
            for together, pairs in ((2, np.floor(rows / 2)), (1, rows % 2)):
                beside = self.lanes / together
                load = steps * (together + beside)
                across = np.ceil(columns / beside)
                add(pairs * across, fma=steps * self.lanes, load=load, total=self.ones, store=self.ones)
                add(pairs, moved=columns * k)
        add(self.ones, moved=m * k)
        return found


def _tiles(m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(register tiles below one another for so many rows, the rows that they have): 7 rows are a tile of 8, 3 one of 4."""
    rest = m % _MR
    whole = np.floor(m / _MR)
    return whole + np.array([0, 1, 1, 1, 1, 2, 2, 1])[rest.astype(int)], m + ((rest == 3) | (rest == _MR - 1))
