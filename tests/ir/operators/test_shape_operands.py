"""Operators whose last operand is a shape: their annotations follow what is known of it."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.ir.annotations import Annotation, PartialTensor, ShapeType
from mirage.ir.dims import symbol, to_dim
from mirage.ir.operator import get_operator
from mirage.ir.types import tensor

N, M = symbol("n"), symbol("m")
X = np.arange(6.0, dtype=np.float32)

#: operator, operands but for the shape, what is known of the shape, what is known of the result
KNOWN: list[tuple[str, list[Annotation], ShapeType, Annotation]] = [
    ("reshape_to", [tensor("n", "m")], ShapeType((to_dim("m*n"),)), tensor("m*n")),
    ("reshape_to", [tensor("n", "m")], ShapeType((None, M)), PartialTensor((None, M), "float32")),
    ("reshape_to", [tensor("n", dtype="bool")], ShapeType(), PartialTensor(None, "bool")),
    ("reshape_to", [PartialTensor()], ShapeType((N,)), PartialTensor((N,), None)),
    ("broadcast_to_shape", [tensor(1, dtype="int64")], ShapeType((M, N)), tensor("m", "n", dtype="int64")),
    ("broadcast_to_shape", [tensor("n")], ShapeType((None, None)), PartialTensor((None, None), "float32")),
    ("full_of", [], ShapeType((N, N)), tensor("n", "n")),
    ("full_of", [], ShapeType((None,)), PartialTensor((None,), "float32")),
]


@pytest.mark.parametrize(("op", "args", "shape", "expected"), KNOWN)
def test_annotations(op: str, args: list[Annotation], shape: ShapeType, expected: Annotation) -> None:
    definition = get_operator(op)
    attrs = definition.check_attrs({"value": 0} if op == "full_of" else {})
    assert definition.annotate([*args, shape], attrs) == expected


def test_meaning() -> None:
    np.testing.assert_array_equal(get_operator("reshape_to").run([X, (2, 3)], {}, {}), [[0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(get_operator("broadcast_to_shape").run([X[:1], (2, 1)], {}, {}), [[0], [0]])
    full_of = get_operator("full_of")
    found = full_of.run([(2, 0, 3)], full_of.check_attrs({"value": 3, "dtype": "int32"}), {})
    assert found.shape == (2, 0, 3) and found.dtype == np.int32


def test_results_have_memory_of_their_own() -> None:
    for op, shape in (("reshape_to", (6,)), ("broadcast_to_shape", (6,))):
        found = get_operator(op).run([X, shape], {}, {})
        assert not np.may_share_memory(found, X) and found.flags.writeable
