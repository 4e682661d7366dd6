"""Attention in C (csrc/attention.c): the softmax of scores, some keys at a time, times values."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.errors import LibraryError, MirageError
from mirage.ir.types import HALVES
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.emit.matmul import product_parts
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.products import strides
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

_SIZES = ("batch", "heads", "rows", "keys", "width", "depth", "inner")


class _Arguments(ctypes.Structure):
    """`attention` of attention.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", "bias", "out")),
        *((name, ctypes.c_ssize_t) for name in _SIZES),
        *((name, ctypes.c_ssize_t * 3) for name in ("q_step", "k_step", "v_step")),
        ("bias_step", ctypes.c_ssize_t * 4),
        ("scale", ctypes.c_float),
        ("half", ctypes.c_int),
    )


@functools.cache
def _function(half: str) -> Any:
    source = f"#define MI_HALF {half}\n" + (HEADERS / "attention.c").read_text(encoding="utf-8")
    parts = product_parts("float32", ("dot", "outer"))
    function = toolchain.load(toolchain.compile(source, name="attention", parts=parts)).mi_attention
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return function


def _of(dtype: np.dtype[Any]) -> Any:
    return _function(dtype.name if dtype.name in HALVES else HALVES[0])


def _moved(array: np.ndarray, order: Sequence[int]) -> tuple[list[int], list[int]]:
    """The sizes of an array's dims in another order, and their steps in elements."""
    steps, order = strides(array.shape), order or range(array.ndim)
    return [array.shape[i] for i in order], [steps[i] for i in order]


def _arguments(
    tensors: Sequence[np.ndarray],
    out: np.ndarray,
    left: Sequence[int],
    right: Sequence[int],
    values: Sequence[int],
    scale: float,
    groups: int,
) -> _Arguments:
    """The arguments of C; raises LibraryError for arrays that do not fit, as changed files of programs have them."""
    q, k, v, *added = tensors
    if any(a.ndim != 4 for a in (q, k, v, out)) or len({a.dtype for a in (*tensors, out)}) > 1:
        raise _wrong(tensors, out)
    if q.dtype.name not in ("float32", *HALVES):
        raise _wrong(tensors, out)
    (b, h, s, d), q_steps = _moved(q, left)
    k_sizes, k_steps = _moved(k, right)
    v_sizes, v_steps = _moved(v, values)
    keys = k_sizes[3]
    fits = k_sizes == [b, h, d, keys] and v_sizes[:3] == [b, h, keys] and out.shape == (b, h, s, v_sizes[3])
    if not fits or groups < 1 or s % groups or q_steps[3] != 1 or k_steps[2] != 1 or v_steps[3] != 1:
        raise _wrong(tensors, out)
    args = _Arguments(*map(address, (q, k, v)), 0, address(out), b, h, s, keys, d, v_sizes[3], max(s // groups, 1))
    args.q_step[:], args.v_step[:], args.k_step[:] = q_steps[:3], v_steps[:3], (*k_steps[:2], k_steps[3])
    args.scale, args.half = scale, q.itemsize == 2
    if added:
        (bias,) = added
        shape, steps = (1,) * (4 - bias.ndim) + bias.shape, [0] * (4 - bias.ndim) + list(strides(bias.shape))
        if bias.ndim > 4 or any(n not in (1, of) for n, of in zip(shape, (b, h * groups, s // groups, keys), strict=True)):
            raise _wrong(tensors, out)
        args.bias, args.bias_step[:] = address(bias), [0 if n == 1 else step for n, step in zip(shape, steps, strict=True)]
    return args


def _wrong(tensors: Sequence[np.ndarray], out: np.ndarray) -> LibraryError:
    shapes = ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in (*tensors, out))
    return LibraryError(f"there is no attention of {shapes}; compile the program again")


def _memory(_: int) -> MirageError:
    return MirageError("there is no memory for the scores of attention; use smaller sizes")


def library(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (0, 1, 3, 2),
    values: Sequence[int] = (),
    scale: float = 1.0,
    bias: bool = False,
    groups: int = 1,
) -> None:
    """What programs call as `cpu.attention`: `softmax(scale * q @ k + bias) @ v` of tensors of rank 4, q, k, v, and the bias if
    there is one, which broadcasts: of float32, or of one type of 16 bits.

    Of each head, so many `groups` of rows are heads of the bias, one behind the other, as heads of queries are that share keys.
    `left`, `right` and `values` permute the dims of q, k and v, whose rows stay contiguous; those of k put its columns, the keys,
    last. A row whose keys are all hidden by -inf is NaN; keys that the bias hides from all of 64 rows are not read where these
    see others. Raises LibraryError for arrays that do not fit, NoCompilerError, CompilerError and UnsafeCacheError as
    `toolchain.compile`, MirageError without memory.
    """
    (out,) = outputs
    args = _arguments(inputs[: 3 + bias], out, left, right, values, scale, groups)
    if not args.keys:
        # sums of nothing
        out[...] = 0
    elif out.size and (status := _of(out.dtype)(ctypes.addressof(args), run_address(), num_threads())):
        raise _memory(status)


def prepare(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (0, 1, 3, 2),
    values: Sequence[int] = (),
    scale: float = 1.0,
    bias: bool = False,
    groups: int = 1,
) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs; None for no keys, or nothing to
    compute. It fails with MirageError without memory.
    """
    (out,) = outputs
    args = _arguments(inputs[: 3 + bias], out, left, right, values, scale, groups)
    if not args.keys or not out.size:
        return None
    pointers = tuple((field(args, name), place) for place, name in enumerate(("q", "k", "v", *["bias"] * bias, "out")))
    return Launch(launcher(_of(out.dtype)), ctypes.addressof(args), pointers, _memory, args)


#: the functions that programs may call without registering them
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.attention": library}
