"""The C arguments of a call, with all that does not change between calls filled in."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.kernels.cpu.launch.memory import LINE, address, aligned
from mirage.kernels.cpu.launch.packing import PackedCopies, PackedCopy
from mirage.kernels.cpu.launch.rounds import Launch, launcher, pointers_to

_BYTE = np.dtype(np.uint8)


class _Args(ctypes.Structure):
    """`mirage_args` of the generated C."""

    _fields_ = (("sizes", ctypes.c_void_p), ("tensors", ctypes.c_void_p), ("strides", ctypes.c_void_p))


class Workspace:
    """Memory for the tensors between operators, as much as any call so far has needed; used by one call at a time."""

    def __init__(self) -> None:
        self.memory = aligned(0, _BYTE)

    def reserve(self, count: int) -> np.ndarray:
        """At least so many bytes."""
        if self.memory.size < count:
            # at least doubled: frames may hold what was outgrown, which is then less than this in total
            self.memory = aligned(max(count, 2 * self.memory.size), _BYTE)
        return self.memory


class Frame:
    """Arguments of one call at a time; `own` are the tensors between operators, and None where a call gives the memory."""

    def __init__(
        self,
        sizes: Sequence[int],
        shapes: Sequence[tuple[int, ...] | None],
        dtypes: Sequence[np.dtype[Any]],
        strides: Sequence[int],
    ) -> None:
        self.sizes = (ctypes.c_long * max(len(sizes), 1))(*sizes)
        self.tensors = (ctypes.c_void_p * max(len(shapes), 1))()
        self.strides = (ctypes.c_long * max(len(strides), 1))(*strides)
        self._tensors = [(t, s, d) for t, (s, d) in enumerate(zip(shapes, dtypes, strict=True)) if s is not None]
        self.own: list[np.ndarray | None] = [None] * len(shapes)
        lines = [_lines(s, d) for _, s, d in self._tensors]
        #: bytes of the tensors between operators, each of whole cache lines; and the byte where each of them starts
        self.need = sum(lines)
        self.offsets = [(t, sum(lines[:k])) for k, (t, _, _) in enumerate(self._tensors)]
        self._memory: np.ndarray | None = None
        self._args = _Args(*(ctypes.addressof(x) for x in (self.sizes, self.tensors, self.strides)))
        self.reference = ctypes.byref(self._args)
        self.address = ctypes.addressof(self._args)

    def take(self, workspaces: list[Workspace]) -> Workspace:
        """A workspace from the list, or a new one, in which the tensors between operators now are."""
        try:
            workspace = workspaces.pop()
        except IndexError:
            workspace = Workspace()
        memory = workspace.reserve(self.need)
        if memory is not self._memory:
            self._memory = memory
            self._place(memory)
        return workspace

    def use(self, workspace: np.ndarray) -> None:
        """The tensors between operators of the next call are in this contiguous memory of `need` bytes and a cache line at
        least; only C code finds them there.
        """
        self._memory = None
        base = -(-address(workspace) // LINE) * LINE
        for t, at in self.offsets:
            self.tensors[t] = base + at

    def view(self, workspace: np.ndarray) -> None:
        """The same where library calls use the tensors, too: until `release`."""
        memory = workspace.reshape(-1).view(np.uint8)
        self._memory = None
        self._place(memory[-address(memory) % LINE :])

    def put(self, arrays: Mapping[int, np.ndarray]) -> None:
        """Tensors of the next call are these arrays, which are kept elsewhere."""
        for t, array in arrays.items():
            self.own[t] = array
            self.tensors[t] = address(array)

    def drop(self, tensors: Iterable[int]) -> None:
        """Keep no hold of such arrays."""
        for t in tensors:
            self.own[t] = None

    def release(self) -> None:
        """Keep no hold of memory that a call gave."""
        self.own = [None] * len(self.own)

    def _place(self, memory: np.ndarray) -> None:
        base = address(memory)
        for (t, shape, dtype), (_, at) in zip(self._tensors, self.offsets, strict=True):
            count = prod(shape) * dtype.itemsize
            self.own[t] = memory[at : at + count].view(dtype).reshape(shape)
            self.tensors[t] = base + at


def _lines(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return -(-prod(shape) * dtype.itemsize // LINE) * LINE


class Code:
    """The C functions that run a muGraph's kernels in order, with the pool and the number of threads to run them on."""

    def __init__(self, name: str, functions: Sequence[Any], pool: int, threads: int) -> None:
        self.name = name
        self.functions = functions
        self.threads = threads
        # ctypes converts what is no ctypes object anew in every call
        self._pool, self._threads = ctypes.c_void_p(pool), ctypes.c_int(threads)

    def addresses(self) -> list[int | None]:
        """Where the functions are."""
        return [ctypes.cast(f, ctypes.c_void_p).value for f in self.functions]

    def run(self, frame: Frame, function: Callable[..., int]) -> None:
        """Raises MirageError if there is no memory for the scratch of a kernel."""
        if function(frame.reference, self._pool, self._threads):
            raise self.error()

    def error(self, status: int = -1) -> MirageError:
        """What it means where a function fails."""
        return MirageError(f"{self.name}: no memory for the scratch of a kernel; use smaller tiles")


class BoundCall:
    """A compiled muGraph for arrays of known sizes and strides, whose results C code writes in place.

    A call gives addresses only. May run in several threads at once: each has a frame of its own. `places` are (tensor, which
    address), `packed` (tensor, which argument, what finds its packed copy by its address, among which).
    """

    def __init__(
        self,
        code: Code,
        make: Callable[[], Frame],
        workspaces: list[Workspace],
        places: Sequence[tuple[int, int]],
        packed: Sequence[tuple[int, int, Callable[[int, Any], PackedCopy], PackedCopies]],
    ) -> None:
        self.code = code
        self.make = make
        self._free: list[Frame] = []
        self._workspaces = workspaces
        self.places = places
        self.packed = packed

    def run(self, addresses: Sequence[int], given: Sequence[Any], memory: np.ndarray | None = None) -> None:
        """Compute the results.

        `addresses` are those of the arguments in order, then of the results; `given` are the arguments themselves, which
        packed copies belong to. The tensors between operators are in `memory` (see `Frame.use`), or in memory of its own.
        Raises MirageError if there is no memory for the scratch of a kernel.
        """
        try:
            frame = self._free.pop()
        except IndexError:
            frame = self.make()
        tensors = frame.tensors
        for t, k in self.places:
            tensors[t] = addresses[k]
        held = []  # copies, which another thread may drop
        for t, k, find, _ in self.packed:
            held.append(copy := find(addresses[k], given[k]))
            tensors[t] = copy.address
        workspace = None
        if frame.need:
            if memory is None:
                workspace = frame.take(self._workspaces)
            else:
                frame.use(memory)
        code = self.code
        for function in code.functions:
            code.run(frame, function)
        if workspace is not None:
            self._workspaces.append(workspace)
        self._free.append(frame)

    def prepare(self, memory: np.ndarray | None) -> tuple[Launch, ...] | None:
        """The launches of a call, for tensors in the order of `run`'s addresses; None where packed copies have to be found first.

        The tensors between operators are in `memory`, which has to stay, or in memory of its own.
        """
        if self.packed:
            return None
        frame = self.make()
        if frame.need:
            memory = aligned(frame.need + LINE, _BYTE) if memory is None else memory
            frame.use(memory)
        keep = frame, memory
        pointers = pointers_to(frame.tensors, self.places)
        code = self.code
        return tuple(Launch(launcher(f), frame.address, pointers, code.error, keep) for f in code.functions)
