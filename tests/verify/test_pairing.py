"""Inputs of two programs are paired by position, in the proof and in the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.errors import AxisError, InputError
from mirage.ir.program import Program
from mirage.verify.equivalence import verify_programs
from mirage.verify.pairing import paired
from mirage.verify.proof import prove_programs

T = mi.tensor


def traced(fn: Callable[..., Any], *types: Any) -> Program:
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    return mi.trace(fn, "f", **dict(zip(names, types, strict=True)))


SQUARE = (T("n", 4), T("n", 4))


def test_names_are_of_no_importance() -> None:
    a, b = traced(lambda x, y: x - y, *SQUARE), traced(lambda u, v: u - v, *SQUARE)
    assert prove_programs(a, b) == "proved" and verify_programs(a, b).equal
    turned = traced(lambda u, v: v - u, *SQUARE)
    assert prove_programs(a, turned) == "not proved" and not verify_programs(a, turned).equal


@pytest.mark.parametrize("other", [lambda y, x: x - y, lambda y, x: y - x, lambda z, x: z - x, lambda y, z: y - z])
@pytest.mark.parametrize("compare", [prove_programs, verify_programs, mi.verify])
def test_a_name_at_two_positions_is_an_error(compare: Callable[..., Any], other: Callable[..., Any]) -> None:
    a, b = traced(lambda x, y: x - y, *SQUARE), traced(other, *SQUARE)
    with pytest.raises(InputError, match=r"input '[xy]' is number [12] of one and number [12] of the other"):
        compare(a, b)


@pytest.mark.parametrize("compare", [prove_programs, verify_programs])
def test_other_types_are_an_error(compare: Callable[..., Any]) -> None:
    a = traced(lambda x, y: x - y, *SQUARE)
    with pytest.raises(InputError, match="differ in type"):
        compare(a, traced(lambda x, y: x - y, T(4, "n"), T(4, "n")))
    with pytest.raises(InputError, match="differ in type"):
        compare(a, traced(lambda x, y: (x - y, x), *SQUARE))


def test_what_one_sees_as_a_product_of_axes_so_does_the_other() -> None:
    """One program reshapes a dim to two, the other takes it as a whole."""
    a = traced(lambda x: mi.reshape(mi.reshape(x, ("n", 4, 8)) * 2, ("n", 32)), T("n", 32))
    b = traced(lambda x: x + x, T("n", 32))
    for x, y in ((a, b), (b, a)):
        p, q = paired(x, y)
        assert p.inputs == q.inputs and p.axes == q.axes and [o.dims for o in p.outputs] == [o.dims for o in q.outputs]
        assert prove_programs(x, y) == "proved"


def test_dims_that_no_axes_can_be_found_for_are_said() -> None:
    a = traced(lambda x: mi.reshape(mi.sum(mi.reshape(x, ("n", 4, 6)), axis=1), ("n", 6)), T("n", 24))
    b = traced(lambda x: mi.reshape(mi.sum(mi.reshape(x, ("n", 6, 4)), axis=2), ("n", 6)), T("n", 24))
    with pytest.raises(AxisError, match="f"):
        paired(a, b)
    assert prove_programs(a, b) == "not proved"


def test_axes_that_only_one_of_them_relates_are_one_in_both() -> None:
    a, b = traced(lambda x, y: 1 + x + 0 * y, *SQUARE), traced(lambda x, y: x + 1, *SQUARE)
    for x, y in ((a, b), (b, a)):
        p, q = paired(x, y)
        assert p.axes == q.axes and p.inputs == q.inputs and len(p.axes) == 2
        assert prove_programs(x, y) == "proved"
    rows = traced(lambda x, y: mi.sum(x, axis=0) + mi.sum(y, axis=0), *SQUARE)
    both = traced(lambda x, y: mi.sum(x + y, axis=0), *SQUARE)
    assert prove_programs(rows, both) == prove_programs(both, rows) == "proved"


def test_axes_of_one_tensor_are_never_one() -> None:
    square, vector = T("n", "n"), T("n")
    a = traced(lambda x, y: x * mi.reshape(y, ("n", 1)) + mi.transpose(x) * 0, square, vector)
    b = traced(lambda x, y: x * mi.reshape(y, ("n", 1)), square, vector)
    c = traced(lambda x, y: x * y, square, vector)
    assert prove_programs(b, c) == prove_programs(c, b) == "not proved"
    assert prove_programs(a, c) == "not proved"
    # a product of two sums is no sum of products
    sums = traced(lambda x, y: mi.sum(x) * mi.sum(y), vector, vector)
    dot = traced(lambda x, y: mi.sum(x * y), vector, vector)
    assert prove_programs(sums, dot) == prove_programs(dot, sums) == "not proved"
