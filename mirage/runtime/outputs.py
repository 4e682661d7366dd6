"""Results in memory that the caller gives: `out=` as NumPy's functions take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirage.errors import InputError
from mirage.ir.program import Program
from mirage.ir.types import DTYPES
from mirage.runtime.arrays import to_numpy


class Overlap:
    """Whether given results share memory with the arguments or each other, at layouts that are known before the addresses.

    `shapes`, `strides` (bytes) and `itemsizes` are those of the arguments, then of so many `results`.
    """

    def __init__(
        self, shapes: Sequence[tuple[int, ...]], strides: Sequence[tuple[int, ...]], itemsizes: Sequence[int], results: int
    ) -> None:
        layouts = list(zip(shapes, strides, itemsizes, strict=True))
        #: first and last byte of each, relative to its address
        self.spans = [_span(*layout) for layout in layouts]
        self._first = len(shapes) - results
        #: whether elements of one result may share memory
        self.inside = any(not _distinct(*layout) for layout in layouts[self._first :])

    def found(self, addresses: Sequence[int]) -> bool:
        """Whether the memory between the first and the last byte of a result has bytes of another array's."""
        ends = [(at + low, at + high) for at, (low, high) in zip(addresses, self.spans, strict=True)]
        for k in range(self._first, len(ends)):
            low, high = ends[k]
            for other_low, other_high in ends[:k]:
                if low < other_high and other_low < high:
                    return True
        return False


def _span(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> tuple[int, int]:
    steps = [(n - 1) * step for n, step in zip(shape, strides, strict=True)]
    return sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps) + itemsize


def _distinct(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether no two elements can share memory; False where it would take more thought."""
    size = itemsize
    for step, n in sorted((abs(step), n) for n, step in zip(shape, strides, strict=True) if n > 1):
        if step < size:
            return False
        size = step * (n - 1) + size
    return True


def check_outputs(program: Program, out: Any, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """The given results as NumPy views to write to: one array, or a tuple or list of one per result.

    Raises InputError for another number, shape or dtype, for memory that must not be written, and for results that share
    memory.
    """
    outs = list(out) if isinstance(out, tuple | list) else [out]
    if len(outs) != len(shapes):
        many = "an array" if len(shapes) == 1 else f"a tuple of {len(shapes)} arrays"
        raise InputError(f"{program.name}: out has {len(outs)} arrays, the program {len(shapes)} results; pass {many}")
    found: list[np.ndarray] = []
    for k, (o, shape, t) in enumerate(zip(outs, shapes, program.output_types, strict=True)):
        what = f"{program.name}: out" if len(outs) == 1 else f"{program.name}: out[{k}]"
        a = _writable(o, what)
        if a.dtype != DTYPES[t.dtype]:
            raise InputError(f"{what} has dtype {a.dtype}, the result {t.dtype}; pass an array of that dtype")
        if a.shape != shape:
            raise InputError(f"{what} has shape {list(a.shape)}, the result {list(shape)}; pass an array of that shape")
        if a.size and any(n > 1 and not step for n, step in zip(a.shape, a.strides, strict=True)):
            raise InputError(f"{what}: several elements share memory (a stride is 0); pass an array of its own memory")
        if any(np.may_share_memory(a, other) for other in found):
            raise InputError(f"{what} shares memory with another result; pass arrays of their own memory")
        found.append(a)
    return found


def _writable(o: Any, what: str) -> np.ndarray:
    if getattr(o, "requires_grad", False):
        raise InputError(f"{what} requires a gradient, and none is recorded; pass out.detach()")
    if getattr(o, "is_neg", bool)():
        raise InputError(f"{what} is a lazily negated tensor; pass out.resolve_neg()")
    a = to_numpy(o, what)
    if not a.flags.writeable:
        raise InputError(f"{what} is read-only; pass an array that may be written")
    return a


def may_write_in_place(outs: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> bool:
    """Whether results can be computed right in these arrays while the inputs are still read."""
    return all(
        o.flags.aligned
        and _distinct(o.shape, o.strides, o.itemsize)
        and not any(np.may_share_memory(o, a) for a in inputs)
        for o in outs
    )
