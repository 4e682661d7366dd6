"""The meaning of loop programs, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from mirage.errors import InputError
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.lower import lower_operator
from mirage.ir.operator import get_operator
from mirage.ir.types import DTYPES, TensorType, tensor
from tests.ir.cases import CASES, Case
from tests.ir.loops.programs import inputs, programs

SIZES = dict(b=2, n=5, m=7, k=3)


def test_masked_softmax() -> None:
    program = programs()["masked_softmax"]
    x, mask = inputs(program, SIZES)
    e = np.exp(np.where(mask, x.astype(np.float64), -np.inf))
    (found,) = run_loops(program, [x, mask], SIZES, "float64")
    np.testing.assert_allclose(found, e / e.sum(1, keepdims=True), 1e-12, 1e-12)


def test_a_log_softmax_subtracts_the_largest_of_each_row() -> None:
    definition, types = get_operator("log_softmax"), [tensor("n", "m")]
    attrs = definition.check_attrs({"axis": 0})
    program = lower_operator("log_softmax", types, attrs, definition.infer(types, attrs))
    assert program is not None
    x = (np.arange(15).reshape(5, 3) * 7 % 11 + np.float32(1e4)).astype(np.float32)
    (found,) = run_loops(program, [x], dict(n=5, m=3))
    e = np.exp(x.astype(np.float64) - 1e4)
    np.testing.assert_allclose(found, np.log(e / e.sum(axis=0)), 1e-6, 1e-6)


def test_choices_do_not_evaluate_the_other_branch() -> None:
    program = programs()["concatenated"]
    x, y, z = inputs(program, SIZES)
    np.testing.assert_array_equal(run_loops(program, [x, y, z], SIZES)[0], np.concatenate([x, y, z], 1))
    program = programs()["padded"]
    (x,) = inputs(program, SIZES)
    np.testing.assert_array_equal(run_loops(program, [x], SIZES)[0], np.pad(x, ((0, 0), (2, 3)), constant_values=0.5))


def test_checked_indices_count_from_either_end() -> None:
    program = programs()["embedding"]
    table, ids = inputs(program, SIZES)
    assert (ids < 0).any()
    np.testing.assert_array_equal(run_loops(program, [table, ids], SIZES)[0], table[ids])
    ids[1, 2] = 3
    with pytest.raises(InputError, match="embedding: gather, axis 0: index 3 is out of range for a dim of 3 elements"):
        run_loops(program, [table, ids], SIZES)


def test_reductions_of_nothing() -> None:
    high, low, where_high, where_low = run_loops(programs()["extremes"], [np.empty((2, 0), np.float32)], dict(n=2, m=0))
    assert high.tolist() == [-np.inf] * 2 and low.tolist() == [np.inf] * 2
    assert where_high.tolist() == where_low.tolist() == [0, 0]


def test_integers_as_in_numpy() -> None:
    program = programs()["integers"]
    x, y = inputs(program, dict(n=40, m=40))
    with np.errstate(all="ignore"):
        quotient, small, test = run_loops(program, [x, y], dict(n=40, m=40))
        np.testing.assert_array_equal(quotient, x // y * 3 - x % y)
        np.testing.assert_array_equal(small, np.maximum(y // 7, x.astype(np.int32) % y) + np.arange(40, dtype=np.int32))
    np.testing.assert_array_equal(test, (x > y) | (y != 3))


@pytest.mark.parametrize("case", [c for c in CASES if c.op != "convolution"], ids=str)
def test_operators_of_programs(case: Case) -> None:
    op = get_operator(case.op)
    types = [tensor(*d) for d in case.dims]
    attrs = op.check_attrs(case.attrs)
    out = op.infer(types, attrs)
    program = lower_operator(case.op, types, attrs, out)
    # a constant has no type of its own
    assert program is not None and program.output_types == (
        TensorType(out.shape, "float64") if out.dtype == "scalar" else out,
    )
    sizes = dict.fromkeys(set().union(*(t.symbols() for t in types), *(program.symbols,)), 0)
    # the size of n is that of its case
    sizes |= {s: 2 + k for k, s in enumerate(sorted(sizes))} | ({"n": 3} if "n" in sizes else {})
    rng = np.random.default_rng(0)
    low = 0.25 if case.positive else -1.0
    arrays = [np.asarray(rng.uniform(low, 1.0, t.bind(sizes))) for t in types]
    (found,) = run_loops(program, arrays, sizes, "float64")
    np.testing.assert_allclose(found, case.expected(*arrays), 1e-10, 1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_types_of_operators(dtype: str) -> None:
    types = [tensor("n", "m", dtype=dtype), TensorType((), "scalar")]
    program = lower_operator("mul", types, {}, tensor("n", "m", dtype=dtype))
    assert program is not None and program.output_types[0].dtype == dtype
    assert program.input_types[1] == TensorType((), dtype)
