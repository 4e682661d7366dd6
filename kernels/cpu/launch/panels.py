"""Weights of products in panels, as csrc/linear.c reads them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from math import prod
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
    """A weight `[k, n]` of float32, or `[n, k]` where it is `transposed`, or one of each group, and its copy in panels, made when
    first read.
    """

    def __init__(self, w: np.ndarray, transposed: bool) -> None:
        self.weight = w
        self.transposed = transposed

    @property
    def shape(self) -> tuple[int, ...]:
        """Terms and columns, (k, n), perhaps of groups, (groups, k, n)."""
        *groups, first, second = self.weight.shape
        return (*groups, second, first) if self.transposed else (*groups, first, second)

    @cached_property
    def array(self) -> np.ndarray:
        """The copy, `[ceil(n / width), k, width]`, perhaps of groups, filled up with zeros; the width is that of the processor's
        register blocks.

        Raises NoCompilerError, CompilerError and UnsafeCacheError as `toolchain.compile`, MirageError without memory.
        """
        *groups, k, n = self.shape
        width = library().mi_panel()
        count, panels = prod(groups), -(-n // width)
        packed = in_large_pages(count * panels * k * width, np.dtype(np.float32)).reshape(count, panels, k, width)
        row = self.weight.shape[-1]
        for w, out in zip(self.weight.reshape(count, *self.weight.shape[-2:]), packed, strict=True):
            args = _Packing(address(w), address(out), k, n, row, self.transposed)
            if _function()(ctypes.addressof(args), run_address(), num_threads()):
                raise MirageError(f"there is no memory to pack a weight of {k} rows and {n} columns")
        return packed.reshape(*groups, panels, k, width)


def pack(w: np.ndarray, *, right: Sequence[int] = ()) -> Panels:
    """The panels of a weight `[k, n]`, or `[n, k]` where `right` is (1, 0), perhaps of groups."""
    return Panels(np.ascontiguousarray(w), is_transposed(right))


def is_transposed(right: Sequence[int]) -> bool:
    """Whether this order of the dims of weights, which lie in order without one, exchanges the last two."""
    return bool(right) and right[-1] == len(right) - 2


#: the packed function that programs may call without registering it
PACKING: Mapping[str, Callable[..., Any]] = {"cpu.pack_matmul": pack}
