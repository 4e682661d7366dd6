"""Annotations: the static types of the values of a graph (Relax, section 3.1 and Table 1).

    float32[n, 4]      TensorType: everything known, symbolically
    float32[n, _]      PartialTensor: some dims unknown;  float32[...]: the rank, too;  Tensor: even the element type
    Shape[n, 2*m]      ShapeType: a shape as a value;  Shape[_, _]: of two unknown dims;  Shape: of any rank
    Tuple[float32[n], Shape[n]], Object, Callable[[float32[n]], float32[n]]
    List[float32[n]]   DataType: a value of a declared data type (`mirage.ir.data`); a: TypeVariable;  Never: of no value
    Ref[float32[n]]    ReferenceType: a place that is written to

A dim that is not known is None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import sympy

from mirage.ir.dims import Dim, dim_text, substitute, symbols_of
from mirage.ir.types import DType, TensorType

PartialShape: TypeAlias = tuple[Dim | None, ...]


def partial_text(shape: PartialShape | None) -> str:
    """Dims separated by commas, `_` for an unknown one, `...` for an unknown rank, `()` for rank 0."""
    if shape is None:
        return "..."
    return ", ".join("_" if d is None else dim_text(d) for d in shape) or "()"


@dataclass(frozen=True)
class PartialTensor:
    """A tensor of which some dims, the rank or the element type are only known at run time."""

    shape: PartialShape | None = None
    dtype: DType | None = None

    def __str__(self) -> str:
        if self.dtype is None and self.shape is None:
            return "Tensor"
        return f"{self.dtype or 'Tensor'}[{partial_text(self.shape)}]"


@dataclass(frozen=True)
class ShapeType:
    """A shape as a first-class value."""

    dims: PartialShape | None = None

    def __str__(self) -> str:
        return "Shape" if self.dims is None else f"Shape[{partial_text(self.dims)}]"


@dataclass(frozen=True)
class TupleType:
    """An ordered group of values."""

    fields: tuple[Annotation, ...]

    def __str__(self) -> str:
        return f"Tuple[{', '.join(map(str, self.fields)) or '()'}]"


@dataclass(frozen=True)
class ObjectType:
    """A value that the compiler only passes on."""

    def __str__(self) -> str:
        return "Object"


@dataclass(frozen=True)
class CallableType:
    """A function: annotations of its parameters (None: unknown) and of its result, and whether it is free of effects."""

    parameters: tuple[Annotation, ...] | None
    returns: Annotation
    pure: bool = True

    def __str__(self) -> str:
        given = "..." if self.parameters is None else f"[{', '.join(map(str, self.parameters))}]"
        return f"{'Callable' if self.pure else 'Effectful'}[{given}, {self.returns}]"


@dataclass(frozen=True)
class DataType:
    """A value of the data type of that name, whose parameters are `arguments`.

    Dims in it are those of the tensors within: the value itself, which may be an empty list, does not tell their sizes.
    """

    name: str
    arguments: tuple[Annotation, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.arguments))}]" if self.arguments else self.name


@dataclass(frozen=True)
class TypeVariable:
    """Any type, the same wherever the name stands in a declaration or a signature."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class NeverType:
    """The type without values: of what never returns, and of the elements of an empty list."""

    def __str__(self) -> str:
        return "Never"


@dataclass(frozen=True)
class ReferenceType:
    """A place that holds a value, which is read and written as an effect."""

    value: Annotation

    def __str__(self) -> str:
        return f"Ref[{self.value}]"


Annotation: TypeAlias = (
    TensorType
    | PartialTensor
    | ShapeType
    | TupleType
    | ObjectType
    | CallableType
    | DataType
    | TypeVariable
    | NeverType
    | ReferenceType
)


def tensor_annotation(shape: PartialShape | None, dtype: str | None) -> TensorType | PartialTensor:
    """The most specific annotation of a tensor of which this is known."""
    if shape is None or dtype is None or any(d is None for d in shape):
        return PartialTensor(shape, dtype)
    return TensorType(tuple(d for d in shape if d is not None), dtype)


def map_attrs(attrs: Sequence[tuple[str, Any]], fn: Callable[[Dim], Dim]) -> tuple[tuple[str, Any], ...]:
    """Attributes of an operator with every dim replaced."""

    def mapped(value: Any) -> Any:
        if isinstance(value, sympy.Expr):
            return fn(value)
        return tuple(map(mapped, value)) if isinstance(value, tuple) else value

    return tuple((k, mapped(v)) for k, v in attrs)


