"""Products of few rows with a weight as it lies.

Reading the weight from memory takes longer than computing with it, so that nothing is gained by a packed copy of it.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

import numpy as np

from mirage.errors import MirageError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.emit.matmul import product_parts
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.settings import num_threads

#: rows up to which these are faster than products of packed weights (`python -m benchmarks.run products`)
FEW = 4


@functools.cache
def _function() -> Callable[..., int]:
    source = (HEADERS / "linear.c").read_text(encoding="utf-8")
    function = toolchain.load(toolchain.compile(source, name="linear", parts=product_parts("float32"))).mi_linear
    function.argtypes = [*[ctypes.c_ssize_t] * 3, *[ctypes.c_void_p] * 4, *[ctypes.c_int] * 2, ctypes.c_void_p]
    function.restype = ctypes.c_int
    return function


def linear(x: np.ndarray, w: np.ndarray, out: np.ndarray, *, transposed: bool, bias: np.ndarray | None = None) -> None:
    """Write x[..., k] @ w[k, n], or x @ w[n, k].T where it is `transposed`, plus bias[n] to out[..., n]: C-contiguous float32.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    n, k = out.shape[-1], x.shape[-1]
    rows = out.size // n if n else 0
    if not rows:
        return
    given = address(x), address(w), 0 if bias is None else address(bias), address(out)
    if _function()(rows, k, n, *given, transposed, num_threads(), run_address()):
        raise MirageError(f"there is no memory for a product of {rows} rows; use smaller sizes")
