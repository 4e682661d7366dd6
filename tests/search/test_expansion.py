"""Products of sums that are left whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.search.abstract import AbstractAlgebra, Poly
from mirage.search.algebras import Algebras
from mirage.search.expansion import whole_products
from mirage.search.generate import SearchResult, generate
from mirage.search.options import SearchOptions
from mirage.search.placement import Placements, all_sites
from mirage.search.plan import axis_parts
from mirage.verify.proof import prove
from tests.programs import QUICK, SMALL, T, axes, search, space

WHOLE = "products of sums left whole"


class Cases:
    """A program of x, y, u, v (and w) with both kinds of sites, and its inputs as expressions."""

    def __init__(self, fn: Callable[..., Any], names: str = "xyuv") -> None:
        types: dict[str, Any] = {n: T("m") for n in names}
        program = to_axes(mi.trace(fn, **types))
        al = Algebras(program, axis_parts(program))
        outputs = [al.targets[o.value][1] for o in program.outputs]
        self.al: AbstractAlgebra = al.abstract
        self.parts = Placements(al.abstract, all_sites(outputs))
        self.whole = Placements(al.abstract, whole_products(program, al))
        self.inputs = [al.abstract.tensor(n) for n in names]

    def both(self, e: Poly) -> tuple[bool, bool]:
        """Whether it is admitted with all parts, and with whole products."""
        return self.parts.admits(e), self.whole.admits(e)


def test_a_product_is_taken_wholly_or_not_at_all() -> None:
    c = Cases(lambda x, y, u, v: (x + y) * (u + v))
    x, y, u, v = c.inputs
    al = c.al
    product = al.mul(al.add(x, y), al.add(u, v))
    assert c.both(product) == (True, True)
    for factor in (x, y, u, v, al.add(x, y), al.add(u, v)):
        assert c.both(factor) == (True, True)
    for part in (al.mul(x, u), al.mul(x, al.add(u, v)), al.mul(al.add(x, y), v), al.add(al.mul(x, u), al.mul(y, v))):
        assert c.both(part) == (True, False)
    assert c.both(al.add(x, u)) == (False, False)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y, u, v, w: mi.exp((x + y) * (u + v)) * w,
        lambda x, y, u, v, w: w / ((x + y) * (u + v)),
        lambda x, y, u, v, w: (x + y) * (u + v) * w,
        lambda x, y, u, v, w: (x + y) * (u + v) / w,
        lambda x, y, u, v, w: (x + y) * (u + v) + w,
        lambda x, y, u, v, w: w - (x + y) * (u + v),
        lambda x, y, u, v, w: mi.sum((x + y) * (u + v), axis=0) * w,
    ],
)
def test_wherever_the_product_is(fn: Callable[..., Any]) -> None:
    """In a function, in a denominator, scaled, added to something, reduced."""
    c = Cases(fn, "xyuvw")
    x, y, u, v, w = c.inputs
    al = c.al
    assert c.both(al.mul(al.add(x, y), al.add(u, v))) == (True, True)
    assert c.both(al.add(x, y)) == c.both(w) == (True, True)
    assert c.both(al.mul(al.add(x, y), v)) == (True, False)


def test_beside_a_product_parts_are_taken() -> None:
    c = Cases(lambda x, y, u, v, w: (x + y) * (u + v) + w + x, "xyuvw")
    x, y, u, v, w = c.inputs
    al = c.al
    product = al.mul(al.add(x, y), al.add(u, v))
    assert c.both(al.add(x, w)) == c.both(al.add(product, w)) == (True, True)
    assert c.both(al.add(al.mul(x, u), w)) == (True, False)


def test_a_square_of_a_sum() -> None:
    """The three monomials of (x - y)^2, with their counts."""
    c = Cases(lambda x, y: mi.square(x - y), "xy")
    x, y = c.inputs
    al = c.al
    difference = al.sub(x, y)
    assert c.both(al.mul(difference, difference)) == c.both(difference) == (True, True)
    assert c.both(al.mul(x, x)) == (True, False)
    cross = al.neg(al.mul(x, y))
    assert c.both(cross) == c.both(al.add(cross, cross)) == (True, False)


def test_a_product_with_one_monomial_is_no_product_of_sums() -> None:
    c = Cases(lambda x, y, u, v: (x + y) * u * v)
    x, _, u, v = c.inputs
    assert c.both(c.al.mul(x, u)) == c.both(c.al.mul(c.al.mul(x, u), v)) == (True, True)


@pytest.mark.parametrize("name", ["norm_transformer", "layer_norm"])
def test_large_programs_leave_products_whole_and_say_so(name: str) -> None:
    r = search(name, max_kernels=1, budget=2.0)
    assert r.stats.stop_reason.endswith(f"; {WHOLE}")
    assert r.graphs and all(prove(axes(name), g) == "proved" for g in r.graphs)


@pytest.mark.parametrize("name", [*QUICK, *SMALL])
def test_other_programs_do_not(name: str) -> None:
    assert WHOLE not in search(name).stats.stop_reason


def generated(fn: Callable[..., Any], names: str, **options: Any) -> SearchResult:
    types: dict[str, Any] = {n: T("m") for n in names}
    program = to_axes(mi.trace(fn, **types))
    r = generate(program, {"m": 16}, SearchOptions(**options))
    assert all(prove(program, g) == "proved" for g in r.graphs)
    return r


def test_fewer_prefixes() -> None:
    """(x + y) * (u + v): the sums and their product, not what it expands to. (x + y) @ w is the same either way."""
    whole, parts = (generated(lambda x, y, u, v: (x + y) * (u + v), "xyuv", max_values=n) for n in (1, 250))
    assert whole.stats.prefixes == 3 < parts.stats.prefixes
    assert (whole.stats.stop_reason, parts.stats.stop_reason) == (f"complete; {WHOLE}", "complete")
    assert len(whole.graphs) == len(parts.graphs) == 1
    few, many = (search("sum then matmul", max_values=n) for n in (1, 250))
    assert few.stats.prefixes == many.stats.prefixes


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y, u, v, w: mi.exp(w) * ((x + y) * (u + v)),
        lambda x, y, u, v, w: mi.sum(mi.exp(w) * ((x + y) * (u + v)), axis=0),
        lambda x, y, u, v, w: (x + y) * (u + v) / mi.exp(w),
    ],
)
def test_factors_beside_a_product_are_no_part_of_it(fn: Callable[..., Any]) -> None:
    """exp(w) is computed, though the expanded product has it in every monomial."""
    r = generated(fn, "xyuvw", max_values=1)
    assert WHOLE in r.stats.stop_reason
    assert r.graphs


@pytest.mark.parametrize("name", [n for n in (*QUICK, *SMALL) if n != "self division"])
def test_the_programs_own_graph_is_always_found(name: str) -> None:
    s = space(name, max_kernels=1, max_values=1)
    assert s.whole == any(whole_products(axes(name), s.algebras).values())
    assert all(t is not None or s.tensors.trivial[k] for k, t in enumerate(s.tensors.outputs()))
    (one,) = [c for c in s.tensors.closures if not c.plan.loops]
    assert {form for form, _ in s.algebras.targets} <= {v.form for v in one.values}


def test_products_that_share_monomials() -> None:
    """p - mean(p) of a product p: what the mean subtracts occurs in p, and p is still taken."""

    def fn(x: Any) -> Any:
        y = x - mi.mean(x, axis=1, keepdims=True)
        p = y * mi.sum(y, axis=0, keepdims=True)
        return p - mi.mean(p, axis=1, keepdims=True)

    program = to_axes(mi.trace(fn, x=T("m", "n")))
    r = generate(program, {"m": 8, "n": 8}, SearchOptions(max_values=1))
    assert r.graphs and all(prove(program, g) == "proved" for g in r.graphs)
