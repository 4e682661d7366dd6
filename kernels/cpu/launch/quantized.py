"""Products of quantized activations with 8-bit weights in C (csrc/quantized.c): bit for bit what the operator `quantized_matmul`
says, with weights that are packed once.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.errors import LibraryError, MirageError
from mirage.ir.graph_operator import GraphOperator
from mirage.ir.operator import get_operator
from mirage.ir.operators.quantization import QUANTIZED, quantized_range
from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.compile import toolchain
from mirage.kernels.cpu.compile.shipped import HEADERS
from mirage.kernels.cpu.launch.linear import activation_number
from mirage.kernels.cpu.launch.memory import address, aligned
from mirage.kernels.cpu.launch.pages import in_large_pages
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

#: element types of activations that C has
ACTIVATIONS = ("int8", "uint8", "int16")


class _Arguments(ctypes.Structure):
    """`quantized` of quantized.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "w", "sums", "scale", "bias", "out")),
        *((name, ctypes.c_ssize_t) for name in ("m", "k", "n", "group")),
        *((name, ctypes.c_int) for name in ("is_signed", "x_zero", "dynamic", "activation")),
        *((name, ctypes.c_int) for name in ("bytes", "zero", "least", "most", "shift")),
        *((name, ctypes.c_void_p) for name in ("offset", "multiplier")),
    )


@dataclass(frozen=True)
class PackedWeights:
    """8-bit weights `w[k, n]`, of that `shape`, as C reads them, and the sums of each column's groups `[groups, n]`; `wide` ones
    are for activations of 16 bits.
    """

    array: np.ndarray
    sums: np.ndarray
    shape: tuple[int, int]
    wide: bool = False


