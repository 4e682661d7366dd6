"""How annotations fit each other: arguments and parameters, and values that are one of two."""

from __future__ import annotations

import sympy

from mirage.errors import GraphError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    NeverType,
    ObjectType,
    PartialShape,
    PartialTensor,
    ReferenceType,
    ShapeType,
    TupleType,
    TypeVariable,
    at_least,
    tensor_annotation,
)
from mirage.ir.dims import Dim, divide, symbol, symbols_of
from mirage.ir.dims import substitute as substitute_dim
from mirage.ir.types import TensorType


def join(a: Annotation, b: Annotation, what: str) -> Annotation:
    """What is known of a value that is one of two; raises GraphError where they cannot be one value."""
    match a, b:
        case NeverType(), _:
            return b
        case _, NeverType():
            return a
        case (TensorType() | PartialTensor()), (TensorType() | PartialTensor()):
            if a.dtype != b.dtype and a.dtype is not None and b.dtype is not None:
                raise GraphError(f"{what}: results {a} and {b} differ in element type; cast one of them")
            dtype = a.dtype if a.dtype == b.dtype else None
            return tensor_annotation(_join_shapes(a.shape, b.shape), dtype)
        case ShapeType(x), ShapeType(y):
            return ShapeType(_join_shapes(x, y))
        case TupleType(x), TupleType(y) if len(x) == len(y):
            return TupleType(tuple(join(p, q, what) for p, q in zip(x, y, strict=True)))
        case DataType(x, p), DataType(y, q) if x == y and len(p) == len(q):
            return DataType(x, tuple(join(s, t, what) for s, t in zip(p, q, strict=True)))
        case CallableType(x, p, clean), CallableType(y, q, pure) if x is None or y is None or len(x) == len(y):
            taken = x if y is None else y if x is None else tuple(_both(s, t, what) for s, t in zip(x, y, strict=True))
            return CallableType(taken, join(p, q, what), clean and pure)
        case _ if a == b:
            return a
    raise GraphError(f"{what}: results {a} and {b} are of different kinds; return the same kind")


def _both(a: Annotation, b: Annotation, what: str) -> Annotation:
    """What is known of a value that is as either of two annotations says; raises GraphError where they contradict."""
    join(a, b, what)
    return a if at_least(b, a) else b


def _join_shapes(x: PartialShape | None, y: PartialShape | None) -> PartialShape | None:
    if x is None or y is None or len(x) != len(y):
        return None
    return tuple(p if p == q else None for p, q in zip(x, y, strict=True))


def match_dims(
    pattern: Annotation, given: Annotation, values: dict[str, Dim], what: str, types: dict[str, Annotation] | None = None
) -> None:
    """Match an argument with a parameter: bind the parameter's symbols to dims in `values`, its type variables to what all that
    they stand for have in common in `types`. Without `types`, a type variable is a type of its own.

    A dim expression over symbols that other dims bind is left to the check at run time, unless both sides are numbers.
    Raises GraphError, which begins with `what`, where the argument cannot fit.
    """
    match pattern, given:
        case _, NeverType():
            pass
        case TypeVariable(name), _ if types is not None:
            if isinstance(given, TensorType | PartialTensor) and given.dtype == "scalar":
                raise GraphError(f"{what} is {given}, without an element type of its own; cast it")
            types[name] = join(types.get(name, NeverType()), given, f"{what}: type {name}")
        case DataType(a, x), DataType(b, y) if a == b and len(x) == len(y):
            for p, q in zip(x, y, strict=True):
                match_dims(p, q, values, what, types)
        case ReferenceType(p), ReferenceType(q):
            match_dims(p, q, values, what, types)
        case CallableType(x, p, pure), CallableType(y, q, clean):
            if pure and not clean:
                raise GraphError(f"{what} is {given}, not {pattern}; pass a function without effects")
            if x is not None and y is not None:
                if len(x) != len(y):
                    raise GraphError(f"{what} is {given}, not {pattern}; pass a function of {len(x)} arguments")
                for s, t in zip(x, y, strict=True):
                    match_dims(s, t, values, what, types)
            match_dims(p, q, values, what, types)
        case (TensorType() | PartialTensor()), (TensorType() | PartialTensor()):
            if pattern.dtype and given.dtype and given.dtype not in (pattern.dtype, "scalar"):
                raise GraphError(f"{what} is {given}, not {pattern}; cast it to {pattern.dtype}")
            _match_shape(pattern.shape, given.shape, values, f"{what} is {given}, not {pattern}")
        case ShapeType(x), ShapeType(y):
            _match_shape(x, y, values, f"{what} is {given}, not {pattern}")
        case TupleType(x), TupleType(y) if len(x) == len(y):
            for p, q in zip(x, y, strict=True):
                match_dims(p, q, values, what, types)
        case (TupleType() | DataType() | TypeVariable()), _ if pattern == given:
            pass
        case _ if type(pattern) is not type(given) or isinstance(pattern, TupleType | DataType | TypeVariable):
            raise GraphError(f"{what} is {given}, not {pattern}; pass a value of that kind")


def _match_shape(
    pattern: PartialShape | None, given: PartialShape | None, values: dict[str, Dim], problem: str
) -> None:
    if pattern is None or given is None:
        return
    if len(pattern) != len(given):
        raise GraphError(f"{problem}: rank {len(given)} instead of {len(pattern)}; reshape it")
    for i, (p, q) in enumerate(zip(pattern, given, strict=True)):
        if p is None or q is None:
            continue
        if isinstance(p, sympy.Symbol):
            bound = values.setdefault(p.name, q)
            if bound.is_Integer and q.is_Integer and bound != q:
                raise GraphError(f"{problem}: dim {i} is {q}, but {p} is {bound} here; make them equal")
        elif p.is_Integer and q.is_Integer and p != q:
            raise GraphError(f"{problem}: dim {i} is {q} instead of {p}")


def solve_dims(pattern: Annotation, given: Annotation, values: dict[str, Dim]) -> None:
    """Bind the symbols that stand in a parameter as a part of an expression only: 2*n in the place of 6*m says n = 3*m."""
    match pattern, given:
        case TupleType(x), TupleType(y):
            for p, q in zip(x, y, strict=True):
                solve_dims(p, q, values)
        case ((TensorType(a) | PartialTensor(a)), (TensorType(b) | PartialTensor(b))) | (ShapeType(a), ShapeType(b)):
            for dim, size in zip(a or (), b or (), strict=False):
                if dim is not None and size is not None:
                    _solve_dim(dim, size, values)


def _solve_dim(dim: Dim, size: Dim, values: dict[str, Dim]) -> None:
    new = symbols_of(dim) - values.keys()
    if len(new) != 1:
        return
    unknown = symbol(*new)
    if not dim.is_polynomial(unknown) or sympy.degree(dim, unknown) != 1:
        return
    factor, rest = (substitute_dim(c, values) for c in sympy.Poly(dim, unknown).all_coeffs())
    value = divide(sympy.expand(size - rest), factor)
    if value is not None:
        values[unknown.name] = value


def check_cast(given: Annotation, wanted: Annotation, what: str) -> None:
    """Raises GraphError where a value of one annotation can never be matched with another; an object may be anything."""
    if not isinstance(given, ObjectType):
        match_dims(wanted, given, {}, what)
