"""Loops whose rounds launch compiled code alone: all rounds in C (csrc/rounds.c), where Python takes longer than small kernels.
A straight line of launches is a loop of one round.

A launch is prepared once for tensors of known shapes; addresses are filled in before the first round. What a round hands to the
next alternates between two places in memory, so that odd and even rounds have launches of their own; those of the first round
read what the loop began with.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.launch.interpreter import HEADER
from mirage.kernels.cpu.launch.memory import ARRAYS_KNOWN, address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.settings import num_threads

_POINTER = ctypes.sizeof(ctypes.c_void_p)
#: rounds that are made at first, and seconds until which twice as many are made at once: between them, signals have their turn
_FIRST, _SECONDS = 64, 0.02
#: calls that are made in each of two ways before the faster one is known
_TRIED = 3


def _in_turns(count: int, some: Callable[[int, int], int]) -> int:
    """Make so many rounds by `some`, a few at a time; what it gives that is not 0, which ends them."""
    done, more = 0, _FIRST
    while done < count:
        end = min(count, done + more)
        start = perf_counter()
        if found := some(done, end):
            return found
        if perf_counter() - start < _SECONDS:
            more *= 2
        done = end
    return 0


@dataclass(frozen=True)
class Launch:
    """A launcher of compiled code, `int (void *args, mi_pool_run_fn *pool, int threads)`, with its arguments.

    `pointers` are (address of a pointer among the arguments, place of its tensor among those that it was prepared for);
    `error` is what a status other than 0 means, and `keep` what has to live as long as it is launched.
    """

    function: int
    args: int
    pointers: tuple[tuple[int, int], ...]
    error: Callable[[int], Exception]
    keep: object


def pointers_to(array: ctypes.Array[ctypes.c_void_p], places: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The pointers of a launch that are elements of an array: `places` are (element, place of the tensor)."""
    start = ctypes.addressof(array)
    return tuple((start + _POINTER * element, tensor) for element, tensor in places)


class _Launch(ctypes.Structure):
    """`launch` of rounds.c."""

    _fields_ = (("run", ctypes.c_void_p), ("args", ctypes.c_void_p))


class _Pointer(ctypes.Structure):
    """`pointer` of rounds.c."""

    _fields_ = (("to", ctypes.c_void_p), ("tensor", ctypes.c_long))


class Item(ctypes.Structure):
    """`item` of rounds.c."""

    _fields_ = (("list", ctypes.c_void_p), ("rows", ctypes.c_void_p), ("step", ctypes.c_long))


class _Expected(ctypes.Structure):
    """`expected` of rounds.c."""

    _fields_ = (("dtype", ctypes.c_void_p), ("nd", ctypes.c_long), ("dims", ctypes.c_void_p), ("tensor", ctypes.c_long))


