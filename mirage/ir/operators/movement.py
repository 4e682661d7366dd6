"""Reshape, transpose and repeat: operators that rename elements and compute nothing.

Over named axes they vanish: a repeat is an absent axis, a reshape regroups axis factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from mirage.errors import ShapeError
from mirage.ir.annotations import Annotation
from mirage.ir.dims import divide, evaluate
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.loops.program import LoopProgram, TensorExpr, compute, operands, ravel, unravel
from mirage.ir.operator import ANY_ELEMENT, Attribute, Attrs, Level, Operator, register
from mirage.ir.operators.contraction import normalize_axes, normalize_axis
from mirage.ir.types import TensorType, shape_text
from mirage.ir.unknowns import Node, Relation

if TYPE_CHECKING:
    from mirage.ir.arithmetic import Arithmetic
    from mirage.ir.unify import AxisLowering, AxisTensor

_LEVELS = frozenset({Level.KERNEL, Level.BLOCK})


class Reshape(Operator):
    """The same elements in row-major order under another shape; one dim may be -1 and is inferred."""

    def check_attrs(self, given: Attrs) -> dict[str, Any]:
        # -1 is a size to infer, not a dim
        shape = given.get("shape")
        if isinstance(shape, Sequence) and not isinstance(shape, str):
            return super().check_attrs(
                {**given, "shape": [sympy.Integer(-1) if _is_minus_one(d) else d for d in shape]}
            )
        return super().check_attrs(given)

    def resolve(self, x: TensorType, shape: tuple[sympy.Expr, ...]) -> tuple[sympy.Expr, ...]:
        """The shape with -1 replaced; raises ShapeError if the element counts differ."""
        total = sympy.expand(sympy.prod(x.shape))
        holes = [i for i, d in enumerate(shape) if d == -1]
        if any(d.is_Integer and d < -1 for d in shape):
            raise ShapeError(f"reshape: shape ({shape_text(shape)}) has a negative dim; only -1 may be inferred")
        known = sympy.expand(sympy.prod([d for d in shape if d != -1]))

        def wrong(why: str) -> ShapeError:
            return ShapeError(f"reshape: [{shape_text(x.shape)}] to [{shape_text(shape)}]: {why}")

        if len(holes) > 1:
            raise wrong("only one dim may be -1")
        if holes:
            rest = divide(total, known) if known != 0 else None
            if rest is None:
                raise wrong(f"{known} does not divide {total} for every size; name the dims")
            return tuple(rest if i == holes[0] else d for i, d in enumerate(shape))
        if known != total:
            raise wrong(f"{total} elements cannot become {known}; the products must be equal")
        return shape

    def settle_attrs(self, args: Sequence[Annotation], attrs: Attrs) -> Attrs:
        match args:
            case [TensorType() as x]:
                return {"shape": self.resolve(x, attrs["shape"])}
        return attrs

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        (x,) = types
        return TensorType(self.resolve(x, attrs["shape"]), x.dtype)

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        for d, size in zip(r.ranked(r.out, len(r.attrs["shape"])), r.attrs["shape"], strict=True):
            if size != -1:
                r.equal(d, Node("dim", (), size, r.where))
        # how many dims the operand has, it does not say
        return True

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        shape = tuple(-1 if d == -1 else evaluate(d, ar.sizes) for d in attrs["shape"])
        if -1 in shape:
            known = int(np.prod([n for n in shape if n != -1], dtype=np.int64))
            total = int(np.prod(shapes[0], dtype=np.int64))
            shape = tuple(total // max(known, 1) if n == -1 else n for n in shape)
        return ar.apply(lambda a: a.reshape(a.shape[: ar.lead] + shape), args[0])

    def gradient(self, b: Backward) -> Cotangents:
        return (b.reshape(b.full_g(), b.type(b.args[0]).shape),)

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        return low.reshape(operands[0], out.shape)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        (x,) = operands(types)
        return compute(out, lambda *i: x[unravel(ravel(i, out.shape), x.type.shape)])


def _is_minus_one(d: Any) -> bool:
    return isinstance(d, int | sympy.Integer) and not isinstance(d, bool) and int(d) == -1


RESHAPE = register(Reshape("reshape", 1, 1, (Attribute("shape", "dims"),), _LEVELS, takes=ANY_ELEMENT))


class Transpose(Operator):
    """Dims in another order: dim i of the result is dim `perm[i]` of the operand."""

    def _perm(self, attrs: Attrs, rank: int) -> tuple[int, ...]:
        perm = normalize_axes("transpose", attrs["perm"], rank)
        if len(perm) != rank:
            raise ShapeError(f"transpose: perm {attrs['perm']} must name each of the {rank} dims once")
        return perm

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        (x,) = types
        return TensorType(tuple(x.shape[i] for i in self._perm(attrs, x.rank)), x.dtype)

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args, r.out)
        perm = r.attrs["perm"]
        x, y = (r.ranked(n, len(perm)) for n in (*r.args, r.out))
        for p, d in zip(self._perm(r.attrs, len(perm)), y, strict=True):
            r.equal(x[p], d)
        return True

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        perm = self._perm(attrs, len(shapes[0]))
        full = (*range(ar.lead), *(p + ar.lead for p in perm))
        return ar.apply(lambda a: a.transpose(full), args[0])

    def gradient(self, b: Backward) -> Cotangents:
        perm = self._perm(b.attrs, b.type(b.out).rank)
        return (b.op("transpose", b.g, perm=tuple(perm.index(k) for k in range(len(perm)))),)

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        (x,) = operands
        return low.view(x, [x.dims[i] for i in self._perm(attrs, len(x.dims))])

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        (x,) = operands(types)
        perm = self._perm(attrs, out.rank)
        return compute(out, lambda *i: x[tuple(i[perm.index(k)] for k in range(out.rank))])


TRANSPOSE = register(Transpose("transpose", 1, 1, (Attribute("perm", "ints"),), _LEVELS, takes=ANY_ELEMENT))


class Repeat(Operator):
    """Each slice along `axis` repeated `times` times in a row, as `numpy.repeat` does: element j is element j // times."""

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        (x,) = types
        axis = normalize_axis("repeat", attrs["axis"], x.rank)
        shape = tuple(sympy.expand(d * attrs["times"]) if i == axis else d for i, d in enumerate(x.shape))
        return TensorType(shape, x.dtype)

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        axis = normalize_axis("repeat", attrs["axis"], len(shapes[0])) - len(shapes[0])
        times = evaluate(attrs["times"], ar.sizes)
        return ar.apply(lambda a: np.repeat(a, times, axis=axis), args[0])

    def gradient(self, b: Backward) -> Cotangents:
        (x,) = b.types()
        axis = normalize_axis("repeat", b.attrs["axis"], x.rank)
        apart = b.reshape(b.full_g(), (*x.shape[: axis + 1], b.attrs["times"], *x.shape[axis + 1 :]))
        return (b.sum(apart, (axis + 1,)),)

    def to_axes(self, low: AxisLowering, operands: Sequence[AxisTensor], attrs: Attrs, out: TensorType) -> AxisTensor:
        (x,) = operands
        return low.repeat(x, normalize_axis("repeat", attrs["axis"], len(x.dims)), attrs["times"])

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | LoopProgram | None:
        (x,) = operands(types)
        axis = normalize_axis("repeat", attrs["axis"], out.rank)
        return compute(out, lambda *i: x[(*i[:axis], i[axis] // attrs["times"], *i[axis + 1 :])])


REPEAT = register(Repeat("repeat", 1, 1, (Attribute("axis", "int"), Attribute("times", "dim")), _LEVELS, takes=ANY_ELEMENT))
