"""A loop program compiled ahead of time for a CUDA device, in destination-passing style."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from mirage.errors import InputError
from mirage.ir.loops.interpret import index_message
from mirage.ir.loops.program import LoopProgram
from mirage.ir.types import ELEMENTS, TensorType
from mirage.kernels.cuda.arguments import grid
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import WARP, CudaDevice
from mirage.kernels.cuda.emitted import DIVISIBILITY, ArgumentKind
from mirage.kernels.cuda.launch.arrays import DeviceArray, bits, device_of, on_stream, read
from mirage.kernels.cuda.launch.loaded import LoadedKernels, cupy_at_hand
from mirage.kernels.cuda.launch.plan import Launch
from mirage.kernels.cuda.loops.compiled import CompiledLoops
from mirage.kernels.cuda.loops.emit import EmittedLoops
from mirage.kernels.cuda.loops.ranges import value
from mirage.kernels.cuda.loops.versions import LoopVersions
from mirage.kernels.loop_text import parts_to_text

#: sizes whose launches are kept
_KEPT = 64
#: what the words of failed checks are
_WORDS = TensorType((), "int64")


@dataclass(frozen=True)
class _Shape:
    """What a call needs that depends on the sizes alone: shapes, and per set of unaligned tensors the launches."""

    inputs: list[tuple[int, ...]]
    outputs: list[tuple[int, ...]]
    workspace: list[tuple[tuple[int, ...], np.dtype[Any]]]
    emitted: EmittedLoops
    launches: dict[frozenset[int], list[Launch]] = field(default_factory=dict)


class CudaLoopKernel:
    """A loop program as Triton kernels, compiled ahead of time for a device.

    `source` is the Triton code for sizes like `hints` (dim symbol -> size); those that differ much run other code, which is
    compiled when it is first needed, and cached. Needs no device before it is called. May be called from several threads at
    once.
    """

    kind = "target_loops"

    def __init__(self, program: LoopProgram, device: CudaDevice, hints: Mapping[str, int]) -> None:
        self.program = program
        self.device = device
        self.target = device.target
        self._versions = LoopVersions(program, device, hints)
        self.hints = self._versions.hints
        first = len(self._versions.tensors) - self._versions.workspace
        #: types of the tensors that its kernels hand on: a call is given memory for them, or allocates it
        self.workspace_types = tuple(TensorType(t.shape, t.dtype) for t in self._versions.tensors[first:])
        self._types = program.input_types, program.output_types
        self._lock = threading.Lock()
        self._shapes: dict[tuple[int, ...], _Shape] = {}
        self._loaded = LoadedKernels()
        emitted = self._versions.emitted(self.hints)
        self.source = emitted.source
        self._checks = emitted.checks
        self._code: dict[tuple[int, frozenset[int]], CompiledLoops] = {}
        self._typical = self._compiled(emitted, self.hints, frozenset())

    @property
    def kernels(self) -> tuple[CompiledKernel, ...]:
        """The compiled kernels for aligned arrays of the sizes `hints`.

        They are compiled when they are first asked for, all that wait at once. Raises the errors of `compile_triton`.
        """
        return self._typical.at(self.hints)

    @property
    def symbols(self) -> tuple[str, ...]:
        """The dim symbols whose sizes a call gives."""
        return self.program.symbols

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of the results, over the dim symbols."""
        return self.program.output_types

    @property
    def checked(self) -> bool:
        """Whether indices in the data may be out of range; see `raise_failures`."""
        return bool(self._checks)

    @property
    def failure_words(self) -> int:
        """The number of int64 words that failed checks are written to."""
        return 2 * len(self._checks)

    def to_text(self) -> str:
        """JSON on one line, from which `mirage.compiler.kernels.loops` makes the kernel again; it holds no code."""
        return parts_to_text(self.program, self.target, self.hints)

    def workspace(self, sizes: Mapping[str, int]) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """(shape, element type) of every tensor that a call at these sizes needs for its intermediate results."""
        return list(self._shape(sizes).workspace)

    def raise_failures(self, failures: Any) -> None:
        """Raises the InputError of `LoopKernel` if a call wrote to these words that an index is out of range.

        `failures` are words of a device, which are waited for, or their copy in main memory.
        """
        words = np.asarray(failures.get() if hasattr(failures, "get") else failures)
        for where, (index, count) in zip(self._checks, words.reshape(-1, 2).tolist(), strict=True):
            if count:
                raise InputError(f"{self.program.name}: {index_message(where, index, count - 1)}")

    # ---- calls ----

    def __call__(
        self,
        inputs: Sequence[Any],
        sizes: Mapping[str, int],
        out: Sequence[Any],
        workspace: Sequence[Any] | None = None,
        stream: Any = None,
        failures: Any = None,
    ) -> Any:
        """Enqueue the kernels that write the outputs for arrays of the shapes that `sizes` (dim symbol -> size) binds to `out`.

        Arrays are `DeviceArray`s, or of any library that `mirage.kernels.cuda.launch.arrays.read` reads; nothing is waited for.
        Inputs that are not contiguous are copied first. `out` are contiguous and overlap nothing; so is `workspace`, whose
        contents are of no matter before and after. `stream` is as in `CudaExecutable`.

        `failures`, int64 words of which there are `failure_words`, are 0 unless an index in the data was out of range, after
        which `out` holds anything; without them, new ones. Returns the words, or None where nothing can fail.

        Raises InputError for arrays of another number, shape, dtype or layout, and DeviceError where the device is missing or
        of another architecture.
        """
        cupy = cupy_at_hand(self.program.name, self.device, "compile")
        shape = self._shape(sizes)
        like = next(iter((*inputs, *out)), None)
        device = like.device if isinstance(like, DeviceArray) else device_of(cupy, like)
        with on_stream(cupy, like, device, stream):
            if workspace is None:
                workspace = [cupy.empty(s, d) for s, d in shape.workspace]
            words = []
            if self._checks:
                failures = cupy.zeros((self.failure_words,), np.int64) if failures is None else failures
                words = [failures]
            given = self._given(cupy, "input", inputs, shape.inputs, self._types[0], device)
            arrays = [a if a.is_contiguous else _dense(cupy, a) for a in given]
            for what, written, shapes, types in (
                ("out", out, shape.outputs, self._types[1]),
                ("workspace", workspace, [s for s, _ in shape.workspace], self.workspace_types),
                ("failures", words, [(self.failure_words,)] * len(words), (_WORDS,) * len(words)),
            ):
                arrays += _contiguous(
                    self._given(cupy, what, written, shapes, types, device), f"{self.program.name}: {what}"
                )
            unaligned = frozenset(k for k, a in enumerate(arrays) if a.address % DIVISIBILITY)
            launches = shape.launches.get(unaligned)
            if launches is None:
                launches = shape.launches[unaligned] = self._launches(shape.emitted, sizes, unaligned)
            for step in launches:
                arguments = tuple([np.uint64(arrays[a].address) if type(a) is int else a for a in step.arguments])
                function = self._loaded.get(cupy, device, step.kernel)
                function(step.grid, step.block, arguments, shared_mem=step.kernel.shared)
        return failures

    def _given(
        self,
        cupy: Any,
        what: str,
        arrays: Sequence[Any],
        shapes: Sequence[tuple[int, ...]],
        types: Sequence[TensorType],
        device: int,
    ) -> list[DeviceArray]:
        """These arrays, checked."""
        name = self.program.name
        if len(arrays) != len(shapes):
            raise InputError(f"{name}: got {len(arrays)} arrays as {what}; it takes {len(shapes)}")
        found = []
        for k, (x, want, t) in enumerate(zip(arrays, shapes, types, strict=True)):
            label = f"{name}: input {self.program.inputs[k][0]}" if what == "input" else f"{name}: {what}[{k}]"
            a = _array(cupy, x, label)
            if a.shape != want or a.dtype != t.dtype:
                raise InputError(
                    f"{label} is {a.dtype}{list(a.shape)}, not {t.dtype}{list(want)}; pass the sizes of these arrays"
                )
            if a.device != device:
                raise InputError(
                    f"{label} is on CUDA device {a.device}, and the first array on {device}; copy it there"
                )
            found.append(a)
        return found

    # ---- what sizes decide ----

    def _shape(self, sizes: Mapping[str, int]) -> _Shape:
        try:
            key = tuple([sizes[s] for s in self.program.symbols])
        except KeyError as e:
            raise InputError(
                f"{self.program.name}: no size for {e.args[0]}; give sizes={{{e.args[0]!r}: ...}}"
            ) from None
        shape = self._shapes.get(key)
        if shape is None:
            own = dict(zip(self.program.symbols, map(int, key), strict=True))
            self.program.check(own)
            shape = _Shape(
                [t.bind(own) for t in self.program.input_types],
                [t.bind(own) for t in self.program.output_types],
                [(t.bind(own), ELEMENTS[t.dtype]) for t in self.workspace_types],
                self._versions.emitted(own),
            )
            with self._lock:
                while len(self._shapes) >= _KEPT:
                    del self._shapes[next(iter(self._shapes))]
                self._shapes[key] = shape
        return shape

    def _compiled(self, emitted: EmittedLoops, sizes: Mapping[str, int], unaligned: frozenset[int]) -> CompiledLoops:
        # the versions keep their sources, so that no other has its id
        key = id(emitted), unaligned
        with self._lock:
            if key not in self._code:
                self._code[key] = CompiledLoops(emitted, self.device, sizes, unaligned)
            return self._code[key]

    def _launches(self, emitted: EmittedLoops, sizes: Mapping[str, int], unaligned: frozenset[int]) -> list[Launch]:
        compiled = self._compiled(emitted, sizes, unaligned).at(sizes)
        launches = []
        for k, kernel in zip(emitted.kernels, compiled, strict=True):
            programs = grid(k, sizes)
            if not prod(programs):
                continue
            integer = np.int32 if emitted.index == "i32" else np.int64
            arguments: list[Any] = [
                a.tensor if a.kind is ArgumentKind.POINTER else integer(value(a.value, sizes)) for a in k.arguments
            ]
            # neither descriptors nor profiling: no scratch memory
            assert kernel.global_scratch_size == kernel.profile_scratch_size == 0
            arguments += [np.uint64(0), np.uint64(0)]
            launches.append(Launch(kernel, programs, (WARP * kernel.num_warps, 1, 1), tuple(arguments)))
        return launches


def _array(cupy: Any, x: Any, what: str) -> DeviceArray:
    return x if isinstance(x, DeviceArray) else read(cupy, x, what)


def _contiguous(arrays: list[DeviceArray], what: str) -> list[DeviceArray]:
    """Arrays that kernels write to."""
    for k, a in enumerate(arrays):
        if not a.is_contiguous:
            raise InputError(f"{what}[{k}] is not contiguous; pass a contiguous array")
    return arrays


def _dense(cupy: Any, a: DeviceArray) -> DeviceArray:
    """A contiguous copy."""
    made = cupy.empty(a.shape, f"u{ELEMENTS[a.dtype].itemsize}")
    made[...] = bits(cupy, a)
    copy = read(cupy, made, "copy")
    return DeviceArray(copy.address, copy.shape, copy.strides, a.dtype, a.device, made)
