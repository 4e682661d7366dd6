"""Gradients of functions that call themselves, over lists and trees, and of functions as values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import GradientError
from mirage.frontends.tensors import GraphTensor
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.parse import parse_module
from mirage.ir.graph.text import print_module
from tests.frontends.graph.functional_programs import (
    MODELS,
    Expr,
    Number,
    Product,
    Sum,
    arguments,
    in_float64,
    mapped,
    random_tree,
    tree_lstm,
    value,
)
from tests.random_functional import SPECS, random_arguments, random_loss

#: without C, which takes longer to compile than to run
PLAIN = ("fuse", "libraries")
VECTOR, INDEX = mi.tensor("n"), mi.tensor(dtype="int64")


def squares(x: Any) -> Any:
    """The sum of the squares of all tensors of a result: of a tensor, a tuple or a list."""
    if isinstance(x, tuple):
        return sum((squares(v) for v in x[1:]), squares(x[0]))
    if isinstance(x, GraphTensor):
        return (x * x).sum()
    return mi.fold(lambda s, v: s + squares(v), mi.full((), 0), x)


def loss_of(fn: Any) -> Callable[..., Any]:
    """The squares of what a function returns, as a function of its parameters."""
    return wraps(getattr(fn, "fn", fn))(lambda *args, **named: squares(fn(*args, **named)))


def dot(x: Any, y: Any) -> float:
    """The inner product of two values of one form."""
    found: list[float] = []
    mapped(lambda a, b: found.append(float((a * b).sum())), x, y)
    return sum(found)


def check_derivative(fn: Callable[..., Any], specs: Mapping[str, Any], args: Sequence[Any], rtol: float = 1e-6) -> None:
    """The gradients by all parameters are those of differences, in random directions and in float64."""
    plain, made = mi.trace_module(fn, specs), mi.trace_module(mi.value_and_grad(fn), specs)
    check(made)
    wide = in_float64(list(args))
    result, found = run_module(made, wide, wide=True)
    np.testing.assert_allclose(result, run_module(plain, wide, wide=True), rtol=1e-12)
    by = [k for k, p in enumerate(inspect.signature(fn).parameters) if specs[p] != INDEX]
    found = list(found) if len(by) > 1 else [found]
    rng = np.random.default_rng(1)
    for _ in range(3):
        way = mapped(lambda a: rng.standard_normal(a.shape), [wide[k] for k in by])
        sides = []
        for step in (1e-5, -1e-5):
            moved = mapped(lambda x, y, s=step: x + s * y, [wide[k] for k in by], way)
            given = [moved[by.index(k)] if k in by else x for k, x in enumerate(wide)]
            sides.append(float(run_module(plain, given, wide=True)))
        np.testing.assert_allclose(dot(found, way), (sides[0] - sides[1]) / 2e-5, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    fn, specs, _ = MODELS[name]
    for seed in range(2):
        args = arguments(np.random.default_rng(seed), name, steps=2 * seed + 1)
        check_derivative(loss_of(fn), specs or fn.specs, args, 1e-5)


def test_tree_lstm_as_pytorch_has_it() -> None:
    torch = pytest.importorskip("torch")

    def node(t: Any, w: Any, u: Any) -> tuple[Any, Any]:
        h, c = torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.float64)
        for child in getattr(t, "children", ()):
            hk, ck = node(child, w, u)
            h, c = h + hk, c + torch.sigmoid(t.value @ w[3] + hk @ u[3]) * ck
        i, o = torch.sigmoid(t.value @ w[0] + h @ u[0]), torch.sigmoid(t.value @ w[1] + h @ u[1])
        c = i * torch.tanh(t.value @ w[2] + h @ u[2]) + c
        return o * torch.tanh(c), c

    made = mi.trace_module(mi.grad(loss_of(tree_lstm)), tree_lstm.specs)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        args = in_float64([random_tree(rng, 3 * seed + 1, 3), *arguments(rng, "tree_lstm")[1:]])
        t, w, u, _ = mapped(lambda a: torch.tensor(a, requires_grad=True), args)
        h, c = node(t, w, u)
        ((h * h).sum() + (c * c).sum()).backward()
        found = run_module(made, args, wide=True)
        wanted = mapped(lambda a: 0 * a.detach().numpy() if a.grad is None else a.grad.numpy(), [t, w, u])
        mapped(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), list(found[:3]), wanted)


def maps(xs: Any, w: Any) -> Any:
    return squares(mi.map(lambda x: mi.tanh(x * w), mi.scan(lambda s, x: s * w + x, w, xs)))


def options(xs: Any, w: Any) -> Any:
    first = mi.match(xs, {mi.Nil: mi.Nothing, mi.Cons: lambda x, rest: mi.Some((x, w * w))})
    return squares(mi.match(first, {mi.Some: lambda pair: pair[0] * pair[1], mi.Nothing: lambda: w}))


def shared(xs: Any, w: Any) -> Any:
    """One value in several places."""
    ys = [w, w * w, w]
    return squares(mi.fold(lambda s, y: s * y + w, w, ys)) + squares(mi.map(lambda x: x + w, xs))


def values_of_functions(xs: Any, w: Any) -> Any:
    @mi.function(f=mi.function_type([VECTOR], VECTOR), x=VECTOR)
    def twice(f: Any, x: Any) -> Any:
        return f(f(x))

    grown = mi.closure(lambda x: mi.sin(x) * w, VECTOR)
    other = mi.cond(w.sum() > 0, lambda: grown, lambda: mi.closure(lambda x: x + w, VECTOR))
    return squares(mi.map(lambda x: twice(other, twice(grown, x)), xs))


def conditions(xs: Any, w: Any) -> Any:
    @mi.function(x=VECTOR, w=VECTOR, k=INDEX)
    def power(x: Any, w: Any, k: Any) -> Any:
        return mi.cond(k <= 0, lambda: x, lambda: power(mi.tanh(x * w), w, k - 1))

    whole = mi.loop(3, lambda i, s: s * 0.5 + power(s, w, i), w)
    inside = mi.fold(lambda s, x: mi.loop(2, lambda i, y: mi.sin(y) * x, s), w, xs)
    return squares(whole) + squares(inside)


def without_floats(xs: Any, w: Any, k: Any) -> Any:
    """Data of integers beside: no gradient of them."""
    counts = mi.map(lambda x: mi.cast(x.sum() > 0, "int64") + k, xs)
    return squares(mi.fold(lambda s, c: s * mi.cast(c, "float32"), w, counts)) + squares(xs)


def stopped(xs: Any, w: Any) -> Any:
    return squares(mi.fold(lambda s, x: s + x * w, w, xs))


@pytest.mark.parametrize("fn", [maps, options, shared, values_of_functions, conditions, without_floats, stopped])
def test_programs(fn: Callable[..., Any]) -> None:
    specs = {"xs": mi.List(VECTOR), "w": VECTOR, "k": INDEX}
    names = inspect.signature(fn).parameters
    for many in (0, 1, 3):
        rng = np.random.default_rng(many)
        args = [[rng.random(2, np.float32) for _ in range(many)], rng.random(2, np.float32), np.int64(2)]
        check_derivative(fn, {n: specs[n] for n in names}, args[: len(names)], 1e-5)


def test_data_types_of_users() -> None:
    rng = np.random.default_rng(0)
    a, b, c = (Number(rng.random(2, np.float32)) for _ in range(3))
    check_derivative(loss_of(value), {"e": Expr}, [Sum(a, Product([b, Sum(c, a), b]))])
    found = mi.compile(mi.grad(loss_of(value)), {"e": Expr}, without=PLAIN)(Product([a, b]))
    assert isinstance(found, Product) and isinstance(found.factors[1], Number)
    np.testing.assert_allclose(found.factors[1].value, 2 * a.value**2 * b.value, rtol=1e-5)


def test_gradients_that_are_not_asked_for() -> None:
    """Constants, what gradients end before, and branches that are not taken."""

    def loss(xs: Any, w: Any) -> Any:
        ends = mi.fold(lambda s, x: s + mi.stop_gradient(x * w), w, xs)
        never = mi.fold(lambda s, x: mi.cond(x.sum() > 1e6, lambda: mi.log(x - x), lambda: s), w, xs)
        return ends.sum() + never.sum()

    xs, w = [np.ones(2), 2 * np.ones(2)], np.ones(2)
    specs = {"xs": mi.List(VECTOR), "w": VECTOR}
    assert (run_module(mi.trace_module(mi.grad(loss, "w"), specs), [xs, w], wide=True) == 2).all()
    assert (np.array(run_module(mi.trace_module(mi.grad(loss, "xs"), specs), [xs, w], wide=True)) == 0).all()


def test_products_with_cotangents() -> None:
    def program(xs: Any, w: Any, g: Any) -> Any:
        return mi.vjp(lambda w: (mi.fold(lambda s, x: s * x, w, xs), w + w))(w, cotangent=(g, 2 * g))

    specs = {"xs": mi.List(VECTOR), "w": VECTOR, "g": VECTOR}
    (y, z), found = run_module(mi.trace_module(program, specs), [[3 * np.ones(2)], np.ones(2), np.array([1.0, 5.0])], wide=True)
    assert y.tolist() == [3, 3] and z.tolist() == [2, 2] and found.tolist() == [7, 35]


def test_they_are_modules_as_any_others() -> None:
    module = mi.trace_module(mi.grad(loss_of(tree_lstm)), tree_lstm.specs)
    text = print_module(module)
    assert print_module(parse_module(text)) == text
    args = arguments(np.random.default_rng(0), "tree_lstm", steps=2)
    run = mi.compile(module, without=PLAIN)
    mapped(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), list(run(*args)), list(run_module(module, args)))


@pytest.mark.slow
def test_deep_data() -> None:
    """Neither the way there nor the way back needs a stack of Python's, or of the processor's."""

    def loss(xs: Any, w: Any) -> Any:
        @mi.function(xs=mi.List(VECTOR), w=VECTOR)
        def total(xs: Any, w: Any) -> Any:
            return mi.match(xs, {mi.Nil: lambda: w * 0, mi.Cons: lambda x, rest: x * w + total(rest, w)})

        return total(xs, w).sum()

    run = mi.compile(mi.grad(loss), {"xs": mi.List(VECTOR), "w": VECTOR})
    xs, w = run([np.ones(1, np.float32)] * 10_000, np.full(1, 3, np.float32))
    assert len(xs) == 10_000 and all(x == 3 for x in xs) and w == 10_000


def random_gradient(seed: int, depth: int) -> bool:
    """Whether a random program has a gradient; then it is that of differences, and compiled as interpreted.

    It has none where a dim that differs between branches is only known at run time.
    """
    args = random_arguments(seed)
    try:
        module = mi.trace_module(mi.grad(random_loss(seed, depth)), SPECS)
    except GradientError as e:
        assert "only known at run time; name its dims with mirage.match_cast" in str(e)
        return False
    check_derivative(random_loss(seed, depth), SPECS, args, 1e-4)
    wanted = run_module(module, args)
    found = mi.compile(module, without=PLAIN)(*args)
    mapped(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), list(found), list(wanted))
    return True


def test_random_programs() -> None:
    assert sum(random_gradient(seed, 2) for seed in range(5)) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_programs(part: int) -> None:
    assert sum(random_gradient(seed, 1 + seed % 3) for seed in range(50 * part, 50 * part + 50)) >= 30


def test_what_has_none() -> None:
    specs = {"xs": mi.List(VECTOR), "w": VECTOR}

    def effects(xs: Any, w: Any) -> Any:
        place = mi.ref(w)
        return squares(mi.map(lambda x: x * mi.read(place), xs))

    def around(xs: Any, w: Any) -> Any:
        f = mi.closure(lambda x: x * w, VECTOR)
        return mi.grad(lambda xs: squares(mi.map(lambda x: f(x), xs)))(xs)

    def twice(xs: Any, w: Any) -> Any:
        slope = mi.grad(lambda w: squares(mi.map(lambda x: x * w, xs)))
        return mi.grad(lambda w: slope(w).sum())(w)

    def whole(xs: Any, w: Any) -> Any:
        return mi.vjp(lambda w: mi.map(lambda x: x * w, xs))(w, cotangent=xs)

    for fn, message in [
        (mi.grad(effects, "w"), "effects"),
        (around, "from around what is differentiated"),
        (twice, "has effects, which cannot be gone back over"),
        (whole, "return floating-point tensors alone"),
    ]:
        with pytest.raises(GradientError, match=message):
            mi.trace_module(fn, specs)
