"""Orders of products that depend on sizes, and factors of constants: what one search holds for all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.kernels.decision import decide, leaves
from mirage.kernels.target import get_target
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.whole import whole_program
from mirage.results.work import Request
from mirage.search.cost import COMPARED, compared_sizes
from mirage.search.decide import learn
from mirage.search.options import SearchOptions
from mirage.search.prices import Prices
from mirage.verify.equivalence import Verifier

T = mi.tensor
SPECS: dict[str, Any] = {"a": T("m", 64), "b": T(64, "n"), "c": T("n", 64)}


def chain(a: Any, b: Any, c: Any) -> Any:
    return a @ b @ c


def found(fn: Callable[..., Any], sizes: dict[str, int], constants: tuple[str, ...] = (), **specs: Any) -> list[MuGraph]:
    """The proved graphs of a search as `superoptimize` begins it, the cheapest at these sizes first."""
    options = SearchOptions(constants=constants, rules=False)
    request = Request(Verifier(mi.trace(fn, **specs)), [sizes], get_target("cpu"), options, constants)
    return [c.graph for c in sorted(request.work().candidates.all(60), key=lambda c: c.cost)]


def left_first(graph: MuGraph) -> bool:
    """Whether a @ b is computed, not b @ c."""
    return any(n.op == "matmul" and set(n.axes) == {"m", "n"} for n in whole_program(graph).nodes)


@pytest.mark.parametrize("size", [8, 1024])
def test_one_search_holds_both_orders_of_a_chain_whatever_sizes_it_is_made_for(size: int) -> None:
    sizes = {"m": size, "n": size}
    graphs = found(chain, sizes, **SPECS)
    assert {left_first(g) for g in graphs} == {True, False}
    # and the order that takes fewer operations comes first
    left, right = (
        Prices.of(axes, {a: evaluate(d, sizes) for a, d in axes.axes.items()}, SearchOptions()).apart(axes)
        for axes in (to_axes(mi.trace(fn, **SPECS)) for fn in (chain, lambda a, b, c: a @ (b @ c)))
    )
    assert left_first(graphs[0]) == (left < right)


def test_both_orders_of_a_chain_run_each_where_it_takes_fewer_operations() -> None:
    """As `learn` has it that makes the tree of a decision, with what the orders cost as modelled in the place of times."""
    graphs = found(chain, {"m": 64, "n": 1024}, **SPECS)
    orders = [whole_program(next(g for g in graphs if left_first(g) == first)) for first in (True, False)]
    points = [{"m": m, "n": n} for m in (1, 16, 256, 4096) for n in (16, 256, 4096)]
    costs = []
    for p in points:
        sizes = {a: evaluate(d, p) for a, d in orders[0].axes.items()}
        costs.append([Prices.of(o, sizes, SearchOptions()).apart(o) for o in orders])
    tree = learn(["m", "n"], points, costs)
    assert {version for _, version in leaves(tree)} == {0, 1}
    for p, (left, right) in zip(points, costs, strict=True):
        # m n 64 twice, or n 64 64 and m 64 64
        assert decide(tree, p) == (right < left) == (2 * p["m"] * p["n"] > 64 * (p["m"] + p["n"]))


@pytest.mark.parametrize(
    ("fn", "specs", "is_chain"),
    [
        (chain, SPECS, True),
        (lambda x, a, b: (x @ a / 8 + x) @ b, {"x": T("m", 8), "a": T(8, 8), "b": T(8, "n")}, True),
        (lambda x, a, b: mi.relu(x @ a) @ b, {"x": T("m", 8), "a": T(8, 8), "b": T(8, "n")}, False),
        (lambda x, a, b: x @ a + x @ b, {"x": T("m", 8), "a": T(8, "n"), "b": T(8, "n")}, False),
    ],
    ids=["chain", "scaled and added", "relu between", "side by side"],
)
def test_more_sizes_are_compared_where_products_have_orders(fn: Callable[..., Any], specs: Any, is_chain: bool) -> None:
    compared = compared_sizes(to_axes(mi.trace(fn, **specs)))
    assert set(COMPARED) <= set(compared) and (len(compared) > len(COMPARED)) == is_chain


def test_the_gain_of_a_norm_goes_into_the_weights_where_both_are_constant() -> None:
    specs: dict[str, Any] = {"x": T("n", 64), "g": T(64), "w": T(64, 32)}

    def norm(x: Any, g: Any, w: Any) -> Any:
        return mi.rms_norm(x, g) @ w

    def of_constants(graph: MuGraph) -> bool:
        """Whether a kernel reads the gain and the weights alone."""
        kernels = [n for n in graph.kernels if all(graph.kernel.nodes[r.node].op == "input" for r in n.operands)]
        names = [[graph.inputs[graph.kernel.nodes[r.node].attr["index"]].name for r in n.operands] for n in kernels]
        return ["g", "w"] in [sorted(n) for n in names]

    assert of_constants(found(norm, {"n": 256}, ("g", "w"), **specs)[0])
    assert not any(of_constants(g) for g in found(norm, {"n": 256}, **specs))


def test_a_pair_of_narrow_constants_is_not_multiplied_out() -> None:
    """Their product is made once, but read by every call."""
    specs: dict[str, Any] = {"x": T(4, 64), "a": T(64, 4), "c": T(4, 96)}
    for fn in (lambda x, a, c: x @ (a @ c), lambda x, a, c: (x @ a) @ c):
        cheapest = whole_program(found(fn, {}, ("a", "c"), **specs)[0])
        program = to_axes(mi.trace(fn, **specs))
        wide = {program.inputs[1].axes[0], program.inputs[2].axes[1]}
        assert not any(set(n.axes) == wide for n in cheapest.nodes)
