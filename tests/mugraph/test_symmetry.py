"""Which axes of a kernel's results may be exchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import mirage as mi
from mirage.mugraph.graph import MuGraph, Role
from mirage.mugraph.symmetry import exchangeable_axes
from tests.kernels.kernels import cut, operators, single_kernel

X: dict[str, Any] = {"x": mi.tensor("n", "k")}


def last_kernel(graph: MuGraph) -> int:
    return max(i for i, n in enumerate(graph.kernel.nodes) if n.graph is not None)


def found(f: Callable[..., Any], inputs: dict[str, Any], **roles: Role) -> list[str]:
    """The pairs of the program as one kernel."""
    graph = single_kernel(mi.trace(f, **inputs), **roles)
    return [" ".join(p) for p in exchangeable_axes(graph, last_kernel(graph))]


def norm(x: Any) -> Any:
    return mi.sqrt(mi.sum(x * x, axis=-1, keepdims=True))


SYMMETRIC: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "gram": (lambda x: x @ x.mT, X, "n n_2"),
    "columns": (lambda x: x.mT @ x, X, "k k_2"),
    "batch": (lambda x: x @ x.mT, {"x": mi.tensor("b", "n", "k")}, "n n_2"),
    "scaled": (lambda x: 0.5 * (x @ x.mT), X, "n n_2"),
    "both rows scaled": (lambda x, c: (c * x) @ (c * x).mT, X | {"c": mi.tensor("n", 1)}, "n n_2"),
    "columns scaled": (lambda x, c: (x * c) @ x.mT, X | {"c": mi.tensor("k")}, "n n_2"),
    "relu": (lambda x: mi.relu(x @ x.mT), X, "n n_2"),
    "rbf": (lambda x: mi.exp(x @ x.mT * 0.1), X, "n n_2"),
    "computed": (lambda x: mi.exp(x) @ mi.exp(x).mT, X, "n n_2"),
    "cosine": (lambda x: (x / norm(x)) @ (x / norm(x)).mT, X, "n n_2"),
    "distances": (lambda x: norm(x) - 2 * (x @ x.mT) + norm(x).mT, X, "n n_2"),
    "both biased": (lambda x, b: x @ x.mT + b + b.mT, X | {"b": mi.tensor("n", 1)}, "n n_2"),
}

ALIKE: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "two matrices": (lambda x, y: x @ y.mT, X | {"y": mi.tensor("n", "k")}),
    "a square": (lambda x: x @ x, {"x": mi.tensor("n", "n")}),
    "bias of rows": (lambda x, b: x @ x.mT + b, X | {"b": mi.tensor("n", 1)}),
    "bias of columns": (lambda x, b: x @ x.mT + b, X | {"b": mi.tensor("n")}),
    "rows scaled": (lambda x, c: (c * x) @ x.mT, X | {"c": mi.tensor("n", 1)}),
    "one side computed": (lambda x: mi.exp(x) @ x.mT, X),
    "softmax": (lambda x: mi.exp(x @ x.mT) / mi.sum(mi.exp(x @ x.mT), axis=-1, keepdims=True), X),
    # 0 / 0 in one row is not 0 / 0 in one column
    "undefined rows": (lambda x, c: (c / c * x) @ x.mT, X | {"c": mi.tensor("n", 1)}),
    "a root of rows": (lambda x, c: (x @ x.mT) * (mi.sqrt(c) - mi.sqrt(c)), X | {"c": mi.tensor("n", 1)}),
    "a sum, no product": (lambda x: mi.sum(x, axis=-1, keepdims=True) + mi.sum(x, axis=-1, keepdims=True).mT, X),
    "half is not the other half": (lambda x: mi.concat([x @ x.mT, x @ x.mT], axis=1), X),
}


@pytest.mark.parametrize("name", SYMMETRIC)
def test_axes_whose_exchange_changes_nothing_are_found(name: str) -> None:
    f, inputs, pair = SYMMETRIC[name]
    assert found(f, inputs) == [pair]


@pytest.mark.parametrize("name", ALIKE)
def test_what_only_looks_symmetric_is_not(name: str) -> None:
    assert found(*ALIKE[name]) == []


def test_loops_and_splits_keep_the_symmetry() -> None:
    for role in (Role.LOOP, Role.WHOLE):
        assert found(lambda x: x @ x.mT, X, k=role) == ["n n_2"]
    assert found(lambda x: x @ x.mT, X, n=Role.WHOLE) == []


def test_all_results_of_a_kernel_have_to_be_symmetric() -> None:
    assert len(found(lambda x: (x @ x.mT, mi.exp(x @ x.mT)), X)) == 1
    assert found(lambda x, b: (x @ x.mT, x @ x.mT + b), X | {"b": mi.tensor("n", 1)}) == []


def test_what_other_kernels_computed_counts() -> None:
    p = mi.trace(lambda x: mi.exp(x) @ mi.exp(x).mT, **X)
    *first, product = operators(p)
    graph = cut(p, *([i] for i in first), [product])
    kernels = [i for i, n in enumerate(graph.kernel.nodes) if n.graph is not None]
    assert [exchangeable_axes(graph, i) for i in kernels] == [(), (), (("n", "n_2"),)]


def test_it_is_the_argument_that_makes_inputs_equal() -> None:
    graph = single_kernel(mi.trace(lambda x: x @ x.mT, **X))
    other = replace(graph, inputs=tuple(replace(x, argument=x.name) for x in graph.inputs))
    assert exchangeable_axes(graph, last_kernel(graph)) and not exchangeable_axes(other, last_kernel(other))
