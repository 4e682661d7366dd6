"""What operators need of dims is checked before a compiled function runs, whatever passes made of the operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.constraints import Fact, Relation
from mirage.compiler.lower import _guard
from mirage.errors import GuardError, InputError
from mirage.ir.dims import to_dim

X = np.arange(12.0, dtype=np.float32).reshape(4, 3)
SPECS = {"x": mi.tensor("n", 3), "y": mi.tensor("m", 3)}


def compiled(fn: Callable[..., Any], without: tuple[str, ...] = ("superoptimize",)) -> Callable[..., Any]:
    names = fn.__code__.co_varnames[: fn.__code__.co_argcount]
    return mi.compile(fn, {n: SPECS[n] for n in names}, without=without, cache=False)


@pytest.mark.parametrize("without", [("superoptimize",), ("superoptimize", "fuse")])
def test_a_window_outside_of_its_tensor(without: tuple[str, ...]) -> None:
    f = compiled(lambda x: mi.exp(x[1:3]), without)
    np.testing.assert_allclose(f(X), np.exp(X[1:3]), rtol=1e-6)
    with pytest.raises(
        GuardError, match=r"n is 2, but n >= 3 is required \(.*slice, the stop along axis 0.*n=2 is dim 0"
    ):
        f(X[:2])


def test_a_window_that_is_larger_than_its_tensor() -> None:
    f = compiled(lambda x, y: mi.update_slice(x, y, (x.shape[0] - y.shape[0], 0)) * 2)
    np.testing.assert_allclose(f(X, -X[:1])[3], -2 * X[0])
    with pytest.raises(GuardError, match=r"n is 3, but n >= m is required.*m=4 is dim 0 of input 'y'"):
        f(X[:3], X)


def test_a_cast_that_guards_imply_is_no_step() -> None:
    f = compiled(lambda x, y: mi.exp(mi.match_cast(mi.sort(x, 0), mi.tensor("m", 3))) + y)
    assert "MatchShape" not in str(f.program)  # type: ignore[attr-defined]
    np.testing.assert_allclose(f(X, -X), np.exp(X) - X, rtol=1e-6)
    with pytest.raises(GuardError, match=r"n == m is required|m == n is required"):
        f(X, X[:3])


def test_needs_of_dims_that_only_the_run_tells() -> None:
    def fn(x: Any) -> Any:
        kept = mi.match_cast(mi.boolean_mask(x, mi.any(x > 5, 1)), mi.tensor("k", 3))
        return mi.exp(kept[:2])

    f = compiled(fn)
    np.testing.assert_allclose(f(X), np.exp(X[2:]), rtol=1e-6)
    with pytest.raises(InputError, match=r"needs 2 <= k \(slice: .*\), but 2 > 1 at k=1"):
        f(X[:3])


@pytest.mark.parametrize(
    ("dim", "relation", "value", "expected"),
    [
        ("n - 5", Relation.AT_LEAST, "0", "n >= 5"),
        ("n - m", Relation.AT_LEAST, "0", "n >= m"),
        ("5 - n", Relation.AT_LEAST, "0", "n <= 5"),
        ("2*n", Relation.AT_MOST, "64", "2*n <= 64"),
        ("n - 1", Relation.EQUAL, "m", "n == m + 1"),
        ("n", Relation.DIVISIBLE, "4", "n is a multiple of 4"),
    ],
)
def test_guards_have_no_negative_terms(dim: str, relation: Relation, value: str, expected: str) -> None:
    fact = Fact(to_dim(dim), relation, to_dim(value), "why")
    guard = _guard(fact)
    assert str(guard) == expected
    same = Fact(guard.dim, Relation(guard.relation), guard.value, "why")
    for n in range(8):
        for m in range(8):
            assert same.holds({"n": n, "m": m}) == fact.holds({"n": n, "m": m})
