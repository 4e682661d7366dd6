"""Matching values with annotations: sizes of dim symbols from the shapes of arrays, and the checks of all else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from mirage.errors import DimError, GuardError, InputError
from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    PartialShape,
    PartialTensor,
    ReferenceType,
    ShapeType,
    TupleType,
)
from mirage.ir.data import Record
from mirage.ir.dims import Dim, dim_text, evaluate, solve, symbols_of
from mirage.ir.graph.values import FunctionValue, Reference
from mirage.ir.types import ELEMENTS, TensorType


def match_sizes(
    given: Iterable[tuple[str, Annotation, Any]],
    sizes: dict[str, int],
    dtype: Callable[[str], np.dtype] = ELEMENTS.__getitem__,
) -> None:
    """Match values with their annotations: bind the dim symbols that are new, and check all else.

    `given` are (what it is called in errors, annotation, value); `sizes` grows. Raises InputError for another kind or element
    type, and GuardError for shapes that do not fit, naming the dim, what it has to be, and its size.
    """
    found: list[tuple[str, Dim, int]] = []
    for what, annotation, value in given:
        _collect(what, annotation, value, found, dtype)
    # plain dims give sizes first, so that others are checked against them
    for _, dim, size in found:
        if dim.is_Symbol:
            sizes.setdefault(dim.name, size)
    left = [entry for entry in found if symbols_of(entry[1]) - sizes.keys()]
    while left:
        rest = []
        for what, dim, size in left:
            new = symbols_of(dim) - sizes.keys()
            if len(new) > 1:
                rest.append((what, dim, size))
            elif new:
                solved = solve(dim, size, sizes)
                if solved is None:
                    raise GuardError(f"{what} is {size}: no size of {min(new)} makes {dim_text(dim)} that")
                sizes[solved[0]] = solved[1]
        if len(rest) == len(left):
            what, dim, _ = rest[0]
            raise DimError(f"{what}: {dim_text(dim)} has several unknown sizes; pass one as an extra shape argument")
        left = rest
    for what, dim, size in found:
        must = evaluate(dim, sizes)
        if must != size:
            known = ", ".join(f"{s}={sizes[s]}" for s in sorted(symbols_of(dim)))
            wanted = f"{dim_text(dim)}, which is {must} for {known}" if known else str(must)
            raise GuardError(f"{what} is {size}, not {wanted}; make them equal")


def _collect(
    what: str, annotation: Annotation, value: Any, found: list[tuple[str, Dim, int]], dtype: Callable[[str], np.dtype]
) -> None:
    def dims(shape: PartialShape | None, actual: Sequence[int]) -> None:
        if shape is None:
            return
        if len(shape) != len(actual):
            raise GuardError(
                f"{what} has shape {list(actual)} of rank {len(actual)}, not {len(shape)}: it must be {annotation}"
            )
        found.extend(
            (f"{what} has shape {list(actual)}: dim {i}", d, int(n))
            for i, (d, n) in enumerate(zip(shape, actual, strict=True))
            if d is not None
        )

    match annotation:
        case TensorType(dtype="scalar"):
            if not isinstance(value, int | float):
                raise GuardError(f"{what} is {type(value).__name__}, not a number")
        case TensorType(shape, name) | PartialTensor(shape, name):
            if not isinstance(value, np.ndarray | np.generic):
                raise InputError(f"{what} is {type(value).__name__}, not {annotation}; pass an array of NumPy")
            if name is not None and value.dtype != dtype(name):
                raise InputError(f"{what} has elements of {value.dtype}, not of {name}: it must be {annotation}")
            dims(shape, value.shape)
        case ShapeType(shape):
            dims(shape, value)
        case TupleType(fields):
            for i, (f, v) in enumerate(zip(fields, value, strict=True)):
                _collect(f"{what}, field {i}", f, v, found, dtype)
        case DataType(data):
            # what it holds is looked at where it is taken out
            if not isinstance(value, Record) or value.data.name != data:
                raise InputError(f"{what} is {value!r}, not {annotation}")
        case CallableType():
            if not isinstance(value, FunctionValue):
                raise InputError(f"{what} is {type(value).__name__}, not {annotation}; only programs make functions as values")
        case ReferenceType():
            if not isinstance(value, Reference):
                raise InputError(f"{what} is {type(value).__name__}, not {annotation}; only programs make references")
