"""Attention in C (csrc/attention.c): the softmax of scores, some keys at a time, times values."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mirage.errors import InputError, LibraryError, MirageError
from mirage.ir.types import HALVES, IN_FLOAT32
from mirage.kernels.cpu.emit.matmul import product_parts
from mirage.kernels.cpu.launch.halves import compiled
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.products import is_order, strides
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

#: the status of C for the index of no page
_NO_PAGE = 2
#: element types of the tensors that have others than the rest
_TYPES = {"mask": np.dtype(bool), "pages": np.dtype(np.int64)}
_SIZES = ("batch", "heads", "rows", "keys", "width", "depth", "cached", "first", "inner")
#: what k and v are made of, where they are made
_APPENDED = ("k_cache", "k_new", "v_cache", "v_new")


class _Arguments(ctypes.Structure):
    """`attention` of attention.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("q", "k", "v", *_APPENDED, "bias", "sink", "pages", "mask", "out")),
        *((name, ctypes.c_ssize_t) for name in _SIZES),
        *((name, ctypes.c_ssize_t * 3) for name in ("q_step", "k_step", "v_step")),
        *((name, ctypes.c_ssize_t) for name in ("pool", "page", "table_step", "k_page", "v_page")),
        ("bias_step", ctypes.c_ssize_t * 4),
        ("sink_step", ctypes.c_ssize_t * 3),
        ("mask_step", ctypes.c_ssize_t * 4),
        *((name, ctypes.c_float) for name in ("scale", "cap", "hidden")),
        *((name, ctypes.c_int) for name in ("hiding", "half")),
        ("wrong", ctypes.c_longlong),
    )


@functools.cache
def _function(half: str) -> Any:
    return compiled("attention", half, ("mi_attention",), product_parts(["float32"], ("dot", "outer"))).mi_attention


def _of(dtype: np.dtype[Any]) -> Any:
    return _function(dtype.name if dtype.name in HALVES else "bfloat16")


_Shape = tuple[int, ...]


def _arguments(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    *,
    left: Sequence[int] = (),
    right: Sequence[int] = (0, 1, 3, 2),
    values: Sequence[int] = (),
    scale: float = 1.0,
    cap: float = 0.0,
    bias: bool = False,
    mask: bool = False,
    sink: bool = False,
    hidden: float = 0.0,
    hiding: bool = False,
    pages: bool = False,
    groups: int = 1,
    keys: int | None = None,
    appended: bool = False,
) -> _Arguments:
    """The arguments of C; raises LibraryError for arrays that do not fit, as changed files of programs have them."""
    names, arrays, out = _names(bias, mask, sink, pages, appended), (*inputs, *outputs), outputs[0]
    sized = None
    typed = out.dtype.name in IN_FLOAT32 and all(
        a.dtype == _TYPES.get(name, out.dtype) for name, a in zip(names, arrays, strict=False)
    )
    if len(arrays) == len(names) and typed:
        shapes = tuple((name, a.shape) for name, a in zip(names, arrays, strict=True))
        sized = _of_shapes(shapes, tuple(left), tuple(right), tuple(values), groups, keys)
    if sized is None:
        shown = ", ".join(f"{a.dtype.name}{list(a.shape)}" for a in arrays)
        raise LibraryError(f"there is no attention of {shown}; compile the program again")
    args = _Arguments.from_buffer_copy(sized)
    for name, a in zip(names, arrays, strict=True):
        setattr(args, name, address(a))
    args.scale, args.cap, args.half = scale, cap, out.itemsize == 2
    args.hidden, args.hiding = hidden, hiding
    return args


def _names(bias: bool, mask: bool, sink: bool, pages: bool, appended: bool) -> tuple[str, ...]:
    """The tensors in order, as C calls them."""
    given = {"bias": bias, "mask": mask, "sink": sink, "pages": pages}
    more = [name for name, is_there in given.items() if is_there]
    return ("q", *_APPENDED, *more, "out", "k", "v") if appended else ("q", "k", "v", *more, "out")


