"""A compiled muGraph that runs on arrays of a CUDA device, of any sizes, on the caller's stream."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from mirage.errors import InputError, ScheduleError
from mirage.ir.axes import read_arguments
from mirage.ir.dims import evaluate
from mirage.ir.moves import Moves, moved
from mirage.kernels.cuda.arguments import contiguous, described, shapes
from mirage.kernels.cuda.compile.functions import Request, compile_triton, request, typical_requests
from mirage.kernels.cuda.compile.kernels import CompiledKernel, checked, compile_all
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.emitted import DIVISIBILITY, EmittedTriton, PredefinedStep
from mirage.kernels.cuda.launch.arrays import DeviceArray, device_of, empty, memory_of, on_stream, read, view
from mirage.kernels.cuda.launch.bound import BoundCall
from mirage.kernels.cuda.launch.loaded import LoadedKernels, cupy_at_hand
from mirage.kernels.cuda.launch.packing import DeviceCopies
from mirage.kernels.cuda.launch.plan import Plan, Planner
from mirage.kernels.cuda.library.predefined import PredefinedOperators, library_operators
from mirage.kernels.cuda.library.program import CupyArrays
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph

#: sizes, strides and alignments whose plans are kept
_KEPT = 64


T = TypeVar("T")


@dataclass(frozen=True)
class _Shapes:
    """The shapes of the muGraph's inputs and results at some sizes."""

    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]


