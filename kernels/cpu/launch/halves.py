"""Functions for float32 on tensors of 16 bits: they run on copies, which C makes on all threads (csrc/halves.c)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from mirage.errors import MirageError
from mirage.ir.types import HALVES
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

_Function = TypeVar("_Function", bound=Callable[..., None])
_Prepare = TypeVar("_Prepare", bound=Callable[..., Launch | None])


class _Conversion(ctypes.Structure):
    """`conversion` of halves.c."""

    _fields_ = (("half", ctypes.c_void_p), ("real", ctypes.c_void_p), ("n", ctypes.c_ssize_t), ("widens", ctypes.c_int))


class _Copied(ctypes.Structure):
    """`copied` of halves.c."""

    _fields_ = (("half", ctypes.c_void_p), ("pointer", ctypes.c_void_p), ("n", ctypes.c_ssize_t), ("written", ctypes.c_int))


class _InFloat32(ctypes.Structure):
    """`in_float32` of halves.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("code", "args", "tensors")),
        ("count", ctypes.c_ssize_t),
    )


@functools.cache
def compiled(name: str, half: str, launched: Sequence[str], parts: Sequence[str] = ()) -> Any:
    """A C file, compiled for a type of 16 bits; functions that are `launched` take arguments, a pool and a number of threads.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`.
    """
    source = f"#define MI_NARROW {half}\n" + (HEADERS / f"{name}.c").read_text(encoding="utf-8")
    library = toolchain.load(toolchain.compile(source, name=name, parts=parts))
    for function in (getattr(library, f) for f in launched):
        function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return library


def _library(half: str) -> Any:
    return compiled("halves", half, ("mi_convert", "mi_in_float32"))


def is_half(tensor: Any) -> bool:
    """Whether it is an array of 16-bit floating-point numbers."""
    return isinstance(tensor, np.ndarray) and tensor.itemsize == 2 and tensor.dtype.name in HALVES


def _convert(half: np.ndarray, real: np.ndarray, widens: bool) -> None:
    args = _Conversion(address(half), address(real), half.size, widens)
    if half.size:
        _library(half.dtype.name).mi_convert(ctypes.addressof(args), run_address(), num_threads())


def widened(array: np.ndarray) -> np.ndarray:
    """A C-contiguous array of 16 bits as one of float32.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`.
    """
    real = np.empty(array.shape, np.float32)
    _convert(array, real, True)
    return real


def in_float32(function: _Function) -> _Function:
    """A library function that gets its C-contiguous tensors of 16 bits as float32, and rounds its results.

    It raises what the function does, and NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`.
    """

    @functools.wraps(function)
    def call(inputs: Sequence[Any], outputs: Sequence[np.ndarray], **attrs: Any) -> None:
        if not any(map(is_half, (*inputs, *outputs))):
            return function(inputs, outputs, **attrs)
        made = [np.empty(a.shape, np.float32) if is_half(a) else a for a in outputs]
        function([widened(a) if is_half(a) else a for a in inputs], made, **attrs)
        for real, out in zip(made, outputs, strict=True):
            if real is not out:
                _convert(out, real, False)

    return cast(_Function, call)


def prepared_in_float32(prepare: _Prepare) -> _Prepare:
    """The same of what prepares launches of a library function; they fail with MirageError without memory for the copies."""

    @functools.wraps(prepare)
    def prepared(inputs: Sequence[Any], outputs: Sequence[np.ndarray], **attrs: Any) -> Launch | None:
        tensors = [*inputs, *outputs]
        types = {a.dtype.name for a in tensors if is_half(a)}
        if not types:
            return prepare(inputs, outputs, **attrs)
        # their elements are never read
        like = [np.empty(a.shape, np.float32) if is_half(a) else a for a in tensors]
        launch = prepare(like[: len(inputs)], like[len(inputs) :], **attrs) if len(types) == 1 else None
        return None if launch is None else _of_copies(launch, tensors, len(inputs), types.pop())

    return cast(_Prepare, prepared)


def _of_copies(launch: Launch, tensors: Sequence[Any], inputs: int, half: str) -> Launch:
    """A launch that runs one for float32 on copies of those tensors that are of 16 bits."""
    pointers = [(at, k) for at, k in launch.pointers if not is_half(tensors[k])]
    copies = [(at, k) for at, k in launch.pointers if is_half(tensors[k])]
    copied = (_Copied * len(copies))(*(_Copied(0, at, tensors[k].size, k >= inputs) for at, k in copies))
    pointers += [(field(c, "half"), k) for c, (_, k) in zip(copied, copies, strict=True)]
    args = _InFloat32(launch.function, launch.args, ctypes.addressof(copied), len(copies))

    def error(status: int) -> Exception | None:
        if status < 0:
            return MirageError(f"there is no memory for copies of {half} tensors; use smaller sizes")
        return launch.error(status)

    run, keep = launcher(_library(half).mi_in_float32), (args, copied, launch)
    return Launch(run, ctypes.addressof(args), tuple(pointers), error, keep)
