"""Operators that move elements of an argument, by which kernels read it where it lies: windows, slices, zeros around it.

To the search and the proof such an input is a tensor like others, over axes of its own. A call makes the array that has these
axes: mostly a view of the argument's memory with strides of its own, as that of a convolution's windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

import numpy as np

from mirage.errors import FormatError
from mirage.ir.annotations import map_attrs
from mirage.ir.arithmetic import Arithmetic, ArrayModule
from mirage.ir.codec import few, short
from mirage.ir.dims import Dim
from mirage.ir.graph_operator import Moving, bind_attrs
from mirage.ir.operator import get_operator
from mirage.ir.text import attribute_texts
from mirage.ir.types import TensorType

A = TypeVar("A")


@dataclass(frozen=True)
class Move:
    """One operator that moves elements, with its attributes."""

    op: Annotated[str, short]
    attrs: tuple[tuple[str, Any], ...]

    def check_stored(self) -> None:
        """Raises FormatError where this is no operator that moves elements, or its attributes are not canonical."""
        if self.operator.check_attrs(dict(self.attrs)) != dict(self.attrs):
            raise FormatError(f"{self} has other attributes than {self.op} takes; superoptimize the program again")

    @property
    def operator(self) -> Moving:
        """Raises FormatError where there is no such operator."""
        found = get_operator(self.op)
        if not isinstance(found, Moving):
            raise FormatError(f"{self.op} is no operator that only moves elements; use windows, slice or pad")
        return found

    def __str__(self) -> str:
        return f"{self.op}({', '.join(attribute_texts(self.op, self.attrs))})"


#: what is done to an argument before it is read, in order
Moves: TypeAlias = Annotated[tuple[Move, ...], few]


def moves_text(moves: Moves) -> str:
    """As calls of methods: `.pad(low=(0, 1), high=(0, 1)).windows(...)`."""
    return "".join(f".{m}" for m in moves)


def map_moves(moves: Moves, fn: Callable[[Dim], Dim]) -> Moves:
    """The same with other dims."""
    return tuple(Move(m.op, map_attrs(m.attrs, fn)) for m in moves)


def moved_type(moves: Moves, type: TensorType) -> TensorType:
    """The type of what is read of an argument; raises ShapeError where it cannot be."""
    for m in moves:
        type = m.operator.infer([type], dict(m.attrs))
    return type


def last_step(moves: Moves) -> int:
    """How many elements of a contiguous argument are from one to the next along the last dim of what is read of it, as far as
    windows say; of what is copied around, it is 1.
    """
    step = 1
    for m in moves:
        step = step * dict(m.attrs)["strides"][-1] if m.op == "windows" else 1
    return step


def moved(moves: Moves, array: Any, sizes: Mapping[str, int], xp: ArrayModule = np) -> Any:
    """What is read of an array at these sizes (dim symbol -> elements): a view of it, unless zeros are put around it."""
    for m in moves:
        array = m.operator.view(xp, array, bind_attrs(dict(m.attrs), sizes))
    return array


def moved_in(ar: Arithmetic[A], moves: Moves, value: A) -> A:
    """The same for a value of an arithmetic."""
    for m in moves:
        value = m.operator.evaluate(ar, [value], dict(m.attrs), [ar.shape(value)])
    return value


def moved_strides(
    moves: Moves, shape: Sequence[int], strides: Sequence[int], sizes: Mapping[str, int], wanted: Sequence[int]
) -> tuple[int, ...] | None:
    """The strides (bytes) of what is read, of the shape `wanted`, of an array of bytes of this shape and strides; None where it
    is of another shape, a copy, or does not begin where the array does.
    """
    if any(m.operator.copies for m in moves):
        return None
    # a view of one byte, which nobody reads
    whole = np.lib.stride_tricks.as_strided(np.empty(1, np.uint8), tuple(shape), tuple(strides), writeable=False)
    found = moved(moves, whole, sizes)
    begins = found.__array_interface__["data"][0] == whole.__array_interface__["data"][0]
    return found.strides if begins and found.shape == tuple(wanted) else None
