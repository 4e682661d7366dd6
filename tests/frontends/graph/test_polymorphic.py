"""Traced functions that take any types: one function for each of the types that they are used at."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import GraphError, TraceError
from mirage.ir.annotations import TypeVariable, parts
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Module

PLAIN = ("fuse", "libraries")
A, B = mi.type_variable("a"), mi.type_variable("b")
VECTOR, INDEX = mi.tensor("n"), mi.tensor(dtype="int64")
ONES = np.ones(2, np.float32)


@mi.function(f=mi.function_type([A], B), xs=mi.List(A))
def every(f: Any, xs: Any) -> Any:
    return mi.match(xs, {mi.Nil: mi.Nil, mi.Cons: lambda x, rest: mi.Cons(f(x), every(f, rest))})


@mi.function()
def swapped(x: Any, y: Any) -> Any:
    return y, x


@mi.function(x=A, k=INDEX)
def wrapped(x: Any, k: Any) -> Any:
    return mi.cond(k < 0, lambda: k, lambda: wrapped(mi.Some(x), k - 1))


def traced(fn: Any, specs: Any) -> Module:
    module = mi.trace_module(fn, specs)
    check(module)
    annotations = [a for f in module for p in f.parameters for a in parts(p.annotation)]
    assert not any(isinstance(a, TypeVariable) for a in annotations)
    return module


def test_one_function_for_each_type() -> None:
    def program(xs: Any, w: Any) -> Any:
        ys = every(lambda x: x * w, every(lambda x: x + w, xs))
        return every(lambda y: (y.sum(), y), ys), every(lambda y: mi.cast(y.sum() > 0, "int64"), ys)

    module = traced(program, {"xs": mi.List(VECTOR), "w": VECTOR})
    found = [str(f.returns) for name, f in module.functions.items() if name.startswith("every")]
    assert found == ["List[float32[n]]", "List[Tuple[float32[()], float32[n]]]", "List[int64[()]]"]
    args = [[ONES, 2 * ONES], 3 * ONES]
    for pairs, signs in (run_module(module, args), mi.compile(module, without=PLAIN)(*args)):
        assert [float(s) for s, _ in pairs] == [24, 30] and [int(k) for k in signs] == [1, 1]


def test_types_without_annotations() -> None:
    specs = {"x": VECTOR, "y": mi.tensor("2*n", "m")}
    module = traced(lambda x, y: (swapped(x, y), swapped(x + 1, y), swapped(x, 1)), specs)
    assert [n for n in module.functions if n.startswith("swapped")] == ["swapped", "swapped_0"]
    assert str(module.functions["swapped"].returns) == "Tuple[float32[d0, m], float32[n]]"
    assert str(module.functions["program"].returns).startswith("Tuple[Tuple[float32[2*n, m], float32[n]]")


def test_dims_of_uses_are_their_own() -> None:
    module = traced(lambda x, y: (swapped(x, x), swapped(y, y)), {"x": VECTOR, "y": mi.tensor("m")})
    assert [n for n in module.functions if n.startswith("swapped")] == ["swapped"]
    (x, _), (y, _) = run_module(module, [ONES, np.zeros(5, np.float32)])
    assert x.shape == (2,) and y.shape == (5,)


def test_declared_functions_are_values() -> None:
    def program(xs: Any, w: Any) -> Any:
        f = mi.closure(lambda x: x * w, VECTOR)
        return every(f, xs)

    assert (run_module(traced(program, {"xs": mi.List(VECTOR), "w": VECTOR}), [[ONES], 2 * ONES])[0] == 2).all()


def test_their_gradients() -> None:
    def loss(xs: Any, w: Any) -> Any:
        return mi.fold(lambda s, x: s + x, mi.full((), 0), every(lambda x: (x * w).sum(), xs))

    module = traced(mi.grad(loss, "w"), {"xs": mi.List(VECTOR), "w": VECTOR})
    assert (run_module(module, [[ONES, 3 * ONES], ONES]) == 4).all()


def test_what_is_wrong() -> None:
    same = mi.function(x=A, y=A)(lambda x, y: (x, y))
    called = mi.function(f=mi.function_type([A], A))(lambda f: f)
    for fn, error, message in [
        (lambda x, k: wrapped(x, k), TraceError, r"a = float32\[n\], it is called for a = Option\[float32\[n\]\].*without end"),
        (lambda x, k: same(x, k), GraphError, "argument 'y': type a: .*differ in element type"),
        (lambda x, k: swapped(lambda v: v, x), TraceError, "nothing tells the types of the parameters of .*; use mirage.closure"),
        (lambda x, k: every(lambda v: v, mi.Nil()), GraphError, "argument 'f': nothing tells its type 'a'"),
        (lambda x, k: every(lambda v: v, x), GraphError, r"argument 'xs' is float32\[n\], not List\[a\]"),
        (lambda x, k: called(lambda v: v), GraphError, "nothing tells its type 'a'; pass a value of that type, too"),
    ]:
        with pytest.raises(error, match=message):
            mi.trace_module(fn, {"x": VECTOR, "k": INDEX})
