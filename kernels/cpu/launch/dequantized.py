"""Products of float32 with 8-bit weights in C (csrc/dequantized.c), which are made real in registers where rows are few."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.launch.linear import matmul
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pages import in_large_pages
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.quantized import check_product
from mirage.settings import num_threads

#: columns of a panel, as C has it
PANEL = 64
#: rows up to which weights are made real in registers; for more, once for all of them, in memory
FEW = 256


class _Arguments(ctypes.Structure):
    """`dequantized` of dequantized.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "scale", "bias", "out")),
        *((name, ctypes.c_ssize_t) for name in ("m", "k", "n", "group")),
        ("relu", ctypes.c_int),
    )


@functools.cache
def _function() -> Any:
    source = (HEADERS / "dequantized.c").read_text(encoding="utf-8")
    function = toolchain.load(toolchain.compile(source, name="dequantized")).mi_dequantized
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p], ctypes.c_int
    return function


def pack(w: np.ndarray, *, right: Sequence[int] = ()) -> np.ndarray:
    """Weights `[k, n]` of int8, or `[n, k]` where `right` is (1, 0), as panels `[ceil(n / 64), k, 64]` filled up with zeros."""
    w = w.T if tuple(right) == (1, 0) else w
    k, n = w.shape
    panels = -(-n // PANEL)
    packed = in_large_pages(panels * k * PANEL, np.dtype(np.int8)).reshape(panels, k, PANEL)
    for p in range(panels):
        part = w[:, p * PANEL : (p + 1) * PANEL]
        packed[p, :, : part.shape[1]] = part
        packed[p, :, part.shape[1] :] = 0
    return packed


def multiply(
    x: np.ndarray,
    packed: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray | None,
    out: np.ndarray,
    *,
    group: int = 0,
    relu: bool = False,
) -> None:
    """Write `x[..., k] @ (w[k, n] * scale) + bias[n]` to `out[..., n]`, for packed weights, then 0 where it is less and `relu`.

    The scale is `[n]`, or `[k / group, n]`. All arrays are C-contiguous, of float32. Raises LibraryError for arrays that do not
    fit, NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    n, (panels, k, _) = out.shape[-1], packed.shape
    check_product(x, (k, n if panels == -(-n // PANEL) else panels * PANEL), group, scale, bias, out)
    rows = out.size // n if n else 0
    if not rows:
        return
    args = _Arguments(
        address(x), address(packed), address(scale), 0 if bias is None else address(bias), address(out),
        rows, k, n, group or max(k, 1), relu,
    )  # fmt: skip
    if _function()(ctypes.addressof(args), num_threads(), run_address()):
        raise MirageError(f"there is no memory for a product of {rows} rows; use smaller sizes")


def library(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    right: Sequence[int] = (),
    group: int = 0,
    bias: bool = False,
    relu: bool = False,
    packed: bool = False,
) -> None:
    """What programs call as `cpu.dequantized_matmul`: see `multiply`.

    `inputs` are x, w, which is transposed where `right` is (1, 0), its packed form if it is `packed`, the scale, of all
    columns or of each, and the bias if there is one.
    """
    x, w, *rest = inputs
    form = rest.pop(0) if packed else None
    scale, *added = rest
    (out,) = outputs
    w = w.T if tuple(right) == (1, 0) else w
    n, k = out.shape[-1], x.shape[-1]
    wide = scale if group else np.ascontiguousarray(np.broadcast_to(scale.reshape(-1), (n,)))
    if n and out.size // n <= FEW:
        form = pack(w) if form is None else form
        multiply(x, form, wide, added[0] if bias else None, out, group=group, relu=relu)
        return
    real = w.astype(np.float32)
    real = (real.reshape(-1, group, n) * wide[:, None]).reshape(k, n) if group else real * wide
    matmul([x, np.ascontiguousarray(real), *added], outputs, bias=bias, relu=relu)


#: the functions that programs may call without registering them: of libraries, and packed ones
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.dequantized_matmul": library}
PACKING: Mapping[str, Callable[..., Any]] = {"cpu.pack_dequantized": pack}
