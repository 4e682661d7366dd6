"""Schedules: the sizes and layouts that a muGraph leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from mirage.errors import ScheduleError
from mirage.ir.dims import evaluate
from mirage.mugraph.graph import Graph, MuGraph, Ref, Role, partial_axis
from mirage.mugraph.symmetry import Pair, exchangeable_axes
from mirage.mugraph.thread import inline_threads

#: an axis is split into parts for threads to work on at once: more than there will be threads, few enough that partial
#: results fit into memory
MAX_SPLITS = 4096
#: elements of a tile along one axis: no dim is larger, and sums of a few such numbers are C's
MAX_TILE = 1 << 40


@dataclass(frozen=True)
class AxisSizes:
    """`tiles` gives the tile (elements) of every parallel, loop and split axis of a kernel, `splits` the grid size of every
    split axis."""

    tiles: tuple[tuple[str, int], ...] = ()
    splits: tuple[tuple[str, int], ...] = ()

    @cached_property
    def tile(self) -> dict[str, int]:
        return dict(self.tiles)

    @cached_property
    def split(self) -> dict[str, int]:
        return dict(self.splits)


@dataclass(frozen=True)
class BlockLayout:
    """How the result of block operator `node` is laid out in scratch: which of its axes is stored `last`, contiguously (the
    back end's own choice where it is None), and whether its rows are `padded` by a vector."""

    node: int
    last: str | None = None
    padded: bool = False


@dataclass(frozen=True)
class KernelSchedule(AxisSizes):
    """Sizes and layouts for one graph-defined kernel (Mirage, section 6).

    `tiles` gives the tile (elements) of every parallel, loop and split axis, `splits` the grid size of every split axis,
    `lanes` the vector width of its thread graphs in elements. `packed` gives operands of the kernel, inputs of the muGraph
    whose contents never change or what follows from such inputs alone, that are stored tile after tile of a parallel axis: (which
    operand, the axis). The rows of
    block tensors are longer by a vector where `padded`, against rows that share sets of a cache. `last` gives results of the
    kernel that only graph-defined kernels read, with the axis that is stored last, where it is not the result's own last one:
    (which result, the axis).

    `layouts` says how block tensors are stored, one by one; `vectors` along which axis vectors lie in a group of elementwise
    operators and sums, which goes by its first member, and in a product (of sums where the axis is one of its result, of terms
    where it is summed): (which operator, the axis). Operators are numbered as in the block graph, with the operators of thread
    graphs in the place of these. The back end chooses where neither says anything.

    `halved` is (rows, columns), two axes whose exchange leaves the results as they are (`mirage.mugraph.symmetry`): blocks end at
    the last column that one of their rows meets the diagonal in, and write what they compute a second time with the two axes
    exchanged. Without any, all is computed.
    """

    lanes: int = 16
    packed: tuple[tuple[int, str], ...] = ()
    padded: bool = False
    last: tuple[tuple[int, str], ...] = ()
    layouts: tuple[BlockLayout, ...] = ()
    vectors: tuple[tuple[int, str], ...] = ()
    halved: Pair | None = None

    def with_tile(self, axis: str, tile: int) -> KernelSchedule:
        """The schedule with another tile of one axis that has one."""
        return replace(self, tiles=tuple((a, tile if a == axis else n) for a, n in self.tiles))

    def bounds(self, graph: Graph, axis: str, size: int) -> tuple[int, int]:
        """(number of blocks along the axis, elements per block) at that size; the last block may be shorter."""
        role = graph.role[axis]
        if role in (Role.WHOLE, Role.LOOP):
            return 1, size
        tile = self.tile[axis]
        if role is Role.PARALLEL:
            return -(-size // tile), tile
        count = self.split[axis]
        tiles = -(-size // tile)
        return count, tile * -(-tiles // count)


@dataclass(frozen=True)
class Schedule:
    """One `KernelSchedule` per graph-defined kernel, in order."""

    kernels: tuple[KernelSchedule, ...]

    def with_kernel(self, number: int, kernel: KernelSchedule) -> Schedule:
        """The schedule with another one of kernel `number`."""
        return Schedule((*self.kernels[:number], kernel, *self.kernels[number + 1 :]))

    def check(self, graph: MuGraph) -> None:
        """Raises ScheduleError where a size is missing or impossible, or kernels split one axis differently."""
        if len(self.kernels) != len(graph.kernels):
            raise ScheduleError(
                f"schedule has {len(self.kernels)} kernels, the muGraph {len(graph.kernels)}; give one each"
            )
        split: dict[str, tuple[int, int]] = {}
        for k, (s, node) in enumerate(zip(self.kernels, graph.kernels, strict=True)):
            assert node.graph is not None
            for axis, role in node.graph.roles:
                for table, needed in ((s.tile, role is not Role.WHOLE), (s.split, role is Role.SPLIT)):
                    if needed and (axis not in table or table[axis] < 1):
                        what = "tile" if table is s.tile else "number of splits"
                        raise ScheduleError(
                            f"kernel {k}: axis {axis} ({role.value}) needs a positive {what}, got {table.get(axis)}"
                        )
            for axis, tile in s.tiles:
                if tile > MAX_TILE:
                    raise ScheduleError(f"kernel {k}: axis {axis} has tiles of {tile}; make them {MAX_TILE} at most")
            for axis, count in s.splits:
                if count > MAX_SPLITS:
                    raise ScheduleError(
                        f"kernel {k}: axis {axis} is split {count} times; split it {MAX_SPLITS} times at most"
                    )
                first, before = split.setdefault(axis, (k, count))
                if count != before:
                    raise ScheduleError(
                        f"kernel {k}: axis {axis} is split {count} times, but {before} times in kernel {first}; "
                        "partial results along one axis need one number of splits"
                    )
            if s.lanes < 1:
                raise ScheduleError(f"kernel {k}: lanes={s.lanes} must be positive")
            for operand, axis in s.packed:
                self._check_packed(graph, k, operand, axis)
            if len({operand for operand, _ in s.packed}) < len(s.packed):
                raise ScheduleError(f"kernel {k}: an operand is packed twice; pack it along one axis")
            for output, axis in s.last:
                self._check_last(graph, k, output, axis)
            if len({output for output, _ in s.last}) < len(s.last):
                raise ScheduleError(f"kernel {k}: a result has two last axes; give it one")
            if s.layouts or s.vectors:
                self._check_operators(k, inline_threads(node.graph))
            if s.halved is not None:
                self._check_halved(graph, k, s.halved)

    def _check_operators(self, k: int, graph: Graph) -> None:
        """The operators and axes of `layouts` and `vectors`; which tensors are in scratch, and which operators are a group, is
        for the back end to say."""
        s, computed = self.kernels[k], set(graph.compute_nodes())
        for what, numbers in (
            ("a layout", [x.node for x in s.layouts]),
            ("a vector axis", [i for i, _ in s.vectors]),
        ):
            for i in numbers:
                if i not in computed:
                    raise ScheduleError(
                        f"kernel {k}: w{i} has {what}, but is no operator of the block; choose from "
                        f"{', '.join(f'w{j}' for j in sorted(computed))}"
                    )
                if numbers.count(i) > 1:
                    raise ScheduleError(f"kernel {k}: w{i} has {what} twice; give it one")
        for x in s.layouts:
            axes = graph.nodes[x.node].axes()
            if x.last is not None and x.last not in axes:
                raise ScheduleError(
                    f"kernel {k}: axis {x.last} is stored last in w{x.node}, which does not have it; {_one_of(axes)}"
                )
            if x.last is None and not x.padded:
                raise ScheduleError(f"kernel {k}: the layout of w{x.node} says nothing; give its last axis, or pad its rows")
            if x.padded and len(axes) < 2:
                raise ScheduleError(f"kernel {k}: w{x.node} is padded, but has one row only; leave it")
        for i, axis in s.vectors:
            n = graph.nodes[i]
            if n.op in ("accumulator", "concat"):
                raise ScheduleError(
                    f"kernel {k}: w{i} has a vector axis, but {n.op} has none to choose; leave it"
                )
            # a product sums over the axes that its operands share, one by one
            space = dict.fromkeys([*n.axes(), *n.reduce, *(a for r in n.operands for a in graph.nodes[r.node].axes())])
            if axis not in space:
                raise ScheduleError(
                    f"kernel {k}: the vectors of w{i} are along {axis}, over which it does not run; {_one_of(tuple(space))}"
                )

    def _check_packed(self, graph: MuGraph, k: int, operand: int, axis: str) -> None:
        node, s = graph.kernels[k], self.kernels[k]
        assert node.graph is not None
        if not 0 <= operand < len(node.operands):
            raise ScheduleError(f"kernel {k}: operand {operand} is packed, but it has {len(node.operands)}")
        r = node.operands[operand]
        axes = graph.kernel.nodes[r.node].axes(r.out)
        if not graph.axes.keys() >= set(axes):
            raise ScheduleError(f"kernel {k}: operand {operand} is partial results, which are not packed; leave it")
        if axis not in axes or node.graph.role.get(axis) is not Role.PARALLEL or s.tile[axis] < 2:
            raise ScheduleError(
                f"kernel {k}: operand {operand} is packed along {axis}; pack along a parallel axis of it with tiles of 2 or more"
            )

    def _check_last(self, graph: MuGraph, k: int, output: int, axis: str) -> None:
        number = kernel_numbers(graph)[k]
        node = graph.kernel.nodes[number]
        if not 0 <= output < len(node.dims) or axis not in node.axes(output) or axis not in graph.axes:
            raise ScheduleError(
                f"kernel {k}: axis {axis} is last in result {output}, which does not have it; choose another of its axes, "
                "and none of partial results"
            )
        if not is_handed_on(graph, Ref(number, output)):
            raise ScheduleError(
                f"kernel {k}: the order of result {output} is not free: others than graph-defined kernels read it; leave it"
            )

    def _check_halved(self, graph: MuGraph, k: int, halved: Pair) -> None:
        found = exchangeable_axes(graph, kernel_numbers(graph)[k])
        if halved not in found and halved[::-1] not in found:
            raise ScheduleError(
                f"kernel {k}: axes {halved[0]} and {halved[1]} are halved, but its results are not known to be the same with "
                f"both exchanged; {_one_of(tuple(' and '.join(p) for p in found))}"
            )

    def orders(self, graph: MuGraph) -> dict[Ref, str]:
        """The results of kernels that are stored in another order than theirs, with the axis that is contiguous."""
        numbers = kernel_numbers(graph)
        return {Ref(numbers[k], output): axis for k, s in enumerate(self.kernels) for output, axis in s.last}

    def axis_sizes(self, graph: MuGraph, sizes: Mapping[str, int]) -> dict[str, int]:
        """The size of every axis of the muGraph, partial ones included, for sizes of the dim symbols.

        Kernels that split one axis do so equally often (see `check`).
        """
        found = {a: evaluate(d, sizes) for a, d in graph.axes.items()}
        for s in self.kernels:
            found.update({partial_axis(a): n for a, n in s.splits})
        return found


def _one_of(axes: tuple[str, ...]) -> str:
    return f"choose from {', '.join(axes)}" if axes else "leave it"


def kernel_numbers(graph: MuGraph) -> list[int]:
    """The nodes of the kernel graph that are graph-defined kernels, in order."""
    return [i for i, n in enumerate(graph.kernel.nodes) if n.graph is not None]


def is_handed_on(graph: MuGraph, result: Ref) -> bool:
    """Whether only graph-defined kernels read a result, so that the order in which it is stored is free."""
    readers = [n for n in graph.kernel.nodes if result in n.operands]
    return result not in graph.kernel.outputs and all(n.graph is not None for n in readers)
