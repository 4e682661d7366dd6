"""Operators of constants: their results, where these are not much larger than the operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np

from mirage.errors import MirageError
from mirage.ir.annotations import Annotation, TupleType
from mirage.ir.graph.nodes import Constant, OpCall
from mirage.ir.graph.traverse import dims_in
from mirage.ir.operator import get_operator
from mirage.ir.types import ELEMENTS, INTEGERS, TensorType

#: bytes that a result may have beyond those of its operands
MOST_BYTES = 1 << 16


def constant_results(
    call: OpCall, operands: Sequence[Any], annotation: Annotation, *, numbers: bool = False
) -> tuple[Constant, ...] | None:
    """The results of an operator applied to these arrays and numbers; None where it has to be left to the run.

    What depends on a size is left, and what fails, so that the run says so, if it gets there. So is what has no array among its
    operands (such as `full`): kernels make its elements faster than they read them. Integers, and with `numbers` all tensors of
    rank 0, are computed all the same: they may say where rows are, or what is called.
    """
    types = annotation.fields if isinstance(annotation, TupleType) else (annotation,)
    arrays = [a for a in operands if isinstance(a, np.ndarray)]
    wanted = ELEMENTS if numbers else INTEGERS
    made = isinstance(annotation, TensorType) and not annotation.shape and annotation.dtype in wanted
    if not (arrays or made) or any(d.free_symbols for d in dims_in(call)):
        return None
    if _nbytes(types) > sum(a.nbytes for a in arrays) + MOST_BYTES:
        return None
    try:
        results = get_operator(call.op).run(list(operands), dict(call.attrs), {})
    except MirageError:
        return None
    found = []
    for t, array in zip(types, results if isinstance(annotation, TupleType) else (results,), strict=True):
        assert isinstance(t, TensorType)
        # a view would keep its base alive, or change with it
        found.append(Constant(np.array(array, ELEMENTS[t.dtype], order="C"), t))
    return tuple(found)


def scalar_value(call: OpCall) -> Any:
    """The number that a scalar constant is."""
    return get_operator("constant").run([], dict(call.attrs), {})


def _nbytes(types: Sequence[Annotation]) -> float:
    """The bytes of tensors of known shapes; infinite where one is not known."""
    total = 0
    for t in types:
        if not isinstance(t, TensorType) or t.dtype not in ELEMENTS or t.symbols():
            return inf
        total += prod(t.bind({})) * ELEMENTS[t.dtype].itemsize
    return total
