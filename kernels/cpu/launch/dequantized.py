"""Products of real numbers with weights of 8 or 16 bits in C (csrc/dequantized.c), which are made float32 as they are read."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from mirage.errors import LibraryError
from mirage.ir.types import ELEMENTS, HALVES, IN_FLOAT32
from mirage.kernels.cpu.emit.matmul import product_parts
from mirage.kernels.cpu.launch import halves
from mirage.kernels.cpu.launch.linear import activation_number
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pages import in_large_pages
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.quantized import check_product, no_memory
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

#: columns of a panel, as C has it
PANEL = 48
_LAUNCHED = ("mi_dequantized", "mi_dequantized_groups", "mi_narrow_weights")


class Arguments(ctypes.Structure):
    """`dequantized` of dequantized.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "scale", "bias", "out")),
        *((name, ctypes.c_ssize_t) for name in ("m", "k", "n", "group")),
        *((name, ctypes.c_int) for name in ("activation", "bytes", "half")),
    )


class _Narrowing(ctypes.Structure):
    """`narrowing` of dequantized.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "to", "scale")),
        *((name, ctypes.c_ssize_t) for name in ("k", "n", "group", "panel", "w_row")),
        *((name, ctypes.c_int) for name in ("transposed", "half")),
    )


def compiled(*dtypes: np.dtype[Any]) -> Any:
    """The C that is compiled for the type of 16 bits among these; for any, if there is none."""
    half = "float16" if np.dtype(np.float16) in dtypes else "bfloat16"
    return halves.compiled("dequantized", half, _LAUNCHED, _parts())


@functools.cache
def _parts() -> tuple[str, ...]:
    return product_parts(["float32"], ("outer",))


def empty_panels(k: int, n: int, dtype: str = "int8", lead: Sequence[int] = ()) -> np.ndarray:
    """Memory for weights `[*lead, k, n]` of int8 or 16 bits as panels `[*lead, ceil(n / 48), ceil(k / t), 48 * t]`: t terms of a
    column lie side by side.
    """
    panels, t = -(-n // PANEL), compiled(ELEMENTS[dtype]).mi_together() if dtype in HALVES else 1
    lanes = -(-k // t)
    return in_large_pages(prod(lead) * panels * lanes * PANEL * t, ELEMENTS[dtype]).reshape(*lead, panels, lanes, PANEL * t)


def pack(w: np.ndarray, *, right: Sequence[int] = ()) -> np.ndarray:
    """Weights `[k, n]` of int8, or `[n, k]` where `right` is (1, 0), as panels, the last of them filled up with zeros."""
    w = w.T if tuple(right) == (1, 0) else w
    panels = empty_panels(*w.shape)
    for p, at in enumerate(range(0, w.shape[1], PANEL)):
        part = w[:, at : at + PANEL]
        panels[p, :, : part.shape[1]] = part
        panels[p, :, part.shape[1] :] = 0
    return panels


def narrow(w: np.ndarray, transposed: bool, group: int, to: np.ndarray, scale: np.ndarray | None) -> None:
    """Make bytes of weights `[k, n]` of float32 or 16 bits, or `[n, k]` if they are `transposed`: panels, or `[k, n]`; and their
    scales `[groups, n]`, of so many terms, or of all. A scale is the largest magnitude over 127. Without scales, they become
    panels of the type of 16 bits that `to` has.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`.
    """
    k, n = w.shape[::-1] if transposed else w.shape
    args = _Narrowing(
        address(w), address(to), None if scale is None else address(scale), k, n, group or max(k, 1), to.shape[-1], w.shape[1],
        transposed, w.itemsize == 2,
    )  # fmt: skip
    if n:
        compiled(w.dtype, to.dtype).mi_narrow_weights(ctypes.addressof(args), run_address(), num_threads())


def multiply(
    x: np.ndarray,
    packed: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray | None,
    out: np.ndarray,
    *,
    group: int = 0,
    activation: str = "",
) -> None:
    """Write `x[..., k] @ (w[k, n] * scale) + bias[n]` to `out[..., n]`, for packed weights, and a function of that, one of
    `linear.ACTIVATIONS`.

    The scale is `[n]`, or `[k / group, n]`. All arrays are C-contiguous, of float32, or x, bias and out of one type of 16 bits.
    Raises LibraryError for arrays that do not fit, NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`,
    MirageError without memory.
    """
    args = arguments(x, packed, scale, bias, out, group, activation)
    if out.size and compiled(x.dtype, packed.dtype).mi_dequantized(ctypes.addressof(args), run_address(), num_threads()):
        raise no_memory(args.m)


def arguments(
    x: np.ndarray,
    packed: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray | None,
    out: np.ndarray,
    group: int,
    activation: str,
) -> Arguments:
    """The arguments of C; raises LibraryError for arrays that do not fit."""
    n, (panels, lanes, _), t = out.shape[-1], packed.shape, packed.shape[-1] // PANEL
    # of terms that fill up the last lane, nothing is read
    k = x.shape[-1] if x.ndim and -(-x.shape[-1] // t) == lanes else lanes * t
    check_product(x, (k, n if panels == -(-n // PANEL) else panels * PANEL), group, scale, bias, out)
    rows = {a.dtype.name for a in (x, out, bias) if a is not None}
    if len(rows) > 1 or not rows <= set(IN_FLOAT32) or len((rows | {packed.dtype.name}) - {"float32", "int8"}) > 1:
        types = ", ".join(sorted(rows))
        raise LibraryError(f"there is no product of {types} with weights of {packed.dtype.name}; compile the program again")
    return Arguments(
        address(x), address(packed), address(scale), 0 if bias is None else address(bias), address(out),
        out.size // n if n else 0, k, n, group or max(k, 1), activation_number(activation), packed.itemsize, x.itemsize == 2,
    )  # fmt: skip


def library(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    right: Sequence[int] = (),
    group: int = 0,
    bias: bool = False,
    activation: str = "",
    packed: bool = False,
) -> None:
    """What programs call as `cpu.dequantized_matmul`: see `multiply`.

    `inputs` are x, w, which is transposed where `right` is (1, 0), its packed form if it is `packed`, the scale, of all
    columns or of each, and the bias if there is one.
    """
    x, w, *rest = inputs
    form = rest.pop(0) if packed else pack(w, right=right)
    scale, *added = rest
    (out,) = outputs
    wide = scale if group else np.ascontiguousarray(np.broadcast_to(scale.reshape(-1), out.shape[-1:]))
    multiply(x, form, wide, added[0] if bias else None, out, group=group, activation=activation)


def prepare(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    right: Sequence[int] = (),
    group: int = 0,
    bias: bool = False,
    activation: str = "",
    packed: bool = False,
) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs, and this packed form; None where there
    is none, or one scale of all columns, or nothing to compute.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch fails with MirageError without
    memory.
    """
    (out,) = outputs
    if not packed:
        return None
    x, _, form, scale, *added = inputs
    if not group and scale.size != out.shape[-1]:
        return None
    places = {"x": 0, "scale": 3, "bias": 4, "out": len(inputs)}
    return launch(x, form, scale, added[0] if bias else None, out, places, group=group, activation=activation)


def launch(
    x: np.ndarray,
    packed: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray | None,
    out: np.ndarray,
    places: Mapping[str, int],
    *,
    group: int = 0,
    activation: str = "",
) -> Launch | None:
    """The launch of `multiply` for tensors like these, which are at these `places`; what is at none stays the same. None for
    nothing to compute.

    Raises LibraryError as `multiply`, NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch
    fails with MirageError without memory.
    """
    if not out.size:
        return None
    args = arguments(x, packed, scale, bias, out, group, activation)
    pointers = tuple((field(args, name), k) for name, k in places.items() if name != "bias" or bias is not None)
    run, rows = launcher(compiled(x.dtype, packed.dtype).mi_dequantized), args.m
    return Launch(run, ctypes.addressof(args), pointers, lambda _: no_memory(rows), (args, packed, scale))


#: the functions that programs may call without registering them: of libraries, and packed ones
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.dequantized_matmul": library}
PACKING: Mapping[str, Callable[..., Any]] = {"cpu.pack_dequantized": pack}
