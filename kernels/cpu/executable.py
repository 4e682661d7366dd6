"""A compiled muGraph that runs on NumPy arrays of any sizes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from mirage.errors import InputError, MirageError
from mirage.ir.axes import AxisDims, argument_places, read_arguments
from mirage.ir.dims import evaluate
from mirage.ir.types import DTYPES
from mirage.kernels.cpu import pool, toolchain
from mirage.kernels.cpu.emit import Emitter
from mirage.kernels.cpu.stages import CodeStage, LibraryStage
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.schedule import Schedule
from mirage.settings import num_threads

#: sizes, and layouts of the arrays for each, whose C arguments and tensors between kernels are kept
_KEPT = 16


def _bound(table: dict[Any, Any]) -> None:
    """Make room for one more entry: the oldest goes."""
    while len(table) >= _KEPT:
        del table[next(iter(table))]


class _Args(ctypes.Structure):
    """`mirage_args` of the generated C."""

    _fields_ = (("sizes", ctypes.c_void_p), ("tensors", ctypes.c_void_p), ("strides", ctypes.c_void_p))


class _Frame:
    """Arguments of one call: C arrays whose constant parts are filled, and the tensors between operators."""

    def __init__(
        self,
        sizes: Sequence[int],
        tensors: Sequence[tuple[int, ...] | None],
        strides: Sequence[int],
        dtypes: Sequence[np.dtype],
    ) -> None:
        self.sizes = (ctypes.c_long * max(len(sizes), 1))(*sizes)
        self.tensors = (ctypes.c_void_p * max(len(tensors), 1))()
        self.strides = (ctypes.c_long * max(len(strides), 1))(*strides)
        #: tensors between operators; none where a call gives the memory
        self.own = [None if shape is None else np.empty(shape, t) for shape, t in zip(tensors, dtypes, strict=True)]
        for i, a in enumerate(self.own):
            if a is not None:
                self.tensors[i] = a.ctypes.data
        self.args = _Args(*(ctypes.addressof(x) for x in (self.sizes, self.tensors, self.strides)))
        self.reference = ctypes.byref(self.args)


class _Shape:
    """What a call needs that depends on the sizes alone."""

    def __init__(self, exe: CpuExecutable, sizes: Mapping[str, int]) -> None:
        graph = exe.mugraph
        self.axes = exe.schedule.axis_sizes(graph, sizes)
        self.values = [self.axes[a] for a in exe.emitted.axes] + [evaluate(d, sizes) for d in exe.emitted.dims]
        self.inputs = [self._shape(x.dims) for x in graph.inputs]
        self.outputs = [self._shape(o.dims) for o in graph.outputs]
        #: per stage, the values of a library stage's calls that are known beforehand
        self.scalars = [s.calls.values(sizes) if isinstance(s, LibraryStage) else [] for s in exe.emitted.stages]
        self.frames: dict[tuple[Any, ...], list[_Frame]] = {}

    def _shape(self, dims: AxisDims) -> tuple[int, ...]:
        return tuple(prod(self.axes[a] for a in d) for d in dims)

    def axis_strides(self, array: np.ndarray, dims: AxisDims, order: Sequence[str]) -> list[int] | None:
        """Strides in elements along these axes; None if one is no whole number, or the last is not 1."""
        if array.size == 0:
            return [0] * len(order)
        found: dict[str, int] = {}
        for d, step in zip(dims, array.strides, strict=True):
            for a in reversed(d):
                found[a] = step
                step *= self.axes[a]
        if any(found[a] % array.itemsize for a in order if self.axes[a] > 1):
            return None
        if order and self.axes[order[-1]] > 1 and found[order[-1]] != array.itemsize:
            return None
        return [found[a] // array.itemsize for a in order]


class CpuExecutable:
    """A muGraph for one schedule: graph-defined kernels as C, compiled and loaded, predefined ones as library calls.

    `hints` are typical sizes of the dim symbols: layouts are chosen by them, any sizes run. May be called
    from several threads at once. `source` is the C code; a graph of predefined operators needs no compiler.

    Raises ScheduleError or GraphError if the muGraph cannot be printed, NoCompilerError or CompilerError if
    it cannot be compiled.
    """

    def __init__(
        self,
        mugraph: MuGraph,
        schedule: Schedule,
        maximum: RunningMaximum,
        hints: Mapping[str, int] | None = None,
    ) -> None:
        self.mugraph = mugraph
        self.schedule = schedule
        self.emitted = Emitter(mugraph, schedule, maximum, hints or {}).emit()
        self.dtype = DTYPES[mugraph.dtype]
        self._places = argument_places(mugraph.inputs)
        self._in_order = self._places == tuple(range(len(self._places)))
        self._stages: list[tuple[Any, LibraryStage | None]] = self._load()
        self._pool = pool.run_address()
        self._threads = num_threads()
        self._lock = threading.Lock()
        self._shapes: dict[tuple[tuple[str, int], ...], _Shape] = {}
        #: tensor -> result that its operator writes itself: the first one with the same axes, and the same last
        # axis where C code uses it
        self._direct: dict[int, int] = {}
        for k, t in enumerate(self.emitted.outputs):
            own, axes = [a for d in mugraph.outputs[k].dims for a in d], self.emitted.tensors[t]
            same = sorted(own) == sorted(axes) and (own[-1:] == list(axes[-1:]) or t not in self.emitted.in_code)
            if t >= self.emitted.inputs and t not in self._direct and same:
                self._direct[t] = k
        self._calls = any(library is not None for _, library in self._stages)
        used = {t for _, library in self._stages if library is not None for t in library.tensors()}
        #: inputs that library calls take, with their axes where a dim is a product of several
        self._taken = [
            (t, None if all(len(d) == 1 for d in x.dims) else x.axes) for t, x in enumerate(mugraph.inputs) if t in used
        ]
        #: tensors of library calls that are results: which, its axes, and the order of the tensor's axes among them
        self._given: list[tuple[int, int, tuple[str, ...], list[int]]] = []
        for t, k in self._direct.items():
            if t in used:
                axes = tuple(a for d in mugraph.outputs[k].dims for a in d)
                self._given.append((t, k, axes, [axes.index(a) for a in self.emitted.tensors[t]]))

    def _load(self) -> list[tuple[Any, LibraryStage | None]]:
        """Per stage its C function, or None and its library calls."""
        if not any(isinstance(s, CodeStage) for s in self.emitted.stages):
            return [(None, s) for s in self.emitted.stages if isinstance(s, LibraryStage)]
        library = toolchain.load(toolchain.compile(self.source, name=self.mugraph.name[:40]))
        found: list[tuple[Any, LibraryStage | None]] = []
        for stage in self.emitted.stages:
            if isinstance(stage, LibraryStage):
                found.append((None, stage))
                continue
            run = getattr(library, stage.function)
            run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
            run.restype = ctypes.c_int
            found.append((run, None))
        return found

    @property
    def source(self) -> str:
        """The C source."""
        return self.emitted.source

    def __call__(
        self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int], out: Sequence[np.ndarray] | None = None
    ) -> list[np.ndarray]:
        """The results for arrays of the shapes that `sizes` (dim symbol -> size) binds; written to `out` if
        given. There is one array per argument of the program, which several inputs of the muGraph may read.

        Inputs are read through their strides; only one whose last axis is not contiguous is copied, and only
        for C code. `out` must not overlap the inputs. Raises InputError for arrays of another number, shape
        or dtype.
        """
        key = tuple(sizes.items())
        shape = self._shapes.get(key)
        if shape is None:
            shape = _Shape(self, sizes)
            with self._lock:
                _bound(self._shapes)
                self._shapes[key] = shape
        arrays = self._checked(inputs, shape)
        results = self._results(out, shape)
        layout = tuple([a.strides for a in (*arrays, *results)])
        free = shape.frames.get(layout)
        if free is None:
            arrays, results_in = self._prepare(shape, arrays, results)
            layout = tuple([a.strides for a in (*arrays, *results_in)])
            with self._lock:
                _bound(shape.frames)
                free = shape.frames.setdefault(layout, [])
        else:
            results_in = results
        try:
            frame = free.pop()
        except IndexError:
            frame = self._frame(shape, arrays, results_in)
        for i, a in enumerate(arrays):
            frame.tensors[i] = a.__array_interface__["data"][0]
        for t, k in self._direct.items():
            frame.tensors[t] = results_in[k].__array_interface__["data"][0]
        memory = self._memory(shape, frame, arrays, results_in) if self._calls else []
        for number, (code, library) in enumerate(self._stages):
            if library is not None:
                library.run(shape.scalars[number].copy(), shape.axes, memory)
            elif code(frame.reference, self._pool, self._threads):
                raise MirageError(f"{self.mugraph.name}: no memory for the scratch of a kernel; use smaller tiles")
        self._finish(shape, frame, arrays, results, results_in)
        free.append(frame)
        return results

    def _checked(self, inputs: Sequence[np.ndarray], shape: _Shape) -> list[np.ndarray]:
        read = inputs
        if not self._in_order or len(inputs) != len(self._places):
            read = read_arguments(self.mugraph.name, self._places, inputs)
        arrays: list[np.ndarray] = []
        for x, a, want in zip(self.mugraph.inputs, read, shape.inputs, strict=True):
            array = np.asarray(a)
            # a dtype is one object, mostly
            if array.dtype is not self.dtype and array.dtype != self.dtype:
                raise InputError(
                    f"{self.mugraph.name}: input {x.argument} has dtype {array.dtype}, "
                    f"not {self.dtype}; convert it with astype"
                )
            if array.shape != want:
                raise InputError(
                    f"{self.mugraph.name}: input {x.argument} has shape {array.shape}, but the sizes make it {want}; "
                    "pass the sizes of these arrays"
                )
            arrays.append(array if array.flags.aligned else array.copy())
        return arrays

    def _results(self, out: Sequence[np.ndarray] | None, shape: _Shape) -> list[np.ndarray]:
        if out is None:
            return [np.empty(s, self.dtype) for s in shape.outputs]
        fits = len(out) == len(shape.outputs)
        for o, want in zip(out, shape.outputs, strict=False):
            fits = fits and o.shape == want and o.dtype == self.dtype and o.flags.writeable
        if not fits:
            found = ", ".join(f"{o.dtype}{o.shape}" for o in out)
            wanted = ", ".join(f"{self.dtype}{s}" for s in shape.outputs)
            raise InputError(f"{self.mugraph.name}: out is {found}; pass writable arrays {wanted}")
        return list(out)

    def _order(self, t: int) -> tuple[str, ...]:
        return self.emitted.tensors[t]

    def _prepare(
        self, shape: _Shape, arrays: list[np.ndarray], results: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Contiguous copies of inputs, and contiguous results, where C code cannot use the given ones."""
        code = self.emitted.in_code
        inputs = [
            a if i not in code or shape.axis_strides(a, x.dims, self._order(i)) is not None else np.ascontiguousarray(a)
            for i, (x, a) in enumerate(zip(self.mugraph.inputs, arrays, strict=True))
        ]
        outs = list(results)
        for t, k in self._direct.items():
            if t in code and shape.axis_strides(results[k], self.mugraph.outputs[k].dims, self._order(t)) is None:
                outs[k] = np.empty(shape.outputs[k], self.dtype)
        return inputs, outs

    def _frame(self, shape: _Shape, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> _Frame:
        tensors: list[tuple[int, ...] | None] = []
        strides: list[int] = []
        for t, axes in enumerate(self.emitted.tensors):
            given: tuple[np.ndarray, AxisDims] | None = None
            if t < self.emitted.inputs:
                given = arrays[t], self.mugraph.inputs[t].dims
            elif t in self._direct:
                k = self._direct[t]
                given = results[k], self.mugraph.outputs[k].dims
            if given is not None:
                # C code does not look at the strides of what only library calls use
                found = shape.axis_strides(*given, axes) if t in self.emitted.in_code else [0] * len(axes)
                assert found is not None
                strides += found
                tensors.append(None)
            else:
                extents = tuple(shape.axes[a] for a in axes)
                strides += [prod(extents[i + 1 :]) for i in range(len(extents))]
                tensors.append(extents)
        return _Frame(shape.values, tensors, strides, self.emitted.dtypes)

    def _memory(
        self, shape: _Shape, frame: _Frame, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> list[Any]:
        """Arrays over their axes of the tensors that library calls use; views of what the call gives."""
        memory: list[Any] = frame.own.copy()
        for t, axes in self._taken:
            memory[t] = arrays[t] if axes is None else arrays[t].reshape([shape.axes[a] for a in axes])
        for t, k, axes, perm in self._given:
            # a dim is only divided, which needs no copy
            split = results[k].reshape([shape.axes[a] for a in axes])
            memory[t] = split.transpose(perm)
        return memory

    def _finish(
        self,
        shape: _Shape,
        frame: _Frame,
        arrays: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        written: Sequence[np.ndarray],
    ) -> None:
        """Fill the results that no operator wrote: repeated, broadcast or copied tensors."""
        for k, t in enumerate(self.emitted.outputs):
            if self._direct.get(t) == k:
                if written[k] is not results[k]:
                    results[k][...] = written[k]
                continue
            dims = self.mugraph.outputs[k].dims
            axes = tuple(a for d in dims for a in d)
            order = self._order(t)
            if t < self.emitted.inputs:
                value = arrays[t]
            elif t in self._direct:
                value = written[self._direct[t]]
                order = tuple(a for d in self.mugraph.outputs[self._direct[t]].dims for a in d)
            else:
                own = frame.own[t]
                assert own is not None
                value = own
            value = value.reshape([shape.axes[a] for a in order])
            value = value.transpose([order.index(a) for a in axes if a in order])
            value = value.reshape([shape.axes[a] if a in order else 1 for a in axes])
            results[k][...] = np.broadcast_to(value, [shape.axes[a] for a in axes]).reshape(shape.outputs[k])
