"""Addresses of arrays, and memory that starts at a cache line."""

from __future__ import annotations

import ctypes
import sys
import sysconfig
from typing import Any

import numpy as np

#: bytes of a cache line, and of the widest vector
LINE = 64

#: NumPy's C interface fixes the address of the elements as the first field of an array after the object's header
_FIELD = object.__basicsize__
_at = ctypes.c_void_p.from_address


def address_by_interface(array: np.ndarray) -> int:
    """Where the first element of an array is, by the array interface."""
    return int(array.__array_interface__["data"][0])


def address_by_field(array: np.ndarray) -> int:
    """The same from the array's own C structure, in a fifth of the time: CPython only."""
    return _at(id(array) + _FIELD).value or 0


class _Fields(ctypes.Structure):
    """`array` of mirage_array.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("nd", ctypes.c_int), ("dims", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("base", ctypes.c_void_p), ("dtype", ctypes.c_void_p), ("flags", ctypes.c_int),
    )  # fmt: skip


def arrays_known(fields: type[ctypes.Structure] = _Fields) -> bool:
    """Whether C may read arrays: they have these fields, as NumPy's interface for C says, and calls have the interpreter to
    themselves.
    """
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        # other interpreters have other objects; without the interpreter's lock, calls would meet
        return False
    whole = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    read_only = whole[1:, ::-1, ::2]
    read_only.flags.writeable = False
    for a in (whole, read_only, np.empty((0, 3), np.int32), np.array(1.0), whole.T):
        found: Any = fields.from_address(id(a) + _FIELD)
        wanted = (address_by_interface(a), a.ndim, id(a.dtype), a.flags.num)
        if (found.data, found.nd, found.dtype, found.flags) != wanted:
            return False
        numbers = ctypes.c_long * a.ndim
        for at, values in ((found.dims, a.shape), (found.strides, a.strides)):
            if a.ndim and (not at or tuple(numbers.from_address(at)) != values):
                return False
    return True


ARRAYS_KNOWN = arrays_known()
#: the faster of the two that is right here
address = address_by_field if ARRAYS_KNOWN else address_by_interface


def aligned(count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """An uninitialised array of `count` elements that starts at a cache line."""
    size = count * dtype.itemsize
    raw = np.empty(size + LINE, np.uint8)
    start = -address(raw) % LINE
    return raw[start : start + size].view(dtype)
