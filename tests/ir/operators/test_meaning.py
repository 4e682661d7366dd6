"""Operators of graphs: NumPy meaning, deduced annotations and loop-level definitions agree, at sizes 0 and 1, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from mirage.ir.annotations import Annotation, PartialTensor, TupleType
from mirage.ir.dims import evaluate, value_at
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import REGISTRY, get_operator
from mirage.ir.types import ELEMENTS, TensorType, tensor
from tests.ir.operators.cases import CASES, SIZES, Case

#: operators whose last operand is a shape, tested in `test_shape_operands`
WITH_SHAPE = {"reshape_to", "broadcast_to_shape", "full_of"}


def test_every_operator_of_graphs_has_a_case() -> None:
    graph_only = {name for name, op in REGISTRY.items() if not op.lax}
    assert graph_only - WITH_SHAPE <= {c.op for c in CASES}


def holds(case: Case, sizes: Mapping[str, int]) -> bool:
    """Whether the sizes fulfil what the operator needs, and indices have something to point to."""
    op = get_operator(case.op)
    needs = op.requirements(case.types, op.check_attrs(case.attrs))
    for o in case.operands:
        if len(o) == 3 and tensor(o[2]).bind(sizes) == (0,):
            return 0 in tensor(*o[0]).bind(sizes)
    return all(value_at(n.small, sizes) <= value_at(n.large, sizes) for n in needs)


def check(found: Any, expected: Any, annotation: Annotation, sizes: Mapping[str, int]) -> None:
    if isinstance(annotation, TupleType):
        for f, e, a in zip(found, expected, annotation.fields, strict=True):
            check(f, e, a, sizes)
        return
    assert isinstance(annotation, TensorType | PartialTensor)
    assert annotation.shape is not None and annotation.dtype is not None
    assert found.dtype == ELEMENTS[annotation.dtype]
    shape = tuple(f if d is None else evaluate(d, sizes) for d, f in zip(annotation.shape, found.shape, strict=True))
    assert found.shape == shape
    # sums of 16-bit numbers round
    tolerance = 2.0**-6 if found.dtype.itemsize == 2 else 1e-6
    wide = np.float64 if found.dtype.kind in "fV" else found.dtype
    np.testing.assert_allclose(found.astype(wide), np.asarray(expected).astype(wide), rtol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meaning(case: Case) -> None:
    op = get_operator(case.op)
    attrs = op.check_attrs(case.attrs)
    annotation = op.annotate(case.types, attrs)
    tried = 0
    for seed, sizes in enumerate(SIZES):
        if holds(case, sizes):
            arrays = case.arrays(sizes, seed)
            before = [a.copy() for a in arrays]
            found = op.run(arrays, attrs, sizes)
            check(found, case.expected(*arrays, **sizes), annotation, sizes)
            for a, b in zip(arrays, before, strict=True):
                np.testing.assert_array_equal(a, b)
            tried += 1
    assert tried >= 2


@pytest.mark.parametrize("case", CASES, ids=str)
def test_loops(case: Case) -> None:
    op = get_operator(case.op)
    attrs = op.check_attrs(case.attrs)
    out = op.annotate(case.types, attrs)
    if not case.loops:
        assert isinstance(out, TupleType | PartialTensor) or lower_operator(case.op, case.types, attrs, out) is None  # type: ignore[arg-type]
        return
    assert isinstance(out, TensorType)
    program = lower_operator(case.op, case.types, attrs, out)
    assert program is not None
    for seed, sizes in enumerate(SIZES):
        if holds(case, sizes):
            arrays = case.arrays(sizes, seed)
            (found,) = run_loops(program, arrays, sizes)
            check(found, op.run(arrays, attrs, sizes), out, sizes)


@pytest.mark.parametrize("case", [c for c in CASES if c.operands], ids=str)
def test_unknown_dims(case: Case) -> None:
    """With dims that are not known, the annotation says less, and nothing else."""
    op = get_operator(case.op)
    attrs = op.check_attrs(case.attrs)
    known = op.annotate(case.types, attrs)
    ranked = [PartialTensor((None,) * t.rank, t.dtype) for t in case.types]
    assert _says_less(op.annotate(ranked, attrs), known)
    assert _says_less(op.annotate([PartialTensor(None, t.dtype) for t in case.types], attrs), known)
    assert _says_less(op.annotate([PartialTensor()] * len(case.types), attrs), known)


def _says_less(a: Annotation, b: Annotation) -> bool:
    if isinstance(a, TupleType) and isinstance(b, TupleType):
        return all(_says_less(x, y) for x, y in zip(a.fields, b.fields, strict=True))
    assert isinstance(a, TensorType | PartialTensor) and isinstance(b, TensorType | PartialTensor)
    if a.dtype not in (None, b.dtype):
        return False
    if a.shape is None or b.shape is None:
        return a.shape is None
    return len(a.shape) == len(b.shape) and all(d is None or d == e for d, e in zip(a.shape, b.shape, strict=True))
