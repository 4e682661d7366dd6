"""Unification of dims into axis factors while a program is lowered; the operators' axis rules call it.

A dim is a product of leaves. Where two dims have to be equal, leaves are united, or split where one size divides the
other. Every such step is recorded, so that a lowering can go back to a mark and try another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy

from mirage.errors import AxisError
from mirage.ir.dims import Dim, divide
from mirage.ir.program import AttrItems
from mirage.ir.types import TensorType, is_one


class Leaf:
    """A dim factor during unification; `parts` replaces it once it is split or united with another."""

    __slots__ = ("parts", "size")

    def __init__(self, size: Dim) -> None:
        self.size = size
        self.parts: list[Leaf] | None = None


def resolve(leaves: Sequence[Leaf]) -> list[Leaf]:
    """The current factors that a product of leaves stands for."""
    out: list[Leaf] = []
    for leaf in leaves:
        out.extend([leaf] if leaf.parts is None else resolve(leaf.parts))
    return out


@dataclass
class AxisTensor:
    """A value during lowering, seen under some dims (each a product of leaves)."""

    value: int
    dims: list[list[Leaf]]


@dataclass
class RawNode:
    """A value during lowering, in the terms of `AxisNode` but over leaves; `where` is the user's line."""

    op: str
    operands: tuple[int, ...]
    attrs: AttrItems = ()
    reduce: list[Leaf] = field(default_factory=list)
    joined: tuple[Leaf, list[Leaf]] | None = None
    dims: list[list[Leaf]] = field(default_factory=list)
    where: str = ""


