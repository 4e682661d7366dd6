"""The values of a Triton function's arguments at run-time sizes and strides, and which of them are well aligned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from mirage.errors import InputError
from mirage.ir.dims import Dim, evaluate
from mirage.ir.types import ELEMENTS
from mirage.kernels.cuda.emitted import DIVISIBILITY, ArgumentKind, EmittedTriton, TritonKernel

#: largest value of each kind of argument
_LARGEST = {ArgumentKind.SIZE: (1 << 31) - 1, ArgumentKind.STRIDE: (1 << 63) - 1}
#: programs that a grid may have along x, y and z (CUDA C++ Programming Guide, "Technical Specifications")
_GRID = ((1 << 31) - 1, (1 << 16) - 1, (1 << 16) - 1)

#: per tensor, the strides of its dims in elements
Strides = Sequence[Sequence[int]]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a contiguous array, the last dim's being 1."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def shapes(emitted: EmittedTriton, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shape of every tensor at these sizes of the dim symbols."""
    return [tuple(evaluate(d, sizes) for d in t.shape) for t in emitted.tensors]


def described(emitted: EmittedTriton, sizes: Mapping[str, int], strides: Strides, aligned: Collection[int]) -> bool:
    """Whether descriptors describe all tensors that they are made of; `aligned` are the tensors whose addresses are
    multiples of `DIVISIBILITY`.
    """
    for d in emitted.described:
        itemsize = ELEMENTS[emitted.tensors[d.tensor].dtype].itemsize
        steps = [(evaluate(factor, sizes) * strides[d.tensor][dim], inside) for dim, factor, inside in d.strides]
        if d.tensor not in aligned or any(n * itemsize % DIVISIBILITY or (inside and n <= 0) for n, inside in steps):
            return False
        if any(evaluate(n, sizes) < 1 for n in d.sizes):
            return False
    return True


def scalars(kernel: TritonKernel, sizes: Mapping[str, int], strides: Strides) -> dict[str, int]:
    """The sizes and strides that a kernel takes, by argument.

    Raises InputError for a value that the argument's type cannot hold.
    """
    found: dict[str, int] = {}
    for a in kernel.arguments:
        if a.kind is ArgumentKind.POINTER:
            continue
        value = evaluate(a.value, sizes)
        if a.kind is ArgumentKind.STRIDE:
            value *= strides[a.tensor][a.dim]
        if abs(value) > _LARGEST[a.kind]:
            raise InputError(
                f"kernel {kernel.name}: {a.name} = {value} does not fit into {a.kind.value}; pass smaller arrays"
            )
        found[a.name] = value
    return found


def grid(kernel: TritonKernel, sizes: Mapping[str, int]) -> tuple[int, int, int]:
    """The numbers of programs along x, y and z; raises InputError for more than a device can launch."""
    x, y, z = (_count(kernel, "xyz"[i], d, sizes, _GRID[i]) for i, d in enumerate(kernel.grid))
    return x, y, z


def _count(kernel: TritonKernel, dim: str, value: Dim, sizes: Mapping[str, int], most: int) -> int:
    count = evaluate(value, sizes)
    if count > most:
        raise InputError(
            f"kernel {kernel.name}: {count} programs along {dim}, of which a device launches {most} at most; "
            "pass smaller arrays, or choose larger tiles"
        )
    return count


def divisible(kernel: TritonKernel, values: Mapping[str, int], aligned: Collection[int]) -> frozenset[str]:
    """The `declared` arguments that are multiples of `DIVISIBILITY`; `aligned` are the tensors whose addresses are."""
    return frozenset(
        a.name
        for a in kernel.arguments
        if a.declared and (a.tensor in aligned if a.kind is ArgumentKind.POINTER else values[a.name] % DIVISIBILITY == 0)
    )


def typical(emitted: EmittedTriton, sizes: Mapping[str, int]) -> list[frozenset[str]]:
    """Per kernel, the arguments that are multiples of `DIVISIBILITY` for aligned, contiguous arrays of these sizes."""
    strides = [contiguous(s) for s in shapes(emitted, sizes)]
    tensors = range(len(emitted.tensors))
    return [divisible(k, scalars(k, sizes, strides), tensors) for k in emitted.kernels]
