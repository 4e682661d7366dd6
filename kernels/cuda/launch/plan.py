"""What sizes, strides and alignments fix of a call: kernels with their arguments, memory between them, copies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np

from mirage.ir.axes import AxisDims
from mirage.ir.dims import evaluate
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.arguments import contiguous, described, divisible, grid, scalars, shapes
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import WARP
from mirage.kernels.cuda.emitted import DIVISIBILITY, ArgumentKind, EmittedTriton, PredefinedStep, TritonKernel
from mirage.kernels.cuda.launch.arrays import DeviceArray

#: what is in a workspace starts at multiples of so many bytes, as CUDA's own allocations do
ALIGNMENT = 256

#: the kernels in order, compiled for arguments of which these are multiples of `DIVISIBILITY`
Compile: TypeAlias = Callable[[EmittedTriton, Sequence[frozenset[str]]], Sequence[CompiledKernel]]


@dataclass(frozen=True)
class Slot:
    """An array of a call: shape, strides in elements, type; and its offset in the workspace in bytes, if it is there."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    offset: int | None = None


@dataclass(frozen=True)
class Copy:
    """The elements of slot `source`, arranged as `to` has them (see `arrange`), are copied to slot `to`."""

    source: int
    to: int
    #: (extents of the source's axes, order in which they are taken, extents with 1 where an axis is repeated, extents)
    arrangement: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Launch:
    """A kernel: `arguments` are scalars of NumPy, or numbers of slots where their addresses go."""

    kernel: CompiledKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class LibraryRun:
    """Predefined operators that follow one another; `slots` gives the slot of every tensor of the muGraph."""

    steps: tuple[PredefinedStep, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """Steps in order, and the arrays that they share.

    The slots are those of the muGraph's tensors (of which steps use the inputs'), from `results` on of its results, and then
    of what is in the workspace, which has so many bytes.
    """

    steps: tuple[Copy | Launch | LibraryRun, ...]
    slots: tuple[Slot, ...]
    results: int
    workspace: int


class Planner:
    """Plans calls of an emitted muGraph whose results have type `dtype`."""

    def __init__(self, emitted: EmittedTriton, dtype: str) -> None:
        self.emitted = emitted
        self.fallback = Planner(emitted.fallback, dtype) if emitted.fallback is not None else None
        #: tensor -> result that its kernel writes in place: the first one with the same axes in the same order
        self.in_place: dict[int, int] = {}
        for k, o in enumerate(emitted.outputs):
            tensor = emitted.tensors[o.tensor]
            if o.tensor >= emitted.inputs and _flat(o.dims) == _flat(tensor.axes) and tensor.dtype == dtype:
                self.in_place.setdefault(o.tensor, k)

    def plan(
        self,
        sizes: Mapping[str, int],
        inputs: Sequence[DeviceArray],
        results: Sequence[DeviceArray],
        compile: Compile,
    ) -> Plan:
        """The plan for arrays of such strides and alignments, whose shapes and types are those of these sizes: kernels with
        tensor descriptors where these describe the arrays, else the ones without.

        Raises InputError for sizes that arguments or grids cannot hold, and the errors of `compile`.
        """
        planning = _Planning(self, sizes, inputs, results)
        if self.fallback is not None and not described(self.emitted, sizes, planning.strides(), planning.aligned):
            return self.fallback.plan(sizes, inputs, results, compile)
        return planning.finish(compile)


class _Planning:
    def __init__(
        self, planner: Planner, sizes: Mapping[str, int], inputs: Sequence[DeviceArray], results: Sequence[DeviceArray]
    ) -> None:
        self.emitted = emitted = planner.emitted
        self.sizes = sizes
        self.workspace = 0
        self.steps: list[Copy | Launch | LibraryRun] = []
        self.direct = {t: k for t, k in planner.in_place.items() if results[k].is_contiguous}
        self.axes = {a: evaluate(d, sizes) for a, d in emitted.axes.items()}
        together = zip(shapes(emitted, sizes), emitted.tensors, strict=True)
        self.slots = [Slot(shape, contiguous(shape), t.dtype) for shape, t in together]
        for t, a in enumerate(inputs):
            self.slots[t] = Slot(a.shape, a.strides, a.dtype)
        self.slots += [Slot(r.shape, r.strides, r.dtype) for r in results]
        #: where the elements of every tensor of the muGraph are
        self.where = list(range(len(emitted.tensors)))
        self.aligned = {t for t, a in enumerate(inputs) if a.address % DIVISIBILITY == 0}
        self._place(inputs, results)

    def _place(self, inputs: Sequence[DeviceArray], results: Sequence[DeviceArray]) -> None:
        emitted = self.emitted
        read = {t for s in emitted.steps for t in s.reads}
        packed = {p.tensor for p in emitted.packed}
        for t, a in enumerate(inputs):
            unit = emitted.tensors[t].unit
            if t in read and unit >= 0 and a.shape[unit] > 1 and a.strides[unit] != 1:
                # kernels rely on neighbours along this dim
                self.where[t] = self._inside(Slot(a.shape, contiguous(a.shape), a.dtype))
                self.aligned.add(t)
                order = tuple(range(len(a.shape)))
                self.steps.append(Copy(t, self.where[t], (a.shape, order, a.shape, a.shape)))
        for t in range(emitted.inputs, len(emitted.tensors)):
            if t in packed:
                # the caller has filled it
                self.aligned.add(t)
            elif t in self.direct:
                k = self.direct[t]
                self.where[t] = len(emitted.tensors) + k
                if results[k].address % DIVISIBILITY == 0:
                    self.aligned.add(t)
            else:
                self.where[t] = self._inside(self.slots[t])
                self.aligned.add(t)

    def _inside(self, slot: Slot) -> int:
        """A new slot in the workspace."""
        itemsize = DTYPES[slot.dtype].itemsize if slot.dtype in DTYPES else 1
        self.slots.append(Slot(slot.shape, slot.strides, slot.dtype, self.workspace))
        self.workspace += -(-prod(slot.shape) * itemsize // ALIGNMENT) * ALIGNMENT
        return len(self.slots) - 1

    def strides(self) -> list[tuple[int, ...]]:
        """The strides of every tensor of the muGraph: a direct one is contiguous over its axes, whatever dims the result has."""
        given = self.emitted.inputs
        return [self.slots[w if t < given else t].strides for t, w in enumerate(self.where)]

    def finish(self, compile: Compile) -> Plan:
        emitted, sizes, strides = self.emitted, self.sizes, self.strides()
        values = [scalars(k, sizes, strides) for k in emitted.kernels]
        together = zip(emitted.kernels, values, strict=True)
        compiled = iter(compile(emitted, [divisible(k, v, self.aligned) for k, v in together]))
        given = iter(values)
        for run in emitted.runs:
            if isinstance(run, TritonKernel):
                self._launch(run, next(given), next(compiled))
            else:
                self.steps.append(LibraryRun(run, tuple(self.where)))
        for k, o in enumerate(emitted.outputs):
            if self.direct.get(o.tensor) != k:
                order, wanted = _flat(emitted.tensors[o.tensor].axes), _flat(o.dims)
                arrangement = (
                    tuple(self.axes[a] for a in order),
                    tuple(order.index(a) for a in wanted if a in order),
                    tuple(self.axes[a] if a in order else 1 for a in wanted),
                    tuple(self.axes[a] for a in wanted),
                )
                self.steps.append(Copy(self.where[o.tensor], len(emitted.tensors) + k, arrangement))
        return Plan(tuple(self.steps), tuple(self.slots), len(emitted.tensors), self.workspace)

    def _launch(self, step: TritonKernel, values: Mapping[str, int], kernel: CompiledKernel) -> None:
        programs = grid(step, self.sizes)
        blocks = prod(programs) * kernel.num_ctas
        if not blocks:
            return
        arguments: list[Any] = []
        for a in step.arguments:
            if a.kind is ArgumentKind.POINTER:
                arguments.append(self.where[a.tensor])
            else:
                arguments.append((np.int32 if a.kind is ArgumentKind.SIZE else np.int64)(values[a.name]))
        for each in (kernel.global_scratch_size, kernel.profile_scratch_size):
            # the last two arguments, which every kernel has
            scratch = Slot((blocks * each,), (1,), "uint8")
            arguments.append(self._inside(scratch) if each else np.uint64(0))
        shape = programs[0] * kernel.num_ctas, programs[1], programs[2]
        self.steps.append(Launch(kernel, shape, (WARP * kernel.num_warps, 1, 1), tuple(arguments)))


def arrange(xp: Any, step: Copy, source: Any, shape: Sequence[int]) -> Any:
    """The source of a copy as an array of the shape of what it is copied to, of the library `xp`."""
    split, order, present, full = step.arrangement
    return xp.broadcast_to(source.reshape(split).transpose(order).reshape(present), full).reshape(shape)


def _flat(dims: AxisDims) -> tuple[str, ...]:
    return tuple(a for d in dims for a in d)
