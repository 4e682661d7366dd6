"""Comparisons, logic and choice, element by element, broadcasting as NumPy does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirage.errors import DTypeError
from mirage.ir.annotations import Annotation, PartialTensor, tensor_annotation
from mirage.ir.arithmetic import ArrayModule
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.graph_operator import GraphElementwise, GraphOperator, number_dtype, wide
from mirage.ir.loops.program import TensorExpr, compute, operands
from mirage.ir.loops.scalars import (
    Scalar,
    apply,
    binary,
    constant,
    equal,
    logical_and,
    logical_not,
    logical_or,
    select,
)
from mirage.ir.operator import (
    ANY_ELEMENT,
    FLOATING,
    ORDERED,
    Attrs,
    as_arrays,
    broadcast_partial,
    broadcast_shapes,
    common_dtype,
    register,
    same_dtype,
)
from mirage.ir.types import TensorType
from mirage.ir.unknowns import Relation

_BOOLEAN = frozenset({"bool"})


def _predicate(
    name: str, numpy: Callable[..., Any], loops: Callable[..., Scalar], takes: frozenset[str], arity: int = 2
) -> GraphElementwise:
    op = GraphElementwise(name, arity, arity, takes=takes, numpy=numpy, loops=loops, predicate=True)
    register(op)
    return op


EQUAL = _predicate("equal", np.equal, equal, ANY_ELEMENT)
NOT_EQUAL = _predicate("not_equal", np.not_equal, lambda x, y: binary("ne", x, y), ANY_ELEMENT)
LESS = _predicate("less", np.less, lambda x, y: x < y, ORDERED)
LESS_EQUAL = _predicate("less_equal", np.less_equal, lambda x, y: x <= y, ORDERED)
GREATER = _predicate("greater", np.greater, lambda x, y: x > y, ORDERED)
GREATER_EQUAL = _predicate("greater_equal", np.greater_equal, lambda x, y: x >= y, ORDERED)

LOGICAL_AND = _predicate("logical_and", np.logical_and, logical_and, _BOOLEAN)
LOGICAL_OR = _predicate("logical_or", np.logical_or, logical_or, _BOOLEAN)
LOGICAL_NOT = _predicate("logical_not", np.logical_not, logical_not, _BOOLEAN, arity=1)

# a 16-bit value that is finite is finite in float32, too
ISNAN = _predicate("isnan", np.isnan, lambda x: binary("ne", x, x), FLOATING, arity=1)
ISFINITE = _predicate(
    "isfinite", np.isfinite, lambda x: apply("abs", x) < constant(float("inf"), x.dtype), FLOATING, arity=1
)


@dataclass(frozen=True, eq=False)
class Where(GraphOperator):
    """`x` where the condition holds, else `y`; the three broadcast."""

    def check_elements(self, args: Sequence[Annotation]) -> None:
        super().check_elements(args)
        condition = args[0]
        assert isinstance(condition, TensorType | PartialTensor)
        if condition.dtype not in ("bool", None):
            raise DTypeError(f"where: the condition is {condition}; compare it with something, or cast it to bool")

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        dtype = same_dtype("where", types[1:])
        if dtype == "scalar":
            raise DTypeError("where: both values are numbers; make one of them a tensor: mirage.full((), value, dtype)")
        return TensorType(broadcast_shapes("where", types), dtype)

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return tensor_annotation(broadcast_partial("where", args), common_dtype(args[1:]))

    def relate(self, r: Relation) -> bool:
        r.dtype(r.args[0], "bool")
        r.same_dtype(*r.args[1:], r.out)
        return r.elementwise(r.args)

    def scalar_dtype(self, types: Sequence[Annotation]) -> str:
        return super().scalar_dtype(types[1:])

    def given(self, xp: ArrayModule, arrays: Sequence[Any]) -> list[Any]:
        return [xp.asarray(arrays[0]), *as_arrays("where", arrays[1:], number_dtype(arrays[1:]), xp)]

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        condition, x, y = arrays
        # not every module selects among all types
        return xp.where(condition, wide(x), wide(y)).astype(x.dtype, copy=False)

    def gradient(self, b: Backward) -> Cotangents:
        condition = b.args[0]
        # what is not chosen gets 0, even where the cotangent is infinite
        chosen, other = (
            b.op("where", condition, *values) if wanted else None
            for values, wanted in zip(((b.g, 0), (0, b.g)), b.wanted[1:], strict=True)
        )
        return b.to_operands((None, chosen, other))

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr:
        return compute(out, lambda *i: select(*(x.broadcast(i) for x in operands(types))))


WHERE = register(Where("where", 3, 3))