def _scales(k: int, n: int, group: int) -> int:
    """How many scales weights `[k, n]` have: one for each column, or for each `group` of its terms."""
    return n * (-(-k // group) if group else 1)


def check_product(
    x: np.ndarray, shape: tuple[int, int], group: int, scale: np.ndarray, bias: np.ndarray | None, out: np.ndarray
) -> None:
    """Raises LibraryError where the arrays of a product with weights of that shape, `[k, n]`, do not fit."""
    k, n = shape
    scales = _scales(k, n, group)
    fits = x.shape[-1:] == (k,) and out.shape == (*x.shape[:-1], n) and scale.size == scales
    if not fits or (bias is not None and bias.size != n):
        shapes = f"{list(x.shape)} with weights {list(shape)} as {list(out.shape)}, with {scale.size} scales"
        raise LibraryError(f"there is no product of {shapes}; compile the program again")


@functools.cache
def _library(wide: bool) -> Any:
    # not one of the libraries that come with the package: their machine code is for levels without products of bytes
    source = (HEADERS / "quantized.c").read_text(encoding="utf-8")
    if wide:
        source = f"#define MI_OF_16_BITS\n{source}"
    library = toolchain.load(toolchain.compile(source, name="quantized"))
    size, pointer = ctypes.c_ssize_t, ctypes.c_void_p
    library.mi_quantized_bytes.argtypes, library.mi_quantized_bytes.restype = [size] * 2, size
    library.mi_quantized_pack.argtypes = [*[size] * 3, ctypes.c_int, *[pointer] * 3]
    library.mi_quantized_pack.restype = None
    library.mi_quantized.argtypes, library.mi_quantized.restype = [pointer, pointer, ctypes.c_int], ctypes.c_int
    return library


def pack(w: np.ndarray, *, right: Sequence[int] = (), group: int = 0, wide: bool = False) -> PackedWeights:
    """The packed form of weights `[k, n]` of int8, or `[n, k]` where `right` is (1, 0); `group` terms along k, or all of them,
    have one scale. `wide` ones are for activations of 16 bits.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`.
    """
    w = w.T if tuple(right) == (1, 0) else w
    (k, n), library = w.shape, _library(wide)
    transposed = w.flags.f_contiguous and not w.flags.c_contiguous
    read = w.T if transposed else np.ascontiguousarray(w)
    group = group or max(k, 1)
    size = library.mi_quantized_bytes(k, n)
    packed = in_large_pages(size, np.dtype(np.int8))
    sums = aligned(-(-k // group) * n, np.dtype(np.int32))
    library.mi_quantized_pack(k, n, group, transposed, address(read), address(packed), address(sums))
    return PackedWeights(packed, sums, (k, n), wide)


def multiply(
    x: np.ndarray,
    packed: PackedWeights,
    scale: np.ndarray,
    bias: np.ndarray | None,
    out: np.ndarray,
    *,
    x_zero: int = 0,
    group: int = 0,
    activation: str = "",
    zero: int = 0,
    shift: int = 0,
) -> None:
    """Write the product of `x[..., k]`, int8, uint8 or int16, with weights that are packed for it to `out[..., n]`, as
    `quantized_matmul` says. An x of float32 is made int8 first, with a scale for each row. Results of float32 may have any
    `activation` of `linear.ACTIVATIONS`, others relu.

    `scale`, `[n]` or `[groups, n]`, and `bias[n]` are of float32, or of int32; `out` is of float32, or of an integer type of at
    most 16 bits. All arrays are C-contiguous. Raises LibraryError for arrays that do not fit, NoCompilerError, CompilerError and
    UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    args = _arguments(x, packed, scale, bias, out, x_zero=x_zero, group=group, activation=activation, zero=zero, shift=shift)
    if out.size and _library(packed.wide).mi_quantized(ctypes.addressof(args), run_address(), num_threads()):
        raise no_memory(args.m)


def _arguments(
    x: np.ndarray,
    packed: PackedWeights,
    scale: np.ndarray,
    bias: np.ndarray | None,
    out: np.ndarray,
    *,
    x_zero: int = 0,
    group: int = 0,
    activation: str = "",
    zero: int = 0,
    shift: int = 0,
) -> _Arguments:
    """The arguments of C; raises LibraryError for arrays that do not fit."""
    check_product(x, packed.shape, group, scale, bias, out)
    k, n = packed.shape
    if packed.sums.size != _scales(k, n, group):
        raise LibraryError(f"weights {[k, n]} are not packed for groups of {group} terms; compile the program again")
    dtype = out.dtype.name
    least, most = quantized_range(dtype) if dtype in QUANTIZED else (0, 0)
    args = _Arguments(
        address(x), address(packed.array), address(packed.sums), 0, 0, address(out), out.size // n if n else 0, k, n, group or k,
        x.dtype in (np.int8, np.float32), x_zero, x.dtype == np.float32, activation_number(activation), out.itemsize,
        zero, least, most, shift,
    )  # fmt: skip
    setattr(args, _scale_name(scale), address(scale))
    if bias is not None:
        setattr(args, _bias_name(bias), address(bias))
    return args


def _scale_name(scale: np.ndarray) -> str:
    """The pointer of C."""
    return "multiplier" if scale.dtype == np.int32 else "scale"


def _bias_name(bias: np.ndarray) -> str:
    return "offset" if bias.dtype == np.int32 else "bias"


def no_memory(rows: int) -> MirageError:
    return MirageError(f"there is no memory for a product of {rows} rows; use smaller sizes")


def library(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    x_zero: int = 0,
    group: int = 0,
    relu: bool = False,
    zero: int = 0,
    shift: int = 0,
    right: Sequence[int] = (),
    wide: bool = False,
    packed: bool = False,
) -> None:
    """What programs call as `cpu.quantized_matmul`: see `multiply`; it is `wide` where x is int16.

    `inputs` are x, w, which is transposed where `right` is (1, 0), its packed form if it is `packed`, the scale, and the bias if
    there is one.
    """
    x, w, *rest = inputs
    (out,) = outputs
    w = w.T if tuple(right) == (1, 0) else w
    if x.dtype.name not in ACTIVATIONS or not w.shape[0]:
        attrs = {"x_zero": x_zero, "group": group, "relu": relu, "zero": zero, "shift": shift, "dtype": out.dtype.name}
        out[...] = get_operator("quantized_matmul").run([x, w, *rest[packed:]], attrs, {})
        return
    form = rest.pop(0) if packed else pack(w, group=group, wide=wide)
    scale, *bias = rest
    offset = bias[0] if bias else None
    activation = "relu" if relu else ""
    multiply(x, form, scale, offset, out, x_zero=x_zero, group=group, activation=activation, zero=zero, shift=shift)


def prepare(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    x_zero: int = 0,
    group: int = 0,
    relu: bool = False,
    zero: int = 0,
    shift: int = 0,
    right: Sequence[int] = (),
    wide: bool = False,
    packed: bool = False,
) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs, and this packed form; None where there
    is none, or nothing to compute.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch fails with MirageError without
    memory.
    """
    (out,) = outputs
    if not packed or inputs[0].dtype.name not in ACTIVATIONS or not out.size:
        return None
    x, _, form, scale, *bias = inputs
    places = {"x": 0, "scale": 3, "bias": 4, "out": len(inputs)}
    own = {"x_zero": x_zero, "group": group, "activation": "relu" if relu else "", "zero": zero, "shift": shift}
    return launch(x, form, scale, bias[0] if bias else None, out, places, **own)


def launch(
    x: np.ndarray,
    packed: PackedWeights,
    scale: np.ndarray,
    bias: np.ndarray | None,
    out: np.ndarray,
    places: Mapping[str, int],
    **attrs: Any,
) -> Launch | None:
    """The launch of `multiply`, whose keywords are `attrs`, for tensors like these, which are at these `places`: "x", "scale",
    "bias" and "out"; what is at none stays the same. None for nothing to compute.

    Raises LibraryError as `multiply`, NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`; the launch
    fails with MirageError without memory.
    """
    if not out.size or not packed.shape[0]:
        return None
    args = _arguments(x, packed, scale, bias, out, **attrs)
    fields = {"scale": _scale_name(scale), "bias": "" if bias is None else _bias_name(bias)}
    pointers = tuple((field(args, name), k) for part, k in places.items() if (name := fields.get(part, part)))
    run, rows = launcher(_library(packed.wide).mi_quantized), args.m
    return Launch(run, ctypes.addressof(args), pointers, lambda _: no_memory(rows), (args, packed, scale))


def quantized_matmul(arrays: Sequence[Any], attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """What the operator `quantized_matmul` gives for arrays of NumPy.

    Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
    """
    operator = get_operator("quantized_matmul")
    assert isinstance(operator, GraphOperator)
    operator.check_run(arrays, attrs)
    given = [np.ascontiguousarray(a) for a in arrays]
    out = np.empty((*given[0].shape[:-1], given[1].shape[1]), ELEMENTS[attrs["dtype"]])
    own = {name: value for name, value in attrs.items() if name != "dtype"}
    library(given, [out], **own, wide=given[0].dtype == np.int16)
    return out


#: the functions that programs may call without registering them: of libraries, and packed ones
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.quantized_matmul": library}
PACKING: Mapping[str, Callable[..., Any]] = {"cpu.pack_quantized": pack}
