"""A CUDA device: tensors are arrays of CuPy in memory of its pool; what is to be done is enqueued on its current stream."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from math import prod
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np

from mirage.errors import InputError
from mirage.ir.operator import get_operator
from mirage.ir.types import ELEMENTS
from mirage.kernels.cuda.launch.arrays import is_torch, read, torch_layout, view
from mirage.kernels.cuda.library import blas
from mirage.kernels.cuda.library.operators import cupy_arithmetic
from mirage.runtime.packed import library_function
from mirage.runtime.places.place import OperatorRun, Place, PlacedArray, span_at


class _Never:
    """No argument is of this type."""


class CudaPlace(Place):
    """One device, by its number. What the machine asks of it is done on the device and stream that are CuPy's current ones."""

    ready = _Never
    most = sys.maxsize

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy = cupy
        self._device = device
        self.array = cupy.ndarray
        self.empty = self.large = cupy.empty
        self.view = self._view
        #: what nobody writes to, and its copy
        self._constants: dict[int, tuple[np.ndarray, PlacedArray]] = {}
        #: tensors of torch as arrays: what kernels keep for an array, such as packed copies, lasts as long as the tensor
        self._views: dict[int, tuple[Any, Any, PlacedArray]] = {}

    def array_of(self, number: int, dtype: Any) -> PlacedArray:
        # by a kernel, which a CUDA graph can record
        return self._cupy.full((), number, dtype)

    def _view(self, shape: tuple[int, ...], dtype: np.dtype[Any], memory: PlacedArray, offset: int) -> PlacedArray:
        if offset + prod(shape) * dtype.itemsize > memory.nbytes:
            raise ValueError("the array does not fit the memory")
        return self._cupy.ndarray(shape, dtype, memory.data + offset)

    def allocate(self, size: int) -> PlacedArray:
        return self._cupy.empty((size,), np.uint8)

    def constant(self, a: np.ndarray) -> PlacedArray:
        found = self._constants.get(id(a))
        if found is None:
            # as unsigned integers, which every version of CuPy copies whatever they stand for
            made = self._cupy.asarray(np.ascontiguousarray(a).view(f"u{a.itemsize}")).view(a.dtype).reshape(a.shape)
            if a.flags.writeable:
                return made
            # of a program: for its calls on all streams
            self._cupy.cuda.get_current_stream().synchronize()
            found = self._constants[id(a)] = a, made
        return found[1]

    def read(self, x: Any, what: str) -> PlacedArray:
        if is_torch(x):
            return self._of_torch(x, what)
        found = read(self._cupy, x, what)
        self._check(found.device, found.dtype, what)
        return x if isinstance(x, self.array) else view(self._cupy, found)

    def _of_torch(self, x: Any, what: str) -> PlacedArray:
        number = id(x)
        reference, layout, made = self._views.get(number, (None, None, None))
        own = torch_layout(x)
        if reference is not None and reference() is x and layout == own:
            return made
        found = read(self._cupy, x, what)
        self._check(found.device, found.dtype, what)
        made = view(self._cupy, found)
        if own is not None:
            self._views[number] = weakref.ref(x, lambda _: self._views.pop(number, None)), own, made
        return made

    def _check(self, device: int, dtype: str, what: str) -> None:
        if device != self._device:
            raise InputError(f"{what} is on CUDA device {device}, and the first array on {self._device}; copy it there")
        if dtype not in ELEMENTS:
            raise InputError(f"{what} has dtype {dtype}, which programs do not know; convert it")

    def is_readable(self, x: Any) -> bool:
        # torch makes the interface of a tensor when it is asked for
        return is_torch(x) or hasattr(x, "__cuda_array_interface__") or hasattr(x, "__dlpack__")

    def is_writable(self, x: Any, what: str) -> bool:
        self.read(x, what)
        interface = {} if is_torch(x) or isinstance(x, self.array) else getattr(x, "__cuda_array_interface__", {})
        return not interface.get("data", (0, False))[1]

    def like(self, result: PlacedArray, x: Any) -> Any:
        if not is_torch(x):
            return result
        torch = import_module("torch")
        if result.dtype.name in ("bfloat16", "bool"):
            # of which not all versions of both libraries tell one another
            bits = torch.from_dlpack(result.view("i2" if result.dtype.itemsize == 2 else "u1"))
            return bits.view(getattr(torch, result.dtype.name))
        return torch.from_dlpack(result)

    def is_dense(self, a: PlacedArray) -> bool:
        return bool(a.flags.c_contiguous) and a.data.ptr % a.itemsize == 0

    def span(self, a: PlacedArray) -> tuple[int, int]:
        return span_at(a.data.ptr, a)

    def may_share(self, a: PlacedArray, b: PlacedArray) -> bool:
        (low, high), (other_low, other_high) = self.span(a), self.span(b)
        return low < other_high and other_low < high

    def shares(self, a: PlacedArray, b: PlacedArray) -> bool:
        return self.may_share(a, b)

    def owns(self, a: PlacedArray) -> bool:
        # CuPy says so of memory of others, too
        return False

    def copy(self, a: PlacedArray) -> PlacedArray:
        made = self._cupy.empty(a.shape, a.dtype)
        self.write(made, a)
        return made

    def copier(self, a: PlacedArray, x: Any) -> Callable[[], Any]:
        """What makes copies of a dense array that stays where it is, as arrays of the library of `x`: torch, or else CuPy.

        Copies are made on CuPy's current stream, which is that library's, too.
        """
        assert self.is_dense(a), "as all tensors in registers are"
        runtime, current = self._cupy.cuda.runtime, self._cupy.cuda.get_current_stream
        address, size = a.data.ptr, a.nbytes
        start: Callable[[Any], int]
        if is_torch(x):
            torch = import_module("torch")
            make = partial(torch.empty, a.shape, dtype=getattr(torch, a.dtype.name), device=x.device)
            start = methodcaller("data_ptr")
        else:
            make = partial(self._cupy.empty, a.shape, a.dtype)
            start = attrgetter("data.ptr")

        def copied() -> Any:
            made = make()
            runtime.memcpyAsync(start(made), address, size, runtime.memcpyDeviceToDevice, current().ptr)
            return made

        return copied

    def write(self, to: PlacedArray, a: PlacedArray) -> None:
        if a.size:
            bits = f"u{a.itemsize}"
            to.view(bits)[...] = a.view(bits)

    def library(self, name: str) -> Callable[..., None]:
        return blas.FUNCTIONS.get(name) or library_function(name)

    def operator(self, name: str) -> OperatorRun:
        run, arithmetic = get_operator(name).run, cupy_arithmetic(self._cupy)

        def on_device(arrays: Sequence[Any], attrs: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
            return run(arrays, attrs, sizes, arithmetic)

        return on_device
