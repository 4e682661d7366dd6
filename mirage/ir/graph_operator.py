"""What the operators share that only graphs have: integer and boolean tensors, dims as attributes, checks of dims.

Few of them are superoptimized: those that move elements (`Moving`), and convolutions. The others are fused into loops by their
loop-level definition, or run as library functions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sympy

from mirage.errors import InputError, ShapeError
from mirage.ir.annotations import Annotation, tensor_annotation
from mirage.ir.arithmetic import Arithmetic, ArrayModule, FloatArithmetic, Floats
from mirage.ir.dims import Dim, ceil_div, evaluate, to_dim
from mirage.ir.gradient import Backward, Cotangents
from mirage.ir.loops.program import TensorExpr, compute, operands
from mirage.ir.loops.scalars import Scalar
from mirage.ir.operator import (
    ANY_ELEMENT,
    Attrs,
    Level,
    Operator,
    as_arrays,
    broadcast_partial,
    broadcast_shapes,
    common_dtype,
    is_array,
    same_dtype,
)
from mirage.ir.requirements import never
from mirage.ir.types import ELEMENTS, INTEGERS, TensorType, compute_dtype, shape_text
from mirage.ir.unknowns import Relation


@dataclass(frozen=True, eq=False)
class GraphOperator(Operator):
    """An operator of graphs: `result` is its deduction, `compute` its meaning for arrays of a module `xp` (NumPy, or CuPy),
    `requirements` what it asks of dims."""

    levels: frozenset[Level] = frozenset()
    takes: frozenset[str] = field(default=ANY_ELEMENT, kw_only=True)

    @abstractmethod
    def result(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        """The result's annotation; raises ShapeError and DTypeError naming the operator and both sides."""

    @abstractmethod
    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        """The result, or a tuple of results; dims among the attributes are integers here."""

    def deduce(self, types: Sequence[TensorType], attrs: Attrs) -> Annotation:
        found = self.result(types, attrs)
        for need in self.requirements(types, attrs):
            if never(need):
                shapes = " and ".join(f"[{shape_text(t.shape)}]" for t in types) or "no operand"
                raise ShapeError(f"{self.name} of {shapes}: needs {need}, which no size fulfils; choose other dims")
        return found

    def infer(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        found = self.deduce(types, attrs)
        if not isinstance(found, TensorType):
            raise ShapeError(f"{self.name}: its result, {found}, is not one tensor of known shape; use it in a graph")
        return found

    def run(
        self, arrays: Sequence[Any], attrs: Attrs, sizes: Mapping[str, int], arithmetic: Floats = FloatArithmetic
    ) -> Any:
        xp = arithmetic.xp
        given = self.given(xp, arrays)
        bound = bind_attrs(attrs, sizes)
        self.check_run(given, bound)
        with np.errstate(all="ignore"):
            return self.compute(xp, given, bound)

    def given(self, xp: ArrayModule, arrays: Sequence[Any]) -> list[Any]:
        """The operands of a run as arrays."""
        return as_arrays(self.name, arrays, number_dtype(arrays), xp)

    def check_run(self, arrays: Sequence[Any], attrs: Attrs) -> None:
        """Raises InputError where the sizes of a run do not fulfil the requirements."""
        if type(self).requirements is Operator.requirements:
            # most operators have none, and what looks for them takes longer than many of their runs
            return
        types = [TensorType(tuple(map(sympy.Integer, a.shape)), a.dtype.name) for a in arrays]
        for need in self.requirements(types, attrs):
            if problem := need.problem({}):
                shapes = " and ".join(str(list(a.shape)) for a in arrays)
                raise InputError(f"{self.name} of {shapes}: {problem}")


@dataclass(frozen=True, eq=False)
class Moving(GraphOperator):
    """An operator that moves elements and computes nothing: of an argument, kernels read its result where the elements lie."""

    @property
    def moves(self) -> bool:
        return True

    @property
    def copies(self) -> bool:
        """Whether the result for an array is one of its own, never a view."""
        return False

    @abstractmethod
    def view(self, xp: ArrayModule, x: Any, attrs: Attrs) -> Any:
        """The result for an array: a view of it, where it can be one."""

    def check_read(self, attrs: Attrs) -> None:
        """Raises AxisError where kernels cannot read the result so."""

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        found = self.view(xp, arrays[0], attrs)
        return found.copy() if found.base is not None else found

    def evaluate(
        self, ar: Arithmetic[Any], args: Sequence[Any], attrs: Attrs, shapes: Sequence[tuple[int, ...]]
    ) -> Any:
        bound = bind_attrs(attrs, ar.sizes)

        def each(a: Any, lead: int = ar.lead) -> Any:
            return ar.xp.stack([each(run, lead - 1) for run in a]) if lead else self.view(ar.xp, a, bound)

        return ar.apply(each, args[0])


def number_dtype(arrays: Sequence[Any]) -> np.dtype:
    """The type that Python numbers among the operands take: that of the first array, else int64 or float64."""
    for a in arrays:
        if is_array(a):
            return a.dtype  # type: ignore[no-any-return]
    return INTEGERS["int64"] if all(isinstance(a, int) for a in arrays) else ELEMENTS["float64"]


def bind_attrs(attrs: Attrs, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The attributes with integers for dims, at these sizes."""
    return {key: _bind(value, sizes) for key, value in attrs.items()}


def _bind(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_bind(v, sizes) for v in value)
    return evaluate(value, sizes) if isinstance(value, sympy.Expr) else value


def steps_between(start: Dim, stop: Dim, step: int) -> Dim:
    """The count of start, start + step, ... below stop."""
    return to_dim(ceil_div(to_dim(stop - start), sympy.Integer(step)))


def wide(x: Any) -> Any:
    """The array in the type that its elements are computed in."""
    return x.astype(compute_dtype(x.dtype), copy=False) if x.dtype.kind not in "ib" else x


def check_number(op: str, value: Any, dtype: str) -> np.ndarray:
    """A constant as an array of rank 0; raises DTypeError where the integer type lacks it."""
    number = int(value) if value.denominator == 1 else float(value)
    (found,) = as_arrays(op, [number], ELEMENTS[dtype])
    return np.asarray(found)


def filled(xp: ArrayModule, shape: Sequence[int], number: np.ndarray) -> Any:
    """An array of a module, every element of which is that number."""
    made = xp.full(tuple(shape), python_number(number), compute_dtype(number.dtype))
    return made.astype(number.dtype, copy=False)


def python_number(number: np.ndarray) -> Any:
    """A number of rank 0 as one of Python, which arrays of every module take."""
    return float(number) if number.dtype.kind not in "ib" else number.item()


@dataclass(frozen=True, eq=False)
class GraphElementwise(GraphOperator):
    """An operator of graphs that acts on each element, broadcasting as NumPy does.

    `numpy` is its meaning for arrays, `loops` the same for the values of elements, or None. The result has the operands'
    element type, or is boolean where `predicate` is set. `backward(b, g, *operands, result)` gives the cotangents of the
    operands, before they are summed to what was broadcast, or None where they are 0 everywhere.
    """

    numpy: Callable[..., Any] = field(kw_only=True)
    loops: Callable[..., Scalar] | None = field(default=None, kw_only=True)
    predicate: bool = field(default=False, kw_only=True)
    backward: Callable[..., Cotangents] | None = field(default=None, kw_only=True)

    def gradient(self, b: Backward) -> Cotangents:
        if self.backward is None:
            return super().gradient(b)
        return b.to_operands(self.backward(b, b.g, *b.args, b.out))

    def result(self, types: Sequence[TensorType], attrs: Attrs) -> TensorType:
        dtype = same_dtype(self.name, types)
        return TensorType(broadcast_shapes(self.name, types), "bool" if self.predicate else dtype)

    def coarse(self, args: Sequence[Annotation], attrs: Attrs) -> Annotation:
        return tensor_annotation(broadcast_partial(self.name, args), "bool" if self.predicate else common_dtype(args))

    def relate(self, r: Relation) -> bool:
        r.same_dtype(*r.args)
        if self.predicate:
            r.dtype(r.out, "bool")
        else:
            r.same_dtype(*r.args, r.out)
        return r.elementwise(r.args)

    def run(
        self, arrays: Sequence[Any], attrs: Attrs, sizes: Mapping[str, int], arithmetic: Floats = FloatArithmetic
    ) -> Any:
        found = super().run(arrays, attrs, sizes, arithmetic)
        scalar = not self.predicate and not any(map(is_array, arrays))
        return found.item() if scalar else found

    def compute(self, xp: ArrayModule, arrays: Sequence[Any], attrs: Attrs) -> Any:
        found = xp.asarray(self.numpy(*(wide(a) for a in arrays), **attrs))
        return found if self.predicate else found.astype(arrays[0].dtype, copy=False)

    def to_loops(self, types: Sequence[TensorType], attrs: Attrs, out: TensorType) -> TensorExpr | None:
        rule = self.loops
        if rule is None:
            return None
        return compute(out, lambda *i: rule(*(x.broadcast(i) for x in operands(types)), **attrs))
