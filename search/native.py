"""The loop of extraction (`labels.py`) in C: compiled in the background, once per process, and used as soon as it is there."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from ctypes import POINTER, c_double, c_int64, c_void_p

import numpy as np

from mirage.errors import MirageError
from mirage.kernels.cpu.compile import toolchain
from mirage.search.labels import Derivations, Finished, Problem
from mirage.search.steps import Steps

#: what is done between two steps: labels, their derivations and the labels that these are compared with; a millisecond or two
STEP = 5_000

_MORE, _NO_MEMORY = -1, -2


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, c_int64) for name in ("values", "leaves", "words", "length", "max_operators", "max_inputs")),
        ("first", c_void_p), ("prices", c_void_p), ("times", c_void_p), ("operands", c_void_p), ("exp", c_void_p),
        ("foreign", c_void_p), ("least", c_void_p), ("inputs", c_void_p), ("goals", c_void_p), ("written", c_void_p),
        ("most", c_double),
    )  # fmt: skip


class NativeDerivations:
    """`Derivations` as the arrays that the C code reads."""

    def __init__(self, given: Derivations) -> None:
        self.given = given
        self.words = max(-(-given.values // 64), 1)
        self.first = np.array(given.first, np.int64)
        self.prices = np.ascontiguousarray(given.prices, np.float64)
        self.times = np.array(given.times, np.float64)
        self.operands = np.array([self.bits(b) for b in given.operands], np.uint64).reshape(-1, self.words)
        self.exp = np.array(given.exp, np.uint8)
        self.foreign = np.array(given.foreign, np.uint8)
        self.least = np.full(64 * self.words, math.inf)
        self.least[: given.values] = given.least
        self.inputs = self.bits(given.inputs)

    def bits(self, number: int) -> np.ndarray:
        return np.frombuffer(number.to_bytes(8 * self.words, "little"), np.dtype("<u8")).astype(np.uint64)

    @staticmethod
    def number(bits: np.ndarray) -> int:
        return int.from_bytes(bits.astype(np.dtype("<u8")).tobytes(), "little")


class NativeLabels:
    """The compiled loop."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._begin = library.extract_begin
        self._begin.argtypes, self._begin.restype = [POINTER(_Problem)], c_void_p
        self._run = library.extract_run
        self._run.argtypes, self._run.restype = [c_void_p, c_int64], c_int64
        self._looked = library.extract_looked
        self._looked.argtypes, self._looked.restype = [c_void_p], c_int64
        self._count = library.extract_count
        self._count.argtypes, self._count.restype = [c_void_p], c_int64
        self._results = library.extract_results
        self._results.argtypes, self._results.restype = [c_void_p] * 6 + [c_int64], None
        self._free = library.extract_free
        self._free.argtypes, self._free.restype = [c_void_p], None

    def finished(self, problem: Problem, arrays: NativeDerivations) -> Steps[tuple[list[Finished], int]]:
        """As `labels.finished`; a step per `STEP`. Raises MemoryError."""
        given = arrays.given
        goals, written = arrays.bits(problem.goals), np.ascontiguousarray(problem.written, np.float64)
        described = _Problem(
            given.values, given.leaves, arrays.words, len(written), problem.max_operators, problem.max_inputs,
            *(a.ctypes.data for a in (
                arrays.first, arrays.prices, arrays.times, arrays.operands, arrays.exp, arrays.foreign, arrays.least,
                arrays.inputs, goals, written,
            )),
            problem.most,
        )  # fmt: skip
        state = self._begin(ctypes.byref(described))
        if not state:
            raise MemoryError("extraction: no memory for its labels")
        try:
            while (found := self._run(state, STEP)) == _MORE:
                yield
            if found == _NO_MEMORY:
                raise MemoryError("extraction: no memory for its labels")
            return self._read(state, problem, arrays), self._looked(state)
        finally:
            self._free(state)

    def _read(self, state: int, problem: Problem, arrays: NativeDerivations) -> list[Finished]:
        count = self._count(state)
        leaves, exps = np.empty((2, count, arrays.words), np.uint64)
        costs = np.empty((count, len(problem.written)))
        foreign = np.empty(count, np.uint8)
        # no more operators than there are values
        width = min(problem.max_operators, arrays.given.values)
        chosen = np.empty((count, width), np.int64)
        self._results(state, *(a.ctypes.data for a in (leaves, exps, costs, foreign, chosen)), width)
        return [
            Finished(
                arrays.number(leaves[i]), arrays.number(exps[i]), costs[i], bool(foreign[i]),
                [d for d in chosen[i].tolist() if d >= 0],
            )
            for i in range(count)
        ]  # fmt: skip


class _Native:
    """The library of this process: None until it is there, and where no C compiler makes it."""

    def __init__(self) -> None:
        self.labels: NativeLabels | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> threading.Thread:
        """Begin to compile, unless that was begun."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._compile, name="compile extract.c", daemon=True)
                self._thread.start()
            return self._thread

    def _compile(self) -> None:
        try:
            self.labels = NativeLabels(toolchain.library("extract"))
        except (MirageError, OSError):
            # no compiler, or no folder for what it makes: whoever needs one says so; the search goes on without it
            return


_native = _Native()


def _forget() -> None:
    global _native
    _native = _Native()


if hasattr(os, "register_at_fork"):
    # the thread is not in the child
    os.register_at_fork(after_in_child=_forget)


def start() -> None:
    """Begin to compile the loop in the background, unless that was begun."""
    _native.start()


def native_labels(wait: bool = False) -> NativeLabels | None:
    """The compiled loop, if it is there; `wait` until it is, or cannot be."""
    if wait:
        _native.start().join()
    return _native.labels
