"""Data types, matches, recursion and functions as values in traced Python functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import ClauseError, DataError, GraphError, InputError, MirageError, TraceError
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from tests.frontends.graph.functional_programs import (
    MODELS,
    Expr,
    Number,
    Product,
    Sum,
    arguments,
    factorial,
    flat,
    in_float64,
    value,
)

ONES = np.ones(2, np.float32)


def ran(fn: Any, specs: Any, *args: Any) -> Any:
    module = mi.trace_module(fn, specs)
    check(module)
    return run_module(module, args)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    fn, specs, wanted = MODELS[name]
    module = mi.trace_module(fn, specs)
    check(module)
    for seed in range(3):
        args = arguments(np.random.default_rng(seed), name, steps=seed + 1)
        found = run_module(module, args, wide=True)
        for a, b in zip(flat(found), flat(wanted(*in_float64(args))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_recursion_over_a_union_of_dataclasses() -> None:
    e = Sum(Number(ONES), Product([Number(2 * ONES), Sum(Number(ONES), Number(3 * ONES)), Number(ONES)]))
    assert (ran(value, None, e) == 9).all()
    doubled = ran(lambda e: Sum(e, Product([e])), {"e": Expr}, Number(ONES))
    assert isinstance(doubled, Sum) and isinstance(doubled.right, Product) and (doubled.right.factors[0].value == 1).all()


def test_results_are_found() -> None:
    module = mi.trace_module(factorial)
    assert str(module.functions["factorial"].returns) == "int64[()]"
    assert ran(factorial, None, np.int64(12)) == 479001600

    @mi.function(x=mi.tensor("n"), k=mi.tensor(dtype="int64"))
    def grown(x: Any, k: Any) -> Any:
        return mi.cond(k <= 0, lambda: x, lambda: grown(mi.concat([x, x]), k - 1))

    module = mi.trace_module(lambda x, k: grown(x, k), {"x": mi.tensor("m"), "k": mi.tensor(dtype="int64")})
    assert str(module.functions["grown"].returns) == "float32[_]"
    assert run_module(module, [ONES, np.int64(3)]).shape == (16,)


def test_mutual_recursion() -> None:
    number = mi.tensor(dtype="int64")

    @mi.function(n=number)
    def even(n: Any) -> Any:
        return mi.cond(n <= 0, lambda: n >= 0, lambda: odd(n - 1))

    @mi.function(n=number)
    def odd(n: Any) -> Any:
        return mi.cond(n <= 0, lambda: n < 0, lambda: even(n - 1))

    for n in range(4):
        assert ran(lambda n: (even(n), odd(n)), {"n": number}, np.int64(n)) == (n % 2 == 0, n % 2 == 1)


def test_functions_as_values() -> None:
    vector = mi.tensor("n")
    function = mi.function_type([vector], vector)

    @mi.function(f=function, x=vector)
    def twice(f: Any, x: Any) -> Any:
        return f(f(x))

    @mi.function(f=function, g=function)
    def composed(f: Any, g: Any) -> Any:
        return mi.closure(lambda x: f(g(x)), vector)

    @mi.function(x=vector)
    def negated(x: Any) -> Any:
        return -x

    def program(x: Any, y: Any) -> Any:
        return twice(lambda v: v * y, x), composed(negated, lambda v: v + y)(x)

    a, b = ran(program, {"x": vector, "y": vector}, 2 * ONES, 3 * ONES)
    assert (a == 18).all() and (b == -5).all()


def test_lists() -> None:
    specs = {"xs": mi.List(mi.tensor("n")), "w": mi.tensor("n")}
    xs = [k * ONES for k in range(4)]

    def program(xs: Any, w: Any) -> Any:
        scaled = mi.map(lambda x: x * w, xs)
        return scaled, mi.scan(lambda s, x: s + x, w, scaled), mi.fold(lambda s, x: mi.maximum(s, x), w, [w, 2 * w])

    scaled, sums, most = ran(program, specs, xs, 2 * ONES)
    assert [int(x[0]) for x in scaled] == [0, 2, 4, 6] and [int(x[0]) for x in sums] == [2, 4, 8, 14] and most[0] == 4
    assert ran(program, specs, [], ONES)[:2] == ([], [])


def test_nested_patterns() -> None:
    lists = mi.List(mi.tensor("n"))

    def last(xs: Any, zero: Any) -> Any:
        two = mi.pattern(mi.Cons, mi.anything, mi.pattern(mi.Cons, mi.ignored, mi.anything))
        one = mi.pattern(mi.Cons, mi.anything, mi.Nil)
        return mi.match(xs, {two: lambda x, rest: x + 10, one: lambda x: x, mi.ignored: lambda: zero})

    for many, wanted in ((0, 0), (1, 1), (2, 11)):
        assert (ran(last, {"xs": lists, "zero": mi.tensor("n")}, [ONES] * many, 0 * ONES) == wanted).all()

    def either(a: Any, b: Any) -> Any:
        both = mi.pattern(tuple, mi.Some, mi.Some)
        return mi.match((a, b), {both: lambda x, y: mi.Some(x + y), mi.ignored: mi.Nothing})

    option = mi.Option(mi.tensor("n"))
    assert isinstance(ran(either, {"a": option, "b": option}, mi.Some(ONES), mi.Nothing()), mi.Nothing)
    assert (ran(either, {"a": option, "b": option}, mi.Some(ONES), mi.Some(ONES)).value == 2).all()


def test_references() -> None:
    def program(x: Any) -> Any:
        r = mi.ref(x)
        mi.write(r, mi.read(r) + x)
        return mi.read(r)

    assert (ran(program, {"x": mi.tensor("n")}, ONES) == 2).all()


def test_data_types_with_parameters() -> None:
    @dataclass(frozen=True)
    class Pair:
        left: Annotated[Any, "a"]
        right: Annotated[Any, "a"]

    pair = mi.data("Pair", Pair, parameters=("a",))
    found = ran(lambda p: mi.match(p, {Pair: lambda x, y: Pair(y, x)}), {"p": pair(mi.tensor("n"))}, Pair(ONES, 2 * ONES))
    assert isinstance(found, Pair) and (found.left == 2).all()


@mi.function(x=mi.tensor("n"))
def endless(x: Any) -> Any:
    return endless(x) + 1


@mi.function(x=mi.tensor("n"), returns=mi.tensor("n", dtype="float64"))
def misdeclared(x: Any) -> Any:
    return mi.cond(x.sum() > 0, lambda: x, lambda: x + 1)


@mi.function(x=mi.tensor("n"), returns=mi.tensor("n", dtype="int64"))
def misused(x: Any) -> Any:
    return mi.cond(x.sum() > 0, lambda: x, lambda: misused(x))


LIST, VECTOR = mi.List(mi.tensor("n")), mi.tensor("n")
WRONG: list[tuple[Callable[..., Any], dict[str, Any], type[MirageError], str]] = [
    (lambda x: endless(x), {"x": VECTOR}, TraceError, "call of endless: it never returns"),
    (lambda x: misdeclared(x), {"x": VECTOR}, TraceError, "misdeclared: its result is declared as float64.*but is float32"),
    (lambda x: misused(x), {"x": VECTOR}, GraphError, "misused.*float32.n. and int64.n. differ in element type"),
    (lambda xs: mi.match(xs, {mi.Nil: lambda: 0}), {"xs": LIST}, ClauseError, r"no clause for Cons\(_, _\)"),
    (lambda xs: mi.match(xs, {mi.ignored: lambda: 0, mi.Nil: lambda: 1}), {"xs": LIST}, ClauseError, "Nil.. is never reached"),
    (lambda x: mi.match(x, {mi.Nil: lambda: 0}), {"x": VECTOR}, GraphError, "is for List, and the value is float32"),
    (lambda xs: mi.match(xs, {int: lambda: 0}), {"xs": LIST}, TraceError, "int.* is no pattern"),
    (lambda xs: mi.match(xs, {}), {"xs": LIST}, TraceError, "there is no clause"),
    (lambda x: mi.fold(lambda s, v: s, x, x), {"x": VECTOR}, TraceError, r"fold: float32\[n\] is no list"),
    (lambda xs: mi.map(lambda v: v + 1, mi.Cons(1, xs)), {"xs": LIST}, GraphError, "Cons of List: field 'tail'"),
    (lambda x: (lambda v: v, x), {"x": VECTOR}, TraceError, "nothing tells the types of the parameters"),
    (lambda x: mi.closure(lambda v: v, VECTOR)(x, x), {"x": VECTOR}, GraphError, "2 arguments for Callable"),
    (lambda x: mi.read(x), {"x": VECTOR}, GraphError, "'read' of float32"),
    (lambda xs: xs, {"xs": mi.List}, TraceError, "is no type by itself; call it with types for a"),
]


@pytest.mark.parametrize("k", range(len(WRONG)))
def test_mistakes(k: int) -> None:
    fn, specs, error, message = WRONG[k]
    with pytest.raises(error, match=message):
        mi.trace_module(fn, specs)


def test_mistakes_of_declarations() -> None:
    @dataclass(frozen=True)
    class Open:
        value: Any

    @dataclass(frozen=True)
    class Unknown:
        value: nowhere  # type: ignore[name-defined]  # noqa: F821

    for classes, message in [
        ((int,), "int.* is no dataclass"),
        ((Open,), "field 'value' of Open=.*is no type"),
        ((Unknown,), "a field of Unknown: name 'nowhere' is not defined"),
        ((), "Wrong: it has no constructor"),
    ]:
        with pytest.raises(DataError, match=message):
            mi.data("Wrong", *classes)
    with pytest.raises(DataError, match="List: 2 types for its parameters"):
        mi.List(VECTOR, VECTOR)


def test_data_that_shares_parts_or_is_a_part_of_itself() -> None:
    """Shared parts of arguments are made once: 2^60 leaves are 61 objects."""
    one = np.ones(2, np.float32)

    @mi.function(t=mi.Tree(mi.tensor(2)))
    def left(t: Any) -> Any:
        return mi.match(t, {mi.Leaf: lambda v: v, mi.Rose: lambda v, children: first(v, children)})

    def first(value: Any, children: Any) -> Any:
        return mi.match(children, {mi.Nil: lambda: value, mi.Cons: lambda head, _: left(head)})

    shared: Any = mi.Leaf(one)
    for _ in range(60):
        shared = mi.Rose(one, [shared, shared])
    for run in (mi.compile(left), lambda t: run_module(mi.trace_module(left), (t,))):
        np.testing.assert_array_equal(run(shared), one)
    circle: list[Any] = []
    knot = mi.Rose(one, circle)
    circle.append(knot)
    with pytest.raises(InputError, match=r"input 't'.*is a part of itself; pass data without cycles"):
        mi.compile(left)(knot)
