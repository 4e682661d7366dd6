"""Constant inputs stored as the kernels read them: tile after tile of a grid axis, packed once (Mirage, section 6: layouts).

A block of the grid then streams one contiguous piece of memory, whatever the layout of the user's array; a transposed
weight is stored along the axis that the micro-kernels vectorize.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from mirage.errors import ScheduleError
from mirage.ir.dims import evaluate
from mirage.ir.types import DTYPES, compute_dtype
from mirage.kernels.copies import Copies
from mirage.kernels.cpu.emit.matmul import block_vectors
from mirage.kernels.cpu.emit.plan import VECTOR_BYTES
from mirage.kernels.cpu.emit.stages import computed_once
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pages import in_large_pages
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import Graph, MuGraph, Node, Role
from mirage.mugraph.schedule import KernelSchedule, Schedule, kernel_numbers

#: elements of a tile that is wide enough for packed inputs
NARROW = 256
#: rows for which products of narrow elements convert these as they read them, and vectors of columns that they read at once
FEW_NARROW, NARROW_BESIDE = 8, 4
#: bytes from which on NumPy asks for large pages itself
_IN_LARGE_PAGES = 4 << 20


def check_packed(mugraph: MuGraph, schedule: Schedule, constants: Collection[str]) -> None:
    """Raises ScheduleError where a schedule packs what is neither among the constants nor follows from these alone."""
    if not any(own.packed for own in schedule.kernels):
        return
    once = computed_once(mugraph, constants, analyze(mugraph))
    for node, own in zip(mugraph.kernels, schedule.kernels, strict=True):
        for operand, _ in own.packed:
            if is_constant(mugraph, node, operand, constants, once):
                continue
            source = mugraph.kernel.nodes[node.operands[operand].node]
            if source.op != "input":
                what = f"the schedule packs the result of {source.op}, which every call computes; name its inputs in constants"
                raise ScheduleError(f"{mugraph.name}: {what}")
            name = mugraph.inputs[source.attr["index"]].argument
            raise ScheduleError(f"{mugraph.name}: the schedule packs {name}, which is not constant; name it in constants")


def packed_axes(graph: Graph, axes: Sequence[str], last: str) -> tuple[str, ...]:
    """The axes of an operand of a kernel in the order in which it is packed along one of them: those that the grid divides come
    first, so that what a block reads is one piece of memory.
    """
    others = [a for a in axes if a != last]
    return (*sorted(others, key=lambda a: graph.role.get(a) is not Role.PARALLEL), last)


@dataclass(frozen=True)
class Packing:
    """How kernel-level tensor `input`, an input of the muGraph or what follows from constants alone, is stored as tensor
    `tensor`: [tiles of the last axis][other axes][tile]. The `axes` are in the order of `packed_axes`.

    The last tile has the room of a whole one.
    """

    input: int
    tensor: int
    axes: tuple[str, ...]
    tile: int

    def strides(self, extents: Mapping[str, int]) -> list[int]:
        """Elements from one index to the next along each axis; that of the last axis is for whole tiles only."""
        found = [prod(extents[a] for a in self.axes[:-1])]
        step = self.tile
        for a in reversed(self.axes[:-1]):
            found.insert(0, step)
            step *= extents[a]
        return found

    def pack(self, array: np.ndarray, order: tuple[str, ...], extents: Mapping[str, int]) -> np.ndarray:
        """The copy of an array whose dims are products of the axes `order`."""
        split = array.reshape([extents[a] for a in order]).transpose([order.index(a) for a in self.axes])
        size = split.shape[-1]
        tiles = -(-size // self.tile)
        shape = (tiles, *split.shape[:-1], self.tile)
        packed = in_large_pages(prod(shape), array.dtype).reshape(shape)
        for g in range(tiles):
            part = split[..., g * self.tile : (g + 1) * self.tile]
            packed[g, ..., : part.shape[-1]] = part
        packed[tiles - 1 :, ..., size - (tiles - 1) * self.tile :] = 0
        return packed


def owner(given: Any, array: np.ndarray) -> Any:
    """The object whose life the memory of `array` lasts at least: `array` reads what the user passed, `given`.

    That of an array is the array that it is a view of, that of a torch tensor its base. What was copied on the way, as
    lazily negated tensors are, and what other libraries export, lasts as long as `array` itself.
    """
    if not isinstance(given, np.ndarray):
        data_ptr = getattr(given, "data_ptr", None)
        if data_ptr is None or data_ptr() != address(array):
            return array
        base = getattr(given, "_base", None)
        return given if base is None else base
    while isinstance(given.base, np.ndarray):
        given = given.base
    return given


@dataclass(frozen=True)
class PackedCopy:
    """A packed array and its address."""

    packed: np.ndarray
    address: int


class PackedCopies(Copies[PackedCopy]):
    """The packed copies of the arrays that one input was given, made at first sight."""

    def __init__(self, packing: Packing, order: tuple[str, ...]) -> None:
        super().__init__()
        self.packing = packing
        self.order = order

    def get(
        self, key: tuple[Any, ...], given: Any, array: Callable[[], np.ndarray], extents: Mapping[str, int]
    ) -> PackedCopy:
        """The copy of an array: `given` is what the user passed, `array` makes a NumPy view of it, `key` is its address with
        whatever else tells arrays at one address apart.
        """

        def make() -> tuple[Any, PackedCopy]:
            read = array()
            packed = self.packing.pack(read, self.order, extents)
            return owner(given, read), PackedCopy(packed, address(packed))

        return self.find(key, given) or self.add(key, given, make)


def packed_variants(
    mugraph: MuGraph, schedule: Schedule, constants: Collection[str], sizes: Mapping[str, int], once: Collection[int] = ()
) -> list[Schedule]:
    """The schedule with its constant inputs packed: in panels, as wide as the register blocks of products, which read them from
    the first element to the last; in its own tiles; and in narrower ones where those are wide, as rows that are contiguous need
    not be long. Empty where packing changes nothing, not even the pages that hold a small input.

    `constants` are names of the program's inputs, `sizes` those of the dim symbols to expect. What operators compute `once`, see
    `computed_once`, is packed for the kernels that run in every call, like an input.
    """
    axis_sizes = {a: evaluate(d, sizes) for a, d in mugraph.axes.items()}
    dtype = DTYPES[mugraph.dtype]
    lanes = VECTOR_BYTES // compute_dtype(dtype).itemsize
    narrow = compute_dtype(dtype) != dtype or any(x.dtype for x in mugraph.inputs)

    def panel(rows: int) -> int:
        # of more rows, the micro-kernels convert tiles of narrow elements before they multiply
        if narrow and rows > FEW_NARROW:
            return NARROW
        vectors = int(block_vectors(rows))
        return lanes * (min(vectors, NARROW_BESIDE) if narrow else vectors)

    widths: list[Callable[[int], int | None]] = [panel, lambda rows: None, lambda rows: NARROW]
    found = [_packed(mugraph, schedule, constants, axis_sizes, once, width) for width in widths]
    return [s for s in dict.fromkeys(found) if any(k.packed for k in s.kernels)]


def _packed(
    mugraph: MuGraph,
    schedule: Schedule,
    constants: Collection[str],
    sizes: Mapping[str, int],
    once: Collection[int],
    width: Callable[[int], int | None],
) -> Schedule:
    """The schedule with its constant inputs packed, in tiles of at most the `width` for so many rows of a product."""
    kernels = []
    for number, s, node in zip(kernel_numbers(mugraph), schedule.kernels, mugraph.kernels, strict=True):
        packed, tiles = [], dict(s.tiles)
        for j in range(len(node.operands)):
            if number in once or not is_constant(mugraph, node, j, constants, once):
                continue
            most = width(_rows(mugraph, node, j, s, sizes))
            if (axis := _axis(mugraph, node, j, s, sizes, most)) is not None:
                packed.append((j, axis))
                # an axis that is hardly longer would be divided into a panel and a rest
                if most is not None and sizes[axis] >= 2 * most:
                    tiles[axis] = min(tiles[axis], most)
        kernels.append(replace(s, packed=tuple(packed), tiles=tuple(tiles.items())))
    return Schedule(tuple(kernels))


def _rows(mugraph: MuGraph, node: Node, operand: int, s: KernelSchedule, sizes: Mapping[str, int]) -> int:
    """The rows of a block that are multiplied with an input: those along the grid's axes that it does not have."""
    own = _axes(mugraph, node, operand)
    assert node.graph is not None
    grid = (a for a, r in node.graph.roles if r is Role.PARALLEL and a not in own)
    # a partial axis is as long as an earlier kernel splits it
    return prod(min(s.tile[a], sizes.get(a, s.tile[a])) for a in grid)


