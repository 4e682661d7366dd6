"""What the machine in C (csrc/machine.c) reads, and its functions, which keep the interpreter's lock."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.launch.interpreter import HEADER, functions
from mirage.kernels.cpu.launch.memory import ARRAYS_KNOWN

_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p


def _fields(*parts: tuple[Any, str]) -> list[tuple[str, Any]]:
    return [(name, kind) for kind, names in parts for name in names.split()]


class ListLoop(ctypes.Structure):
    """`list_loop` of mirage_run.h."""

    _fields_ = _fields((_LONG, "fewest most_bytes scans"), (_POINTER, "item state"))


class MachineFunction(ctypes.Structure):
    """`function` of mirage_run.h."""

    _fields_ = _fields(
        (_LONG, "stacked parameters registers"), (_POINTER, "code constants"), (_LONG, "sized copies"),
        (_POINTER, "shaped loop"), (_LONG, "batched"), (_POINTER, "forms"), (_LONG, "leaves"),
        (_POINTER, "shared kinds entries"), (_LONG, "n_kinds n_entries"),
    )  # fmt: skip


class MachineProgram(ctypes.Structure):
    """`machine` of mirage_run.h."""

    _fields_ = _fields(
        (_POINTER, "functions"), (_LONG, "n_functions"), (_POINTER, "host nodes"), (_LONG, "symbols"),
        (_POINTER, "classes first_class data"), (_LONG, "n_data list nil cons"), (_POINTER, "dtypes"), (_LONG, "n_dtypes"),
        (_POINTER, "ndarray tuple list_type integer record boolean ellipsis error"),
        (_POINTER, "data_name index_name fields_name bytes_name"),
    )  # fmt: skip


@functools.cache
def library() -> ctypes.PyDLL:
    """The functions of machine.c.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, and MirageError where arrays are not laid
    out as NumPy's interface for C says.
    """
    if not ARRAYS_KNOWN:
        raise MirageError("arrays are not as NumPy's interface for C says; use CPython with a release of NumPy")
    found = ctypes.PyDLL(None, handle=toolchain.library("machine")._handle)
    found.mi_begin(functions(), _LONG(HEADER))
    found.mi_run.argtypes = (_POINTER, _LONG, ctypes.py_object, _POINTER, _LONG, _LONG, _POINTER)
    found.mi_run.restype = ctypes.py_object
    found.mi_constant.argtypes, found.mi_constant.restype = (ctypes.py_object,), _POINTER
    found.mi_end.argtypes, found.mi_end.restype = (_POINTER,), None
    found.mi_addresses.argtypes, found.mi_addresses.restype = (ctypes.py_object, _POINTER), None
    return found


def addresses(arrays: list[np.ndarray]) -> ctypes.Array[ctypes.c_void_p]:
    """Where the elements of arrays are."""
    found = (_POINTER * len(arrays))()
    library().mi_addresses(arrays, found)
    return found