class CudaExecutable:
    """A muGraph as Triton kernels, compiled ahead of time for a device, with library calls for its predefined operators.

    `kernels` are those for aligned, contiguous arrays of the sizes `hints` (dim symbol -> size), compiled if not given; where
    other sizes, strides and addresses are multiples of 16, others are compiled when they are first needed, and cached. Needs no
    device before it is called. May be called from several threads at once. `source` is the Triton code. `constants` are the
    arguments whose contents never change: a schedule may read them from packed copies, which are made when an array is first
    seen and kept as long as its memory lives. Kernels with tensor descriptors serve arrays whose addresses and strides are
    multiples of 16 bytes; for others, those without descriptors are compiled when they are first needed.

    Raises ScheduleError where an argument is packed that is not among the constants, and the errors of `compile_triton`.
    """

    def __init__(
        self,
        mugraph: MuGraph,
        emitted: EmittedTriton,
        device: CudaDevice,
        hints: Mapping[str, int],
        constants: Collection[str] = (),
        kernels: tuple[CompiledKernel, ...] | None = None,
    ) -> None:
        for p in emitted.packed:
            if (name := mugraph.inputs[p.input].argument) not in constants:
                raise ScheduleError(f"{mugraph.name}: the schedule packs {name}, which is not constant; name it in constants")
        self.mugraph = mugraph
        self.emitted = emitted
        self.device = device
        self.kernels = compile_triton(emitted, device, hints) if kernels is None else kernels
        self._planner = Planner(emitted, mugraph.dtype)
        self._copies = [DeviceCopies(emitted, p) for p in emitted.packed]
        self._lock = threading.Lock()
        self._shapes: dict[Any, _Shapes] = {}
        self._plans: dict[Any, Plan] = {}
        self._loaded = LoadedKernels()
        self._operators: dict[tuple[PredefinedStep, ...], PredefinedOperators] = {}

    @property
    def source(self) -> str:
        """The Triton source."""
        return self.emitted.source

    def requests(self, sizes: Mapping[str, int]) -> list[Request]:
        """What a call with aligned, contiguous arrays of these sizes (dim symbol -> size) launches."""
        emitted = self.emitted
        if emitted.fallback is not None:
            strides = [contiguous(s) for s in shapes(emitted, sizes)]
            if not described(emitted, sizes, strides, range(len(emitted.tensors))):
                emitted = emitted.fallback
        return typical_requests(emitted, self.device, sizes)

    def serves(self, sizes: Mapping[str, int]) -> bool:
        """Whether the schedule has room for these sizes (dim symbol -> size)."""
        return all(evaluate(limit.value, sizes) <= limit.most for limit in self.emitted.limits)

    def __call__(
        self, inputs: Sequence[Any], sizes: Mapping[str, int], out: Sequence[Any] | None = None, stream: Any = None
    ) -> list[Any]:
        """The results for arrays of the shapes that `sizes` (dim symbol -> size) binds; written to `out` if given.

        There is one array per argument of the program: arrays of CuPy, CUDA tensors of torch, or anything with DLPack or
        `__cuda_array_interface__`. They are read in place, through their strides; only one whose neighbours along the last
        dim are apart in memory is copied, where a kernel relies on them. Results are torch's where the first argument is, else
        CuPy's. Kernels are enqueued on `stream` (of CuPy, of torch, with `__cuda_stream__`, or a handle), by default on the
        current one of torch where the first argument is torch's, else of CuPy; they are not waited for. `out` must not overlap
        the inputs.

        Raises InputError for arrays of another number, shape, dtype or place and for sizes that the schedule has no room for,
        DeviceError where the device is missing or of another architecture, and the errors of compilation.
        """
        with self._on(inputs, out, stream) as (cupy, device):
            bound = self._bound(cupy, device, inputs, sizes, out)
            bound.launch()
        return bound.results

    def bind(
        self, inputs: Sequence[Any], sizes: Mapping[str, int], out: Sequence[Any] | None = None, stream: Any = None
    ) -> BoundCall:
        """A call with its arrays, to be launched often: that costs less than a call, and a CUDA graph can record it.

        See `__call__`; `stream` is the one that memory is taken on.
        """
        with self._on(inputs, out, stream) as (cupy, device):
            return self._bound(cupy, device, inputs, sizes, out)

    @contextmanager
    def _on(self, inputs: Sequence[Any], out: Sequence[Any] | None, stream: Any) -> Iterator[tuple[Any, int]]:
        """CuPy, and the number of the device that the first array is on, which is current within."""
        cupy = self._at_hand()
        like = next(iter((*inputs, *(out or ()))), None)
        device = device_of(cupy, like)
        with on_stream(cupy, like, device, stream):
            yield cupy, device

    def _at_hand(self) -> Any:
        return cupy_at_hand(self.mugraph.name, self.device, "superoptimize")

    def _bound(
        self, cupy: Any, device: int, inputs: Sequence[Any], sizes: Mapping[str, int], out: Sequence[Any] | None
    ) -> BoundCall:
        emitted, name = self.emitted, self.mugraph.name
        at = tuple(sizes.items())
        bound = self._shapes.get(at) or self._kept(self._shapes, at, self._bind_shapes(sizes))

        like = inputs[0] if inputs else None

        def moved_on(moves: Moves, array: Any) -> Any:
            with memory_of(cupy, like, device):
                return moved(moves, view(cupy, read(cupy, array, name)), sizes, cupy)

        given = read_arguments(name, self.mugraph.inputs, inputs, moved_on)
        arrays: list[DeviceArray] = []
        together = zip(self.mugraph.inputs, given, emitted.tensors, bound.inputs, strict=False)
        for x, a, t, want in together:
            what = f"{name}: input {x.argument}"
            arrays.append(_checked(read(cupy, a, what), want, t.dtype, device, what))
        results, written = self._results(cupy, like, bound.outputs, out, device)
        key = at, tuple([(a.strides, a.address % DIVISIBILITY == 0) for a in (*arrays, *written)])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._kept(self._plans, key, self._planner.plan(sizes, arrays, written, self._compiled))
        packed = self._packed(cupy, given, arrays, sizes)
        load, operator = partial(self._loaded.get, cupy, device), self._operator
        return BoundCall(cupy, device, plan, sizes, (arrays, written, results, like), load, operator, packed)

    def _kept(self, table: dict[Any, T], key: Any, value: T) -> T:
        """The value, which the table has from now on in the place of the oldest one."""
        with self._lock:
            while len(table) >= _KEPT:
                del table[next(iter(table))]
            table[key] = value
        return value

    def _bind_shapes(self, sizes: Mapping[str, int]) -> _Shapes:
        """Raises InputError for sizes that the schedule has no room for."""
        for limit in self.emitted.limits:
            if (value := evaluate(limit.value, sizes)) > limit.most:
                raise InputError(
                    f"{self.mugraph.name}: axis {limit.axis} has {value} elements, and this schedule has room for "
                    f"{limit.most}; choose a schedule with larger tiles"
                )
        outputs = [tuple(evaluate(d, sizes) for d in o.shape) for o in self.emitted.outputs]
        return _Shapes(shapes(self.emitted, sizes)[: self.emitted.inputs], outputs)

    def _results(
        self, cupy: Any, like: Any, wanted: Sequence[tuple[int, ...]], out: Sequence[Any] | None, device: int
    ) -> tuple[list[Any], list[DeviceArray]]:
        name, dtype = self.mugraph.name, self.mugraph.dtype
        if out is None:
            made = [empty(cupy, like, s, dtype, device) for s in wanted]
            return [m for m, _ in made], [a for _, a in made]
        if len(out) != len(wanted):
            raise InputError(f"{name}: out has {len(out)} arrays; pass {len(wanted)}, one per result")
        arrays = []
        for k, (o, want) in enumerate(zip(out, wanted, strict=True)):
            what = f"{name}: out[{k}]"
            arrays.append(_checked(read(cupy, o, what), want, dtype, device, what))
            if any(n > 1 and s == 0 for n, s in zip(arrays[-1].shape, arrays[-1].strides, strict=True)):
                raise InputError(f"{what} is broadcast: several elements share memory; pass an array of its own")
        return list(out), arrays

    def _compiled(self, emitted: EmittedTriton, aligned: Sequence[frozenset[str]]) -> tuple[CompiledKernel, ...]:
        together = zip(emitted.kernels, aligned, strict=True)
        return checked(compile_all([request(emitted, k, self.device, d) for k, d in together]), self.device)

    def _packed(
        self, cupy: Any, given: Sequence[Any], arrays: Sequence[DeviceArray], sizes: Mapping[str, int]
    ) -> dict[int, DeviceArray]:
        """The packed copies of constants, by tensor."""
        return {c.packed.tensor: c.get(cupy, given[c.packed.input], arrays[c.packed.input], sizes) for c in self._copies}

    def forget(self) -> None:
        """Drop the packed copies of constants; they are made again when they are needed. Bound calls keep theirs."""
        for copies in self._copies:
            copies.clear()

    def _operator(self, steps: tuple[PredefinedStep, ...]) -> PredefinedOperators:
        """The library calls of predefined operators; raises LibraryError where a library is missing."""
        with self._lock:
            if steps not in self._operators:
                maximum, arrays = analyze(self.mugraph), CupyArrays()
                self._operators[steps] = library_operators(
                    self.mugraph, self.emitted, steps, maximum, self.device, arrays
                )
            return self._operators[steps]


def _checked(array: DeviceArray, shape: tuple[int, ...], dtype: str, device: int, what: str) -> DeviceArray:
    if array.dtype != dtype:
        raise InputError(f"{what} has dtype {array.dtype}, not {dtype}; convert it")
    if array.shape != shape:
        raise InputError(
            f"{what} has shape {array.shape}, but the sizes make it {shape}; pass the sizes of these arrays"
        )
    if array.device != device:
        raise InputError(f"{what} is on CUDA device {array.device}, and the first array on {device}; copy it there")
    return array
