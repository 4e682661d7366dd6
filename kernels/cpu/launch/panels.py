"""Weights of products in panels, as csrc/linear.c reads them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.pages import in_large_pages
from mirage.kernels.cpu.launch.pool import run_address
from mirage.kernels.cpu.launch.products import library
from mirage.settings import num_threads


class _Packing(ctypes.Structure):
    """`packing` of linear.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("w", "out")),
        *((name, ctypes.c_ssize_t) for name in ("k", "n", "w_row")),
        ("transposed", ctypes.c_int),
    )


@functools.cache
def _function() -> Callable[..., int]:
    function = library().mi_pack
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int], ctypes.c_int
    return function


class Panels:
    """A weight `[k, n]` of float32, or `[n, k]` where it is `transposed`, and its copy in panels, made when first read."""

    def __init__(self, w: np.ndarray, transposed: bool) -> None:
        self.weight = w
        self.transposed = transposed

    @property
    def shape(self) -> tuple[int, int]:
        """Terms and columns, (k, n)."""
        first, second = self.weight.shape
        return (second, first) if self.transposed else (first, second)

    @cached_property
    def array(self) -> np.ndarray:
        """The copy, `[ceil(n / width), k, width]`, filled up with zeros; the width is that of the processor's register blocks.

        Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
        """
        k, n = self.shape
        width = library().mi_panel()
        panels = -(-n // width)
        packed = in_large_pages(panels * k * width, np.dtype(np.float32)).reshape(panels, k, width)
        args = _Packing(address(self.weight), address(packed), k, n, self.weight.shape[1], self.transposed)
        if _function()(ctypes.addressof(args), run_address(), num_threads()):
            raise MirageError(f"there is no memory to pack a weight of {k} rows and {n} columns")
        return packed


def pack(w: np.ndarray, *, right: Sequence[int] = ()) -> Panels:
    """The panels of a weight `[k, n]`, or `[n, k]` where `right` is (1, 0)."""
    return Panels(np.ascontiguousarray(w), tuple(right) == (1, 0))


#: the packed function that programs may call without registering it
PACKING: Mapping[str, Callable[..., Any]] = {"cpu.pack_matmul": pack}
