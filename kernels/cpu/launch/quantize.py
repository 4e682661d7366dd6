"""Numbers quantized with one scale in C (csrc/quantize.c): bit for bit what the operator `quantize` says."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.errors import LibraryError, MirageError
from mirage.ir.operators.quantization import quantized_range
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads


class _Arguments(ctypes.Structure):
    """`to_whole` of quantize.c."""

    _fields_ = (
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("n", ctypes.c_ssize_t),
        *((name, ctypes.c_float) for name in ("scale", "least", "most")),
        *((name, ctypes.c_int) for name in ("zero", "bytes")),
    )


@functools.cache
def _library() -> Any:
    source = (HEADERS / "quantize.c").read_text(encoding="utf-8")
    library = toolchain.load(toolchain.compile(source, name="quantize"))
    library.mi_quantize.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    library.mi_quantize.restype = ctypes.c_int
    return library


def _arguments(x: np.ndarray, out: np.ndarray, scale: float, zero: int) -> _Arguments:
    if x.shape != out.shape or x.dtype != np.float32:
        shapes = f"{x.dtype}{list(x.shape)} does not quantize to {out.dtype}{list(out.shape)}"
        raise LibraryError(f"{shapes}; compile the program again")
    low, high = (n - zero for n in quantized_range(out.dtype.name))
    return _Arguments(address(x), address(out), x.size, scale, low, high, zero, out.itemsize)


def _memory(_: int) -> MirageError:
    return MirageError("there is no memory to quantize a tensor; use smaller sizes")


def library(inputs: Sequence[Any], outputs: Sequence[np.ndarray], *, scale: float, zero: int = 0) -> None:
    """What programs call as `cpu.quantize`: x of float32 as an integer type of at most 16 bits, both C-contiguous.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    (x,), (out,) = inputs, outputs
    if not out.size:
        return
    args = _arguments(x, out, scale, zero)
    if status := _library().mi_quantize(ctypes.addressof(args), run_address(), num_threads()):
        raise _memory(status)


def prepare(inputs: Sequence[Any], outputs: Sequence[np.ndarray], *, scale: float, zero: int = 0) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, the input and then the output; None for nothing to do.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch fails with MirageError without
    memory.
    """
    (x,), (out,) = inputs, outputs
    if not out.size:
        return None
    args = _arguments(x, out, scale, zero)
    pointers = (field(args, "x"), 0), (field(args, "out"), 1)
    return Launch(launcher(_library().mi_quantize), ctypes.addressof(args), pointers, _memory, args)


#: the functions that programs may call without registering them
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.quantize": library}
