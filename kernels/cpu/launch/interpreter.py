"""The functions of Python's stable interface (PEP 384) that C calls, by address: Python's headers are seldom installed."""

from __future__ import annotations

import ctypes
import functools

#: in the order of mirage_python.h
_FUNCTIONS = (
    "Py_IncRef", "Py_DecRef", "PyTuple_New", "PyTuple_SetItem", "PyTuple_GetItem", "PyTuple_Size", "PyList_New",
    "PyList_SetItem", "PyList_GetItem", "PyList_Size", "PyObject_GetAttr", "PyObject_GetItem", "PySequence_GetSlice",
    "PyObject_Call", "PyLong_FromLongLong", "PyLong_AsLongLong", "PyErr_Occurred", "PyErr_ExceptionMatches", "PyErr_Clear",
    "PyErr_NoMemory", "PyErr_CheckSignals", "PyEval_SaveThread", "PyEval_RestoreThread", "PyCapsule_New", "PyCapsule_GetPointer",
    "PyCapsule_IsValid", "PyLong_AsVoidPtr", "PyLong_FromVoidPtr", "PyObject_CallFunctionObjArgs",
)  # fmt: skip
#: bytes of the header of objects
HEADER = object.__basicsize__


@functools.cache
def functions() -> ctypes.Array[ctypes.c_void_p]:
    """Their addresses: `python` of mirage_python.h. CPython only."""
    found = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in _FUNCTIONS]
    return (ctypes.c_void_p * len(found))(*found)
