"""Loops whose rounds launch compiled code alone: all rounds in C (csrc/rounds.c), where Python takes longer than small kernels.
A straight line of launches is a loop of one round.

A launch is prepared once for tensors of known shapes; addresses are filled in before the first round. What a round hands to the
next alternates between two places in memory, so that odd and even rounds have launches of their own; those of the first round
read what the loop began with.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
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
_FIRST, SECONDS = 64, 0.02
#: what a loop ends with whose tensors share memory that must not, before its first round
SHARED = -100


def _in_turns(count: int, some: Callable[[int, int], int]) -> int:
    """Make so many rounds by `some`, a few at a time; what it gives that is not 0, which ends them."""
    done, more = 0, _FIRST
    while done < count:
        end = min(count, done + more)
        start = perf_counter()
        if found := some(done, end):
            return found
        if perf_counter() - start < SECONDS:
            more *= 2
        done = end
    return 0


@dataclass(frozen=True)
class Launch:
    """A launcher of compiled code, `int (void *args, mi_pool_run_fn *pool, int threads)`, with its arguments.

    `pointers` are (address of a pointer among the arguments, place of its tensor among those that it was prepared for). `error`
    is what a status other than 0 means, None that nothing was done, and is to be done in another way; `keep` is what has to live
    as long as it is launched.
    """

    function: int
    args: int
    pointers: tuple[tuple[int, int], ...]
    error: Callable[[int], Exception | None]
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

    _fields_ = (("list", ctypes.c_void_p), *((name, ctypes.c_long) for name in ("tensor", "offset", "step")))


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


class _Given(ctypes.Structure):
    """`given` of rounds.c."""

    _fields_ = (("bytes", ctypes.c_long), ("alone", ctypes.c_int))


class _Left(ctypes.Structure):
    """`result` of rounds.c."""

    _fields_ = (("source", ctypes.c_void_p), ("offset", ctypes.c_long), ("to", ctypes.c_void_p), ("bytes", ctypes.c_long))


class _Loop(ctypes.Structure):
    """`loop` of rounds.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("parts", "given", "results")),
        *((name, ctypes.c_long) for name in ("n", "n_given", "n_results", "count")),
        ("seconds", ctypes.c_double * 2),
        ("calls", ctypes.c_long * 2),
        ("failed", ctypes.c_long),
    )


@functools.cache
def _library() -> ctypes.CDLL:
    library = toolchain.library("rounds")
    pointer, number = ctypes.c_void_p, ctypes.c_long
    for run in (library.mi_rounds, library.mi_loop):
        run.argtypes = [pointer, number, number, pointer, ctypes.c_int]
        run.restype = ctypes.c_int
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

    def some(self, first: int, end: int) -> int:
        """Make these rounds; the status of the launch that failed, or 0."""
        self._status = self._run(self._reference, first, end, self._pool, self._threads)
        return self._status

    def run_first(self) -> int | None:
        """Make the first round, with `tensors` as they are; None, or the number of the launch that failed: `error` says why."""
        return self.failed if self.some(0, 1) else None

    @property
    def failed(self) -> int:
        """The number of the launch that failed."""
        return int(self._args.failed)

    def error(self, status: int | None = None) -> Exception | None:
        """What was wrong with the launch that failed; None for one that did nothing, and is to be made in another way.

        `status` is what it ended with, if that was not here.
        """
        i = int(self.index)
        launch, _ = self._launches[2 - i % 2 if i else 0][self.failed]
        return launch.error(self._status if status is None else status)


@dataclass(frozen=True)
class Result:
    """What a loop leaves: so many bytes of the tensor at a place among its own, or at an address, from an offset on."""

    place: int
    address: int
    offset: int
    bytes: int


class LaunchedLoop:
    """A loop whose body has parts that need nothing of one another: on threads of their own, where that is faster.

    `parts` have the loop's tensors at the same places, but for the index, which is the first, and of each part's own. Behind it
    are those that the loop is `given`, of so many bytes each; of these, those at the places `alone` may share no memory with
    others. `items` say where what is another tensor in each round is. One call at a time. Raises as `LaunchedRounds`.
    """

    def __init__(
        self, parts: Sequence[LaunchedRounds], given: Sequence[int], alone: Collection[int], items: ctypes.Array[Item]
    ) -> None:
        self.parts = tuple(parts)
        self._of = (ctypes.c_void_p * len(parts))(*(ctypes.addressof(p._args) for p in parts))
        self._given = (_Given * max(len(given), 1))(*(_Given(n, k in alone) for k, n in enumerate(given, 1)))
        self._args = _Loop(ctypes.addressof(self._of), ctypes.addressof(self._given), n=len(parts), n_given=len(given))
        self._reference = ctypes.byref(self._args)
        self._run = _library().mi_loop
        self._pool, self._threads = ctypes.c_void_p(run_address()), num_threads()
        for p in parts:
            p.tensors[0] = address(p.index)
            p._args.items = ctypes.addressof(items)

    def run(self, count: int, addresses: Sequence[int]) -> int:
        """Make so many rounds, with all tensors but the index at these addresses; 0, or why not: SHARED, or a launch's status."""
        for p in self.parts:
            p.tensors[1 : 1 + len(addresses)] = list(addresses)
        return _in_turns(count, self._some)

    def _some(self, first: int, end: int) -> int:
        found: int = self._run(self._reference, first, end, self._pool, self._threads)
        return found

    @property
    def seconds(self) -> float:
        """Of a round, the least that was measured; 0 before."""
        return min((s for s, n in zip(self._args.seconds, self._args.calls, strict=True) if n), default=0.0)

    @property
    def failed(self) -> tuple[int, int]:
        """The numbers of the part and of its launch that failed."""
        part = int(self._args.failed)
        return part, self.parts[part].failed

    def launch(
        self,
        count: int,
        addresses: Sequence[int],
        results: Sequence[tuple[Result, int]],
        error: Callable[[int], Exception | None],
        keep: object,
    ) -> Launch:
        """So many rounds as a launch, prepared for what the loop is given, and behind it, at the place that is with each of the
        `results`, for what takes this. `addresses` are those of the loop's other tensors.
        """
        count_given = int(self._args.n_given)
        pointers: list[tuple[int, int]] = []
        for p in self.parts:
            start = ctypes.addressof(p.tensors)
            pointers += [(start + _POINTER * (1 + k), k) for k in range(count_given)]
            p.tensors[1 + count_given : 1 + count_given + len(addresses)] = list(addresses)
        left = (_Left * max(len(results), 1))(*(_Left(r.address, r.offset, None, r.bytes) for r, _ in results))
        for one, (r, to) in zip(left, results, strict=False):
            pointers.append((field(one, "to"), to))
            if not r.address:
                pointers.append((field(one, "source"), r.place - 1))
        self._args.results, self._args.n_results, self._args.count = ctypes.addressof(left), len(results), count
        run = launcher(_library().mi_loop_launch)
        return Launch(run, ctypes.addressof(self._args), tuple(pointers), error, (self, left, keep))