def map_dims(annotation: Annotation, fn: Callable[[Dim], Dim | None]) -> Annotation:
    """The annotation with every known dim replaced; a dim becomes unknown where `fn` gives None."""

    def shape(dims: PartialShape | None) -> PartialShape | None:
        return None if dims is None else tuple(None if d is None else fn(d) for d in dims)

    match annotation:
        case TensorType(dims, dtype) | PartialTensor(dims, dtype):
            new = shape(dims)
            return annotation if new == dims else tensor_annotation(new, dtype)
        case ShapeType(dims):
            return ShapeType(shape(dims))
        case TupleType(fields):
            return TupleType(tuple(map_dims(f, fn) for f in fields))
        case CallableType(parameters, returns, pure):
            given = None if parameters is None else tuple(map_dims(p, fn) for p in parameters)
            return CallableType(given, map_dims(returns, fn), pure)
        case DataType(name, arguments):
            return DataType(name, tuple(map_dims(a, fn) for a in arguments))
        case ReferenceType(value):
            return ReferenceType(map_dims(value, fn))
    return annotation


def substitute_types(annotation: Annotation, types: Mapping[str, Annotation]) -> Annotation:
    """The annotation with type variables replaced; one that has no type is of no value."""
    match annotation:
        case TypeVariable(name):
            return types.get(name, NeverType())
        case DataType(name, arguments):
            return DataType(name, tuple(substitute_types(a, types) for a in arguments))
        case TupleType(fields):
            return TupleType(tuple(substitute_types(f, types) for f in fields))
        case ReferenceType(value):
            return ReferenceType(substitute_types(value, types))
        case CallableType(parameters, returns, pure):
            new = None if parameters is None else tuple(substitute_types(p, types) for p in parameters)
            return CallableType(new, substitute_types(returns, types), pure)
    return annotation


def parts(annotation: Annotation) -> Iterator[Annotation]:
    """The annotation and all that stand in it."""
    yield annotation
    match annotation:
        case DataType(arguments=inner) | TupleType(inner):
            pass
        case ReferenceType(value):
            inner = (value,)
        case CallableType(parameters, returns):
            inner = (*(parameters or ()), returns)
        case _:
            return
    for a in inner:
        yield from parts(a)


def substitute_dims(annotation: Annotation, values: Mapping[str, Dim]) -> Annotation:
    """The annotation with symbols replaced by dims."""
    return map_dims(annotation, lambda d: substitute(d, values))


def at_least(coarse: Annotation, fine: Annotation) -> bool:
    """Whether every value of the second annotation is one of the first, as far as the text of the dims tells."""
    match coarse, fine:
        case ((TensorType() | PartialTensor()), (TensorType() | PartialTensor())):
            return coarse.dtype in (None, fine.dtype) and _shape_at_least(coarse.shape, fine.shape)
        case ShapeType(x), ShapeType(y):
            return _shape_at_least(x, y)
        case TupleType(x), TupleType(y):
            return len(x) == len(y) and all(map(at_least, x, y))
        case _, NeverType():
            return True
        case DataType(a, x), DataType(b, y):
            return a == b and len(x) == len(y) and all(map(at_least, x, y))
        case CallableType(given, result, pure), CallableType(taken, found, clean) if given is not None and taken is not None:
            return (
                len(given) == len(taken)
                and (clean or not pure)
                and all(map(at_least, taken, given))
                and at_least(result, found)
            )
    return coarse == fine


def _shape_at_least(coarse: PartialShape | None, fine: PartialShape | None) -> bool:
    if coarse is None or fine is None:
        return coarse is None
    return len(coarse) == len(fine) and all(c is None or c == f for c, f in zip(coarse, fine, strict=True))


def dims_of(annotation: Annotation) -> list[Dim]:
    """The known dims, in order of appearance."""
    return noted(partial(map_dims, annotation))


def noted(visit: Callable[[Callable[[Dim], Dim]], object]) -> list[Dim]:
    """The dims that a function which replaces dims gives to its argument, in order."""
    found: list[Dim] = []

    def note(dim: Dim) -> Dim:
        found.append(dim)
        return dim

    visit(note)
    return found


def symbols_in(annotation: Annotation) -> set[str]:
    """Names of the dim symbols."""
    return set().union(*(symbols_of(d) for d in dims_of(annotation)))


def without_symbols(annotation: Annotation, unknown: set[str]) -> Annotation:
    """The annotation in which dims that contain one of these symbols are unknown."""
    return annotation if not unknown else map_dims(annotation, lambda d: None if symbols_of(d) & unknown else d)