def _axes(mugraph: MuGraph, node: Node, operand: int) -> tuple[str, ...]:
    """The axes of an operand of a kernel."""
    r = node.operands[operand]
    return mugraph.kernel.nodes[r.node].axes(r.out)


def is_constant(
    mugraph: MuGraph, node: Node, operand: int, constants: Collection[str], once: Collection[int] = ()
) -> bool:
    """Whether an operand of a kernel never changes: an input of the muGraph, or a result that operators compute `once`, whole."""
    number = node.operands[operand].node
    if number in once:
        return mugraph.axes.keys() >= set(_axes(mugraph, node, operand))
    source = mugraph.kernel.nodes[number]
    return source.op == "input" and mugraph.inputs[source.attr["index"]].argument in constants


def _axis(
    mugraph: MuGraph, node: Node, operand: int, s: KernelSchedule, sizes: Mapping[str, int], most: int | None
) -> str | None:
    """The axis by whose tiles, of at most so many elements, to store an operand: the widest that the grid divides; none if it
    is stored so already, in large pages.
    """
    assert node.graph is not None
    axes = _axes(mugraph, node, operand)
    small = prod(sizes[a] for a in axes) * mugraph.itemsize(node.operands[operand].node) < _IN_LARGE_PAGES
    role = node.graph.role
    if len(axes) < 2:
        return None
    wide = [a for a in axes if role.get(a) is Role.PARALLEL and s.tile[a] > 1]
    best = max(wide, key=lambda a: (a == axes[-1], s.tile[a]), default=None)
    if best is None:
        return None
    whole = min(s.tile[best], most or s.tile[best]) >= sizes[best]
    stored = whole and packed_axes(node.graph, axes, best) == axes
    return None if stored and not small else best
