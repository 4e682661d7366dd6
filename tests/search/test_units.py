"""Units of a search: the program's own operators come first, and it does not matter who runs the others, or in what order."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.mugraph.validate import validate
from mirage.search.generate import SearchResult, generate
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier
from tests.programs import axes, search, sizes

T = mi.tensor
X = T("m", "n")


def key(r: SearchResult) -> list[tuple[float, str, str]]:
    return [(c, g.origin, str(g)) for c, g in zip(r.costs, r.graphs, strict=True)]


def layer_norms(x: Any) -> Any:
    for _ in range(3):
        x = mi.layer_norm(x)
    return x


def means(x: Any) -> Any:
    for k in range(5):
        x = x - mi.mean(x, axis=k % 2, keepdims=True)
    return x


LARGE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "three layer norms": (layer_norms, {"x": X}),
    "means": (means, {"x": X}),
    "outputs": (lambda x: (*(x + k for k in range(1, 10)), mi.sum(x, axis=0), mi.sum(x, axis=1)), {"x": X}),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_search_that_is_cut_short_has_the_fused_program(name: str) -> None:
    fn, types = LARGE[name]
    program = mi.trace(fn, "large", **types)
    r = generate(to_axes(program), {"m": 6, "n": 7}, SearchOptions(budget=1e-6))
    assert "budget spent" in r.stats.stop_reason
    own = [n.op for n in to_axes(program).nodes if n.op not in ("input", "constant", "size")]
    (fused,) = [g for g in r.graphs if g.origin == "no loop"]
    validate(fused)
    (kernel,) = fused.kernels
    assert kernel.graph is not None
    assert sorted(kernel.graph.nodes[i].op for i in kernel.graph.compute_nodes()) == sorted(own)
    assert Verifier(program).check(fused).equal


def test_the_own_operators_are_the_first_unit() -> None:
    told: list[tuple[int, int, int]] = []
    r = generate(axes("lora"), sizes("lora"), progress=lambda *t: told.append(t))
    assert r.stats.stop_reason == "complete"
    # a graph per plan that some kernel can compute all of
    assert told[0][0] == 1 and told[0][2] >= 1
    assert [t[0] for t in told] == list(range(1, told[0][1] + 1))


def test_kernels_are_as_many_as_there_are_tensors() -> None:
    r = generate(axes("lora"), sizes("lora"), SearchOptions(max_kernels=10**9))
    assert r.stats.stop_reason == "complete"
    assert r.stats.limits["kernels"] == 10**9
    assert {len(g.kernels) for g in r.graphs} >= {len(g.kernels) for g in search("lora").graphs}


def test_outputs_that_no_kernel_computes_have_no_graphs() -> None:
    for fn in (
        lambda x: x,
        lambda x: (x, x),
        lambda x: x / x,
        lambda x: x - x,
        lambda x: x * 0,
        lambda x: (x - x, x + 1),
    ):
        r = generate(to_axes(mi.trace(fn, x=X)), {"m": 3, "n": 5})
        assert (r.graphs, r.stats.stop_reason) == ([], "complete")


def test_a_program_of_too_large_expressions_says_so() -> None:
    def squares(x: Any) -> Any:
        for _ in range(6):
            x = x * x + x
        return x

    r = generate(to_axes(mi.trace(squares, x=X)), {"m": 3, "n": 5})
    assert r.graphs == []
    assert r.stats.stop_reason.startswith("not searched: a product of 32 by 32 monomials exceeds")
    assert r.stats.stop_reason.endswith("split the program")


@pytest.mark.parametrize("pool", [lambda: ProcessPoolExecutor(2), lambda: ThreadPoolExecutor(3)])
def test_one_executor_runs_several_searches(pool: Callable[[], Executor]) -> None:
    """What an earlier search accepted is no reason to leave it out of the next one."""
    with pool() as executor:
        for name in ("lora", "lora", "two outputs", "lora"):
            r = generate(axes(name), sizes(name), SearchOptions(), executor=executor)
            assert key(r) == key(search(name))
            assert r.stats.stop_reason == "complete"


def test_the_own_operators_may_need_several_kernels() -> None:
    """A loop over the rows finds what a mean of each row needs only in another kernel's result."""

    def fn(x: Any) -> Any:
        x = x - mi.mean(x, axis=1, keepdims=True)
        return x * mi.sum(x, axis=0, keepdims=True)

    program = mi.trace(fn, x=X)
    r = generate(to_axes(program), {"m": 3, "n": 5})
    assert r.stats.stop_reason.startswith("complete")
    assert {len(g.kernels) for g in r.graphs} >= {1, 2}
    verifier = Verifier(program)
    assert all(verifier.check(g).equal for g in r.graphs)
