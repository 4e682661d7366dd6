"""Values with cotangents: which ones have any, and their floating-point tensors in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from mirage.errors import GradientError
from mirage.ir.annotations import Annotation, PartialTensor, ShapeType, TupleType, symbols_in
from mirage.ir.graph.nodes import Atom, Function, Var
from mirage.ir.graph.traverse import symbols_used
from mirage.ir.types import DTYPES, TensorType

#: the cotangent of a value: one of its shape, one for each field of a tuple, or none
Tree: TypeAlias = "Atom | list[Tree] | None"


def is_float(annotation: Annotation) -> bool:
    """Whether a value is a floating-point tensor: no other has a gradient."""
    return isinstance(annotation, TensorType | PartialTensor) and annotation.dtype in DTYPES


def float_leaves(annotation: Annotation) -> list[Annotation]:
    """The floating-point tensors in a value, in order."""
    if isinstance(annotation, TupleType):
        return [leaf for f in annotation.fields for leaf in float_leaves(f)]
    return [annotation] if is_float(annotation) else []


def hides(annotation: Annotation) -> bool:
    """Whether a value may hold tensors that its annotation does not show."""
    if isinstance(annotation, TupleType):
        return any(map(hides, annotation.fields))
    return not isinstance(annotation, TensorType | PartialTensor | ShapeType)


def unflattened(annotation: Annotation, leaves: Iterator[Atom | None]) -> Tree:
    """The tree of a value, from one cotangent, or None, for each of its leaves."""
    if isinstance(annotation, TupleType):
        return [unflattened(f, leaves) for f in annotation.fields]
    return next(leaves) if is_float(annotation) else None


def symbols_of_function(f: Function) -> set[str]:
    """The dim symbols that a function uses: no variable is called as one."""
    found = set(f.dims) | symbols_in(f.returns)
    for p in f.parameters:
        found |= symbols_in(p.annotation)
    for b in f.bindings:
        found |= symbols_used(b.value) | symbols_in(b.var.annotation)
    return found


def known_type(x: Atom) -> TensorType | None:
    return x.annotation if isinstance(x.annotation, TensorType) else None


def tensor_type(p: Var, body: Function) -> TensorType:
    if not isinstance(p.annotation, TensorType):
        raise GradientError(
            f"loop: {p.name} of {body.name} is {p.annotation}; the gradient of a loop keeps its carried values, tensors of one "
            "known shape: carry several by themselves, with the same dims in every round"
        )
    return p.annotation
