"""How large the indices of a loop program get at given sizes: whether 32 bits hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from mirage.errors import DimError
from mirage.ir.dim_values import value_at
from mirage.ir.dims import Dim
from mirage.ir.loops.scalars import Binary, Checked, Const, Loop, Scalar, Size, Unary
from mirage.ir.loops.simplify import is_index
from mirage.ir.loops.traverse import walk
from mirage.kernels.cuda.loops.frame import LoopTensor
from mirage.kernels.cuda.loops.structure import Kernel

#: indices past the end, of which a block has a part, still fit
_MOST = (1 << 31) - (1 << 20)


def value(dim: Dim, sizes: Mapping[str, int]) -> int:
    """A dim at sizes that the program may not have: 1 where it is not defined."""
    try:
        return value_at(dim, sizes)
    except DimError:
        return 1


def extent(dim: Dim, sizes: Mapping[str, int]) -> int:
    """An extent at sizes that the program may not have: not negative."""
    return max(value(dim, sizes), 0)


def narrow(kernels: Iterable[Kernel], tensors: Iterable[LoopTensor], sizes: Mapping[str, int]) -> bool:
    """Whether 32-bit integers hold all indices, offsets and counts of a program at these sizes."""
    if any(prod(extent(d, sizes) for d in t.shape) > _MOST for t in tensors):
        return False
    for kernel in kernels:
        extents = {n: extent(d, sizes) for n, d in kernel.extents.items()}
        for loops in (kernel.rows, *kernel.spaces):
            if prod(extents[n] for n, _ in loops) > _MOST:
                return False
        known: dict[Scalar, tuple[int, int] | None] = {}
        for m in kernel.members:
            for n in (n for b in m.bodies for n in walk(b)):
                found = _range(n, extents, sizes, known)
                known[n] = found
                if found is not None and max(-found[0], found[1]) > _MOST:
                    return False
    return True


def _range(
    x: Scalar, extents: Mapping[str, int], sizes: Mapping[str, int], known: Mapping[Scalar, tuple[int, int] | None]
) -> tuple[int, int] | None:
    """The least and largest value of an index, whose operands' are known; None for other expressions."""
    match x:
        case Const() if x.dtype == "int64":
            return int(x.value), int(x.value)
        case Size():
            found = value(x.dim, sizes)
            return found, found
        case Loop():
            return 0, max(extents[x.name] - 1, 0)
        case Checked():
            return 0, max(extent(x.extent, sizes) - 1, 0)
    if not is_index(x):
        return None
    ranges = [known[o] for o in x.operands]
    assert all(r is not None for r in ranges)
    (a, b), *more = [r for r in ranges if r is not None]
    match x:
        case Unary():
            return -b, -a
        case Binary():
            ((c, d),) = more
            return _combined(x.op, (a, b), (c, d))
    raise AssertionError(x)


def _combined(op: str, x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    (a, b), (c, d) = x, y
    match op:
        case "add":
            return a + c, b + d
        case "sub":
            return a - d, b - c
        case "mul":
            found = [p * q for p in x for q in y]
            return min(found), max(found)
        case "mod":
            most = max(abs(c), abs(d))
            return -most, most
    # a quotient rounded down is not further from 0 than the dividend, or it is -1
    return min(a, -b, -1), max(b, -a)
