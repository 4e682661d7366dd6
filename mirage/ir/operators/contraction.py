"""Matmul, sum and concat, and the matmul of concats: operators that combine the elements of a dim."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from mirage.errors import ShapeError
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.loops.lower import lower_expansion
from mirage.ir.loops.program import LoopProgram, TensorExpr, compute, operands, reduce_axes, reduction
from mirage.ir.loops.scalars import Scalar, select
from mirage.ir.operator import (
    ALL_LEVELS,
    ANY_ELEMENT,
    NUMERIC,
    PRODUCTS,
    Attribute,
    Attrs,
    Level,
    Operator,
    broadcast_shapes,
    register,
    same_dtype,
)
from mirage.ir.types import TensorType, is_one, shape_text
from mirage.ir.unknowns import Relation

if TYPE_CHECKING:
    from mirage.ir.arithmetic import Arithmetic
    from mirage.ir.program import ProgramBuilder
    from mirage.ir.unify import AxisLowering, AxisTensor


def normalize_axis(op: str, axis: int, rank: int) -> int:
    """A dim index in 0..rank-1 from one that may count from the end; raises ShapeError."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{op}: axis {axis} is out of range for a tensor of rank {rank}; use {-rank} to {rank - 1}")
    return axis % rank


def normalize_axes(op: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Distinct dim indices in 0..rank-1; raises ShapeError."""
    found = tuple(normalize_axis(op, a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"{op}: axes {tuple(axes)} name a dim twice; name each dim once")
    return found


class Matmul(Operator):
    """`x[..., m, k] @ y[..., k, n]`, batch dims broadcasting as in NumPy; both operands of rank 2 or more."""

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        x, y = types
        both = f"[{shape_text(x.shape)}] and [{shape_text(y.shape)}]"
        if x.rank < 2 or y.rank < 2:
            raise ShapeError(
                f"matmul: operands {both} must both have rank 2 or more; reshape vectors to [1, n] or [n, 1]"
            )
        if x.shape[-1] != y.shape[-2]:
            raise ShapeError(
                f"matmul: shapes {both}: the last dim of the left, {x.shape[-1]}, is not the last but one of the right, "
                f"{y.shape[-2]}; transpose an operand or make the dims equal"
            )
        batch = broadcast_shapes("matmul (batch dims)", [TensorType(x.shape[:-2]), TensorType(y.shape[:-2])])
        return TensorType((*batch, x.shape[-2], y.shape[-1]), same_dtype("matmul", types))

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        known = r.shape(r.out)
        shapes = [r.shape(a) for a in r.args]
        if r.last or (known is not None and len(known) == 2):
            # matrices are what is usual, and all that a matrix is the product of
            shapes = [r.ranked(a, 2) if s is None else s for a, s in zip(r.args, shapes, strict=True)]
        x, y = shapes
        if x is not None and y is not None and len(x) >= 2 and len(y) >= 2:
            r.equal(x[-1], y[-2])
            out = r.ranked(r.out, max(len(x), len(y)))
            r.equal(x[-2], out[-2])
            r.equal(y[-1], out[-1])
            return r.broadcast([x[:-2], y[:-2]], out[:-2])
        # of batches, or of what is too small, the deduction knows more
        return x is not None and y is not None

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        rank = max(len(s) for s in shapes)
        labels: list[list[int]] = []
        ops: list[Any] = []
        for side, (x, s) in enumerate(zip(args, shapes, strict=True)):
            batch = s[:-2]
            keep = [i for i, n in enumerate(batch) if n != 1]
            index = tuple(slice(None) if i in keep else 0 for i in range(len(batch)))
            lead = (slice(None),) * ar.lead
            ops.append(ar.apply(lambda a, ix=(*lead, *index): a[ix], x))
            own = [rank, rank + 1] if side == 0 else [rank + 1, rank + 2]
            labels.append([i + rank - len(s) for i in keep] + own)
        batch_labels = sorted({v for ls in labels for v in ls if v < rank})
        r = ar.einsum(ops[0], ops[1], labels[0], labels[1], [*batch_labels, rank, rank + 2])
        shape = (*np.broadcast_shapes(*(s[:-2] for s in shapes)), shapes[0][-2], shapes[1][-1])
        return ar.apply(lambda a: a.reshape(a.shape[: ar.lead] + shape), r)

    def gradient(self, b: Backward) -> Cotangents:
        # a product is linear in each operand: the same product with the cotangent in place of the other one
        (x, y), (tx, ty), g = b.args, b.types(), b.full_g()
        batch = b.type(b.out).shape[:-2]
        if ty.rank == 2 < tx.rank:
            # one product instead of a sum over the batch
            rows = sympy.expand(sympy.prod(tx.shape[:-1]))
            flat_g, flat_x = b.reshape(g, (rows, ty.shape[1])), b.reshape(x, (rows, ty.shape[0]))
            gx = b.reshape(b.op("matmul", flat_g, b.swapped(y)), tx.shape) if b.wanted[0] else None
            return gx, b.op("matmul", b.swapped(flat_x), flat_g) if b.wanted[1] else None
        gx = b.op("matmul", g, b.swapped(y)) if b.wanted[0] else None
        gy = b.op("matmul", b.swapped(x), g) if b.wanted[1] else None
        return tuple(
            None if found is None else b.gathered(found, (*batch, *t.shape[-2:]), t.shape)
            for found, t in ((gx, tx), (gy, ty))
        )

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        return low.matmul(operands[0], operands[1], out)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        x, y = operands(types)

        def product(i: tuple[Scalar, ...], k: tuple[Scalar, ...]) -> Scalar:
            return x.broadcast((*i[:-1], *k)) * y.broadcast((*i[:-2], *k, i[-1]))

        return reduction(out, types[0].shape[-1:], "sum", product)


MATMUL = register(Matmul("matmul", 2, 2, (), ALL_LEVELS))


def reduced_type(op: str, x: TensorType, attrs: Attrs) -> TensorType:
    """The type of `x` reduced over `attrs["axes"]`; raises ShapeError."""
    axes = normalize_axes(op, attrs["axes"], x.rank)
    if attrs["keepdims"]:
        return TensorType(tuple(sympy.Integer(1) if i in axes else d for i, d in enumerate(x.shape)), x.dtype)
    return TensorType(tuple(d for i, d in enumerate(x.shape) if i not in axes), x.dtype)


def reduced_back(b: Backward, value: Any, axes: Sequence[int]) -> Any:
    """What belongs to the result of a reduction, for its operand: with dims of size 1 in the place of those that are gone."""
    if b.attrs["keepdims"]:
        return value
    dims = iter(b.type(value).shape)
    return b.reshape(value, [sympy.Integer(1) if k in axes else next(dims) for k in range(b.type(b.args[0]).rank)])


def evaluate_fold(op: str, ar: Arithmetic[Any], x: Any, attrs: Attrs, shape: tuple[int, ...]) -> Any:
    """The sum or the maximum, as the operator's name says, of a value of this shape."""
    axes = normalize_axes(op, attrs["axes"], len(shape))
    last = tuple(a - len(shape) for a in axes)
    if axes:
        x = ar.sum(x, last) if op == "sum" else ar.max(x, last)
    if not attrs["keepdims"]:
        return x
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    return ar.apply(lambda a: a.reshape(a.shape[: ar.lead] + kept), x)


def fold_to_axes(op: str, low: AxisLowering, x: AxisTensor, attrs: Attrs) -> AxisTensor:
    """The same over named axes."""
    return low.fold(op, x, normalize_axes(op, attrs["axes"], len(x.dims)), attrs["keepdims"])


class Sum(Operator):
    """Sum over `axes`, which are removed, or kept with size 1."""

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        return reduced_type(self.name, types[0], attrs)

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        return r.reduced(r.attrs["axes"], r.attrs["keepdims"])

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        return evaluate_fold(self.name, ar, args[0], attrs, shapes[0])

    def gradient(self, b: Backward) -> Cotangents:
        (x,) = b.types()
        return (reduced_back(b, b.g, normalize_axes(self.name, b.attrs["axes"], x.rank)),)

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        return fold_to_axes(self.name, low, operands[0], attrs)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        return reduce_axes("sum", types[0], normalize_axes(self.name, attrs["axes"], types[0].rank), out)


SUM = register(
    Sum("sum", 1, 1, (Attribute("axes", "ints"), Attribute("keepdims", "bool", False)), ALL_LEVELS, takes=NUMERIC)
)


class Concat(Operator):
    """Operands joined along one dim; all other dims equal."""

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        first = types[0]
        axis = normalize_axis("concat", attrs["axis"], first.rank)
        for t in types[1:]:
            if t.rank != first.rank or any(
                i != axis and a != b for i, (a, b) in enumerate(zip(t.shape, first.shape, strict=False))
            ):
                raise ShapeError(
                    f"concat: shapes [{shape_text(first.shape)}] and [{shape_text(t.shape)}] differ outside axis {axis}; "
                    "all other dims must be equal"
                )
        total = sympy.expand(sum((t.shape[axis] for t in types), sympy.Integer(0)))
        shape = tuple(total if i == axis else d for i, d in enumerate(first.shape))
        return TensorType(shape, same_dtype("concat", types))

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        ranks = {len(s) for n in (*r.args, r.out) if (s := r.shape(n)) is not None}
        if len(ranks) != 1:
            return bool(ranks)
        (rank,) = ranks
        first, *others = [r.ranked(n, rank) for n in (*r.args, r.out)]
        for k in range(rank):
            for s in others if k != r.attrs["axis"] % rank else ():
                r.equal(first[k], s[k])
        return super().relate(r)

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        axis = normalize_axis("concat", attrs["axis"], len(shapes[0])) - len(shapes[0])
        return ar.apply(lambda *xs: np.concatenate(xs, axis=axis), *args)

    def gradient(self, b: Backward) -> Cotangents:
        types = b.types()
        axis = normalize_axis("concat", b.attrs["axis"], types[0].rank)
        g, start, found = b.g, sympy.Integer(0), []
        same = is_one(b.type(g).shape[axis])
        for t in types:
            stop = sympy.expand(start + t.shape[axis])
            found.append(g if same else b.op("slice", g, axes=(axis,), starts=(start,), stops=(stop,)))
            start = stop
        return found

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        return low.concat(operands, normalize_axis("concat", attrs["axis"], out.rank), out)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        axis = normalize_axis("concat", attrs["axis"], out.rank)

        def element(*i: Scalar) -> Scalar:
            ends = list(accumulate(t.shape[axis] for t in types))
            parts = [
                x[(*i[:axis], i[axis] - (end - x.type.shape[axis]), *i[axis + 1 :])]
                for x, end in zip(operands(types), ends, strict=True)
            ]
            value = parts[-1]
            for part, end in zip(parts[-2::-1], ends[-2::-1], strict=True):
                value = select(i[axis] < end, part, value)
            return value

        return compute(out, element)


CONCAT = register(Concat("concat", 2, 16, (Attribute("axis", "int"),), ALL_LEVELS, takes=ANY_ELEMENT))


class ConcatMatmul(Operator):
    """`concat_matmul(w, x, y, z)` is `(w || x) @ (y || z) = w @ y + x @ z` (Mirage, section 7: LoRA).

    The joined tensors never exist: where blocks compute it, both products are summed into one result.
    """

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        dtype = same_dtype(self.name, types)
        results: list[TensorType] = []
        for i, j in PRODUCTS[self.name]:
            try:
                results.append(MATMUL.infer((types[i], types[j]), {}))
            except ShapeError as e:
                raise ShapeError(f"{self.name}, operands {i + 1} and {j + 1}: {e}") from None
        if results[0].shape != results[1].shape:
            shapes = " and ".join(f"[{shape_text(t.shape)}]" for t in results)
            raise ShapeError(
                f"concat_matmul: its products have shapes {shapes}; pass (w, x, y, z) with w @ y and x @ z of one shape"
            )
        return TensorType(results[0].shape, dtype)

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        pairs = PRODUCTS[self.name]
        products = [MATMUL.evaluate(ar, (args[i], args[j]), {}, (shapes[i], shapes[j])) for i, j in pairs]
        return ar.add(*products)

    def expand(self, b: ProgramBuilder, args: Sequence[int], attrs: Attrs) -> int:
        return b.op("add", *(b.op("matmul", args[i], args[j]) for i, j in PRODUCTS[self.name]))

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        return lower_expansion(self, types, attrs)


# a kernel of its own would be two library calls and an addition
CONCAT_MATMUL = register(ConcatMatmul("concat_matmul", 4, 4, (), frozenset({Level.BLOCK, Level.THREAD})))
