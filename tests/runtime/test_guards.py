"""Sizes from the shapes of arguments, and what is checked at function boundaries."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.errors import DimError, FormatError, GuardError
from mirage.ir.dims import to_dim
from mirage.ir.types import tensor
from mirage.runtime.program import Guard, MakeShape, Return
from mirage.runtime.vm import VirtualMachine
from tests.runtime.machines import dims, function, machine
from tests.runtime.test_vm import ramp


def sizes_of(shapes: list[Any], *wanted: str, guards: tuple[Guard, ...] = ()) -> VirtualMachine:
    """A machine that answers with these dims for inputs a, b, ... of these shapes."""
    parameters = dict(zip("abcdef", (tensor(*s) for s in shapes), strict=False))
    return machine(function(parameters, MakeShape(len(shapes), dims(*wanted)), Return(len(shapes)), guards=guards))


@pytest.mark.parametrize(
    ("shapes", "given", "wanted"),
    [
        ([("n", 64), ("4*n", "m"), ("m*n",)], [(3, 64), (12, 5), (15,)], {"n": 3, "m": 5}),
        ([("m*n", 2), ("m",)], [(15, 2), (5,)], {"m": 5, "n": 3}),
        ([("n + 1",)], [(4,)], {"n": 3}),
        ([("n**2",)], [(9,)], {"n": 3}),
        ([("m + n", "m - n"), ("n",)], [(7, 3), (2,)], {"n": 2, "m": 5}),
        ([("m",), ("m*n", "2*n + m")], [(0,), (0, 6)], {"n": 3, "m": 0}),
        ([("n",)], [(0,)], {"n": 0, "n // 2": 0, "max(n, 1)": 1}),
        ([("n", "n // 4", "n % 4", "min(n, 8)")], [(11, 2, 3, 8)], {"n": 11, "n // 3 + n % 3": 5, "max(2*n, 30)": 30}),
        ([("n",), ("m",)], [(6,), (4,)], {"n*m": 24, "n**2 - m": 32, "(n*m) // 5": 4, "min(n, m, 5)": 4}),
    ],
)
def test_dims_are_solved_and_evaluated(shapes: list[Any], given: list[Any], wanted: dict[str, int]) -> None:
    assert sizes_of(shapes, *wanted)(*(ramp(*s) for s in given)) == tuple(wanted.values())


@pytest.mark.parametrize(
    ("shapes", "given", "message"),
    [
        ([("4*n",)], [(10,)], r"main: input 'a', dim 0: no size of n makes 4\*n equal 10"),
        ([("n**2",)], [(8,)], r"no size of n makes n\*\*2 equal 8"),
        ([("n + 4",)], [(3,)], r"no size of n makes n \+ 4 equal 3"),
        ([("m*n",), ("n",)], [(3,), (0,)], r"no size of m makes m\*n equal 3"),
        ([("n",), ("n",)], [(3,), (4,)], r"input 'b' has shape \[4\]: dim 0 is 4, but n is 3 here \(n=3\); make"),
        (
            [("n", 64)],
            [(3, 63)],
            r"input 'a' has shape \[3, 63\]: dim 1 is 63, but must be 64; make the dims agree",
        ),
        ([("n",), ("n // 2",)], [(7,), (4,)], r"input 'b' has shape \[4\]: dim 0 is 4, but n // 2 is 3 here \(n=7\)"),
    ],
)
def test_shapes_that_do_not_fit(shapes: list[Any], given: list[Any], message: str) -> None:
    with pytest.raises(GuardError, match=message):
        sizes_of(shapes)(*(ramp(*s) for s in given))


@pytest.mark.parametrize(
    ("guard", "good", "bad", "message"),
    [
        (
            ("n", "<=", "4096", "bounds['n']"),
            4096,
            4097,
            r"n is 4097, but n <= 4096 is required \(bounds\['n'\]\); n=4097 is dim 1",
        ),
        (("n", ">=", "2", ""), 2, 1, r"n is 1, but n >= 2 is required; n=1 is dim 1 of input 'a'"),
        (("n", "%", "8", "vectors"), 16, 12, r"n is 12, but n is a multiple of 8 is required \(vectors\)"),
        (
            ("n // 2", "==", "3*m - 2", "halves"),
            2,
            4,
            r"n // 2 is 2, but n // 2 == 3\*m - 2 is required \(halves\); m=1 is dim 0",
        ),
    ],
)
def test_guards_name_argument_dim_constraint_and_size(guard: Any, good: int, bad: int, message: str) -> None:
    left, relation, right, reason = guard
    run = sizes_of([("m", "n")], "n", guards=(Guard(to_dim(left), relation, to_dim(right), reason),))
    assert run(ramp(1, good)) == (good,)
    for _ in range(2):
        with pytest.raises(GuardError, match=message):
            run(ramp(1, bad))


@pytest.mark.parametrize(
    ("wanted", "n", "message"),
    [
        ("n - 4", 3, r"main: dim n - 4 is -1 at \{'n': 3\}"),
        ("12 // n", 0, r"main: dim 12 // n: n is 0"),
        ("n**40", 100, r"main: dim n\*\*40 is too large \(n=100\)"),
    ],
)
def test_sizes_that_cannot_be(wanted: str, n: int, message: str) -> None:
    with pytest.raises(GuardError, match=message):
        sizes_of([("n",)], wanted)(ramp(n))


def test_dims_that_no_shape_determines_are_found_on_loading() -> None:
    with pytest.raises(
        DimError, match=r"main: input 'a', dim 0: m\*n does not determine m, n; make one of these a dim of its own"
    ):
        sizes_of([("m*n",)])
    with pytest.raises(DimError, match=r"main: input 'a', dim 0: n // 2 does not determine n"):
        sizes_of([("n // 2", "min(n, 4)")])
    assert sizes_of([("m + n // 2", "n")], "m")(ramp(5, 4)) == (3,)
    with pytest.raises(FormatError, match="main: no shape gives the size of k"):
        sizes_of([("n",)], "k")


@given(st.integers(0, 50), st.integers(0, 50), st.permutations([("n",), ("n + 2*m",), ("3*n", "m*n + n")]))
def test_whatever_the_order_of_the_inputs(n: int, m: int, shapes: list[tuple[str, ...]]) -> None:
    arrays = [ramp(*tensor(*s).bind({"n": n, "m": m})) for s in shapes]
    assert sizes_of(list(shapes), "n", "m")(*arrays) == (n, m)
