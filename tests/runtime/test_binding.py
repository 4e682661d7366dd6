"""Sizes of the dim symbols from the shapes of arguments."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage as mi
from mirage.errors import InputError
from mirage.runtime.binding import SizeBinder


def binder(*shapes: tuple[Any, ...]) -> SizeBinder:
    """For a program whose inputs a, b, ... have these dims."""
    types: dict[str, Any] = {"abcdef"[i]: mi.tensor(*s) for i, s in enumerate(shapes)}
    fns: dict[int, Any] = {1: lambda a: a + 1.0, 2: lambda a, b: (a + 1.0, b), 3: lambda a, b, c: (a + 1.0, b, c)}
    return SizeBinder(mi.trace(fns[len(shapes)], name="f", **types))


def test_symbols_products_and_literals() -> None:
    b = binder(("n", 64), ("4*n", "m"), ("m*n",))
    assert b.bind([(3, 64), (12, 5), (15,)]) == {"n": 3, "m": 5}
    # a product of two symbols is bound where the other one is known, whatever the order
    b = binder(("m*n", 2), ("m",))
    assert b.bind([(15, 2), (5,)]) == {"m": 5, "n": 3}


def test_sums_and_powers() -> None:
    assert binder(("n + 1",)).bind([(4,)]) == {"n": 3}
    assert binder(("n**2",)).bind([(9,)]) == {"n": 3}
    assert binder(("n",), ("m + n",)).bind([(2,), (7,)]) == {"n": 2, "m": 5}


@pytest.mark.parametrize(
    ("shapes", "given", "message"),
    [
        ([("4*n",)], [(10,)], r"f: input 'a', dim 0: no size of n makes 4\*n equal 10"),
        ([("n**2",)], [(8,)], r"input 'a', dim 0: no size of n makes n\*\*2 equal 8"),
        ([("n + 4",)], [(3,)], r"input 'a', dim 0"),
        ([("m*n",)], [(6,)], r"input 'a', dim 0: m\*n does not determine m, n; make one"),
        ([("n",), ("n",)], [(3,), (4,)], r"input 'b' has shape \[4\]: dim 0 is 4, but n is 3 here \(n=3\)"),
        ([("n", 64)], [(3, 63)], r"input 'a' has shape \[3, 63\]: dim 1 is 63, but must be 64; make"),
        ([("n",), ("4*n",)], [(3,), (13,)], r"input 'b' has shape \[13\]: dim 0 is 13, but 4\*n is 12 here"),
        ([(3,)], [(4,)], r"dim 0 is 4, but must be 3"),
    ],
)
def test_what_does_not_fit_is_named(shapes: list[Any], given: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        binder(*shapes).bind(given)


def test_zero() -> None:
    assert binder(("n",)).bind([(0,)]) == {"n": 0}
    assert binder(("4*n", "m")).bind([(0, 3)]) == {"m": 3, "n": 0}
    with pytest.raises(InputError, match=r"no size of"):
        binder(("m*n", 2), ("n",)).bind([(3, 2), (0,)])


def test_errors_are_not_remembered_and_the_table_is_bounded() -> None:
    b = binder(("4*n",))
    for _ in range(2):
        with pytest.raises(InputError):
            b.bind([(10,)])
    for n in range(SizeBinder.LIMIT + 10):
        assert b.bind([(4 * n,)]) == {"n": n}
    assert len(b._seen) <= SizeBinder.LIMIT


@given(n=st.integers(0, 10**6), m=st.integers(1, 10**6), k=st.integers(1, 64))
def test_what_is_bound_gives_the_shapes_back(n: int, m: int, k: int) -> None:
    b = binder((f"{k}*n", "m"), ("n*m + m",))
    shapes = [(k * n, m), (n * m + m,)]
    sizes = b.bind(shapes)
    assert sizes == {"n": n, "m": m}
    assert [t.bind(sizes) for t in b.program.input_types] == shapes
