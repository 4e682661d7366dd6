"""How users write the types of a graph's values."""

from __future__ import annotations

from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias, overload

from mirage.errors import DataError, DimError, TraceError
from mirage.frontends.tensors import Shape
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    ObjectType,
    PartialTensor,
    ShapeType,
    TupleType,
    TypeVariable,
)
from mirage.ir.dims import DimLike, to_dim
from mirage.ir.types import TensorType, check_dtype
from mirage.ir.types import tensor as known_tensor

#: what a parameter or result may be declared as
Spec: TypeAlias = "Annotation | Shape | DataSpec | tuple[Any, ...]"


@overload
def tensor(*dims: DimLike, dtype: str = "float32") -> TensorType: ...


@overload
def tensor(*dims: DimLike | EllipsisType | None, dtype: str = "float32") -> TensorType | PartialTensor: ...


def tensor(*dims: DimLike | EllipsisType | None, dtype: str = "float32") -> TensorType | PartialTensor:
    """The type of a tensor: `tensor("b", 4096)`, `tensor("4*n", dtype="float64")`.

    String dims are symbolic; equal names are equal dims wherever they appear in one function. In functions that
    `mirage.compile` traces, a dim may be None where only the run tells, and `tensor(...)` has unknown rank. Raises DimError or
    DTypeError.
    """
    if len(dims) == 1 and isinstance(dims[0], EllipsisType):
        return PartialTensor(None, check_dtype(dtype))
    if any(isinstance(d, EllipsisType) for d in dims):
        raise DimError("tensor(): ... beside other dims; tensor(...) is of unknown rank, None an unknown dim")
    known = [d for d in dims if d is not None and not isinstance(d, EllipsisType)]
    if len(known) == len(dims):
        return known_tensor(*known, dtype=dtype)
    where = (f"tensor(), dim {i}" for i in range(len(dims)))
    shape = tuple(
        None if d is None or isinstance(d, EllipsisType) else to_dim(d, w) for d, w in zip(dims, where, strict=True)
    )
    return PartialTensor(shape, check_dtype(dtype))


@dataclass(frozen=True)
class DataSpec:
    """A data type as users write it: by itself where it has no type parameters, else called with their types."""

    name: str
    parameters: tuple[str, ...] = ()

    def __call__(self, *arguments: Any) -> DataType:
        """The type of a value: `List(tensor("n"))`; raises DataError for another number of types."""
        if len(arguments) != len(self.parameters):
            wanted = ", ".join(self.parameters) or "none"
            raise DataError(f"{self.name}: {len(arguments)} types for its parameters ({wanted}); pass one for each")
        return DataType(self.name, tuple(annotation(f"{self.name}: a type", a) for a in arguments))


def annotation(what: str, spec: Any) -> Annotation:
    """The annotation that a user declares; raises TraceError, which begins with `what`, for anything else."""
    match spec:
        case TensorType() | PartialTensor() | ShapeType() | TupleType() | ObjectType() | CallableType() | DataType():
            return spec
        case TypeVariable():
            return spec
        case DataSpec(name, ()):
            return DataType(name)
        case Shape():
            return spec.annotation
        case tuple() | list():
            return TupleType(tuple(annotation(what, s) for s in spec))
        case DataSpec(name, parameters):
            raise TraceError(f"{what}={name} is no type by itself; call it with types for {', '.join(parameters)}")
    raise TraceError(f"{what}={spec!r} is no type; pass mirage.tensor(...), mirage.shape(...), or a tuple of these")
