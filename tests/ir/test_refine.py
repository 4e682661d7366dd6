"""Programs with dims seen as products of smaller factors."""

from __future__ import annotations

import numpy as np
import pytest
import sympy

import mirage as mi
from mirage.errors import ShapeError
from mirage.ir.axes import to_axes
from mirage.ir.dims import Dim, to_dim
from mirage.ir.interpret import run_reference
from mirage.ir.refine import with_factors

PROGRAM = mi.trace(lambda x, w: mi.exp(x) @ w, "f", x=mi.tensor("m", "4*k"), w=mi.tensor("4*k", 6))


def dims(*texts: str) -> list[Dim]:
    return [to_dim(t) for t in texts]


def test_factors_of_one_input_are_those_of_the_others() -> None:
    found = to_axes(with_factors(PROGRAM, [[dims("m"), dims("k", "4")], [dims("4*k"), dims("6")]]))
    assert [[[found.axes[a] for a in d] for d in x.dims] for x in found.inputs] == [
        [dims("m"), dims("k", "4")],
        [dims("k", "4"), dims("6")],
    ]


def test_the_types_and_the_results_stay() -> None:
    found = with_factors(PROGRAM, [[dims("m"), dims("2*k", "2")], [dims("2", "2*k"), dims("2", "3")]])
    assert (found.input_types, found.output_types) == (PROGRAM.input_types, PROGRAM.output_types)
    assert found.input_names == PROGRAM.input_names
    rng = np.random.default_rng(0)
    sizes = {"m": 3, "k": 2}
    xs = [rng.standard_normal(t.bind(sizes)) for t in PROGRAM.input_types]
    np.testing.assert_array_equal(run_reference(found, xs, sizes)[0], run_reference(PROGRAM, xs, sizes)[0])


def test_the_coarsest_factors_change_nothing() -> None:
    assert with_factors(PROGRAM, [[[d] for d in t.shape] for t in PROGRAM.input_types]) == PROGRAM


def test_factors_that_are_no_product_are_refused() -> None:
    with pytest.raises(ShapeError, match="cannot become"):
        with_factors(PROGRAM, [[dims("m"), dims("k", "5")], [[sympy.Integer(4)], dims("6")]])
