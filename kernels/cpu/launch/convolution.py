"""Convolutions in C (csrc/convolution.c): products of packed weights with patches that are laid out in a thread's cache, and sums
of shifted rows channel by channel, with what is added to them and their bounds.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from mirage.errors import LibraryError, MirageError
from mirage.ir.graph_operator import GraphOperator
from mirage.ir.operator import get_operator
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import library_source
from mirage.kernels.cpu.launch.halves import in_float32, is_half, prepared_in_float32, widened
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pages import in_large_pages
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

#: spatial dims that C has, at most
RANK = 3
#: element types that C has, by their names there
REALS: Mapping[str, str] = {"float32": "float", "float64": "double"}


#: how C reads weights (`mi_convolution_form`): as they are, or packed in one of two ways, of which the first is that of products
_SINGLE, _WINDOWS = 0, 1


class PackedWindows:
    """Weights of a convolution, `[o, c, *kernel]`, and copies as C reads them for some sizes, made when first read."""

    def __init__(self, w: np.ndarray, groups: int) -> None:
        self.weight = np.ascontiguousarray(w)
        self.groups = groups
        self._packed: dict[int, np.ndarray] = {}

    def read(self, sizes: Any) -> np.ndarray:
        """What C reads for these sizes, of `window_sizes`.

        Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`.
        """
        form = convolution_library(self.weight.dtype.name).mi_convolution_form(ctypes.addressof(sizes))
        return self.weight if form == _SINGLE else self._packed_as(form)

    def panels(self) -> np.ndarray:
        """What C reads as the matrix of a product, of windows of one element; raises as `read`."""
        return self._packed_as(_WINDOWS)

    def _packed_as(self, form: int) -> np.ndarray:
        w = self.weight
        if form not in self._packed:
            library = convolution_library(w.dtype.name)
            own = self.groups, w.shape[0] // self.groups, w.shape[1], prod(w.shape[2:]), address(w)
            packed = in_large_pages(library.mi_convolution_pack(*own, 0, form), w.dtype)
            library.mi_convolution_pack(*own, address(packed), form)
            self._packed[form] = packed
        return self._packed[form]


class _Prepared(ctypes.Structure):
    """`prepared` of convolution.c."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in ("x", "w", "bias", "other", "out", "sizes", "bounds"))


def _source(dtype: str) -> str:
    source = library_source("convolution")
    return source if REALS[dtype] == "float" else f"#define MI_REAL {REALS[dtype]}\n{source}"


def is_there(dtype: str) -> bool:
    """Whether the code for an element type has been compiled; what has not is from now on, in the background."""
    return toolchain.is_there(_source(dtype), name="convolution")


@functools.cache
def convolution_library(dtype: str) -> Any:
    """The code for an element type; raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`."""
    library = toolchain.load(toolchain.compile(_source(dtype), name="convolution"))
    library.mi_convolution_pack.argtypes = [*[ctypes.c_ssize_t] * 4, *[ctypes.c_void_p] * 2, ctypes.c_int]
    library.mi_convolution_pack.restype = ctypes.c_ssize_t
    library.mi_convolution_form.argtypes, library.mi_convolution_form.restype = [ctypes.c_void_p], ctypes.c_int
    library.mi_convolution.argtypes = [*[ctypes.c_void_p] * 7, ctypes.c_int, ctypes.c_void_p]
    library.mi_convolution.restype = ctypes.c_int
    library.mi_separable_prepared.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    library.mi_separable_prepared.restype = ctypes.c_int
    return library


@functools.cache
def _function(dtype: np.dtype[Any]) -> Callable[..., int]:
    found: Callable[..., int] = convolution_library(dtype.name).mi_convolution
    return found


def pack(w: np.ndarray, *, groups: int = 1) -> PackedWindows:
    """The packed form of weights `[o, c, *kernel]` of float32 or float64; those of 16 bits become float32."""
    return PackedWindows(widened(w) if is_half(w) else w, groups)


@functools.lru_cache(maxsize=1024)
def window_sizes(
    x: tuple[int, ...], w: tuple[int, ...], out: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...],
    low: tuple[int, ...], groups: int,
) -> Any:  # fmt: skip
    """The sizes of a convolution as C has them (`mi_windows_of`), of the shapes of x, w and the result.

    Raises LibraryError where these do not fit.
    """
    ranks = {len(x), len(w), len(out), *(2 + len(v) for v in (strides, dilations, low))}
    if len(ranks) > 1 or x[1] != w[1] * groups or w[0] % groups or out[:2] != (x[0], w[0]):
        shapes = f"{list(x)} with weights {list(w)}, in {groups} groups, as {list(out)}"
        raise LibraryError(f"there is no convolution of {shapes}; compile the program again")
    lead = RANK - len(strides)
    each = ((1, x[2:]), (1, w[2:]), (1, out[2:]), (1, strides), (1, dilations), (0, low))
    filled = [v for filler, dims in each for v in (*[filler] * lead, *dims)]
    return (ctypes.c_ssize_t * 22)(x[0], groups, w[1], w[0] // groups, *filled)


@functools.lru_cache(maxsize=1024)
def _bounds(least: float, most: float) -> Any:
    return (ctypes.c_double * 2)(least, most)


def convolve(
    x: np.ndarray,
    w: np.ndarray,
    packed: PackedWindows,
    out: np.ndarray,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    low: Sequence[int],
    groups: int = 1,
    bias: np.ndarray | None = None,
    other: np.ndarray | None = None,
    least: float = -inf,
    most: float = inf,
) -> None:
    """Write to `out[b, o, *places]` the convolution of `x[b, groups * c, *space]` with weights `w[o, c, *kernel]`.

    `low` zeros lie in front of x along each spatial dim, and as many behind it as places ask for. `bias[o]` and
    `other[b, o, *places]` are added; then the results are at least `least` and at most `most`. All arrays are C-contiguous, of
    float32 or float64, with at most 3 spatial dims.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    if not out.size:
        return
    if not w.size:
        # sums of nothing
        out[...] = 0
        if bias is not None:
            out += bias.reshape(-1, *[1] * len(strides))
        if other is not None:
            out += other
        np.clip(out, least, most, out=out)
        return
    sizes = window_sizes(x.shape, w.shape, out.shape, tuple(strides), tuple(dilations), tuple(low), groups)
    given = ctypes.addressof(sizes), address(x), address(packed.read(sizes))
    added = [0 if a is None else address(a) for a in (bias, other)]
    bounds = ctypes.addressof(_bounds(least, most))
    if _function(x.dtype)(*given, *added, address(out), bounds, num_threads(), run_address()):
        raise MirageError(f"there is no memory for a convolution of {list(x.shape)}; use smaller sizes")


