"""Arguments to try a program with, of which nothing but the types is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from mirage.ir.annotations import Annotation, ShapeType, TupleType, symbols_in
from mirage.ir.dims import evaluate
from mirage.ir.graph.nodes import Function
from mirage.ir.types import DTYPES, ELEMENTS, TensorType
from mirage.kernels.cpu.processor import memory_bytes
from mirage.search.inputs import random_input

#: part of the memory that the arguments may take
MEMORY_SHARE = 1 / 8


def trial_arguments(
    function: Function, sizes: Mapping[str, int], most: int = 0, others: Sequence[Any] | None = None
) -> list[Any] | None:
    """Arguments of the function's types at these sizes (dim symbol -> elements), the same every time: normal numbers, integers
    from 0 to `most`, which are indices of whatever has more elements than that, and masks that leave nothing out. Tensors of
    fixed shapes are those of `others`, if there are any: weights take long to draw.

    None where the type of a parameter does not say enough, or the memory has no room for them.
    """
    rng = np.random.default_rng(0)
    annotations = [p.annotation for p in function.parameters]
    if not all(map(_is_complete, annotations)):
        return None
    if sum(argument_bytes(a, sizes) for a in annotations) > MEMORY_SHARE * memory_bytes():
        return None
    kept = others or [None] * len(annotations)
    pairs = zip(annotations, kept, strict=True)
    return [_argument(a, sizes, most, rng) if old is None or symbols_in(a) else old for a, old in pairs]


def trial_sets(function: Function, sizes: Sequence[Mapping[str, int]], most: int = 0) -> list[list[Any]] | None:
    """Trial arguments at each of these sizes; None where there are none at some."""
    found: list[list[Any]] = []
    for at in sizes:
        arguments = trial_arguments(function, at, most, found[0] if found else None)
        if arguments is None:
            return None
        found.append(arguments)
    return found


def _is_complete(annotation: Annotation) -> bool:
    match annotation:
        case TensorType(dtype=dtype):
            return dtype in ELEMENTS
        case ShapeType(dims=dims):
            return dims is not None and None not in dims
        case TupleType(fields=fields):
            return all(map(_is_complete, fields))
    return False


def _argument(annotation: Annotation, sizes: Mapping[str, int], most: int, rng: np.random.Generator) -> Any:
    match annotation:
        case TensorType(dtype=dtype) if dtype in DTYPES:
            return random_input(annotation, sizes, rng)
        case TensorType(dtype=dtype):
            if dtype == "bool":
                return np.ones(annotation.bind(sizes), np.bool_)
            return rng.integers(0, most, annotation.bind(sizes), endpoint=True).astype(ELEMENTS[dtype])
        case ShapeType(dims=dims):
            return tuple(evaluate(d, sizes) for d in dims or () if d is not None)
        case TupleType(fields=fields):
            return tuple(_argument(f, sizes, most, rng) for f in fields)
    raise AssertionError(annotation)


def argument_bytes(annotation: Annotation, sizes: Mapping[str, int]) -> int:
    """The bytes that the tensors of an argument take at these sizes."""
    match annotation:
        case TensorType(dtype=dtype):
            return prod(annotation.bind(sizes)) * ELEMENTS[dtype].itemsize
        case TupleType(fields=fields):
            return sum(argument_bytes(f, sizes) for f in fields)
    return 0