class _Rounds(ctypes.Structure):
    """`rounds` of rounds.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("launches", "pointers", "tensors", "each", "items")),
        *((name, ctypes.c_long) for name in ("count", "n_pointers", "n_each")),
        ("index", ctypes.c_void_p),
        ("failed", ctypes.c_long),
        ("pool", ctypes.c_void_p),
        ("status", ctypes.c_int),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = toolchain.library("rounds")
    library.mi_rounds.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_int]
    library.mi_rounds.restype = ctypes.c_int
    pointer, number = ctypes.c_void_p, ctypes.c_long
    library.mi_rounds_side_by_side.argtypes = [pointer, number, number, number, pointer, ctypes.c_int]
    library.mi_rounds_side_by_side.restype = ctypes.c_int
    library.mi_rounds_take.argtypes = [pointer, pointer, number, number, pointer, number, pointer]
    library.mi_rounds_take.restype = ctypes.c_long
    return library


def launcher(function: Any) -> int:
    """The address of a function of a library."""
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found


def field(structure: ctypes.Structure, name: str) -> int:
    """The address of a field."""
    offset: int = getattr(type(structure), name).offset
    return ctypes.addressof(structure) + offset


class Tensors:
    """Takes the tensors of launches from arrays like `arrays`, for these `places` among all, whose addresses are in `to`."""

    def __init__(self, arrays: Sequence[np.ndarray], places: Sequence[int], to: ctypes.Array[ctypes.c_void_p]) -> None:
        self._kinds = [(a.shape, a.dtype) for a in arrays]
        self._places, self._to = places, to
        dims = [(ctypes.c_long * max(a.ndim, 1))(*a.shape) for a in arrays]
        self._expected = (_Expected * max(len(arrays), 1))(
            *(_Expected(id(a.dtype), a.ndim, ctypes.addressof(d), k) for a, d, k in zip(arrays, dims, places, strict=True))
        )
        self._objects = (ctypes.c_void_p * max(len(arrays), 1))()
        self._keep = dims
        self._in_c = _library().mi_rounds_take
        self._starts = [ctypes.addressof(a) for a in (self._objects, self._expected, to)]

    def take(self, arrays: Sequence[Any]) -> bool:
        """Whether all values are dense arrays of the same shapes and types."""
        count = len(arrays)
        self._objects[:count] = [*map(id, arrays)]
        k = self._taken(0, count)
        while k < count:
            # equal types may be other objects
            a, kind = arrays[k], self._kinds[k]
            if type(a) is not np.ndarray or (a.shape, a.dtype) != kind or not (a.flags.c_contiguous and a.flags.aligned):
                return False
            self._to[self._places[k]] = address(a)
            k = self._taken(k + 1, count)
        return True

    def _taken(self, first: int, count: int) -> int:
        """The number of the first array from this one on that C does not take."""
        objects, expected, to = self._starts
        if not ARRAYS_KNOWN:
            return first
        found: int = self._in_c(objects, expected, first, count, id(np.ndarray), HEADER, to)
        return found


class LaunchedRounds:
    """All rounds of a loop.

    `launches` are those of the first round, of odd and of even ones, each with the places of its tensors among all, or, of those
    that every round has others for, -1 and less; `index` is the int64 in which launches find the number of the round. One call at
    a time. Raises NoCompilerError, CompilerError and
    UnsafeCacheError as `toolchain.compile`.
    """

    def __init__(
        self, launches: Sequence[Sequence[tuple[Launch, Sequence[int]]]], index: np.ndarray, tensors: int
    ) -> None:
        first = launches[0]
        self._launches = tuple(launches)
        self.index = index
        flat = [entry for kind in launches for entry in kind]
        calls = (_Launch * max(len(flat), 1))(*(_Launch(one.function, one.args) for one, _ in flat))
        pointers = [_Pointer(to, places[k]) for one, places in flat for to, k in one.pointers if places[k] >= 0]
        kept = (_Pointer * max(len(pointers), 1))(*pointers)
        each = [_Pointer(to, -1 - places[k]) for one, places in flat for to, k in one.pointers if places[k] < 0]
        own = (_Pointer * max(len(each), 1))(*each)
        #: the addresses of all tensors
        self.tensors = (ctypes.c_void_p * max(tensors, 1))()
        starts = [ctypes.addressof(a) for a in (calls, kept, self.tensors, own)]
        self._args = _Rounds(*starts, None, len(first), len(pointers), len(each), address(index), 0, None, 0)
        self._reference = ctypes.byref(self._args)
        self._keep = calls, kept, own
        self._status = 0
        self._run = _library().mi_rounds
        self._pool, self._threads = ctypes.c_void_p(run_address()), ctypes.c_int(num_threads())

    def begin(self, addresses: Sequence[int], items: ctypes.Array[Item] | None) -> None:
        """Have all tensors at these addresses, and those that are others in each round where `items` says."""
        self.tensors[: len(addresses)] = list(addresses)
        if items is not None:
            self._args.items = ctypes.addressof(items)

    def some(self, first: int, end: int) -> int:
        """Make these rounds; the status of the launch that failed, or 0."""
        self._status = self._run(self._reference, first, end, self._pool, self._threads)
        return self._status

    def run_first(self) -> int | None:
        """Make the first round, with `tensors` as they are; None, or the number of the launch that failed: `error` says why."""
        return self.failed if self.some(0, 1) else None

    def ended(self) -> int:
        """The status of rounds that ran beside others."""
        self._status = int(self._args.status)
        return self._status

    @property
    def failed(self) -> int:
        """The number of the launch that failed."""
        return int(self._args.failed)

    def error(self) -> Exception:
        """What was wrong with the launch that failed."""
        i = int(self.index)
        launch, _ = self._launches[2 - i % 2 if i else 0][self.failed]
        found: Exception = launch.error(self._status)
        return found


class SideBySide:
    """Loops of equally many rounds that need nothing of one another: on threads of their own, where that is faster.

    `parts` are those of one loop's body; their `index` tensors are at the first place of all, and each has its own. One call at a
    time. Raises as `LaunchedRounds`.
    """

    def __init__(self, parts: Sequence[LaunchedRounds]) -> None:
        self.parts = tuple(parts)
        self._of = (ctypes.c_void_p * len(parts))(*(ctypes.addressof(p._args) for p in parts))
        self._run = _library().mi_rounds_side_by_side
        self._pool, self._threads = ctypes.c_void_p(run_address()), num_threads()
        #: seconds of a round, the least of so many calls: side by side, or one after the other on all threads
        self._seconds = {True: inf, False: inf}
        self._calls = {True: 0, False: 0}

    def run(self, count: int, addresses: Sequence[int], items: ctypes.Array[Item] | None = None) -> tuple[int, int] | None:
        """Make so many rounds, with all tensors at these addresses, and those that are others in each round where `items` says.

        None, or the number of a part whose rounds a launch that failed has ended, and that of the launch.
        """
        for p in self.parts:
            p.begin([address(p.index), *addresses[1:]], items)
        together = len(self.parts) > 1 and self._together()
        start = perf_counter()
        failed = _in_turns(count, self._some if together else self._each)
        self._calls[together] += 1
        self._seconds[together] = min(self._seconds[together], (perf_counter() - start) / count)
        return (failed - 1, self.parts[failed - 1].failed) if failed else None

    def _together(self) -> bool:
        """Whether the parts run side by side: threads that no part would have are worth a measurement."""
        if self._threads <= len(self.parts):
            return self._threads > 1
        least = min(self._calls.values())
        return self._calls[True] == least if least < _TRIED else self._seconds[True] <= self._seconds[False]

    def _each(self, first: int, end: int) -> int:
        return next((k for k, p in enumerate(self.parts, 1) if p.some(first, end)), 0)

    def _some(self, first: int, end: int) -> int:
        if self._run(self._of, len(self.parts), first, end, self._pool, self._threads):
            # without memory for the pool, nothing ran
            return self._each(first, end)
        return next((k for k, p in enumerate(self.parts, 1) if p.ended()), 0)
