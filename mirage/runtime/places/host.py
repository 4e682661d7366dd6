"""Main memory: tensors are arrays of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mirage.ir.operator import get_operator
from mirage.kernels.cpu.launch import convolution, grouped, linear, order, quantized, quantized_convolution
from mirage.kernels.cpu.launch.memory import address, aligned
from mirage.runtime.arrays import like, to_numpy
from mirage.runtime.leases import SEVERAL, lease
from mirage.runtime.packed import library_function
from mirage.runtime.places.place import OperatorRun, Place, span_at

_BYTE = np.dtype(np.uint8)
#: operators that are faster in C than by their meaning in NumPy
_OPERATORS: Mapping[str, OperatorRun] = {
    "convolution": convolution.convolution,
    "grouped_matmul": grouped.grouped_matmul,
    "quantized_matmul": quantized.quantized_matmul,
    "quantized_convolution": quantized_convolution.quantized_convolution,
    "unique": order.unique,
}
#: library functions that the threads of kernels compute, in place of others
_LIBRARY: Mapping[str, Callable[..., None]] = {"blas.contraction": linear.contraction, "blas.matmul": linear.matmul}


class HostPlace(Place):
    """Main memory. What the machine calls most are NumPy's own functions."""

    array = ready = np.ndarray
    most = SEVERAL
    array_of: Any = staticmethod(np.array)
    empty: Any = staticmethod(np.empty)
    large: Any = staticmethod(lease)
    view: Any = np.ndarray

    def allocate(self, size: int) -> np.ndarray:
        return aligned(size, _BYTE)

    def constant(self, a: np.ndarray) -> np.ndarray:
        return a

    def read(self, x: Any, what: str) -> np.ndarray:
        return to_numpy(x, what)

    def is_readable(self, x: Any) -> bool:
        return isinstance(x, np.ndarray) or hasattr(x, "__dlpack__") or hasattr(x, "__array_interface__")

    def is_writable(self, x: Any, what: str) -> bool:
        return bool(to_numpy(x, what).flags.writeable)

    def like(self, result: np.ndarray, x: Any) -> Any:
        return like(result, x)

    def is_dense(self, a: np.ndarray) -> bool:
        flags = a.flags
        return flags.c_contiguous and flags.aligned

    def span(self, a: np.ndarray) -> tuple[int, int]:
        return span_at(address(a), a)

    def may_share(self, a: np.ndarray, b: np.ndarray) -> bool:
        return np.may_share_memory(a, b)

    def shares(self, a: np.ndarray, b: np.ndarray) -> bool:
        try:
            # without a limit, some views take exponential time; not all stubs of NumPy know of limits like this
            limit: Any = 10_000
            return np.shares_memory(a, b, max_work=limit)
        except np.exceptions.TooHardError:
            return True

    def owns(self, a: np.ndarray) -> bool:
        return a.flags.owndata

    def copy(self, a: np.ndarray) -> np.ndarray:
        return a.copy(order="C")

    def write(self, to: np.ndarray, a: np.ndarray) -> None:
        to[...] = a

    def library(self, name: str) -> Callable[..., None]:
        return _LIBRARY.get(name) or library_function(name)

    def operator(self, name: str) -> OperatorRun:
        return _OPERATORS.get(name) or get_operator(name).run


#: the place of programs for a processor
HOST = HostPlace()
