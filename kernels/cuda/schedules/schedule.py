"""Schedules for CUDA: the tiles and splits that a muGraph leaves open, and how a block's threads compute them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mirage.errors import FormatError, ScheduleError
from mirage.ir.dims import Dim
from mirage.kernels.cuda.library.libraries import CUBLASLT, LIBRARIES
from mirage.mugraph.graph import Graph, MuGraph, Node, Role
from mirage.mugraph.rename import rename_axis
from mirage.mugraph.schedule import AxisSizes, KernelSchedule, Schedule

#: elements of one block tensor: what Triton allows
MAX_ELEMENTS = 1 << 20
WARPS = (1, 2, 4, 8, 16, 32)
MAX_STAGES = 8
#: tiles of a group along the grid
MAX_GROUP = 64


@dataclass(frozen=True)
class CudaKernelSchedule(AxisSizes):
    """Choices for one graph-defined kernel.

    In elements and as powers of two, `tiles` gives the tile of every parallel, loop and split axis, and `rooms` the room
    for every axis that a block tensor holds whole: whole axes, and loop axes along which an accumulator concatenates what
    the block reads again (of a split axis it holds the block's part). The kernel serves sizes up to the room, which may be
    left out for literal sizes: theirs is the next power of two. `splits` is the grid size of every split axis, any
    positive number.

    Thread-level choices: `num_warps` warps compute a block, loads run `num_stages` iterations ahead. `dot`: products use
    tensor cores (`tl.dot`, rows padded where there are few); else they are sums of elementwise products, which reads few
    rows faster. `rounded`: operands of products that the kernel computes are rounded to the 16-bit type that the program
    is stored in, as its tensor cores take them; else such a product is computed in float32. `swap`: tensor cores get the
    second operand's columns as rows, of which they want more than columns (64 for wgmma). `order` are the grid axes,
    the one whose neighbours run together last; () is the muGraph's order. `group` tiles of the last axis but one take
    turns before the last one goes on: neighbours in time then share tiles of both, which stay in the L2 cache.

    Operands of the kernel are numbered, then its results: those in `descriptors` are loaded and stored through tensor
    descriptors (`tl.make_tensor_descriptor`: the tensor memory accelerator, TMA, from sm_90 on).

    Layouts: `packed` gives operands, inputs of the muGraph whose contents never change, that are read from a copy whose
    innermost axis is that one, with rows of whole 16 bytes: (operand, axis). `layouts` gives results that only other
    kernels read with the axis that is innermost: (result, axis). Both are (Mirage, section 6) layouts of the kernel level.
    Those of the block level are `swap`; the swizzle of shared memory, and which operand's rows are contiguous there, is
    Triton's own choice and has no number here.
    """

    rooms: tuple[tuple[str, int], ...] = ()
    num_warps: int = 4
    num_stages: int = 3
    dot: bool = True
    rounded: bool = True
    swap: bool = False
    order: tuple[str, ...] = ()
    group: int = 1
    descriptors: tuple[int, ...] = ()
    packed: tuple[tuple[int, str], ...] = ()
    layouts: tuple[tuple[int, str], ...] = ()

    def extent(self, graph: Graph, axis: str, size: Dim) -> int:
        """Elements of a block tensor along an axis of that (symbolic) size, in one iteration.

        Raises ScheduleError for a whole axis that has no literal size and no room.
        """
        if graph.role[axis] is Role.WHOLE:
            return self.room(axis, size)
        given = self.tile[axis]
        return min(given, next_power(int(size))) if size.is_Integer else given

    def room(self, axis: str, size: Dim) -> int:
        """Elements of a block tensor that holds an axis whole; raises ScheduleError where it is not known."""
        given = dict(self.rooms).get(axis)
        if size.is_Integer:
            return max(given or 1, next_power(int(size)))
        if given is None:
            raise ScheduleError(
                f"axis {axis} of size {size} is held whole by a block; give it a room, the largest size to serve"
            )
        return given

    def grid(self, graph: Graph) -> tuple[str, ...]:
        """The grid axes in the order in which blocks are numbered."""
        return self.order or graph.grid

    @cached_property
    def plain(self) -> KernelSchedule:
        """What a muGraph's own schedule knows of it."""
        return KernelSchedule(self.tiles, self.splits)


@dataclass(frozen=True)
class CudaSchedule:
    """One `CudaKernelSchedule` per graph-defined kernel, in order; `library`, one of `LIBRARIES`, computes predefined
    operators.
    """

    kernels: tuple[CudaKernelSchedule, ...]
    library: str = CUBLASLT

    @property
    def plain(self) -> Schedule:
        """As a schedule of `mirage.mugraph`, for its meaning (`run_mugraph`) and the sizes of partial axes."""
        return Schedule(tuple(k.plain for k in self.kernels))

    def check(self, mugraph: MuGraph) -> None:
        """Raises ScheduleError where a size is missing, no power of two, or impossible."""
        self.plain.check(mugraph)
        for k, (s, node) in enumerate(zip(self.kernels, mugraph.kernels, strict=True)):
            assert node.graph is not None
            for axis, tile in (*s.tiles, *s.rooms):
                if tile < 1 or tile & (tile - 1):
                    raise ScheduleError(
                        f"kernel {k}: axis {axis} has a tile or room of {tile}; those of CUDA are powers of two"
                    )
            if s.num_warps not in WARPS:
                raise ScheduleError(f"kernel {k}: num_warps is {s.num_warps}; use one of {', '.join(map(str, WARPS))}")
            if not 1 <= s.num_stages <= MAX_STAGES:
                raise ScheduleError(f"kernel {k}: num_stages is {s.num_stages}; use 1 to {MAX_STAGES}")
            if s.order and sorted(s.order) != sorted(node.graph.grid):
                raise ScheduleError(
                    f"kernel {k}: order {', '.join(s.order)} does not name the grid axes {', '.join(node.graph.grid)}"
                )
            _check_threads(k, s, node)
            _check_layouts(k, s, node, mugraph)

    @property
    def without_descriptors(self) -> CudaSchedule:
        """The same, for arrays that no descriptor describes."""
        return replace(self, kernels=tuple(replace(s, descriptors=()) for s in self.kernels))

    def renamed(self, axes: Mapping[str, str]) -> CudaSchedule:
        """The schedule with its axes renamed."""

        def table(pairs: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
            return tuple((rename_axis(a, axes), n) for a, n in pairs)

        return replace(
            self,
            kernels=tuple(
                replace(
                    k,
                    tiles=table(k.tiles),
                    splits=table(k.splits),
                    rooms=table(k.rooms),
                    order=tuple(rename_axis(a, axes) for a in k.order),
                    packed=tuple((i, rename_axis(a, axes)) for i, a in k.packed),
                    layouts=tuple((i, rename_axis(a, axes)) for i, a in k.layouts),
                )
                for k in self.kernels
            ),
        )

    def check_stored(self) -> None:
        """Raises FormatError for a library that is none."""
        if self.library not in LIBRARIES:
            raise FormatError(f"schedule: library {self.library!r} is none of {', '.join(LIBRARIES)}"[:200])


def _check_threads(k: int, s: CudaKernelSchedule, node: Node) -> None:
    """Raises ScheduleError for impossible numbers of the grid and of how a block computes."""
    assert node.graph is not None
    if not 1 <= s.group <= MAX_GROUP:
        raise ScheduleError(f"kernel {k}: group is {s.group}; use 1 to {MAX_GROUP}")
    if s.group > 1 and len(node.graph.grid) < 2:
        raise ScheduleError(f"kernel {k}: tiles of {s.group} rows are a group, but the grid has one axis; use group=1")
    count = len(node.operands) + len(node.dims)
    if sorted({*s.descriptors}) != list(s.descriptors) or not all(0 <= d < count for d in s.descriptors):
        raise ScheduleError(
            f"kernel {k}: descriptors {s.descriptors} must be increasing numbers of its {len(node.operands)} operands and then "
            f"its {len(node.dims)} results"
        )


def _check_layouts(k: int, s: CudaKernelSchedule, node: Node, mugraph: MuGraph) -> None:
    """Raises ScheduleError for layouts of operands and results that have none to choose."""
    for what, table, count in (("operand", s.packed, len(node.operands)), ("result", s.layouts, len(node.dims))):
        if len({which for which, _ in table}) < len(table) or not all(0 <= which < count for which, _ in table):
            raise ScheduleError(f"kernel {k}: layouts must be of different {what}s, of which it has {count}")
    for operand, axis in s.packed:
        source = mugraph.kernel.nodes[node.operands[operand].node]
        if source.op != "input":
            raise ScheduleError(f"kernel {k}: operand {operand} is computed by another kernel; pack inputs only")
        if axis not in source.axes():
            raise ScheduleError(f"kernel {k}: operand {operand} is packed along {axis}, which it does not have")
    results = {r.out for r in mugraph.kernel.outputs if mugraph.kernel.nodes[r.node] is node}
    for result, axis in s.layouts:
        if result in results:
            raise ScheduleError(f"kernel {k}: result {result} is one of the program, which has its order of axes")
        if axis not in node.axes(result):
            raise ScheduleError(f"kernel {k}: axis {axis} is to be the innermost of result {result}, which lacks it")


def next_power(n: int) -> int:
    """The smallest power of two that is at least n, and at least 1."""
    return 1 << max(n - 1, 0).bit_length()
