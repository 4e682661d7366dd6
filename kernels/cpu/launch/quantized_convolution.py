"""Convolutions of quantized activations with 8-bit weights in C (csrc/quantized_convolution.c): bit for bit what the operator
`quantized_convolution` says, with weights that are packed once.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.ir.graph_operator import GraphOperator
from mirage.ir.operator import get_operator
from mirage.ir.operators.quantization import QUANTIZED, quantized_range
from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.launch.convolution import RANK, window_sizes
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

#: element types of activations that C has
ACTIVATIONS = ("int8", "uint8")
_POINTERS = ("sums", "offset", "scale", "multiplier", "bias", "other", "out")
_INTEGERS = (
    "other_bytes", "other_is_signed", "other_zero", "bytes", "whole", "zero", "shift", "least", "most", "term_zero",
)  # fmt: skip


class _Finish(ctypes.Structure):
    """`mi_finish` of quantized_convolution.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_float) for name in ("other_scale", "lower", "upper")),
        *((name, ctypes.c_int) for name in _INTEGERS),
    )


class _Arguments(ctypes.Structure):
    """`quantized_windows` of quantized_convolution.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "sizes")),
        *((name, ctypes.c_int) for name in ("is_signed", "x_zero")),
        ("finish", _Finish),
    )


@dataclass(frozen=True)
class PackedWindows:
    """8-bit weights of a convolution as C reads them, and the sums of each output's `[o]`."""

    array: np.ndarray
    sums: np.ndarray


@functools.cache
def _library() -> Any:
    # not one of the libraries that come with the package: their machine code is for levels without products of bytes
    source = (HEADERS / "quantized_convolution.c").read_text(encoding="utf-8")
    library = toolchain.load(toolchain.compile(source, name="quantized_convolution"))
    size, pointer = ctypes.c_ssize_t, ctypes.c_void_p
    library.mi_quantized_windows_pack.argtypes = [*[size] * 5, *[pointer] * 3]
    library.mi_quantized_windows_pack.restype = size
    library.mi_quantized_windows.argtypes = [pointer, pointer, ctypes.c_int]
    library.mi_quantized_windows.restype = ctypes.c_int
    return library


def pack(w: np.ndarray, *, groups: int = 1) -> PackedWindows:
    """The packed form of weights `[o, c, *kernel]` of int8.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`.
    """
    library, w = _library(), np.ascontiguousarray(w)
    sizes = groups, w.shape[0] // groups, w.shape[1], prod(w.shape[2:]), w.shape[-1], address(w)
    packed = np.empty(library.mi_quantized_windows_pack(*sizes, 0, 0) if w.size else 0, np.int8)
    sums = np.zeros(w.shape[0], np.int32)
    if w.size:
        library.mi_quantized_windows_pack(*sizes, address(packed), address(sums))
    return PackedWindows(packed, sums)


@dataclass(frozen=True)
class _Read:
    """What a call of `library` reads: x, w, its packed form, and the operands behind it."""

    x: np.ndarray
    w: np.ndarray
    form: PackedWindows | None
    rest: Sequence[np.ndarray]

    @classmethod
    def of(cls, inputs: Sequence[Any], packed: bool) -> _Read:
        x, w, *rest = inputs
        return cls(x, w, rest.pop(0) if packed else None, rest)

    def has_kernel(self, out: np.ndarray) -> bool:
        others = self.rest[2:]
        fine = all(o.dtype.name in ("float32", *ACTIVATIONS) for o in others)
        return fine and self.x.dtype.name in ACTIVATIONS and bool(out.size and self.w.size) and self.x.ndim - 2 <= RANK

    def arguments(self, form: PackedWindows, out: np.ndarray, attrs: Mapping[str, Any]) -> tuple[_Arguments, Any]:
        """The arguments of C, and the sizes that they point to."""
        windows = (tuple(attrs[key]) for key in ("strides", "dilations", "low"))
        sizes = window_sizes(self.x.shape, self.w.shape, out.shape, *windows, attrs["groups"])
        args = _Arguments(
            address(self.x), address(form.array), ctypes.addressof(sizes), self.x.dtype == np.int8, attrs["x_zero"]
        )
        f, dtype = args.finish, out.dtype.name
        f.sums, f.out, f.bytes, f.whole = address(form.sums), address(out), out.itemsize, dtype == "int32"
        f.lower, f.upper = (np.float32(attrs.get(bound, end)) for bound, end in (("least", -inf), ("most", inf)))
        if dtype in QUANTIZED:
            f.zero = attrs["zero"]
            low, high = (n - f.zero for n in quantized_range(dtype))
            f.lower, f.upper = (min(max(bound, low), high) for bound in (f.lower, f.upper))
            f.least, f.most, f.shift = round(f.lower), round(f.upper), attrs["shift"]
        for name, a in zip(self.names(), self.rest, strict=True):
            setattr(f, name, address(a))
        if len(self.rest) > 2:
            other = self.rest[2]
            f.other_bytes, f.other_is_signed = other.itemsize, other.dtype == np.int8
            f.other_scale, f.other_zero = float(attrs["other_scale"]), attrs["other_zero"]
        return args, sizes

    def names(self) -> list[str]:
        """The pointers of C for the operands behind the weights."""
        found = []
        for k, a in enumerate(self.rest):
            whole = a.dtype == np.int32
            found.append((("multiplier" if whole else "scale"), ("offset" if whole else "bias"), "other")[k])
        return found


