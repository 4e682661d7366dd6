"""Forms that follow from cost alone: Horner's, powers by squaring, one root and one division for a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.kernels.target import get_target
from mirage.mugraph.whole import whole_program
from mirage.results.work import Request
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier

T = mi.tensor
X: dict[str, Any] = {"x": T("n")}
ROWS: dict[str, Any] = {"x": T("m", "n"), "y": T("m", 1), "z": T("m", 1)}


def operators(fn: Callable[..., Any], specs: dict[str, Any]) -> Counter[str]:
    """The operators of the cheapest graph that a search finds, those that run for every n; those for every row are `row ...`."""
    request = Request(Verifier(mi.trace(fn, **specs)), [{"n": 4096, "m": 256}], get_target("cpu"), SearchOptions(), ())
    graph = min(request.work().candidates.all(60), key=lambda c: c.cost).graph
    assert len(graph.kernels) == 1
    computed = [n for n in whole_program(graph).nodes if n.op not in ("input", "constant", "size")]
    return Counter(n.op if "n" in n.axes or n.reduce else f"row {n.op}" for n in computed)


POLYNOMIALS: dict[str, tuple[Callable[..., Any], dict[str, Any], int]] = {
    "Horner's form": (lambda x, a, b, c, d: d * x * x * x + c * x * x + b * x + a, X | {k: T(1) for k in "abcd"}, 6),
    "a series": (lambda x: 1 + x + 0.5 * x * x + 0.25 * x * x * x, X, 6),
    # (x + x^2) (1 + x^2) takes fewer than Horner's form
    "ones": (lambda x: x * x * x * x + x * x * x + x * x + x, X, 4),
    "a square": (lambda x, y: (x + y) * (x + y), X | {"y": T("n")}, 2),
    "a power": (lambda x: x * x * x * x, X, 2),
    "an exponent": (lambda x: mi.pow(x, exponent=4), X, 2),
}


@pytest.mark.parametrize("name", POLYNOMIALS)
def test_polynomials_take_as_few_operators_as_their_best_form(name: str) -> None:
    fn, specs, most = POLYNOMIALS[name]
    found = operators(fn, specs)
    assert found.total() <= most and set(found) <= {"add", "mul"}


QUOTIENTS: dict[str, tuple[Callable[..., Any], Counter[str]]] = {
    "a quotient": (lambda x, y, z: x / y, Counter(["div"])),
    "by two": (lambda x, y, z: x / y / z, Counter(["row mul", "div"])),
    "by a root": (lambda x, y, z: x / mi.sqrt(y), Counter(["row sqrt", "div"])),
    "by the inverse of a root": (lambda x, y, z: x * (1 / mi.sqrt(y)), Counter(["row sqrt", "row div", "mul"])),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_rows_are_divided_once(name: str) -> None:
    fn, wanted = QUOTIENTS[name]
    assert operators(fn, ROWS) == wanted


def test_a_norm_takes_one_root_for_a_row() -> None:
    found = operators(lambda x: x / mi.sqrt(mi.mean(x * x, axis=-1, keepdims=True)), {"x": T("m", "n")})
    assert found["row sqrt"] == 1 and not found["sqrt"] and found["mul"] + found["div"] == 2
