"""A compiled loop program that runs on NumPy arrays of any sizes, in destination-passing style."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from mirage.errors import InputError, MirageError
from mirage.ir.dim_values import shapes_function, value_at
from mirage.ir.loops.interpret import index_message
from mirage.ir.loops.program import LoopProgram
from mirage.ir.types import ELEMENTS, TensorType
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.launch import pool
from mirage.kernels.cpu.launch.memory import address, aligned
from mirage.kernels.cpu.launch.rounds import Launch, launcher, pointers_to
from mirage.kernels.cpu.loops.access import last_long
from mirage.kernels.cpu.loops.emit import emit
from mirage.remember import remember
from mirage.settings import num_threads

#: sizes, and layouts of the arrays for each, whose C arguments are kept
_KEPT = 16


class _Args(ctypes.Structure):
    """`mi_loops` of mirage_loops.h."""

    _fields_ = (
        ("sizes", ctypes.c_void_p),
        ("tensors", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("failed", ctypes.c_long),
        ("index", ctypes.c_long),
        ("extent", ctypes.c_long),
    )


class _Frame:
    """The C arguments of one call at a time."""

    def __init__(self, sizes: Sequence[int], tensors: int, strides: Sequence[int]) -> None:
        self.sizes = (ctypes.c_long * max(len(sizes), 1))(*sizes)
        self.tensors = (ctypes.c_void_p * max(tensors, 1))()
        self.strides = (ctypes.c_long * max(len(strides), 1))(*strides)
        self.args = _Args(*(ctypes.addressof(x) for x in (self.sizes, self.tensors, self.strides)))
        self.reference = ctypes.byref(self.args)


class _Shape:
    """What a call needs that depends on the sizes alone."""

    def __init__(self, kernel: LoopKernel, sizes: Mapping[str, int]) -> None:
        kernel.program.check(sizes)
        self.values = [value_at(d, sizes) for d in kernel.dims]
        shapes, (a, b) = kernel.shapes(sizes), kernel.counts
        self.inputs, self.outputs = shapes[:a], shapes[a : a + b]
        self.workspace = list(zip(shapes[a + b :], kernel.workspace_elements, strict=True))
        #: strides of the inputs -> frames that no call uses
        self.frames: dict[tuple[tuple[int, ...], ...], list[_Frame]] = {}


class LoopKernel:
    """A loop program as machine code.

    `source` is the C code; `program` what it was made of. May be called from several threads at once. Raises
    NoCompilerError or CompilerError if it cannot be compiled.
    """

    kind = LoopProgram.kind

    def __init__(self, program: LoopProgram) -> None:
        self.program = program
        emitted = emit(program)
        self.source = emitted.text
        self.dims = emitted.dims
        #: types of the tensors that the steps of the kernel hand on: a call is given memory for them, or allocates it
        self.workspace_types = emitted.workspace
        self.workspace_elements = [ELEMENTS[t.dtype] for t in self.workspace_types]
        #: what computes the shapes of inputs, of outputs, so many, and of these
        self.counts = len(program.inputs), len(program.outputs)
        self.shapes = shapes_function(t.shape for t in (*program.input_types, *program.output_types, *self.workspace_types))
        self._checks = emitted.checks
        library = toolchain.load(toolchain.compile(self.source, name=f"loops_{program.name}"[:40]))
        self._run = library.mirage_run
        self._run.restype = ctypes.c_int
        self._pool, self._threads = ctypes.c_void_p(pool.run_address()), ctypes.c_int(num_threads())
        self._dtypes = [ELEMENTS[t.dtype] for t in program.input_types]
        self._results = [ELEMENTS[t.dtype] for t in program.output_types]
        #: per input, the dim that C code takes to be contiguous
        self._last = [last_long(t.shape) for t in program.input_types]
        self._shapes: dict[tuple[int, ...], _Shape] = {}

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dim symbols whose sizes a call gives."""
        return self.program.symbols

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of the results, over the dim symbols."""
        return self.program.output_types

    def to_text(self) -> str:
        """The text of the loop program."""
        return self.program.to_text()

    def workspace(self, sizes: Mapping[str, int]) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """(shape, element type) of every tensor that a call at these sizes needs for its intermediate results."""
        return list(self._shape(sizes).workspace)

    def __call__(
        self,
        inputs: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        out: Sequence[np.ndarray],
        workspace: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Write the outputs for arrays of the shapes that `sizes` (dim symbol -> size) binds to `out`.

        Inputs are read through their strides; one whose last dim is not contiguous is copied first. `out` are
        contiguous and overlap nothing; so is `workspace`, whose contents are of no matter before and after. Raises
        InputError for arrays of another number, shape, dtype or layout, and for an index in the data that is out of
        range, after which `out` holds anything.
        """
        shape = self._shape(sizes)
        arrays = self._inputs(inputs, shape)
        self._check_written("out", out, shape.outputs, self._results)
        if workspace is None:
            workspace = [aligned(prod(s), d).reshape(s) for s, d in shape.workspace]
        else:
            self._check_written(
                "workspace", workspace, [s for s, _ in shape.workspace], [d for _, d in shape.workspace]
            )
        layout = tuple([a.strides for a in arrays])
        free = shape.frames.get(layout)
        if free is None:
            free = remember(shape.frames, layout, [], _KEPT)
        try:
            frame = free.pop()
        except IndexError:
            steps = [s // a.itemsize for a in arrays for s in a.strides]
            frame = _Frame(shape.values, len(arrays) + len(out) + len(workspace), steps)
        tensors = frame.tensors
        k = 0
        for group in (arrays, out, workspace):
            for a in group:
                tensors[k] = address(a)
                k += 1
        status = self._run(frame.reference, self._pool, self._threads)
        failed, index, extent = frame.args.failed, frame.args.index, frame.args.extent
        free.append(frame)
        if status:
            raise self._error(status, failed, index, extent)

    def _error(self, status: int, failed: int, index: int, extent: int) -> Exception:
        if status > 0:
            return InputError(f"{self.program.name}: {index_message(self._checks[failed - 1], index, extent)}")
        return MirageError(f"{self.program.name}: no memory for a row of intermediate results; use smaller sizes")

    def prepare(
        self,
        inputs: Sequence[np.ndarray],
        sizes: Mapping[str, int],
        out: Sequence[np.ndarray],
        workspace: Sequence[np.ndarray],
    ) -> tuple[Launch, ...] | None:
        """The launch that does what a call with arrays of these shapes and strides does; None where that copies one first.

        It fails as calls do.
        """
        shape = self._shape(sizes)
        arrays = self._inputs(inputs, shape)
        if any(a is not given for a, given in zip(arrays, inputs, strict=True)):
            return None
        self._check_written("out", out, shape.outputs, self._results)
        self._check_written("workspace", workspace, [s for s, _ in shape.workspace], [d for _, d in shape.workspace])
        steps = [s // a.itemsize for a in arrays for s in a.strides]
        count = len(arrays) + len(out) + len(workspace)
        frame = _Frame(shape.values, count, steps)
        places = pointers_to(frame.tensors, [(k, k) for k in range(count)])

        def error(status: int) -> Exception:
            return self._error(status, frame.args.failed, frame.args.index, frame.args.extent)

        return (Launch(launcher(self._run), ctypes.addressof(frame.args), places, error, frame),)

    def _shape(self, sizes: Mapping[str, int]) -> _Shape:
        symbols = self.program.symbols
        try:
            key = tuple([sizes[s] for s in symbols])
        except KeyError as e:
            raise InputError(
                f"{self.program.name}: no size for {e.args[0]}; give sizes={{{e.args[0]!r}: ...}}"
            ) from None
        shape = self._shapes.get(key)
        if shape is None:
            shape = _Shape(self, dict(zip(symbols, map(int, key), strict=True)))
            remember(self._shapes, key, shape, _KEPT)
        return shape

    def _inputs(self, inputs: Sequence[np.ndarray], shape: _Shape) -> list[np.ndarray]:
        if len(inputs) != len(shape.inputs):
            raise InputError(f"{self.program.name}: got {len(inputs)} inputs; it takes {len(shape.inputs)}")
        arrays = []
        for k, (a, want, dtype) in enumerate(zip(inputs, shape.inputs, self._dtypes, strict=True)):
            if a.shape != want or (a.dtype is not dtype and a.dtype != dtype):
                raise InputError(
                    f"{self.program.name}: input {self.program.inputs[k][0]} is {a.dtype}{list(a.shape)}, not "
                    f"{dtype}{list(want)}; pass the sizes of these arrays"
                )
            flags = a.flags
            if not flags.c_contiguous and (not flags.aligned or not _readable(a, self._last[k])):
                a = np.ascontiguousarray(a).reshape(want)
            elif not flags.aligned:
                a = a.copy()
            arrays.append(a)
        return arrays

    def _check_written(
        self,
        what: str,
        arrays: Sequence[np.ndarray],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[np.dtype[Any]],
    ) -> None:
        fits = len(arrays) == len(shapes)
        for a, want, dtype in zip(arrays, shapes, dtypes, strict=False):
            f = a.flags
            fits = fits and a.shape == want and a.dtype == dtype and f.c_contiguous and f.writeable and f.aligned
        if not fits:
            found = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays) or "nothing"
            wanted = ", ".join(f"{d}{list(s)}" for s, d in zip(shapes, dtypes, strict=True)) or "nothing"
            raise InputError(f"{self.program.name}: {what} is {found}; pass contiguous writable arrays {wanted}")


def _readable(a: np.ndarray, last: int) -> bool:
    """Whether C code can read an array through its strides: those of dim `last` are contiguous, others whole elements apart."""
    contiguous = last < 0 or a.shape[last] <= 1 or a.strides[last] == a.itemsize
    return contiguous and all(s % a.itemsize == 0 for s in a.strides)
