"""The library version of a program on the CPU: NumPy and BLAS calls, and our own convolutions where there are windows.

NumPy multiplies the windows of a tensor by copying them all first. A product of weights with windows is a call of
`mirage.kernels.cpu.launch.convolution` instead, as in whole programs, which reads the tensor where it lies. A bias, a residual
and bounds that follow become part of that call; windows without overlap of its result (pooling) are other axes of its memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
import sympy

from mirage.ir.axes import AxisDims, AxisProgram, stored_dtypes
from mirage.ir.functions import CLAMP, MAXIMUM, RELU
from mirage.ir.moves import Moves
from mirage.kernels.copies import Copies
from mirage.kernels.cpu.launch.convolution import RANK, REALS, PackedWindows, convolve, is_there, pack
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.packing import owner
from mirage.kernels.library import LibraryProgram
from mirage.kernels.library_calls import Axes, Extents, LibraryCalls, Planner, Step, View, aligned, merged


@dataclass(frozen=True)
class _Windows:
    """Windows of a tensor `[b, c, *space]` behind `low` zeros; `pooled`: these are in windows without overlap themselves."""

    low: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pooled: bool

    @classmethod
    def of(cls, moves: Moves) -> _Windows | None:
        """What these moves make of a tensor; None where it is something else."""
        left = [(m.op, dict(m.attrs)) for m in moves]
        zeros = left.pop(0)[1] if left and left[0][0] == "pad" else None
        if not 1 <= len(left) <= 2 or any(op != "windows" for op, _ in left):
            return None
        first, rank = left[0][1], len(left[0][1]["kernel"])
        low = (0,) * (2 + rank) if zeros is None else zeros["low"]
        around = low if zeros is None else (*low, *zeros["high"])
        if rank > RANK or len(low) != 2 + rank or not all(isinstance(n, int | sympy.Integer) and n >= 0 for n in around):
            return None
        if zeros is not None and (zeros["value"] != 0 or any(low[:2]) or any(zeros["high"][:2])):
            return None
        if len(left) == 2:
            second = left[1][1]
            if second["kernel"] != second["strides"] or any(d != 1 for d in second["dilations"]) or len(second["kernel"]) != rank:
                return None
        return cls(tuple(map(int, low[2:])), first["strides"], first["dilations"], len(left) == 2)


@dataclass(frozen=True)
class Convolution:
    """A convolution over named axes: of a tensor, its weights in packed form, and, with `bias` and `other`, what is added.

    `x` are the dims of the tensor as it is stored, `batch`, `channels` (those of the groups first) and `places` (per spatial dim)
    the axes of the result. `other` gives the view that what is added has over these.
    """

    windows: _Windows
    groups: Axes
    x: AxisDims
    batch: Axes
    channels: Axes
    places: AxisDims
    bias: bool = False
    other: View | None = None
    least: float = -inf
    most: float = inf

    @property
    def layout(self) -> Axes:
        """The axes of the result in memory order."""
        return (*self.batch, *self.channels, *(a for d in self.places for a in d))

    def __call__(self, arrays: list[Any], extents: Extents, out: Any) -> Any:
        x, form, *added = arrays
        shape = merged(extents, self.batch, self.channels, *self.places)
        bias = np.ascontiguousarray(added.pop(0)).reshape(-1) if self.bias else None
        other = None if self.other is None else np.ascontiguousarray(self.other(added.pop(0))).reshape(shape)
        result = out if out is not None and out.flags.c_contiguous else np.empty([extents[a] for a in self.layout], x.dtype)
        convolve(
            np.ascontiguousarray(x).reshape(merged(extents, *self.x)), form.weight, form, result.reshape(shape),
            strides=self.windows.strides, dilations=self.windows.dilations, low=self.windows.low, groups=form.groups,
            bias=bias, other=other, least=self.least, most=self.most,
        )  # fmt: skip
        if out is None or result is out:
            return result
        out[...] = result
        return out


@dataclass(frozen=True)
class _Weights:
    """The packed form of weights: their dims in the order (groups, outputs, channels, kernel), and the axes of each."""

    perm: tuple[int, ...]
    groups: Axes
    dims: AxisDims

    def __call__(self, arrays: list[Any], extents: Extents, out: Any = None) -> PackedWindows:
        (groups,) = merged(extents, self.groups)
        w = np.ascontiguousarray(arrays[0].transpose(self.perm))
        return pack(w.reshape(merged(extents, *self.dims)), groups=groups)


def _as_it_is(array: np.ndarray) -> np.ndarray:
    return array


class CpuPlanner(Planner):
    """The plan of NumPy calls, with our own convolutions."""

    def plan(self) -> tuple[list[int], list[int]]:
        plain = {x.argument: k for k, x in reversed([*enumerate(self.program.inputs)]) if not x.moved}
        stored = stored_dtypes(self.program.inputs, self.program.dtype)
        #: per step of an input that is windows, these, the step of the tensor, and its dims and those of the windows
        self.windows: dict[int, tuple[_Windows, int, AxisDims, AxisDims]] = {}
        for k, x in enumerate(self.program.inputs):
            found = _Windows.of(x.moved) if x.argument in plain and stored[k] == self.dtype else None
            if found is not None and self.dtype.name in REALS:
                source = plain[x.argument]
                # inputs are the first steps
                self.windows[k] = found, source, self.program.inputs[source].dims, x.dims
        return super().plan()

    def matmul(self, x: int, y: int, reduced: Sequence[str]) -> int:
        for w, windows in ((x, y), (y, x)):
            if windows in self.windows and (found := self._convolution(w, windows, reduced)) is not None:
                return found
        return super().matmul(x, y, reduced)

    def _convolution(self, w: int, windows: int, reduced: Sequence[str]) -> int | None:
        """The step that convolves a tensor with the weights of step `w`; None where the product is no convolution."""
        found, source, x, dims = self.windows[windows]
        own, rank = self.steps[w].axes, len(found.strides)
        batch, channels, kernel, rest = dims[0], dims[1], dims[2 : 2 + rank], dims[2 + rank :]
        groups = tuple(a for a in channels if a not in reduced)
        inner = channels[len(groups) :]
        outputs = tuple(a for a in own if a not in reduced and a not in groups)
        summed = {*inner, *(a for d in kernel for a in d)}
        free = {*batch, *outputs, *(a for d in rest for a in d)}
        if groups != channels[: len(groups)] or set(reduced) != summed or set(own) != {*groups, *outputs, *summed}:
            return None
        if free & {*groups, *summed} or {*outputs} & {a for d in dims for a in d}:
            return None
        # windows without overlap of the result are a place and one within it, one after the other
        places = tuple((*rest[rank + i], *rest[i]) for i in range(rank)) if found.pooled else rest
        order = (*groups, *outputs, *inner, *(a for d in kernel for a in d))
        weights = _Weights(tuple(own.index(a) for a in order), groups, ((*groups, *outputs), inner, *kernel))
        packed = self._add(("packed", weights), (w,), (), weights)
        run = Convolution(found, groups, x, batch, (*groups, *outputs), places)
        return self._add(("convolution", run), (source, packed), run.layout, run)

    def finish(self, outputs: list[int]) -> list[int]:
        convolutions = [(i, s.run) for i, s in enumerate(self.steps) if isinstance(s.run, Convolution)]
        if convolutions:
            readers = self.readers()
            for i, run in convolutions:
                self._fuse(i, run, readers, outputs)
            self.drop_unread(outputs)
        return outputs

    def _fuse(self, first: int, run: Convolution, readers: Mapping[int, Sequence[int]], outputs: Collection[int]) -> None:
        """Give a convolution what follows it; the last of these steps becomes the convolution."""
        operands, last = list(self.steps[first].operands), first
        others: list[int] = []
        while last not in outputs and len(readers[last]) == 1:
            (reader,) = readers[last]
            step = self.steps[reader]
            added = [j for j in step.operands if j != last] if step.what is np.add else []
            bounds = _bounds(step.what)
            if bounds is not None:
                run = replace(run, least=bounds[0], most=bounds[1])
                last = reader
                break
            # what is added comes before the bounds, and is there when the convolution runs
            if len(added) != 1:
                break
            axes = self.steps[added[0]].axes
            if axes == run.channels and not run.bias:
                run = replace(run, bias=True)
                operands.append(added[0])
            elif set(axes) == set(run.layout) and run.other is None:
                run = replace(run, other=aligned(axes, run.layout) or _as_it_is)
                others.append(added[0])
            else:
                break
            last = reader
        if last != first:
            what = (self.steps[first].what, "with what follows", last)
            self.steps[last] = Step(what, (*operands, *others), run.layout, run)


def _bounds(what: Any) -> tuple[float, float] | None:
    """The bounds that a step puts to its operand; None for any other step."""
    match what:
        case (RELU.name, ()):
            return 0.0, inf
        case (MAXIMUM.name, (least,)):
            return float(least), inf
        case (CLAMP.name, (least, most)):
            return float(least), float(most)
    return None


class CpuLibraryCalls(LibraryCalls):
    """The calls of a program over named axes, our own convolutions among them."""

    planner = CpuPlanner


def _calls_convolutions(program: AxisProgram) -> bool:
    """Whether there are convolutions, and the code for them; nobody waits for a compiler that makes it."""
    given = [i for i, n in enumerate(program.nodes) if n.op == "input"]
    windows = {i for i, x in zip(given, program.inputs, strict=True) if _Windows.of(x.moved) is not None}
    found = any(n.op == "matmul" and windows & {*n.operands} for n in program.nodes)
    return program.dtype in REALS and found and is_there(program.dtype)


class CpuLibraryProgram(LibraryProgram):
    """A program over named axes as NumPy and BLAS calls and our own convolutions; see `LibraryProgram`.

    The weights among the `constants`, names of inputs whose contents do not change, are packed once. Where the package has no
    machine code of convolutions, it calls NumPy until a C compiler has made it, in the background.
    """

    def __init__(self, axis_program: AxisProgram, constants: Iterable[str] = ()) -> None:
        if _calls_convolutions(axis_program):
            self.calls = CpuLibraryCalls
        super().__init__(axis_program)
        names = set(constants)
        #: per step of packed weights that do not change, their input, and the forms that there are
        self._packed: dict[int, tuple[int, _Weights, Copies[PackedWindows]]] = {}
        constant = {k for k, x in enumerate(axis_program.inputs) if x.argument in names and not x.moved}
        for i, step in self._calls.computed():
            # inputs are the first steps
            if isinstance(step.run, _Weights) and step.operands[0] in constant:
                self._packed[i] = step.operands[0], step.run, Copies()

    def forget(self) -> None:
        """Drop the packed copies of constants, which are made again when they are needed."""
        for _, _, copies in self._packed.values():
            copies.clear()

    def _prepare(
        self, values: list[Any], extents: Extents, inputs: Sequence[np.ndarray], given: Sequence[Any]
    ) -> None:
        for i, (k, pack_weights, copies) in self._packed.items():
            # values may be copies of what has other axes than dims
            a, of, w = inputs[self._places[k]], given[self._places[k]], values[k]
            key = address(a), a.shape, a.strides

            def make(a: Any = a, of: Any = of, w: Any = w, run: _Weights = pack_weights) -> tuple[Any, PackedWindows]:
                # of a copy, as packed weights keep what they are made of
                return owner(of, a), run([w.copy()], extents)

            values[i] = copies.find(key, of) or copies.add(key, of, make)
