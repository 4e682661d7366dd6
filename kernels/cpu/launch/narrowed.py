"""Products with weights that are stored in 16 or 8 bits: half or a quarter of the bytes of float32 is read.

Each column of an int8 weight has a scale, or each group of terms of it: the largest magnitude over 127. Nothing is cut off, and a
weight is off by half a scale at most; one of float32 that becomes bfloat16 is off by 2^-9 of itself. They are computed with in
float32, or, with rows of bfloat16, by the processor's sums of products of pairs (csrc/dequantized.c); or, where products are
`dynamic`, in whole numbers, for which each row of the other operand is made int8 in the same way (csrc/quantized.c).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mirage.errors import LibraryError
from mirage.ir.types import HALVES
from mirage.kernels.cpu.launch import dequantized, quantized
from mirage.kernels.cpu.launch.halves import in_float32, is_half, prepared_in_float32
from mirage.kernels.cpu.launch.memory import aligned
from mirage.kernels.cpu.launch.rounds import Launch


@dataclass(frozen=True)
class Narrowed:
    """A weight `[k, n]` as C reads it, of whole numbers if it is `PackedWeights`, and its scales, `[n]` or `[k / group, n]`,
    which are ones for 16 bits. Of several weights, both have one more dim.
    """

    panels: np.ndarray | quantized.PackedWeights
    scale: np.ndarray


def pack(
    w: np.ndarray, *, right: Sequence[int] = (), group: int = 0, dynamic: bool = False, dtype: str = "int8"
) -> Narrowed:
    """The narrow form of a weight `[k, n]` of float32 or 16 bits, or `[n, k]` where `right` is (1, 0); a `group` divides k. Of
    "bfloat16" there is but one form, of "float16" as well, which only weights of float16 have.

    Several weights `[j, k, n]`, or `[j, n, k]` where `right` is (0, 2, 1), are one behind the other: their panels and scales have
    one more dim. What is not finite makes its column NaN, as its scale is. Raises LibraryError for what is no such weight,
    NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`.
    """
    transposed = tuple(right)[-2:] == (w.ndim - 1, w.ndim - 2)
    halves = w.dtype.name in HALVES
    w = np.ascontiguousarray(w, w.dtype if halves else np.float32)
    if w.ndim not in ((2,) if dynamic else (2, 3)):
        raise LibraryError(f"weights {list(w.shape)} are no matrix; compile the program again")
    k, n = w.shape[:-3:-1] if transposed else w.shape[-2:]
    if group < 0 or (group and k % group):
        raise LibraryError(f"weights {list(w.shape)} have no groups of {group} terms; compile the program again")
    if dtype in HALVES:
        exists = not group and not dynamic and (w.dtype.name == dtype or (not halves and dtype == "bfloat16"))
    else:
        exists = dtype == "int8"
    if not exists:
        raise LibraryError(f"weights of {w.dtype.name} have no such form of {dtype}; compile the program again")
    groups = k // group if group else 1
    scale = aligned(prod(w.shape[:-2]) * groups * n, np.dtype(np.float32)).reshape(*w.shape[:-2], groups, n)
    if dynamic:
        whole = np.empty((k, n), np.int8)
        dequantized.narrow(w, transposed, group, whole, scale)
        return Narrowed(quantized.pack(whole, group=group), scale if group else scale[0])
    panels = dequantized.empty_panels(k, n, dtype, w.shape[:-2])
    if dtype in HALVES:
        scale[...] = 1
    for at in np.ndindex(*w.shape[:-2]):
        dequantized.narrow(w[at], transposed, group, panels[at], None if dtype in HALVES else scale[at])
    return Narrowed(panels, scale if group else scale[..., 0, :])


def library(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    right: Sequence[int] = (),
    group: int = 0,
    dynamic: bool = False,
    dtype: str = "int8",
    bias: bool = False,
    activation: str = "",
    packed: bool = False,
) -> None:
    """What programs call as `cpu.narrowed_matmul`: x times the narrow form of w, what is added to each row, and a function of it.

    `inputs` are x, w, which is transposed where `right` is (1, 0), its narrow form if it is `packed`, and the bias if there is
    one. Raises as `dequantized.multiply`.
    """
    x, w, *rest = inputs
    form = rest.pop(0) if packed else pack(w, right=right, group=group, dynamic=dynamic, dtype=dtype)
    if dynamic and is_half(x):
        # rows are made whole numbers of float32
        attrs: dict[str, Any] = {"bias": bias, "activation": activation, "dynamic": True, "packed": True}
        return in_float32(library)((x, None, form, *rest), outputs, **attrs)
    multiply: Callable[..., None] = _module(form).multiply
    multiply(x, form.panels, form.scale, rest[0] if bias else None, outputs[0], group=group, activation=activation)


def prepare(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    right: Sequence[int] = (),
    group: int = 0,
    dynamic: bool = False,
    dtype: str = "int8",
    bias: bool = False,
    activation: str = "",
    packed: bool = False,
) -> Launch | None:
    """The launch of `library`, as `dequantized.launch`; None without a packed form."""
    if not packed:
        return None
    x, _, form, *added = inputs
    if dynamic and is_half(x):
        attrs: dict[str, Any] = {"bias": bias, "activation": activation, "dynamic": True, "packed": True}
        return prepared_in_float32(prepare)((x, None, form, *added), outputs, **attrs)
    launch: Callable[..., Launch | None] = _module(form).launch
    operands = x, form.panels, form.scale, added[0] if bias else None, outputs[0]
    return launch(*operands, {"x": 0, "bias": 3, "out": len(inputs)}, group=group, activation=activation)


def _module(form: Any) -> Any:
    """What multiplies with a narrow form of one weight; raises LibraryError for something else, as changed files of programs have
    it.
    """
    if not isinstance(form, Narrowed) or (isinstance(form.panels, np.ndarray) and form.panels.ndim != 3):
        raise LibraryError("a weight is not packed as int8 or in 16 bits; compile the program again")
    return quantized if isinstance(form.panels, quantized.PackedWeights) else dequantized


#: the functions that programs may call without registering them: of libraries, and packed ones
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.narrowed_matmul": library}
PACKING: Mapping[str, Callable[..., Any]] = {"cpu.pack_narrowed": pack}
