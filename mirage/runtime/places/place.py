"""What differs between the places that tensors can be in, as the virtual machine uses it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

#: an array of a place: one of NumPy, or of CuPy
PlacedArray = Any
#: runs an operator: operands, attributes, sizes of dim symbols
OperatorRun = Callable[[Sequence[Any], Mapping[str, Any], Mapping[str, int]], Any]


class Place(ABC):
    """Where tensors are. Shapes, sizes and conditions stay on the host.

    `array` is the type of the arrays in registers, `ready` the type of arguments that need no reading; `array_of` makes one of a
    Python number and a type. `empty(shape, dtype)` is a new array that calls own, `large` the same for one of more than `most`
    bytes. `view(shape, dtype, memory, offset)` is an array at so many bytes of memory that `allocate` gave; it raises TypeError,
    ValueError or OverflowError where it does not fit.
    """

    array: type[Any]
    ready: type[Any]
    most: int
    array_of: Callable[..., PlacedArray]
    empty: Callable[..., PlacedArray]
    large: Callable[..., PlacedArray]
    view: Callable[..., PlacedArray]

    @abstractmethod
    def allocate(self, size: int) -> PlacedArray:
        """So many bytes at a multiple of 64; raises MemoryError, ValueError or OverflowError if there are not as many."""

    @abstractmethod
    def constant(self, a: np.ndarray) -> PlacedArray:
        """An array of the host in this place."""

    @abstractmethod
    def read(self, x: Any, what: str) -> PlacedArray:
        """An array of any library in this place, without copying; raises InputError, which begins with `what`."""

    @abstractmethod
    def is_readable(self, x: Any) -> bool:
        """Whether an argument looks like an array that `read` takes."""

    @abstractmethod
    def is_writable(self, x: Any, what: str) -> bool:
        """Whether an argument may be written to; raises InputError for what is no array."""

    @abstractmethod
    def like(self, result: PlacedArray, x: Any) -> Any:
        """A result as the kind of array that the argument `x` is."""

    @abstractmethod
    def is_dense(self, a: PlacedArray) -> bool:
        """Whether an array is C-contiguous and aligned, as all tensors in registers are."""

    @abstractmethod
    def span(self, a: PlacedArray) -> tuple[int, int]:
        """The addresses of the first byte of an array, and of the one behind the last; equal ones where it has none."""

    @abstractmethod
    def may_share(self, a: PlacedArray, b: PlacedArray) -> bool:
        """Whether the memory between the first and the last elements of two arrays overlaps."""

    @abstractmethod
    def shares(self, a: PlacedArray, b: PlacedArray) -> bool:
        """Whether elements of two arrays share memory, or it is hard to tell."""

    @abstractmethod
    def owns(self, a: PlacedArray) -> bool:
        """Whether an array has memory of its own, of which others can only be views."""

    @abstractmethod
    def copy(self, a: PlacedArray) -> PlacedArray:
        """A dense copy of an array."""

    @abstractmethod
    def write(self, to: PlacedArray, a: PlacedArray) -> None:
        """Copy the elements of an array to another one of the same shape."""

    @abstractmethod
    def library(self, name: str) -> Callable[..., None]:
        """The library function of that name for arrays of this place; raises UnknownFunction saying what to register."""

    @abstractmethod
    def operator(self, name: str) -> OperatorRun:
        """The meaning of an operator for arrays of this place; raises UnknownOperator."""


def span_at(address: int, a: PlacedArray) -> tuple[int, int]:
    """The span of an array whose first element is at an address."""
    if a.flags.c_contiguous:
        return address, address + int(a.nbytes)
    steps = [(n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)]
    return address + sum(s for s in steps if s < 0), address + sum(s for s in steps if s > 0) + a.itemsize
