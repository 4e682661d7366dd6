"""Calls of compiled kernels with arrays of NumPy, in C from the arrays to the result (csrc/direct.c).

A call that ctypes makes costs the interpreter some microseconds, as much as a small kernel. Where C may not read arrays, as in
other interpreters, there are no direct calls.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mirage.errors import CompilerError, NoCompilerError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.launch import pool
from mirage.kernels.cpu.launch.frames import BoundCall
from mirage.kernels.cpu.launch.interpreter import HEADER, functions
from mirage.kernels.cpu.launch.memory import ARRAYS_KNOWN

#: arrays of a call, and numbers of their layout (rank, shape and strides of each), at most
_MOST_ARRAYS, _MOST_NUMBERS = 32, 256
#: constants that a tensor is made of, at most
_MOST_TOGETHER = 4
#: bytes of the tensors between operators, at most: longer calls have no need to be short
_MOST_WORKSPACE = 1 << 20
_METH_FASTCALL = 0x0080

_OBJECTS = (None, np.ndarray, tuple, np.empty, "address")

_Shape = tuple[int, ...]


class _State(ctypes.Structure):
    """The first fields of `state`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("dtypes", "alignments", "pool")),
        *((name, ctypes.c_long) for name in ("threads", "n_arguments", "n_results")),
    )


class _Packed(ctypes.Structure):
    """`packed_argument`."""

    _fields_ = (
        ("tensor", ctypes.c_long),
        ("n_arguments", ctypes.c_long),
        ("arguments", ctypes.c_long * _MOST_TOGETHER),
        ("changes", ctypes.c_void_p),
        ("find", ctypes.py_object),
        ("known", ctypes.c_void_p),
    )


_COUNTS = ("key", "sizes", "strides", "tensors", "places", "own", "packed", "functions", "shapes", "spans")
_TABLES = tuple(name for name in _COUNTS if name != "tensors")


class _Layout(ctypes.Structure):
    """`layout`."""

    _fields_ = (
        *((f"n_{name}", ctypes.c_long) for name in _COUNTS),
        ("need", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("key", "sizes", "strides", "places", "own")),
        *((name, ctypes.c_void_p) for name in ("packed", "functions", "shapes", "spans")),
    )