@functools.lru_cache(maxsize=1024)
def _of_shapes(
    shapes: tuple[tuple[str, _Shape], ...], left: _Shape, right: _Shape, values: _Shape, groups: int, first: int | None
) -> _Arguments | None:
    """The sizes and steps of tensors of these shapes; None where they do not fit. Layers of a model have the same."""
    of = dict(shapes)
    q, k, v, out = (of[name] for name in ("q", "k", "v", "out"))
    if any(len(s) != 4 for s in (q, k, v, out)) or not all(is_order(order, 4) for order in (left, right, values)):
        return None
    ((b, h, s, d), q_steps), (k_sizes, k_steps), (v_sizes, v_steps) = (
        _moved(*of) for of in ((q, left), (k, right), (v, values))
    )
    keys = k_sizes[3] if first is None else first
    fits = 0 <= keys <= min(k_sizes[3], v_sizes[2]) if first is not None else v_sizes[2] == keys
    pool, table = b, of.get("pages")
    if table is not None:
        if first is not None or not table or table[:-1] not in ((), (b,)):
            return None
        pool, keys = k_sizes[0], keys * table[-1]
    fits &= k_sizes[:3] == [pool, h, d] and v_sizes[:2] == [pool, h] and out == (b, h, s, v_sizes[3])
    if not fits or groups < 1 or s % groups or q_steps[3] != 1 or k_steps[2] != 1 or v_steps[3] != 1:
        return None
    args = _Arguments(batch=b, heads=h, rows=s, keys=keys, width=d, depth=v_sizes[3], inner=max(s // groups, 1))
    args.q_step[:], args.v_step[:], args.k_step[:] = q_steps[:3], v_steps[:3], (*k_steps[:2], k_steps[3])
    if "k_cache" in of:
        args.cached = of["k_cache"][2] if len(of["k_cache"]) == 4 else keys + 1
        moved = table is not None or first is not None or right != (0, 1, 3, 2) or values
        if moved or args.cached > keys or any(
            of[f"{name}_{part}"] != (b, h, count, width)
            for name, width in (("k", d), ("v", v_sizes[3]))
            for part, count in (("cache", args.cached), ("new", keys - args.cached))
        ):
            return None
    if table is not None:
        args.pool, args.page, args.table_step = pool, k_sizes[3], table[-1] if len(table) == 2 else 0
        args.k_page, args.v_page = k_steps[0], v_steps[0]
    scores = (b, h * groups, s // groups, keys)
    more = (("bias", scores, args.bias_step), ("mask", scores, args.mask_step), ("sink", (*scores[:3], 1), args.sink_step))
    for name, sizes, to in more:
        if name in of:
            steps = _broadcast(of[name], sizes)
            if steps is None:
                return None
            to[:] = steps[: len(to)]
    return args


def _broadcast(shape: _Shape, sizes: _Shape) -> list[int] | None:
    """The steps, in elements, of a tensor that broadcasts to these sizes, along each of them; None where it does not."""
    missing = len(sizes) - len(shape)
    if missing < 0 or any(n not in (1, of) for n, of in zip(shape, sizes[missing:], strict=True)):
        return None
    return [0] * missing + [0 if n == 1 else step for n, step in zip(shape, strides(shape), strict=True)]


def _moved(shape: _Shape, order: _Shape) -> tuple[list[int], list[int]]:
    """The sizes of the dims of a tensor of this shape in another order, and their steps in elements."""
    steps, moved = strides(shape), order or range(len(shape))
    return [shape[i] for i in moved], [steps[i] for i in moved]


def _failure(args: _Arguments, status: int) -> MirageError:
    if status == _NO_PAGE:
        use = f"use {-args.pool} to {args.pool - 1}" if args.pool else "there is none"
        return InputError(f"attention: index {args.wrong} is outside of a pool of {args.pool} pages; {use}")
    return MirageError("there is no memory for the scores of attention; use smaller sizes")


def library(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], **attrs: Any) -> None:
    """What programs call as `cpu.attention`: `softmax(scale * q @ k + bias) @ v` of tensors of rank 4, q, k, v, and what is added
    if there is a `bias`, which broadcasts: of float32, or of one type of 16 bits. With a `mask`, booleans that broadcast, scores
    for which it does not hold are the number `hidden` instead; those for which it holds if it is `hiding`.

    The attributes are those of `_arguments`. Scores are `cap * tanh(scale * q @ k)` where `cap` is not 0 (Gemma Team, "Gemma 2",
    2024). A `sink`, which broadcasts to rows of one key, is the score of a further key whose values are 0 (Xiao et al.,
    "Efficient Streaming Language Models with Attention Sinks", 2024). Of each head, so many `groups` of rows are heads of the
    bias, one behind the other, as heads of queries are that share keys. `left`, `right` and `values` permute the dims of q, k
    and v, whose rows stay contiguous; those of k put its columns, the keys, last. So many `keys` are the first ones of k and v,
    else all. A row whose keys are all hidden by -inf is NaN; keys that the bias or the mask hides from all of 64 rows are not
    read where these see others. With `pages`, the first dims of k and v are those of pools of pages (Kwon et al., "Efficient
    Memory Management for Large Language Model Serving with PagedAttention", 2023), and the keys of a batch are those of the
    pages that its row of an int64 tensor lists, or the whole tensor if it has no rows.

    Where they are `appended`, k and v are further results, and in their place among the inputs is what they are made of: keys of
    a cache and those behind it, and values of both. They lie as `concat` leaves them.

    Raises LibraryError for arrays that do not fit, InputError for the index of no page, NoCompilerError, CompilerError and
    UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    args = _arguments(inputs, outputs, **attrs)
    out, *made = outputs
    if not args.keys or not out.size:
        # sums of nothing
        out[...] = 0
        for whole, place in zip(made, (1, 3), strict=False):
            np.concatenate(inputs[place : place + 2], axis=2, out=whole)
    elif status := _of(out.dtype)(ctypes.addressof(args), run_address(), num_threads()):
        raise _failure(args, status)


def prepare(
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    *,
    bias: bool = False,
    mask: bool = False,
    sink: bool = False,
    pages: bool = False,
    appended: bool = False,
    **attrs: Any,
) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs; None for no keys, or nothing to
    compute. It fails with MirageError without memory.
    """
    args = _arguments(inputs, outputs, bias=bias, mask=mask, sink=sink, pages=pages, appended=appended, **attrs)
    if not args.keys or not outputs[0].size:
        return None
    names = _names(bias, mask, sink, pages, appended)
    pointers = tuple((field(args, name), place) for place, name in enumerate(names))
    function = launcher(_of(outputs[0].dtype))
    return Launch(function, ctypes.addressof(args), pointers, functools.partial(_failure, args), args)


#: the functions that programs may call without registering them
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.attention": library}