class AxisLowering:
    """Unifies dims while a program is walked; the operators' axis rules call its methods.

    `raw` are the values so far; `where` is the user's line of the operator that is lowered.
    """

    def __init__(self) -> None:
        self.raw: list[RawNode] = []
        self.where = ""
        self._replaced: list[Leaf] = []

    def mark(self) -> tuple[int, int]:
        """What has been lowered and unified so far."""
        return len(self.raw), len(self._replaced)

    def back_to(self, mark: tuple[int, int]) -> None:
        """Forget what was lowered and unified since the mark."""
        del self.raw[mark[0] :]
        while len(self._replaced) > mark[1]:
            self._replaced.pop().parts = None

    def _replace(self, leaf: Leaf, parts: list[Leaf]) -> None:
        leaf.parts = parts
        self._replaced.append(leaf)

    def _add(self, raw: RawNode) -> AxisTensor:
        raw.where = self.where
        self.raw.append(raw)
        return AxisTensor(len(self.raw) - 1, raw.dims)

    def dim(self, size: Dim) -> list[Leaf]:
        """A new dim: one factor, or none where the size is literally 1."""
        return [] if is_one(size) else [Leaf(size)]

    def input(self, shape: Sequence[Dim]) -> AxisTensor:
        dims = [self.dim(d) for d in shape]
        return self._add(RawNode("input", (), dims=dims))

    def unify(self, a: list[Leaf], b: list[Leaf], op: str) -> None:
        """Make two dims the same product of factors, splitting factors where one divides the other."""
        xs, ys = resolve(a), resolve(b)
        while xs and ys:
            # an earlier factor may have replaced the ones to come
            if xs[0].parts is not None or ys[0].parts is not None:
                xs, ys = resolve(xs), resolve(ys)
            x, y = xs.pop(0), ys.pop(0)
            if x is y:
                continue
            if x.size == y.size:
                self._replace(y, [x])
            elif (rest := divide(x.size, y.size)) is not None:
                tail = Leaf(rest)
                self._replace(x, [y, tail])
                xs.insert(0, tail)
            elif (rest := divide(y.size, x.size)) is not None:
                tail = Leaf(rest)
                self._replace(y, [x, tail])
                ys.insert(0, tail)
            else:
                raise AxisError(
                    f"{self.at()}{op}: a dim that is {self.product(a)} on one side and {self.product(b)} on the other: "
                    f"neither of the factors {x.size} and {y.size} divides the other, so the dim has no common axes; "
                    "reshape both sides to the same factors first"
                )
        if xs or ys:
            raise AxisError(f"{self.at()}{op}: dims {self.product(a)} and {self.product(b)} have different sizes")

    def at(self) -> str:
        """The user's line, to begin a message with."""
        return f"{self.where}: " if self.where else ""

    @staticmethod
    def product(leaves: list[Leaf]) -> str:
        return "*".join(f"({x.size})" if x.size.is_Add else str(x.size) for x in resolve(leaves)) or "1"

    def _broadcast(self, op: str, operand_dims: Sequence[list[list[Leaf]]]) -> list[list[Leaf]]:
        rank = max((len(d) for d in operand_dims), default=0)
        dims: list[list[Leaf]] = []
        for i in range(-rank, 0):
            present = [d[i] for d in operand_dims if -i <= len(d) and d[i]]
            for other in present[1:]:
                self.unify(present[0], other, op)
            dims.append(present[0] if present else [])
        return dims

    def elementwise(self, op: str, operands: Sequence[AxisTensor], attrs: Any, out: TensorType) -> AxisTensor:
        dims = self._broadcast(op, [x.dims for x in operands])
        return self._add(RawNode(op, tuple(x.value for x in operands), tuple(attrs.items()), dims=dims))

    def matmul(self, x: AxisTensor, y: AxisTensor, out: TensorType) -> AxisTensor:
        self.unify(x.dims[-1], y.dims[-2], "matmul")
        batch = self._broadcast("matmul", [x.dims[:-2], y.dims[:-2]])
        dims = [*batch, x.dims[-2], y.dims[-1]]
        return self._add(RawNode("matmul", (x.value, y.value), reduce=list(x.dims[-1]), dims=dims))

    def fold(self, op: str, x: AxisTensor, axes: Sequence[int], keepdims: bool) -> AxisTensor:
        """One element of all along some dims: their sum, or the largest."""
        reduce = [leaf for i in axes for leaf in x.dims[i]]
        dims = [[] if i in axes else d for i, d in enumerate(x.dims) if keepdims or i not in axes]
        return self._add(RawNode(op, (x.value,), reduce=reduce, dims=dims))

    def view(self, x: AxisTensor, dims: Sequence[list[Leaf]]) -> AxisTensor:
        """The same value under other dims."""
        return AxisTensor(x.value, list(dims))

    def repeat(self, x: AxisTensor, axis: int, times: Dim) -> AxisTensor:
        return self.view(x, [d + self.dim(times) if i == axis else d for i, d in enumerate(x.dims)])

    def reshape(self, x: AxisTensor, shape: Sequence[Dim]) -> AxisTensor:
        """Regroup the factors of all dims, in row-major order, into the new dims."""
        rest = resolve([leaf for d in x.dims for leaf in d])
        dims: list[list[Leaf]] = []
        for size in shape:
            group: list[Leaf] = []
            need = size
            while not is_one(need):
                if not rest:
                    raise AxisError(f"{self.at()}reshape: the dims run out before {size} is filled")
                leaf = rest.pop(0)
                if (left := divide(need, leaf.size)) is not None:
                    group.append(leaf)
                    need = left
                elif (tail_size := divide(leaf.size, need)) is not None:
                    head, tail = Leaf(need), Leaf(tail_size)
                    self._replace(leaf, [head, tail])
                    group.append(head)
                    rest.insert(0, tail)
                    need = sympy.Integer(1)
                else:
                    raise AxisError(
                        f"{self.at()}reshape: the factor {leaf.size} straddles the new dim {size}: neither divides the "
                        "other for every size, so the result's dims are not products of axes; reshape along factors"
                    )
            dims.append(group)
        return self.view(x, dims)

    def concat(self, operands: Sequence[AxisTensor], axis: int, out: TensorType) -> AxisTensor:
        joined = Leaf(out.shape[axis])
        parts: list[Leaf] = []
        for x in operands:
            factors = resolve(x.dims[axis])
            if len(factors) != 1:
                raise AxisError(
                    f"{self.at()}concat: the joined dim is {self.product(x.dims[axis])}; only dims of one factor larger "
                    "than 1 can be joined; reshape the operand first"
                )
            parts.append(factors[0])
        others = self._broadcast("concat", [[d if i != axis else [] for i, d in enumerate(x.dims)] for x in operands])
        dims = [[joined] if i == axis else d for i, d in enumerate(others)]
        return self._add(RawNode("concat", tuple(x.value for x in operands), joined=(joined, parts), dims=dims))

    def check_joined(self) -> None:
        """Raises AxisError where a dim that a concat joins has been split."""
        for raw in self.raw:
            for leaf in (raw.joined[0], *raw.joined[1]) if raw.joined is not None else ():
                if len(resolve([leaf])) > 1:
                    at = f"{raw.where}: " if raw.where else ""
                    raise AxisError(
                        f"{at}concat: a joined dim is split into the factors {self.product([leaf])} elsewhere in the "
                        "program; a dim that is joined must stay whole; reshape before or after in a program of its own"
                    )
