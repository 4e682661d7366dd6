"""A compiled muGraph that runs on NumPy arrays of any sizes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import sympy

from mirage.errors import InputError
from mirage.ir.axes import AxisDims, argument_places, read_arguments, stored_dtypes
from mirage.ir.dims import Dim, evaluate
from mirage.ir.moves import last_step, moved, moved_strides
from mirage.ir.types import DTYPES
from mirage.kernels.copies import Copies
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.emit.mugraph import Emitter
from mirage.kernels.cpu.emit.stages import CodeStage, LibraryStage
from mirage.kernels.cpu.launch import pool
from mirage.kernels.cpu.launch.direct import DirectCalls
from mirage.kernels.cpu.launch.frames import BoundCall, Code, Frame, Workspace
from mirage.kernels.cpu.launch.kept import KeptTensors
from mirage.kernels.cpu.launch.memory import LINE, address
from mirage.kernels.cpu.launch.packing import PackedCopies, PackedCopy, check_packed
from mirage.kernels.cpu.launch.pages import in_large_pages
from mirage.kernels.cpu.launch.wide import WideValue
from mirage.mugraph.degree import RunningMaximum
from mirage.mugraph.graph import MuGraph, partial_axis
from mirage.mugraph.schedule import Schedule
from mirage.remember import remember
from mirage.runtime.arrays import to_numpy
from mirage.settings import num_threads

#: sizes, and layouts of the arrays for each, whose C arguments are kept
_KEPT = 16

Strides = tuple[int, ...]


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
        self.frames: dict[tuple[Strides, ...], list[Frame]] = {}

    def _shape(self, dims: AxisDims) -> tuple[int, ...]:
        return tuple(prod(self.axes[a] for a in d) for d in dims)

    def axis_strides(
        self, strides: Strides, dims: AxisDims, order: Sequence[str], itemsize: int, last: int = 1
    ) -> list[int] | None:
        """Strides in elements along these axes of an array with such `strides` (bytes) of elements of so many bytes.

        None if one is no whole number, or the last is not `last`.
        """
        if any(self.axes[a] == 0 for d in dims for a in d):
            return [0] * len(order)
        found: dict[str, int] = {}
        for d, step in zip(dims, strides, strict=True):
            for a in reversed(d):
                found[a] = step
                step *= self.axes[a]
        if any(found[a] % itemsize for a in order if self.axes[a] > 1):
            return None
        if order and self.axes[order[-1]] > 1 and found[order[-1]] != last * itemsize:
            return None
        return [found[a] // itemsize for a in order]


def _copy(a: np.ndarray, step: int) -> np.ndarray:
    """A copy whose elements are so many places apart along the last dim."""
    if step == 1:
        return np.ascontiguousarray(a)
    found = np.empty((*a.shape[:-1], a.shape[-1] * step), a.dtype)[..., ::step]
    found[...] = a
    return found


class CpuExecutable:
    """A muGraph for one schedule: graph-defined kernels as C, compiled and loaded, predefined ones as library calls.

    `hints` are typical sizes of the dim symbols: layouts are chosen by them, any sizes run. `constants` are the arguments
    whose contents never change, which a schedule may pack. May be called from several threads at once. `source` is the C
    code; a graph of predefined operators needs no compiler. After `seconds`, the compiler is stopped.

    Raises ScheduleError or GraphError if the muGraph cannot be printed, or an argument is packed that is not among the
    constants; NoCompilerError or CompilerError if it cannot be compiled, or not in time.
    """

    def __init__(
        self,
        mugraph: MuGraph,
        schedule: Schedule,
        maximum: RunningMaximum,
        hints: Mapping[str, int] | None = None,
        constants: Collection[str] = (),
        seconds: float | None = None,
    ) -> None:
        self.mugraph = mugraph
        self.schedule = schedule
        check_packed(mugraph, schedule, constants)
        self.emitted = Emitter(mugraph, schedule, maximum, hints or {}, constants).emit()
        self.dtype = DTYPES[mugraph.dtype]
        #: what inputs are stored in
        self.stored = stored_dtypes(mugraph.inputs, mugraph.dtype)
        self._places = argument_places(mugraph.inputs)
        #: inputs that read something else than an argument as it is
        self._moved = frozenset(i for i, x in enumerate(mugraph.inputs) if x.moved)
        #: per input, how far elements along its last dim are apart in C code
        self._steps = tuple(last_step(x.moved) for x in mugraph.inputs)
        self._in_order = self._places == tuple(range(len(self._places))) and not self._moved
        self._stages: list[tuple[Any, LibraryStage | None]] = self._load(seconds)
        functions = [code for code, _ in self._stages if code is not None]
        self._code = Code(mugraph.name, functions, pool.run_address() if functions else 0, num_threads())
        self._shapes: dict[tuple[tuple[str, int], ...], _Shape] = {}
        self._workspaces: list[Workspace] = []
        self._copies = [PackedCopies(p, mugraph.inputs[p.input].axes) for p in self.emitted.packed]
        #: what follows from constants alone, by the constants; and what computes it
        self._kept = KeptTensors() if self.emitted.once else None
        self._once = {t: WideValue(mugraph, r, self.emitted.tensors[t]) for t, r in self.emitted.once}
        #: tensors that hold others packed
        self._packings = {p.tensor: p for p in (*self.emitted.packed, *self.emitted.kept_packed)}
        #: tensor -> result that its operator writes itself: the first one with the same axes, and the same last
        # axis where C code uses it
        self._direct: dict[int, int] = {}
        for k, t in enumerate(self.emitted.outputs):
            own, axes = [a for d in mugraph.outputs[k].dims for a in d], self.emitted.tensors[t]
            same = sorted(own) == sorted(axes) and (own[-1:] == list(axes[-1:]) or t not in self.emitted.in_code)
            if t >= self.emitted.inputs and t not in self._direct and same:
                self._direct[t] = k
        #: whether it calls NumPy and BLAS, whose threads spin for a while after a call
        self.calls_library = any(library is not None for _, library in self._stages)
        #: whether every result is written by an operator, a C function
        written = (self._direct.get(t) == k for k, t in enumerate(self.emitted.outputs))
        self._writes_all = not self.calls_library and all(written)
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

    def _load(self, seconds: float | None) -> list[tuple[Any, LibraryStage | None]]:
        """Per stage its C function, or None and its library calls."""
        if not any(isinstance(s, CodeStage) for s in self.emitted.stages):
            return [(None, s) for s in self.emitted.stages if isinstance(s, LibraryStage)]
        name, parts = self.mugraph.name[:40], self.emitted.parts
        library = toolchain.load(toolchain.compile(self.source, name=name, parts=parts, seconds=seconds))
        found: list[tuple[Any, LibraryStage | None]] = []
        for stage in self.emitted.stages:
            if isinstance(stage, LibraryStage):
                found.append((None, stage))
                continue
            run = getattr(library, stage.function)
            run.restype = ctypes.c_int
            found.append((run, None))
        return found

    @property
    def source(self) -> str:
        """The C source."""
        return self.emitted.source

    @property
    def keeps_copies(self) -> bool:
        """Whether it reads packed copies of its inputs, or what follows from constants alone."""
        return bool(self.emitted.packed or self.emitted.once)

    def packed(self) -> list[np.ndarray]:
        """The packed copies of its inputs that there are, and what was computed from constants alone."""
        copies = [copy for copies in self._copies for copy in copies.all()]
        kept = [] if self._kept is None else [copy for k in self._kept.all() for copy in k.tensors.values()]
        return [copy.packed for copy in (*copies, *kept)]

    def forget(self) -> None:
        """Drop the packed copies of constants, and what was computed from these; both are made again when they are needed."""
        for copies in self._copies:
            copies.clear()
        if self._kept is not None:
            self._kept.clear()

    def workspace(self) -> Dim:
        """Elements of the program's type that the tensors between operators need, as a dim over the program's symbols; 0 where
        there are none. Each starts at a cache line.
        """
        unit = self.dtype.itemsize
        sizes = {**self.mugraph.axes, **{partial_axis(a): n for s in self.schedule.kernels for a, n in s.splits}}
        line = LINE // unit
        found = sympy.Integer(0)
        for t in self._between():
            elements = sympy.prod([sizes[a] for a in self.emitted.tensors[t]])
            found += elements * (self.emitted.dtypes[t].itemsize // unit) + line
        return sympy.expand(found + line) if found != 0 else found

    def _between(self) -> list[int]:
        """The tensors that operators hand on to others, for which a call needs memory."""
        found = {*self._direct, *self._packings, *self._once}
        return [t for t in range(self.emitted.inputs, len(self.emitted.tensors)) if t not in found]

    def bind(self, sizes: Mapping[str, int], strides: Sequence[Strides]) -> BoundCall | None:
        """A call for aligned arrays with these strides (bytes) of the arguments, then of the results.

        None where a call has more to do than to run C code: where arrays must be copied, library calls take part, or an input is
        a result.
        """
        if not self._writes_all:
            return None
        shape = self._shape(sizes)
        count = max(self._places, default=-1) + 1
        inputs, results = [strides[k] for k in self._places], strides[count:]
        if self._moved:
            # copies of what is moved belong to arrays that a call makes
            if self._moved & {*(p.input for p in self.emitted.packed), *self.emitted.constants}:
                return None
            for i in self._moved:
                whole = shape.inputs[self._places.index(self._places[i])]
                found = moved_strides(self.mugraph.inputs[i].moved, whole, inputs[i], sizes, shape.inputs[i])
                if found is None:
                    return None
                inputs[i] = found
        if not all(self._fits(shape, i, s) for i, s in enumerate(inputs)):
            return None
        for t, k in self._direct.items():
            if shape.axis_strides(results[k], self.mugraph.outputs[k].dims, self._order(t), self.dtype.itemsize) is None:
                return None
        places = [(i, k) for i, k in enumerate(self._places) if i in self.emitted.in_code]
        places += [(t, count + k) for t, k in self._direct.items()]
        packed: list[tuple[int, tuple[int, ...], Callable[..., PackedCopy], Copies[Any]]] = [
            (p.tensor, (self._places[p.input],), self._finder(shape, copies, inputs[p.input]), copies)
            for p, copies in zip(self.emitted.packed, self._copies, strict=True)
        ]
        if self._kept is not None:
            find = self._finder_of_kept(self._kept, shape, sizes, inputs)
            of = tuple(self._places[i] for i in self.emitted.constants)
            packed += [(t, of, partial(find, t), self._kept) for t in self._read_kept()]
        return BoundCall(self._code, lambda: self._frame(shape, inputs, results), self._workspaces, places, packed)

    def prepared(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> Callable[[], Any]:
        """A function that computes new results for these arrays again and again, by a direct call where there is one."""
        given = tuple(inputs)
        layout = [n for a in given for n in (a.shape, a.strides)]
        wanted = tuple(self._shape(sizes).outputs)
        strides = [a.strides for a in given] + [np.empty(s, self.dtype).strides for s in wanted]
        call = self.bind(sizes, strides)
        direct = DirectCalls([a.dtype for a in given], [self.dtype] * len(wanted))
        if call is not None:
            direct.add(call, layout, wanted)

        def run() -> Any:
            found = direct.call(given, None)
            return self(given, sizes) if found is None else found

        return run

    def _finder(self, shape: _Shape, copies: PackedCopies, strides: Strides) -> Callable[[int, Any], PackedCopy]:
        i = copies.packing.input
        name, key = self.mugraph.inputs[i].argument, (shape.inputs[i], strides)

        def find(at: int, given: Any) -> PackedCopy:
            return copies.get((at, *key), given, lambda: to_numpy(given, name), shape.axes)

        return find

    def _read_kept(self) -> list[int]:
        """The tensors, and packed forms of tensors, that follow from constants alone and that calls read."""
        return [*self.emitted.kept, *(p.tensor for p in self.emitted.kept_packed)]

    def _finder_of_kept(
        self, kept: KeptTensors, shape: _Shape, sizes: Mapping[str, int], inputs: Sequence[Strides]
    ) -> Callable[..., PackedCopy]:
        """What finds a tensor by its number, the addresses of the constants, and these as the user passed them."""
        numbers = self.emitted.constants
        names = [self.mugraph.inputs[i].argument for i in numbers]
        layouts = [(shape.inputs[i], inputs[i]) for i in numbers]

        def find(t: int, *found: Any) -> PackedCopy:
            addresses, given = found[: len(numbers)], found[len(numbers) :]
            key = (*((at, *layout) for at, layout in zip(addresses, layouts, strict=True)), *shape.values)

            def arrays() -> list[np.ndarray]:
                return [to_numpy(x, name) for x, name in zip(given, names, strict=True)]

            return kept.get(key, given, arrays, partial(self._compute_once, shape, sizes)).tensors[t]

        return find

    def __call__(
        self,
        inputs: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        out: Sequence[np.ndarray] | None = None,
        given: Sequence[Any] | None = None,
        workspace: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """The results for arrays of the shapes that `sizes` (dim symbol -> size) binds; written to `out` if
        given. There is one array per argument of the program, which several inputs of the muGraph may read.

        Inputs are read through their strides; only one whose last axis is not contiguous is copied, and only
        for C code. `out` must not overlap the inputs. `given` are the objects that the arrays are views of, where they are
        not arrays of NumPy: packed copies of constants belong to these. The tensors between operators are in `workspace`, a
        contiguous array of as many elements as `workspace()` says, or in memory of the executable's own. Raises InputError
        for arrays of another number, shape or dtype, or a workspace that is too small.
        """
        shape = self._shape(sizes)
        arrays = self._checked(inputs, shape, sizes)
        results = self._results(out, shape)
        layout = tuple([a.strides for a in (*arrays, *results)])
        free = shape.frames.get(layout)
        if free is None:
            arrays, results_in = self._prepare(shape, arrays, results)
            layout = tuple([a.strides for a in (*arrays, *results_in)])
            free = remember(shape.frames, layout, [], _KEPT)
        else:
            results_in = results
        try:
            frame = free.pop()
        except IndexError:
            frame = self._frame(shape, [a.strides for a in arrays], [a.strides for a in results_in])
        taken = None
        if workspace is None:
            taken = frame.take(self._workspaces)
        else:
            self._check_workspace(workspace, frame)
            frame.view(workspace)
        for i, a in enumerate(arrays):
            frame.tensors[i] = address(a)
        for t, k in self._direct.items():
            frame.tensors[t] = address(results_in[k])
        held = self._pack(shape, sizes, frame, inputs, inputs if given is None else given)
        kept = self._find_kept(shape, sizes, inputs, inputs if given is None else given)
        for t, copy in kept.items():
            frame.tensors[t] = copy.address
        memory = self._memory(shape, frame, arrays, results_in, kept) if self.calls_library else []
        for number, (code, library) in enumerate(self._stages):
            if library is not None:
                library.run(shape.scalars[number].copy(), shape.axes, memory)
            else:
                self._code.run(frame, code)
        del held, kept
        self._finish(shape, frame, arrays, results, results_in)
        if taken is not None:
            self._workspaces.append(taken)
        else:
            frame.release()
        free.append(frame)
        return results

    def _shape(self, sizes: Mapping[str, int]) -> _Shape:
        key = tuple(sizes.items())
        shape = self._shapes.get(key)
        if shape is None:
            shape = _Shape(self, sizes)
            remember(self._shapes, key, shape, _KEPT)
        return shape

    def _read(self, i: int, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> np.ndarray:
        """What input i reads of the arguments."""
        return moved(self.mugraph.inputs[i].moved, np.asarray(inputs[self._places[i]]), sizes)  # type: ignore[no-any-return]

    def _pack(
        self, shape: _Shape, sizes: Mapping[str, int], frame: Frame, inputs: Sequence[np.ndarray], given: Sequence[Any]
    ) -> list[PackedCopy]:
        """Put the packed copies of constants into the frame, for as long as they are held."""
        held = []
        for p, copies in zip(self.emitted.packed, self._copies, strict=True):
            k = self._places[p.input]
            a = self._read(p.input, inputs, sizes)
            held.append(copies.get((address(a), a.shape, a.strides), given[k], partial(np.asarray, a), shape.axes))
            frame.tensors[p.tensor] = held[-1].address
        return held

    def _constants(
        self, shape: _Shape, sizes: Mapping[str, int], inputs: Sequence[np.ndarray], given: Sequence[Any]
    ) -> tuple[tuple[Any, ...], list[Any], list[np.ndarray]]:
        """The constants that something is computed from once: what tells them from others, as they are given, and as arrays."""
        arrays = [self._read(i, inputs, sizes) for i in self.emitted.constants]
        key = tuple((address(a), a.shape, a.strides) for a in arrays)
        return (*key, *shape.values), [given[self._places[i]] for i in self.emitted.constants], arrays

    def _find_kept(
        self, shape: _Shape, sizes: Mapping[str, int], inputs: Sequence[np.ndarray], given: Sequence[Any]
    ) -> Mapping[int, PackedCopy]:
        """What follows from constants alone, as calls read it."""
        if self._kept is None:
            return {}
        key, constants, arrays = self._constants(shape, sizes, inputs, given)
        return self._kept.get(key, constants, lambda: arrays, partial(self._compute_once, shape, sizes)).tensors

    def _compute_once(
        self, shape: _Shape, sizes: Mapping[str, int], constants: Sequence[np.ndarray]
    ) -> dict[int, PackedCopy]:
        """Compute what follows from these constants alone, and pack it as kernels read it."""
        given = dict(zip(self.emitted.constants, constants, strict=True))
        whole: dict[int, np.ndarray] = {}
        for t, value in self._once.items():
            extents = [shape.axes[a] for a in self.emitted.tensors[t]]
            whole[t] = in_large_pages(prod(extents), self.emitted.dtypes[t]).reshape(extents)
            value.write(given, sizes, shape.axes, whole[t])
        found = {t: whole[t] for t in self.emitted.kept}
        for p in self.emitted.kept_packed:
            found[p.tensor] = p.pack(whole[p.input], self._order(p.input), shape.axes)
        return {t: PackedCopy(a, address(a)) for t, a in found.items()}

    def _checked(self, inputs: Sequence[np.ndarray], shape: _Shape, sizes: Mapping[str, int]) -> list[np.ndarray]:
        read = inputs
        if not self._in_order or len(inputs) != len(self._places):
            read = read_arguments(
                self.mugraph.name, self.mugraph.inputs, inputs, lambda moves, a: moved(moves, np.asarray(a), sizes)
            )
        arrays: list[np.ndarray] = []
        for x, a, dtype, want in zip(self.mugraph.inputs, read, self.stored, shape.inputs, strict=True):
            array = np.asarray(a)
            # a dtype is one object, mostly
            if array.dtype is not dtype and array.dtype != dtype:
                raise InputError(
                    f"{self.mugraph.name}: input {x.argument} has dtype {array.dtype}, not {dtype}; convert it with astype"
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

    def _check_workspace(self, workspace: np.ndarray, frame: Frame) -> None:
        needed = frame.need + LINE if frame.need else 0
        if workspace.nbytes < needed or not (workspace.flags.c_contiguous and workspace.flags.writeable):
            raise InputError(
                f"{self.mugraph.name}: workspace is {workspace.dtype}{workspace.shape}, but {needed} bytes are needed; "
                "pass a writable, contiguous array of workspace() elements"
            )

    def _order(self, t: int) -> tuple[str, ...]:
        return self.emitted.tensors[t]

    def _fits(self, shape: _Shape, i: int, strides: Strides) -> bool:
        """Whether C code can read an input with these strides, if it reads it at all."""
        x, size = self.mugraph.inputs[i], self.stored[i].itemsize
        return (
            i not in self.emitted.in_code
            or shape.axis_strides(strides, x.dims, self._order(i), size, self._steps[i]) is not None
        )

    def _prepare(
        self, shape: _Shape, arrays: list[np.ndarray], results: list[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Copies of inputs, and contiguous results, where C code cannot use the given ones."""
        code = self.emitted.in_code
        inputs = [
            a if self._fits(shape, i, a.strides) else _copy(a, self._steps[i]) for i, a in enumerate(arrays)
        ]
        outs = list(results)
        for t, k in self._direct.items():
            own, dims, size = results[k].strides, self.mugraph.outputs[k].dims, self.dtype.itemsize
            if t in code and shape.axis_strides(own, dims, self._order(t), size) is None:
                outs[k] = np.empty(shape.outputs[k], self.dtype)
        return inputs, outs

    def _frame(self, shape: _Shape, inputs: Sequence[Strides], results: Sequence[Strides]) -> Frame:
        tensors: list[tuple[int, ...] | None] = []
        strides: list[int] = []
        for t, axes in enumerate(self.emitted.tensors):
            given: tuple[Strides, AxisDims] | None = None
            if t < self.emitted.inputs:
                given = inputs[t], self.mugraph.inputs[t].dims
            elif t in self._direct:
                k = self._direct[t]
                given = results[k], self.mugraph.outputs[k].dims
            if given is not None:
                # C code does not look at the strides of what only library calls use
                size, step = self.emitted.dtypes[t].itemsize, self._steps[t] if t < self.emitted.inputs else 1
                found = shape.axis_strides(*given, axes, size, step) if t in self.emitted.in_code else [0] * len(axes)
                assert found is not None
                strides += found
                tensors.append(None)
            elif t in self._packings:
                strides += self._packings[t].strides(shape.axes)
                tensors.append(None)
            else:
                extents = tuple(shape.axes[a] for a in axes)
                strides += [prod(extents[i + 1 :]) for i in range(len(extents))]
                tensors.append(None if t in self._once else extents)
        return Frame(shape.values, tensors, self.emitted.dtypes, strides)

    def _memory(
        self,
        shape: _Shape,
        frame: Frame,
        arrays: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        kept: Mapping[int, PackedCopy],
    ) -> list[Any]:
        """Arrays over their axes of the tensors that library calls use; views of what the call gives."""
        memory: list[Any] = frame.own.copy()
        for t, copy in kept.items():
            memory[t] = copy.packed
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
        frame: Frame,
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
