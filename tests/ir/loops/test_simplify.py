"""Index expressions keep their values when they are simplified."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage.ir.dim_values import value_at
from mirage.ir.dims import to_dim
from mirage.ir.loops.interpret import run_loops
from mirage.ir.loops.program import compute, single
from mirage.ir.loops.scalars import Loop, Scalar, equal, maximum, minimum, select, size
from mirage.ir.loops.simplify import nonnegative, simplify, simplify_program, within
from mirage.ir.loops.traverse import substitute
from mirage.ir.types import tensor
from tests.ir.loops.programs import inputs, programs

A, B, C = map(to_dim, ("a", "b", "c"))
X, Y, P = Loop("x"), Loop("y"), Loop("p")
EXTENTS = {"x": A, "y": B, "p": sympy.expand(A * B * C)}


def value(x: Scalar, loops: dict[str, int], sizes: dict[str, int]) -> Any:
    """The value of an index expression at one iteration."""
    at = substitute(x, {n: size(v) for n, v in loops.items()})
    program = single("value", [], compute(tensor(dtype="int64"), lambda: at))
    return run_loops(program, [], sizes)[0].item()


@pytest.mark.parametrize(
    ("given_", "wanted"),
    [
        ((X * size(B) + Y) // size(B), X),
        ((X * size(B) + Y) % size(B), Y),
        (P // size(B) * size(B) + P % size(B), P),
        ((X * 4 * size(B) + Y * 4 + 3) // 4, X * size(B) + Y),
        (P % size(B * C) % size(B), P % size(B)),
        (P % size(B * C) // size(C), P // size(C) % size(B)),
        (P // 3 // size(B), P // size(3 * B)),
        (Y - Y, size(0)),
        (select(size(A) > X, X, Y), X),
        (select(size(B) <= Y, X, Y), Y),
        (equal(size(0), X - X), equal(size(0), size(0))),
    ],
)
def test_cancels(given_: Scalar, wanted: Scalar) -> None:
    assert simplify(given_, EXTENTS) is simplify(wanted, EXTENTS)


def expressions() -> st.SearchStrategy[Scalar]:
    leaves = st.sampled_from([X, Y, P, size(A), size(B), size(C), size(B * C), size(0), size(1), size(2), size(3)])
    dims = st.sampled_from([size(A), size(B), size(C), size(B * C), size(2), size(3), size(6)])

    def grow(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
        pairs = st.tuples(inner, inner)
        return st.one_of(
            pairs.map(lambda p: p[0] + p[1]),
            pairs.map(lambda p: p[0] - p[1]),
            st.tuples(inner, dims).map(lambda p: p[0] * p[1]),
            st.tuples(inner, dims).map(lambda p: p[0] // p[1]),
            st.tuples(inner, dims).map(lambda p: p[0] % p[1]),
            st.tuples(inner, inner, inner, inner).map(lambda p: select(p[0] < p[1], p[2], p[3])),
            pairs.map(lambda p: select(equal(*p), maximum(*p), minimum(*p))),
        )

    return st.recursive(leaves, grow, max_leaves=8)


@settings(max_examples=3 * settings().max_examples // 2)
@given(expressions(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_keeps_values(x: Scalar, a: int, b: int, c: int) -> None:
    sizes = dict(a=a, b=b, c=c)
    simple = simplify(x, EXTENTS)
    for x_, y_, p in itertools.product(range(a), range(b), range(0, a * b * c, 2)):
        loops = dict(x=x_, y=y_, p=p)
        assert value(simple, loops, sizes) == value(x, loops, sizes)


@settings(max_examples=3 * settings().max_examples // 2)
@given(expressions(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_what_is_within_is(x: Scalar, a: int, b: int, c: int) -> None:
    sizes = dict(a=a, b=b, c=c)
    simple = simplify(x, EXTENTS)
    for extent in (A, B, sympy.expand(A * B * C)):
        if within(simple, extent, EXTENTS):
            for x_, y_, p in itertools.product(range(a), range(b), range(a * b * c)):
                assert 0 <= value(x, dict(x=x_, y=y_, p=p), sizes) < value_at(extent, sizes)


@pytest.mark.parametrize(
    ("dim", "wanted"), [("a*b - 1", False), ("a*b + 2", True), ("a - b", False), ("a//2", True), ("0", True)]
)
def test_nonnegative(dim: str, wanted: bool) -> None:
    d = to_dim("a*b") - 1 if dim == "a*b - 1" else A - B if dim == "a - b" else to_dim(dim)
    assert nonnegative(d) is wanted


@pytest.mark.parametrize("name", programs())
def test_programs_keep_their_meaning(name: str) -> None:
    program = programs()[name]
    sizes = dict(b=2, n=5, m=7, k=3)
    arrays = inputs(program, sizes)
    wanted = run_loops(program, arrays, sizes, "float64")
    for found, w in zip(run_loops(simplify_program(program), arrays, sizes, "float64"), wanted, strict=True):
        np.testing.assert_array_equal(found, w)
