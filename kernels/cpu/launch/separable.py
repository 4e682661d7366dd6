"""Convolutions channel by channel between products with windows of one element, in C (csrc/mirage_separable.h), without a tensor
of the channels between them.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from mirage.errors import LibraryError, MirageError
from mirage.kernels.cpu.launch.convolution import PackedWindows, convolution_library, window_sizes
from mirage.kernels.cpu.launch.halves import in_float32, prepared_in_float32
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.rounds import Launch, field, launcher
from mirage.settings import num_threads

#: spatial dims that C has, at most
RANK = 2
#: what a call reads, in order: x and w always, of the others what its attributes name
OPERANDS = ("x", "first", "first_bias", "w", "bias", "second", "second_bias", "other")
#: bounds of what the three parts give, as attributes
BOUNDS = tuple((f"{part}least", f"{part}most") for part in ("first_", "", "second_"))


class _Prepared(ctypes.Structure):
    """`separable` of convolution.c."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in (*OPERANDS, "out", "sizes", "bounds"))


@functools.lru_cache(maxsize=1024)
def _sizes(windows: tuple[tuple[int, ...], ...], channels: int, outputs: int) -> Any:
    x, w, out, strides, dilations, low = windows
    return (ctypes.c_ssize_t * 24)(*window_sizes(x, w, out, strides, dilations, low, w[0]), channels, outputs)


@functools.lru_cache(maxsize=1024)
def _bounds(*bounds: float) -> Any:
    return (ctypes.c_double * 6)(*bounds)


@dataclass(frozen=True)
class _Call:
    """The arguments of C but for tensors, the places of these by their names there, and what has to live as long."""

    args: _Prepared
    places: Mapping[str, int]
    keep: object

    @classmethod
    def of(
        cls, inputs: Sequence[Any], out: np.ndarray, strides: Sequence[int], dilations: Sequence[int], low: Sequence[int],
        attrs: Mapping[str, Any],
    ) -> _Call:  # fmt: skip
        names = [name for name in OPERANDS if name in ("x", "w") or attrs.get(name)]
        given = dict(zip(names, inputs, strict=False))
        products = {name: given[name] for name in ("first", "second") if name in given}
        if len(names) != len(inputs) or not all(isinstance(p, PackedWindows) for p in products.values()):
            raise LibraryError(f"a separable convolution reads {', '.join(names)}; compile the program again")
        x, w = given["x"], given["w"]
        wide = w.shape[0]
        shapes = {name: (p.weight.shape[:2], (p.groups, *p.weight.shape[2:])) for name, p in products.items()}
        ends = {"first": (wide, x.shape[1]), "second": (out.shape[1], wide)}
        fits = all((shapes[n][0] if n in shapes else (wide, wide)) == ends[n] for n in ends)
        if not fits or any(set(rest) != {1} for _, rest in shapes.values()) or len(strides) > RANK:
            shape = f"{list(x.shape)} with weights {list(w.shape)} as {list(out.shape)}"
            raise LibraryError(f"there is no separable convolution of {shape}; compile the program again")
        between = (x.shape[0], wide, *x.shape[2:]), w.shape, (out.shape[0], wide, *out.shape[2:])
        sizes = _sizes((*between, tuple(strides), tuple(dilations), tuple(low)), x.shape[1], out.shape[1])
        ends_of = (float(attrs.get(name, end)) for pair in BOUNDS for name, end in zip(pair, (-inf, inf), strict=True))
        bounds = _bounds(*ends_of)
        packed = {name: p.panels() for name, p in products.items()}
        args = _Prepared(sizes=ctypes.addressof(sizes), bounds=ctypes.addressof(bounds))
        for name, array in packed.items():
            setattr(args, name, address(array))
        places = {name: k for k, name in enumerate((*names, "out")) if name not in products}
        return cls(args, places, (sizes, bounds, packed))


def _memory(x: np.ndarray) -> MirageError:
    return MirageError(f"there is no memory for a convolution of {list(x.shape)}; use smaller sizes")


@in_float32
def library(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    low: Sequence[int],
    **attrs: Any,
) -> None:
    """What programs call as `cpu.separable_convolution`: up to three convolutions of `x[b, c, *space]`, one after the other.

    The `first`, if there is one, is a product at each place, with weights `[wide, c]`; the next has weights
    `w[wide, 1, *kernel]`, channel by channel, with `low` zeros in front; the `second` is a product again, `[o, wide]`. Each may
    have a bias, the last one an `other` summand of the result's shape, `[b, o, *places]`; and what each gives may have bounds
    (`BOUNDS`).

    `inputs` are those of `OPERANDS` that there are; the weights of products are packed. All arrays are C-contiguous, of float32
    or float64, or of 16 bits, which are computed with in float32; there are at most two spatial dims.

    Raises LibraryError where shapes do not fit, NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`,
    MirageError without memory.
    """
    out = outputs[0]
    call = _Call.of(inputs, out, strides, dilations, low, attrs)
    tensors = [*inputs, out]
    for name, place in call.places.items():
        setattr(call.args, name, address(tensors[place]))
    run = convolution_library(out.dtype.name).mi_separable_prepared
    if out.size and run(ctypes.addressof(call.args), run_address(), num_threads()):
        raise _memory(inputs[0])


@prepared_in_float32
def prepare(
    inputs: Sequence[Any],
    outputs: Sequence[np.ndarray],
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    low: Sequence[int],
    **attrs: Any,
) -> Launch | None:
    """The launch of `library` for contiguous tensors like these, inputs and then outputs, and these packed forms; None where
    there is nothing to compute. Raises as `library`; the launch fails with MirageError without memory.
    """
    out, x = outputs[0], inputs[0]
    call = _Call.of(inputs, out, strides, dilations, low, attrs)
    if not out.size:
        return None
    pointers = tuple((field(call.args, name), place) for name, place in call.places.items())
    run = launcher(convolution_library(out.dtype.name).mi_separable_prepared)
    return Launch(run, ctypes.addressof(call.args), pointers, lambda _: _memory(x), call)


#: the functions that programs may call without registering them
FUNCTIONS: Mapping[str, Callable[..., None]] = {"cpu.separable_convolution": library}