def _attributes(out: np.ndarray, attrs: Mapping[str, Any]) -> dict[str, Any]:
    return get_operator("quantized_convolution").check_attrs({**attrs, "dtype": out.dtype.name})


def library(inputs: Sequence[Any], outputs: Sequence[np.ndarray], *, packed: bool = False, **attrs: Any) -> None:
    """What programs call as `cpu.quantized_convolution`: the operator of that name, with its attributes but for the element type.

    `inputs` are x, w, its packed form if it is `packed`, and what else the operator has. All arrays are C-contiguous. Raises
    NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    (out,), read = outputs, _Read.of(inputs, packed)
    given = _attributes(out, attrs)
    if not read.has_kernel(out):
        out[...] = get_operator("quantized_convolution").run([read.x, read.w, *read.rest], given, {})
        return
    form = read.form or pack(read.w, groups=given["groups"])
    args, _kept = read.arguments(form, out, given)
    if _library().mi_quantized_windows(ctypes.addressof(args), run_address(), num_threads()):
        raise _memory(read.x.shape)


def _memory(shape: Sequence[int]) -> MirageError:
    return MirageError(f"there is no memory for a convolution of {list(shape)}; use smaller sizes")


def prepare(
    inputs: Sequence[Any], outputs: Sequence[np.ndarray], *, packed: bool = False, **attrs: Any
) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs, and this packed form; None where there
    is none, or nothing to compute.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch fails with MirageError without
    memory.
    """
    (out,), read = outputs, _Read.of(inputs, packed)
    if read.form is None or not read.has_kernel(out):
        return None
    args, sizes = read.arguments(read.form, out, _attributes(out, attrs))
    pointers = [(field(args, "x"), 0), (field(args.finish, "out"), len(inputs))]
    pointers += [(field(args.finish, name), 3 + k) for k, name in enumerate(read.names())]
    shape = read.x.shape
    run = launcher(_library().mi_quantized_windows)
    return Launch(run, ctypes.addressof(args), tuple(pointers), lambda _: _memory(shape), (args, sizes, read.form))


def quantized_convolution(arrays: Sequence[Any], attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """What the operator `quantized_convolution` gives for arrays of NumPy; raises InputError where a window is larger than a dim.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    operator = get_operator("quantized_convolution")
    assert isinstance(operator, GraphOperator)
    operator.check_run(arrays, attrs)
    given = [np.ascontiguousarray(a) for a in arrays]
    x, w = given[:2]
    edges = zip(attrs["low"], attrs["high"], strict=True)
    windows = zip(x.shape[2:], edges, w.shape[2:], attrs["strides"], attrs["dilations"], strict=True)
    places = [(n + a + b - (k - 1) * d - 1) // s + 1 for n, (a, b), k, s, d in windows]
    out = np.empty((x.shape[0], w.shape[0], *places), ELEMENTS[attrs["dtype"]])
    library(given, [out], **{name: value for name, value in attrs.items() if name != "dtype"})
    return out


#: the functions that programs may call without registering them: of libraries, and packed ones
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.quantized_convolution": library}
PACKING: Mapping[str, Callable[..., Any]] = {"cpu.pack_quantized_convolution": pack}
