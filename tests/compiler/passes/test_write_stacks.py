"""What a loop keeps of each round is written in place where nobody sees it, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler.passes import write_stacks
from mirage.frontends.functions import trace_module
from mirage.ir.graph.nodes import Module, PackedCall
from tests.compiler.passes.running import after, evaluate

X = mi.tensor("n", 4)


def effects(module: Module) -> int:
    return sum(isinstance(b.value, PackedCall) for f in module for b in f.bindings)


def kept(x: Any) -> Any:
    def body(i: Any, a: Any, rows: Any) -> Any:
        return mi.sin(a) + 1, mi.scatter(rows, i, a)

    return mi.loop(5, body, x, mi.zeros((5, *x.shape)))


def alone(x: Any) -> Any:
    return mi.loop(3, lambda i, rows: mi.scatter(rows, i, x), mi.zeros((3, *x.shape)))


def two_alike(x: Any) -> Any:
    zeros = mi.zeros((5, *x.shape))

    def body(i: Any, a: Any, rows: Any, others: Any) -> Any:
        return mi.sin(a) + 1, mi.scatter(rows, i, a), mi.scatter(others, i, a * a)

    return mi.loop(5, body, x, zeros, zeros), zeros


def read_inside(x: Any) -> Any:
    def body(i: Any, a: Any, rows: Any) -> Any:
        return a + rows[0], mi.scatter(rows, i, a)

    return mi.loop(5, body, x, mi.ones((5, *x.shape)))


def read_after(x: Any) -> Any:
    first = mi.broadcast_to(x, (5, *x.shape))
    return mi.loop(5, lambda i, rows: mi.scatter(rows, i, x), first), first


def given(x: Any) -> Any:
    return mi.loop(2, lambda i, a: mi.scatter(a, i, mi.zeros((4,))), x)


def added(x: Any) -> Any:
    return mi.loop(2, lambda i, rows: mi.scatter(rows, i, x, add=True), mi.zeros((2, *x.shape)))


def used_twice(x: Any) -> Any:
    def body(i: Any, total: Any, rows: Any) -> Any:
        after = mi.scatter(rows, i, x)
        return total + after.sum(), after

    return mi.loop(2, body, mi.zeros(()), mi.zeros((2, *x.shape)))


@pytest.mark.parametrize(("fn", "count"), [(kept, 1), (alone, 1), (two_alike, 2)])
def test_written_in_place(fn: Callable[..., Any], count: int) -> None:
    module = trace_module(fn, {"x": X})
    found = after(module, write_stacks.run)
    assert effects(found) == count
    same(module, found)


@pytest.mark.parametrize("fn", [read_inside, read_after, given, added, used_twice])
def test_copied(fn: Callable[..., Any]) -> None:
    module = trace_module(fn, {"x": X})
    found = after(module, write_stacks.run)
    assert effects(found) == 0
    same(module, found)


def same(module: Module, found: Module) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    before = x.copy()
    for a, b in zip(leaves(evaluate(found, x)), leaves(evaluate(module, x)), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(x, before)


def leaves(value: Any) -> list[Any]:
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, tuple) else [value]


def test_compiled_again_and_again() -> None:
    run = mi.compile(two_alike, {"x": X}, without=("superoptimize",), cache=False)
    module = trace_module(two_alike, {"x": X})
    for n in (3, 1, 3):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        for a, b in zip(leaves(run(x)), leaves(evaluate(module, x)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    assert "scatter_" in str(run.program)
