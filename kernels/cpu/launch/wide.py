"""What a muGraph computes of constants alone, in float64: rounded once, to the type that it is stored in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from mirage.ir.axes import AxisProgram
from mirage.kernels.library_calls import LibraryCalls, aligned
from mirage.mugraph.graph import MuGraph, Ref
from mirage.mugraph.whole import result_of

#: elements of all values that are computed at a time: some float64 copies of blocks that caches hold, not of whole weights
BLOCK = 1 << 18


class WideValue:
    """A result of a kernel, which is stored over `axes`, as NumPy and BLAS calls in float64.

    It is computed block by block along one of its axes that is never summed over. What lacks that axis is converted as a whole,
    and so is everything where all axes are summed over somewhere.
    """

    def __init__(self, mugraph: MuGraph, result: Ref, axes: tuple[str, ...]) -> None:
        program, self._inputs = _live(replace(result_of(mugraph, result), dtype="float64"))
        self._program = program
        self._calls = LibraryCalls(program, {})
        #: partial axes, of which the value is the first part, and all others are 0
        self._parts = tuple(0 if a not in program.axes else slice(None) for a in axes)
        self._axes = tuple(a for a in axes if a in program.axes)
        fixed = {a for n in program.nodes for a in n.reduce}
        fixed |= {a for n in program.nodes if n.joined is not None for a in (n.joined[0], *n.joined[1])}
        self._free = [a for a in self._axes if a not in fixed]

    def write(
        self, arrays: Mapping[int, np.ndarray], sizes: Mapping[str, int], extents: Mapping[str, int], out: np.ndarray
    ) -> None:
        """Compute it into `out`, from the inputs of the muGraph by their number; `extents` are the sizes of the axes."""
        if 0 in self._parts:
            out[...] = 0
            # a view, also of a single element
            out = out[(*self._parts, ...)]
        given = [
            (arrays[i].reshape([extents[a] for a in x.axes]), x.axes)
            for i, x in zip(self._inputs, self._program.inputs, strict=True)
        ]
        if not self._free:
            self._write(given, sizes, extents, out)
            return
        axis, step = self._blocks(extents)
        # what lacks the axis is converted once
        given = [(a if axis in axes else a.astype(np.float64), axes) for a, axes in given]
        for start in range(0, extents[axis], step):
            stop = min(start + step, extents[axis])
            part = [(_cut(a, axes, axis, start, stop), axes) for a, axes in given]
            self._write(part, sizes, {**extents, axis: stop - start}, _cut(out, self._axes, axis, start, stop))

    def _blocks(self, extents: Mapping[str, int]) -> tuple[str, int]:
        """The axis to go along, which leaves few elements at a time, and its elements per block."""
        axis = min(self._free, key=lambda a: max(BLOCK, sum(self._elements(a, extents))))
        whole, each = self._elements(axis, extents)
        # what lacks the axis may be computed again by every block, which then has as much of its own to compute
        return axis, max(1, max(BLOCK, whole) // max(each, 1))

    def _elements(self, axis: str, extents: Mapping[str, int]) -> tuple[int, int]:
        """Elements of all values that lack an axis, and per index along the axis of those that have it."""
        counts = [(axis in n.axes, prod(extents[a] for a in n.axes if a != axis)) for n in self._program.nodes]
        return sum(c for has, c in counts if not has), sum(c for has, c in counts if has)

    def _write(
        self,
        given: Sequence[tuple[np.ndarray, tuple[str, ...]]],
        sizes: Mapping[str, int],
        extents: Mapping[str, int],
        out: np.ndarray,
    ) -> None:
        values = self._calls.values(sizes)
        for i, (a, _) in zip(self._calls.inputs, given, strict=True):
            values[i] = a.astype(np.float64, copy=False)
        self._calls.run(values, extents, {})
        (result,) = self._calls.outputs
        view = aligned(self._calls.axes(result), self._axes)
        with np.errstate(all="ignore"):
            out[...] = values[result] if view is None else view(values[result])


def _cut(array: np.ndarray, axes: tuple[str, ...], axis: str, start: int, stop: int) -> np.ndarray:
    """The part of an array between two places along an axis; all of one that lacks it."""
    return array[tuple(slice(start, stop) if a == axis else slice(None) for a in axes)]


def _live(program: AxisProgram) -> tuple[AxisProgram, list[int]]:
    """The program without what its results do not need, and which inputs are left."""
    live = {o.value for o in program.outputs}
    for i in reversed(range(len(program.nodes))):
        if i in live:
            live.update(program.nodes[i].operands)
    new = {i: k for k, i in enumerate(sorted(live))}
    nodes = tuple(
        replace(n, operands=tuple(new[j] for j in n.operands)) for i, n in enumerate(program.nodes) if i in live
    )
    given = [i for i, n in enumerate(program.nodes) if n.op == "input"]
    inputs = [k for k, i in enumerate(given) if i in live]
    outputs = tuple(replace(o, value=new[o.value]) for o in program.outputs)
    return replace(program, inputs=tuple(program.inputs[k] for k in inputs), nodes=nodes, outputs=outputs), inputs
