"""The tensors and shapes in a value, and whether each is of the kind that an annotation wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import sympy

from mirage.errors import GuardError, InputError
from mirage.ir.annotations import Annotation, PartialShape, PartialTensor, ShapeType, TupleType
from mirage.ir.dims import symbols_of
from mirage.ir.types import ELEMENTS, TensorType
from mirage.runtime.places.place import Place, PlacedArray

Shape: TypeAlias = tuple[int, ...]
#: gives a value as the machine holds it, and appends the shapes of its leaves
Reader: TypeAlias = Callable[[Any, list[Shape]], Any]


@dataclass(frozen=True)
class Leaf:
    """A tensor or a shape: what it is called in errors, and its dims, None where nothing is known of them."""

    what: str
    dims: PartialShape | None


@dataclass(frozen=True)
class Leaves:
    """The leaves of one value. `dtype` and `rank` are those of a tensor of which both are known, else None."""

    leaves: tuple[Leaf, ...]
    read: Reader
    dtype: np.dtype[Any] | None = None
    rank: int | None = None


def shape_symbols(annotation: Annotation) -> set[str]:
    """The dim symbols that the shapes in a value have, which are those that it can bind."""
    match annotation:
        case TensorType(dims) | PartialTensor(dims) | ShapeType(dims):
            return {s for d in dims or () if d is not None for s in symbols_of(d)}
        case TupleType(fields):
            return set().union(*(shape_symbols(f) for f in fields))
    return set()


def value_shapes(annotation: Annotation) -> list[PartialShape | None]:
    """The shapes of the tensors and shapes in a value, in the order in which it is read."""
    match annotation:
        case TensorType(dims) | PartialTensor(dims) | ShapeType(dims):
            return [dims]
        case TupleType(fields):
            return [s for f in fields for s in value_shapes(f)]
    return []


def same_sizes(what: str, dims: PartialShape | None, shape: Shape, sizes: dict[str, int]) -> None:
    """Take down the sizes of dims in `sizes`; raises GuardError, which begins with `what`, where one has another size there."""
    for k, (d, n) in enumerate(zip(dims or (), shape, strict=False)):
        if d is None or not (isinstance(d, sympy.Symbol) or d.is_Integer):
            continue
        must = sizes.setdefault(d.name, n) if isinstance(d, sympy.Symbol) else int(d)
        if must != n:
            raise GuardError(f"{what} has shape {list(shape)}: dim {k} is {n}, but {d} is {must} here; make the dims agree")


def leaves_of(owner: str, what: str, annotation: Annotation, place: Place) -> Leaves:
    """How values with an annotation are read; `owner` and `what` name them in errors."""
    match annotation:
        case TensorType(dims, dtype) | PartialTensor(dims, dtype):
            return _tensor(owner, Leaf(what, dims), dtype, annotation, place)
        case ShapeType(dims):
            return Leaves((Leaf(what, dims),), _shape(owner, what, annotation))
        case TupleType(fields):
            parts = [leaves_of(owner, f"{what}[{k}]", f, place) for k, f in enumerate(fields)]
            return Leaves(tuple(leaf for p in parts for leaf in p.leaves), _tuple(owner, what, parts))
    return Leaves((), lambda value, shapes: value)


def _tensor(owner: str, leaf: Leaf, name: str | None, annotation: Annotation, place: Place) -> Leaves:
    dtype = None if name is None else ELEMENTS[name]
    rank = None if leaf.dims is None else len(leaf.dims)

    array, is_dense = place.array, place.is_dense

    def read(value: Any, shapes: list[Shape]) -> PlacedArray:
        a, number = value, False
        if isinstance(a, np.generic):
            a, number = np.asarray(a), True
        elif type(a) is not array:
            kinds = next((k for t, k in _NUMBERS if isinstance(a, t)), "") if rank == 0 else ""
            number = bool(kinds)
            a = np.asarray(a) if number else place.read(a, f"{owner}: {leaf.what}")
            if dtype is not None and dtype.kind in kinds:
                if dtype.kind == "i" and not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
                    raise GuardError(f"{owner}: {leaf.what} is {value}, which {annotation} cannot hold; pass a smaller number")
                a = a.astype(dtype)
        if (a.dtype != dtype) if dtype is not None else (a.dtype not in _KNOWN):
            raise GuardError(f"{owner}: {leaf.what} has dtype {a.dtype}, but must be {annotation}; convert it")
        if rank is not None and a.ndim != rank:
            raise GuardError(
                f"{owner}: {leaf.what} has shape {list(a.shape)}, but must be {annotation}; match the rank"
            )
        if number:
            a = place.constant(a)
        elif not is_dense(a):
            a = place.copy(a)
        shapes.append(a.shape)
        return a

    return Leaves((leaf,), read, dtype, rank)


_KNOWN = frozenset(ELEMENTS.values())
#: sizes are int64
_LARGEST = 2**63 - 1
#: numbers of Python, which stand for tensors of rank 0, and the kinds of element types that they may have; a bool is an int, too
_NUMBERS: tuple[tuple[type, str], ...] = ((bool, "b"), (int, "i"), (float, "fV"))


def _shape(owner: str, what: str, annotation: ShapeType) -> Reader:
    def read(value: Any, shapes: list[Shape]) -> Shape:
        if not isinstance(value, tuple | list) or not all(hasattr(n, "__index__") for n in value):
            raise InputError(f"{owner}: {what} is {value!r}, not a shape; pass a tuple of integers")
        shape = tuple(n.__index__() for n in value)
        if annotation.dims is not None and len(shape) != len(annotation.dims):
            raise GuardError(f"{owner}: {what} is {list(shape)}, but must be {annotation}; match the rank")
        if any(n < 0 for n in shape):
            raise GuardError(f"{owner}: {what} is {list(shape)}; sizes are 0 or more")
        if any(n > _LARGEST for n in shape):
            raise GuardError(f"{owner}: {what} is {list(shape)}; sizes are at most {_LARGEST}")
        shapes.append(shape)
        return shape

    return read


def _tuple(owner: str, what: str, parts: list[Leaves]) -> Reader:
    def read(value: Any, shapes: list[Shape]) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list) or len(value) != len(parts):
            raise InputError(f"{owner}: {what} is not a tuple of {len(parts)} values; pass one")
        return tuple(p.read(v, shapes) for p, v in zip(parts, value, strict=True))

    return read
