"""Functions over a leading dim: each row is what the function computes by itself, for every operator that has a rule."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.compiler import batched as rules
from mirage.compiler.batched import batched
from mirage.compiler.passes.rewrite import operator_call
from mirage.frontends.functions import trace_module
from mirage.ir.dims import symbol
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module, OpCall
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType
from tests.frontends.operator_calls import ARRAYS, CASES, SPECS

#: calls of a batch
MANY = 3
#: attributes that operators need beside the dims that they name, and operators of booleans
NEEDED: dict[str, dict[str, Any]] = {"repeat": {"times": 2}, "slice": {"starts": (1,), "stops": (3,)}}
BOOLEAN = {"any", "all"}


def rows(a: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """An array, and others with its elements in other places."""
    return [a, *(rng.permutation(a.reshape(-1)).reshape(a.shape) for _ in range(MANY - 1))]


def leaves(value: Any) -> list[Any]:
    return [leaf for v in value for leaf in leaves(v)] if isinstance(value, tuple) else [value]


def agree(module: Module, args: list[Any], shared: set[int]) -> bool:
    """Whether there is a batched form, which has to compute what the function does."""
    found = batched(module.functions[module.main], module.functions, shared)
    if found is None:
        return False
    many, same = found
    assert same == [k in shared for k in range(len(args))]
    whole = Module({many.name: many}, {}, many.name)
    check(whole)
    rng = np.random.default_rng(0)
    each = [[a] * MANY if k in shared else rows(a, rng) for k, a in enumerate(args)]
    given = [e[0] if s else np.stack(e) for e, s in zip(each, same, strict=True)]
    stacked = run_module(whole, given)
    for k in range(MANY):
        wanted = leaves(run_module(module, [e[k] for e in each]))
        for f, w in zip(stacked, wanted, strict=True):
            assert f[k].shape == w.shape and f.dtype == w.dtype
            np.testing.assert_allclose(f[k].astype(np.float64), w.astype(np.float64), rtol=1e-5, atol=1e-6)
    return True


def test_every_operator() -> None:
    """All operators that calls are written for; those without a rule are known."""
    without: set[str] = set()
    with_one: set[str] = set()
    for fn, _ in CASES:
        names = list(inspect.signature(fn).parameters)
        module = trace_module(fn, {n: SPECS[n] for n in names})
        args = [ARRAYS[n] for n in names]
        operators = {b.value.op for f in module for b in f.bindings if isinstance(b.value, OpCall)}
        ok = agree(module, args, set())
        for k in range(len(names)) if len(names) > 1 else ():
            agree(module, args, {k})
        (with_one if ok else without).update(operators)
    assert {"add", "cast", "where", "concat", "reshape", "broadcast_to", "pad", "less"} <= with_one
    assert {"nonzero", "unique", "boolean_mask"}.isdisjoint(with_one)


@pytest.mark.parametrize("name", rules._ONE_FURTHER)
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_operators_with_axes(name: str, axis: int) -> None:
    attribute = rules._ONE_FURTHER[name]
    b = FunctionBuilder("f", {})
    dtype = "bool" if name in BOOLEAN else "float32"
    x = b.parameter("x", TensorType((symbol("n"), symbol("m")), dtype))
    named = {attribute: axis if attribute == "axis" else (axis,)}
    defaults = {a.name for a in get_operator(name).attributes}
    extra = {k: v for k, v in NEEDED.get(name, {}).items() if k in defaults}
    out = b.emit(operator_call(name, x, **named, **extra))
    assert agree(Module({"f": b.finish(out)}, {}, "f"), [ARRAYS["b" if name in BOOLEAN else "x"]], set())


@pytest.mark.parametrize("shared", [set(), {0}, {1}])
@pytest.mark.parametrize(
    "shapes",
    [((2, 3), (3, 4)), ((1, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)), ((5, 2, 3), (5, 3, 4))],
)
def test_products(shapes: tuple[tuple[int, ...], tuple[int, ...]], shared: set[int]) -> None:
    x, y = shapes
    specs = {"x": mi.tensor(*x), "y": mi.tensor(*y)}
    rng = np.random.default_rng(1)
    module = trace_module(lambda x, y: x @ y, specs)
    assert agree(module, [rng.standard_normal(s).astype(np.float32) for s in shapes], shared)


def test_rows_times_shared_weights_are_one_product_of_two_matrices() -> None:
    module = trace_module(lambda x, w: mi.tanh(x @ w), {"x": mi.tensor(1, "d"), "w": mi.tensor("d", "k")})
    found = batched(module.functions[module.main], module.functions, {1})
    assert found is not None
    (product,) = (b for b in found[0].bindings if isinstance(b.value, OpCall) and b.value.op == "matmul")
    assert [str(a.annotation) for a in product.value.args] == ["float32[cells, d]", "float32[d, k]"]  # type: ignore[union-attr]


def test_rows_of_a_table() -> None:
    module = trace_module(
        lambda table, k: mi.take(table, k, axis=0), {"table": mi.tensor(5, 4), "k": mi.tensor(2, dtype="int64")}
    )
    table, k = np.arange(20, dtype=np.float32).reshape(5, 4), np.array([1, 3])
    assert agree(module, [table, k], {0})
    assert not agree(module, [table, k], set())


def test_tuples_shapes_functions_and_what_all_calls_share() -> None:
    @mi.function(x=mi.tensor("k"))
    def scaled(x: Any) -> Any:
        return x * x.shape[0]

    def program(pair: Any, w: Any) -> Any:
        a, b = pair
        return (scaled(a) + b, (w * 2, mi.zeros(a.shape))), b

    module = trace_module(program, {"pair": (mi.tensor("k"), mi.tensor("k")), "w": mi.tensor("m")})
    found = batched(module.functions[module.main], module.functions, {1})
    assert found is not None and found[1] == [False, False, True]
    a, b, w = np.arange(6.0, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32), np.ones(4, np.float32)
    results = run_module(Module({found[0].name: found[0]}, {}, found[0].name), [a, b, w])
    for k in range(2):
        for f, wanted in zip(results, leaves(run_module(module, [(a[k], b[k]), w])), strict=True):
            np.testing.assert_array_equal(f[k], wanted)


def test_dims_in_another_order() -> None:
    module = trace_module(lambda x: mi.transpose(x, (-1, 0, 1)), {"x": mi.tensor("a", "b", "c")})
    assert agree(module, [np.arange(24, dtype=np.float32).reshape(2, 3, 4)], set())


def test_a_dim_may_have_the_name_of_the_rows() -> None:
    module = trace_module(lambda x, cells: x + cells, {"x": mi.tensor("cells"), "cells": mi.tensor("cells")})
    assert agree(module, [np.ones(2, np.float32), np.arange(2, dtype=np.float32)], set())


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        (lambda x: mi.loop(3, lambda i, v: v + v, x), {"x": mi.tensor("n")}),
        (lambda x: mi.cond(x.sum() > 0, lambda: x, lambda: -x), {"x": mi.tensor("n")}),
        (lambda x: mi.unique(x), {"x": mi.tensor("n")}),
        (lambda x: mi.shape_of(x), {"x": mi.tensor("n")}),
    ],
)
def test_what_has_no_batched_form(fn: Any, specs: Any) -> None:
    module = trace_module(fn, specs)
    assert batched(module.functions[module.main], module.functions, set()) is None


def test_nothing_is_batched_where_all_is_shared() -> None:
    module = trace_module(lambda x: x + 1, {"x": mi.tensor("n")})
    assert batched(module.functions[module.main], module.functions, {0}) is None