@dataclass(frozen=True)
class _Read:
    """What a call of `library` reads, and its result under the dims of a convolution."""

    x: np.ndarray
    w: np.ndarray
    form: PackedWindows | None
    bias: np.ndarray | None
    other: np.ndarray | None
    out: np.ndarray
    windows: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(
        cls, inputs: Sequence[Any], out: np.ndarray, strides: Sequence[int], dilations: Sequence[int], low: Sequence[int],
        packed: bool, bias: bool, other: bool,
    ) -> _Read:  # fmt: skip
        x, w, *rest = inputs
        form = rest.pop(0) if packed else None
        offset = rest.pop(0) if bias else None
        added = rest.pop(0) if other else None
        if not strides:
            strides, dilations, low = (1,), (1,), (0,)
            w = w.reshape(*w.shape[:2], 1)
            out = out.reshape(*out.shape[:2], x.shape[2])
            added = None if added is None else added.reshape(out.shape)
        return cls(x, w, form, offset, added, out, (tuple(strides), tuple(dilations), tuple(low)))


@in_float32
def library(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    low: Sequence[int] = (),
    groups: int = 1,
    packed: bool = False,
    bias: bool = False,
    other: bool = False,
    least: float = -inf,
    most: float = inf,
) -> None:
    """What programs call as `cpu.convolution`: see `convolve`; tensors of 16 bits are computed with in float32.

    `inputs` are x, w, its packed form if it is `packed`, then the bias and what else is added, if there are any. Without
    strides, it is a product `w[o, c] @ x[b, c, n]`, whose result may have other dims in place of n.
    """
    r = _Read.of(inputs, outputs[0], strides, dilations, low, packed, bias, other)
    steps, gaps, front = r.windows
    convolve(
        r.x, r.w, r.form or pack(r.w, groups=groups), r.out, strides=steps, dilations=gaps, low=front, groups=groups,
        bias=r.bias, other=r.other, least=float(least), most=float(most),
    )  # fmt: skip


@prepared_in_float32
def prepare(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    low: Sequence[int] = (),
    groups: int = 1,
    packed: bool = False,
    bias: bool = False,
    other: bool = False,
    least: float = -inf,
    most: float = inf,
) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs, and this packed form; None where there
    is none, or nothing to compute.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch fails with MirageError without
    memory.
    """
    r = _Read.of(inputs, outputs[0], strides, dilations, low, packed, bias, other)
    if r.form is None or not r.out.size or not r.w.size:
        return None
    sizes = window_sizes(r.x.shape, r.w.shape, r.out.shape, *r.windows, groups)
    bounds = _bounds(float(least), float(most))
    weights = r.form.read(sizes)
    args = _Prepared(sizes=ctypes.addressof(sizes), bounds=ctypes.addressof(bounds), w=address(weights))
    places = ["x", "", *[""] * packed, *["bias"] * bias, *["other"] * other, "out"]
    pointers = tuple((field(args, name), place) for place, name in enumerate(places) if name)
    shape = list(r.x.shape)

    def error(status: int) -> Exception:
        return MirageError(f"there is no memory for a convolution of {shape}; use smaller sizes")

    run = launcher(convolution_library(r.x.dtype.name).mi_convolution_prepared)
    return Launch(run, ctypes.addressof(args), pointers, error, (args, sizes, bounds, weights))


def convolution(arrays: Sequence[Any], attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """What the operator `convolution` gives for arrays of NumPy; raises InputError where a window is larger than a dim.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    x, w = arrays
    groups, rank = attrs["groups"], x.ndim - 2
    operator = get_operator("convolution")
    assert isinstance(operator, GraphOperator)
    if x.dtype.name not in REALS or rank > RANK:
        return operator.run(arrays, attrs, sizes)
    operator.check_run(arrays, attrs)
    x, w = np.ascontiguousarray(x), np.ascontiguousarray(w)
    steps, gaps = attrs["strides"], attrs["dilations"]
    windows = zip(x.shape[2:], w.shape[2:], steps, gaps, strict=True)
    places = [(n - (k - 1) * d - 1) // s + 1 for n, k, s, d in windows]
    out = np.empty((x.shape[0], w.shape[0], *places), x.dtype)
    convolve(x, w, pack(w, groups=groups), out, strides=steps, dilations=gaps, low=(0,) * rank, groups=groups)
    return out


#: the functions that programs may call without registering them: of libraries, and packed ones
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.convolution": library}
PACKING: Mapping[str, Callable[..., Any]] = {"cpu.pack_convolution": pack}
