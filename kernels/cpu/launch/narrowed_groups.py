"""Products of groups of rows, each with a weight of its own that is stored in 16 or 8 bits: those of routed experts
(csrc/dequantized.c).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.errors import LibraryError
from mirage.kernels.cpu.launch import dequantized
from mirage.kernels.cpu.launch.grouped import error
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.narrowed import Narrowed, pack
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads


class _Arguments(ctypes.Structure):
    """`grouped` of dequantized.c."""

    _fields_ = (
        ("of", dequantized.Arguments),
        ("ends", ctypes.c_void_p),
        ("groups", ctypes.c_ssize_t),
        ("wide", ctypes.c_int),
    )


def _call(x: np.ndarray, form: Any, ends: np.ndarray, out: np.ndarray, group: int) -> tuple[Any, _Arguments]:
    """The function of C and its arguments; raises LibraryError for arrays that do not fit, as changed files have them."""
    if not isinstance(form, Narrowed) or not isinstance(form.panels, np.ndarray) or form.panels.ndim != 4:
        raise LibraryError("weights are not packed as int8 or in 16 bits; compile the program again")
    panels = form.panels
    if ends.shape != panels.shape[:1] or ends.dtype not in (np.int32, np.int64) or x.ndim != 2 or not len(panels):
        shapes = f"{ends.dtype.name}{list(ends.shape)} for {len(panels)} weights and rows {list(x.shape)}"
        raise LibraryError(f"there are no groups {shapes}; compile the program again")
    of = dequantized.arguments(x, panels[0], form.scale[0], None, out, group, "")
    function = dequantized.compiled(x.dtype, panels.dtype).mi_dequantized_groups
    return function, _Arguments(of, address(ends), len(panels), ends.dtype == np.int64)


def library(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    right: Sequence[int] = (),
    group: int = 0,
    dtype: str = "int8",
    packed: bool = False,
) -> None:
    """What programs call as `cpu.narrowed_groups`: the operator `grouped_matmul`, with the narrow form of w.

    `inputs` are x, w, whose dims `right` permutes, its narrow form if it is `packed`, and the ends. Raises as
    `dequantized.multiply`, and InputError for wrong ends.
    """
    x, w, *rest = inputs
    form = rest.pop(0) if packed else pack(w, right=right, group=group, dtype=dtype)
    (out,) = outputs
    if out.size:
        function, args = _call(x, form, rest[0], out, group)
        if status := function(ctypes.addressof(args), run_address(), num_threads()):
            raise error(status, args.of.m)


def prepare(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    right: Sequence[int] = (),
    group: int = 0,
    dtype: str = "int8",
    packed: bool = False,
) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs, and this narrow form; None without one,
    or for nothing to compute. It fails as `library`.
    """
    (out,) = outputs
    if not packed or not out.size:
        return None
    x, _, form, ends = inputs
    function, args = _call(x, form, ends, out, group)
    pointers = (field(args.of, "x"), 0), (field(args, "ends"), 3), (field(args.of, "out"), 4)
    rows = args.of.m
    return Launch(launcher(function), ctypes.addressof(args), pointers, lambda status: error(status, rows), (args, form))


#: the functions that programs may call without registering them
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.narrowed_groups": library}