class _MethodDef(ctypes.Structure):
    """`PyMethodDef` of the stable ABI."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Library:
    """The compiled functions of direct.c, and what they keep of the interpreter."""

    def __init__(self, library: ctypes.CDLL) -> None:
        start = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p)(("mi_direct_start", library))
        # they live as long as the library: until the end
        self._objects = _objects(_OBJECTS)
        start(ctypes.addressof(functions()), HEADER, ctypes.addressof(self._objects))
        self.add = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(("mi_direct_add", library))
        self.free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("mi_direct_free", library))
        size = library.mi_direct_state_bytes
        size.restype = ctypes.c_size_t
        self.state_bytes = size()
        call = ctypes.cast(library.mi_direct_call, ctypes.c_void_p).value
        self._method = _MethodDef(b"direct_call", call, _METH_FASTCALL, b"Run prepared kernels, or return None.")
        self._new = ctypes.pythonapi.PyCFunction_NewEx
        self._new.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
        self._new.restype = ctypes.py_object

    def function(self, state: int) -> Callable[[Sequence[Any], Any], Any]:
        """`mi_direct_call` for the state at this address."""
        call: Callable[[Sequence[Any], Any], Any] = self._new(ctypes.addressof(self._method), state, None)
        return call


@functools.cache
def _library() -> _Library | None:
    """None where there are no direct calls."""
    if not ARRAYS_KNOWN:
        return None
    try:
        return _Library(toolchain.library("direct"))
    except (NoCompilerError, CompilerError):
        return None


def _nothing(arrays: Sequence[Any], out: Any) -> None:
    """For calls that are never direct."""


def _objects(values: Sequence[object]) -> Any:
    array: Any = ctypes.py_object * len(values)
    return array(*values)


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_long * len(values))(*values)


def _pairs(values: Sequence[tuple[int, int]]) -> Any:
    return _numbers([n for pair in values for n in pair])


class DirectCalls:
    """The direct calls of a program with arguments and results of these dtypes: those of the layouts that were added.

    `call` takes the tuple of arguments and the given results: an array, a tuple of arrays, or None. It returns the new result,
    the tuple of several, or what was given; and None, having done nothing, where the call has another layout, is under way
    in another thread, or has no memory for its scratch. May be called from several threads at once.
    """

    def __init__(self, arguments: Sequence[np.dtype[Any]], results: Sequence[np.dtype[Any]]) -> None:
        self.call: Callable[[Sequence[Any], Any], Any] = _nothing
        self._arguments, self._results = len(arguments), len(results)
        self._dtypes = (*arguments, *results)
        self._state = 0

    def _start(self, threads: int) -> bool:
        """Whether there are direct calls here."""
        library = _library()
        if library is None or self._arguments + self._results > _MOST_ARRAYS:
            return False
        if not self._state:
            memory = ctypes.create_string_buffer(library.state_bytes)
            state = _State.from_buffer(memory)
            tables = _objects(self._dtypes), _numbers([t.itemsize - 1 for t in self._dtypes])
            state.dtypes, state.alignments = map(ctypes.addressof, tables)
            state.pool, state.threads = pool.run_address(), threads
            state.n_arguments, state.n_results = self._arguments, self._results
            self._state = ctypes.addressof(memory)
            # after the end of a process nobody calls: its threads may still be at it
            weakref.finalize(self, _free, library, (state, tables), self._state).atexit = False
            self.call = library.function(self._state)
        return True

    def add(
        self,
        call: BoundCall,
        key: Sequence[tuple[int, ...]],
        shapes: Sequence[_Shape],
        spans: Sequence[tuple[int, int]] = (),
    ) -> bool:
        """Make calls at a layout direct from now on, where they can be; False to try again, as a direct call is under way.

        `key` are shape and strides (bytes) of the arguments, and of given results, in turns. `shapes` are those of results
        that are not given; `spans` the first and last byte of every array relative to its address, where results are given.
        """
        frame = call.make()
        numbers = [
            n for shape, strides in zip(key[::2], key[1::2], strict=True) for n in (len(shape), *shape, *strides)
        ]
        together = max((len(of) for _, of, _, _ in call.packed), default=0)
        if frame.need > _MOST_WORKSPACE or len(numbers) > _MOST_NUMBERS or together > _MOST_TOGETHER:
            return True
        if not self._start(call.code.threads):
            return True
        packed = [
            _Packed(t, len(of), (ctypes.c_long * _MOST_TOGETHER)(*of), ctypes.addressof(copies.changes), find)
            for t, of, find, copies in call.packed
        ]
        given_shapes = [] if spans else list(shapes)
        tables = {
            "key": _numbers(numbers),
            "sizes": frame.sizes,
            "strides": frame.strides,
            "places": _pairs(call.places),
            "own": _pairs(frame.offsets),
            "packed": (_Packed * len(packed))(*packed),
            "functions": (ctypes.c_void_p * len(call.code.functions))(*call.code.addresses()),
            "shapes": _objects(given_shapes),
            "spans": _pairs(spans),
        }
        counts = {name: len(table) for name, table in tables.items()}
        for name in ("places", "own", "spans"):
            counts[name] //= 2
        counts["tensors"] = len(frame.tensors)
        layout = _Layout(
            **{f"n_{name}": n for name, n in counts.items()},
            need=frame.need,
            **{name: ctypes.addressof(table) for name, table in tables.items()},
        )
        library = _library()
        assert library is not None
        return bool(library.add(self._state, ctypes.addressof(layout)))


def _free(library: _Library, held: tuple[object, ...], at: int) -> None:
    # what is `held` has the state's memory, and that of its tables
    library.free(at)
    del held
