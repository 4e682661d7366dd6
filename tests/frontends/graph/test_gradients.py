"""Gradients of traced functions: what they are called with, what they return, what has none; control flow and calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import GradientError, MirageError
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.text import print_module

N = 3
X, W, V = mi.tensor("n", 4), mi.tensor(4, "k"), mi.tensor("n")
INDEX = mi.tensor(dtype="int64")


def arrays_of(fn: Callable[..., Any], specs: Mapping[str, Any], n: int = N, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    sizes = {"n": n, "k": 2, "m": 5}
    found = []
    for name in inspect.signature(fn).parameters:
        spec = specs[name]
        shape = spec.bind(sizes)
        found.append(np.full(shape, 2) if spec.dtype == "int64" else rng.standard_normal(shape))
    return found


def assert_gradients(fn: Callable[..., Any], specs: Mapping[str, Any], arrays: Sequence[Any], step: float = 1e-6) -> Any:
    """The gradients by all floating-point parameters are those of differences; returns the module."""
    plain = mi.trace_module(fn, specs)
    made = mi.trace_module(mi.value_and_grad(fn), specs)
    check(made)
    value, found = run_module(made, arrays, wide=True)
    np.testing.assert_allclose(value, run_module(plain, arrays, wide=True))
    by = [k for k, a in enumerate(arrays) if a.dtype.kind == "f"]
    for k, g in zip(by, found if len(by) > 1 else (found,), strict=True):
        expected = np.zeros(arrays[k].shape)
        for at in np.ndindex(*expected.shape):
            sides = []
            for sign in (1, -1):
                moved = [np.array(a) for a in arrays]
                moved[k][at] += sign * step
                sides.append(run_module(plain, moved, wide=True))
            expected[at] = (sides[0] - sides[1]) / (2 * step)
        np.testing.assert_allclose(g, expected, rtol=1e-5, atol=1e-6)
    return made


@mi.function(a=mi.tensor("p", "q"), b=mi.tensor("p"))
def scaled(a: Any, b: Any) -> Any:
    y = a * mi.expand_dims(mi.tanh(b), 1)
    return y, mi.sum(y, 1)


@mi.function(a=mi.tensor("p", "q"))
def normed(a: Any) -> Any:
    return mi.rms_norm(a)


def calls(x: Any, v: Any) -> Any:
    y, rows = scaled(x, v)
    z, _ = scaled(normed(y), rows)
    return mi.sum(z * x)


def branches(x: Any, v: Any) -> Any:
    y = mi.cond(x.sum() > 0, lambda a: (a * 2 + mi.expand_dims(v, 1)), lambda a: mi.sin(a) * mi.expand_dims(v, 1), x)
    return (y * y).mean()


def rounds(x: Any, v: Any, steps: Any) -> Any:
    def body(i: Any, a: Any, count: Any, sums: Any) -> Any:
        near = mi.tanh(a @ a.T @ a * 0.1) + mi.expand_dims(v, 1) * mi.cast(i, "float32")
        return near, count + i, sums + near.sum(1)

    y, count, sums = mi.loop(steps, body, x, mi.full((), 0, "int64"), v, bound=5)
    return (y * y).sum() + (sums * mi.cast(count, "float32")).sum()


def fixed_rounds(x: Any, w: Any) -> Any:
    return mi.loop(3, lambda i, a: mi.sin(a + 0.1 * (a @ w) @ w.T), x).sum()


def loop_of_branches(x: Any) -> Any:
    def body(i: Any, a: Any) -> Any:
        return mi.cond(mi.equal(i % 2, 0), lambda b: b * b, lambda b: normed(b) + 1, a)

    return mi.loop("n", body, x).sum()


def masked(x: Any, v: Any) -> Any:
    rows = mi.match_cast(x[v > -0.5], mi.tensor("rows", 4))
    return (rows @ rows.T).sum() / (1 + rows.shape[0])


def used_often(x: Any, v: Any) -> Any:
    y = mi.exp(x * 0.1)
    pair = (y, mi.expand_dims(v, 1) * y)
    again, both = pair
    return (again * y + both / (y + 1)).mean() + mi.max(y) + (x.reshape(-1) * mi.arange("4*n", dtype="float32")).sum()


CASES: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (calls, {"x": X, "v": V}),
    (branches, {"x": X, "v": V}),
    (rounds, {"x": X, "v": V, "steps": INDEX}),
    (fixed_rounds, {"x": X, "w": W}),
    (loop_of_branches, {"x": X}),
    (masked, {"x": X, "v": V}),
    (used_often, {"x": X, "v": V}),
]


@pytest.mark.parametrize(("fn", "specs"), CASES, ids=[f.__name__ for f, _ in CASES])
@pytest.mark.parametrize("n", [3, 1])
def test_differences(fn: Callable[..., Any], specs: Mapping[str, Any], n: int) -> None:
    for seed in (0, 1):
        assert_gradients(fn, specs, arrays_of(fn, specs, n, seed))


@pytest.mark.parametrize(
    ("fn", "specs"),
    [
        pytest.param(f, specs, id=f.__name__, marks=[] if f is loop_of_branches else [pytest.mark.slow])
        for f, specs in CASES
    ],
)
def test_compiled(fn: Callable[..., Any], specs: Mapping[str, Any]) -> None:
    made = mi.value_and_grad(fn)
    module = mi.trace_module(made, specs)
    run = mi.compile(made, specs, without=("superoptimize",), cache=False)
    for n in (3, 1):
        arrays = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays_of(fn, specs, n)]
        assert_same(run(*arrays), run_module(module, arrays))


def assert_same(found: Any, expected: Any) -> None:
    if isinstance(expected, tuple):
        for f, e in zip(found, expected, strict=True):
            assert_same(f, e)
    else:
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


def test_of_no_elements() -> None:
    def fn(x: Any, w: Any) -> Any:
        return mi.softmax(x @ w).sum() + (mi.rms_norm(x) * x).sum()

    x, w = np.zeros((0, 4), np.float32), np.ones((4, 2), np.float32)
    made = mi.value_and_grad(fn)
    run = mi.compile(made, {"x": X, "w": W}, without=("superoptimize",), cache=False)
    value, (gx, gw) = run(x, w)
    assert value == 0 and gx.shape == (0, 4) and (gw == 0).all() and gw.shape == (4, 2)


def test_what_is_asked_for() -> None:
    def loss(x: Any, w: Any, v: Any) -> Any:
        return ((x @ w).sum(1) * v).sum()

    specs = {"x": X, "w": W, "v": V}
    arrays = arrays_of(loss, specs)

    def run(f: Callable[..., Any]) -> Any:
        return run_module(mi.trace_module(f, specs), arrays, wide=True)

    value, (gx, gw, gv) = run(mi.value_and_grad(loss))
    assert_same(run(mi.grad(loss)), (gx, gw, gv))
    assert_same(run(mi.grad(loss, wrt="w")), gw)
    assert_same(run(mi.value_and_grad(loss, wrt=("v", "x"))), (value, (gv, gx)))
    # in a traced function, of one with a constant of Python and one of the function around it
    w = arrays[1]

    def step(x: Any, w: Any, v: Any) -> Any:
        def inner(w: Any, power: int) -> Any:
            return loss(x, w, v) * power

        return w - 0.5 * mi.grad(inner)(w, power=2)

    assert_same(run(step), w - gw)


def test_a_vector_and_its_product_with_the_jacobian() -> None:
    def fn(x: Any, v: Any) -> Any:
        return mi.sin(x) * mi.expand_dims(v, 1), v * v

    def both(x: Any, v: Any, gy: Any, gz: Any) -> Any:
        return mi.vjp(fn, wrt="v")(x, v, cotangent=(gy, gz))

    specs = {"x": X, "v": V, "gy": X, "gz": V}
    x, v, gy, gz = arrays = arrays_of(both, specs)
    (y, z), g = run_module(mi.trace_module(both, specs), arrays, wide=True)
    assert_same((y, z), (np.sin(x) * v[:, None], v * v))
    assert_same(g, (gy * np.sin(x)).sum(1) + 2 * v * gz)
    made = mi.compile(
        mi.vjp(lambda v: v * v), {"v": V, "cotangent": V}, without=("superoptimize",), cache=False
    )
    assert_same(made(np.array([1, 2], np.float32), np.array([3, 4], np.float32)), (np.array([1, 4]), np.array([6, 16])))


def test_second_derivatives() -> None:
    def slope(x: Any) -> Any:
        return (mi.grad(lambda y: (mi.sin(y) * y).sum())(x) ** 2).sum()

    assert_gradients(slope, {"x": V}, arrays_of(slope, {"x": V}))

    def through_calls(x: Any, v: Any) -> Any:
        return mi.grad(calls, wrt="v")(x, v).sum() + mi.grad(fixed_rounds, wrt="x")(x, mi.ones((4, 2))).sum()

    specs = {"x": X, "v": V}
    assert_gradients(through_calls, specs, arrays_of(through_calls, specs))


def test_what_counts_as_constant() -> None:
    def constant(x: Any, v: Any) -> Any:
        found = mi.match_cast(mi.stop_gradient(mi.unique(x)), mi.tensor("found"))
        return (found.sum() * x * mi.expand_dims(mi.stop_gradient(v), 1)).sum()

    specs = {"x": X, "v": V}
    x, v = arrays = arrays_of(constant, specs)
    gx, gv = run_module(mi.trace_module(mi.grad(constant), specs), arrays, wide=True)
    assert_same((gx, gv), (np.broadcast_to(x.sum() * v[:, None], x.shape), np.zeros(N)))
    run = mi.compile(lambda x: mi.stop_gradient(x) * 2, {"x": X}, without=("superoptimize",), cache=False)
    assert "stop_gradient" not in run.explain()


def test_functions_with_types_of_their_own() -> None:
    @mi.function(x=X, w=W)
    def graph(x: Any, w: Any) -> Any:
        return (x @ w).sum()

    @mi.program(x=X, w=W)
    def program(x: Any, w: Any) -> Any:
        return (x @ w).sum()

    for f in (graph, program):
        module = mi.trace_module(mi.grad(f, wrt="w"))
        x, w = np.ones((N, 4)), np.ones((4, 2))
        assert_same(run_module(module, [x, w], wide=True), np.full((4, 2), 3.0))


def test_tuples_as_arguments() -> None:
    def fn(pair: Any) -> Any:
        a, b = pair
        return (a * a).sum() + b.sum()

    module = mi.trace_module(mi.grad(fn), {"pair": (V, V)})
    assert_same(run_module(module, [(np.array([1.0, 2]), np.array([3.0, 4]))], wide=True), ((np.array([2, 4]), np.ones(2))))


def test_gradients_are_modules_as_any_other() -> None:
    module = mi.trace_module(mi.value_and_grad(rounds), {"x": X, "v": V, "steps": INDEX})
    text = print_module(module)
    again = mi.compile(text, without=("superoptimize",), cache=False)
    assert again is not None and "loop[" in text and "stack" in text


WRONG: list[tuple[Callable[[], Any], dict[str, Any], str]] = [
    (lambda: mi.grad(lambda x: x), {"x": X}, r"returns float32\[n, 4\], not a floating-point scalar.*mirage.vjp"),
    (lambda: mi.grad(lambda x: (x, x.sum())), {"x": X}, "not a floating-point scalar"),
    (lambda: mi.grad(lambda x: mi.cast(x, "int64").sum()), {"x": X}, r"returns int64\[\(\)\], not a floating-point"),
    (lambda: mi.grad(lambda i: i.sum()), {"i": INDEX}, r"no argument is a floating-point tensor; they are i: int64"),
    (lambda: mi.grad(lambda x, i: x.sum(), wrt="i"), {"x": X, "i": INDEX}, r"'i' is int64\[\(\)\].*leave it out of wrt"),
    (lambda: mi.vjp(lambda i: i), {"i": INDEX, "cotangent": INDEX}, "no argument is a floating-point tensor"),
    (
        lambda: mi.grad(lambda x: mi.match_cast(mi.unique(x), mi.tensor("u")).sum()), {"x": X},
        "unique has no gradient.*mirage.stop_gradient",
    ),
    (lambda: mi.grad(lambda x: x[x.sum(1) > 0].sum()), {"x": X}, "only known at run time.*mirage.match_cast"),
    (
        lambda: mi.grad(lambda x: (mi.add_(x, x), x.sum())[1]), {"x": X},
        "has effects, which cannot be gone back over; compute a new value instead",
    ),
    (
        lambda: mi.grad(lambda x: mi.call_library("copy", x, out=X).sum()), {"x": X},
        "a LibraryCall has no gradient.*mirage.stop_gradient",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("make", "specs", "message"), WRONG, ids=[m[:30] for _, _, m in WRONG])
def test_misuse_in_a_trace(make: Callable[[], Any], specs: Mapping[str, Any], message: str) -> None:
    with pytest.raises(GradientError, match=message) as e:
        mi.trace_module(make(), specs)
    assert "test_gradients.py" in str(e.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mi.grad(3), "3 is not a function"),  # type: ignore[arg-type]
        (lambda: mi.grad(lambda x: x, wrt="y"), "wrt='y' is no parameter of program; they are x"),
        (lambda: mi.grad(lambda x: x, wrt=()), "name at least one parameter"),
        (lambda: mi.grad(lambda x: x, wrt=("x", "x")), "each once"),
        (lambda: mi.vjp(lambda cotangent: cotangent), "a parameter 'cotangent'; rename it"),
    ],
)
def test_misuse(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(GradientError, match=message):
        make()


def test_outside_of_a_trace() -> None:
    with pytest.raises(MirageError, match="no function is being traced"):
        mi.grad(lambda x: x)(np.ones(3))
    with pytest.raises(GradientError, match="missing a required argument: 'y'; pass what f takes"):

        def f(x: Any, y: Any) -> Any:
            return x + y

        mi.grad(f)(np.ones(3))


def test_an_error_of_a_compilation_names_the_users_line() -> None:
    with pytest.raises(GradientError, match=r"^test_gradients\.py:"):
        mi.compile(mi.grad(lambda x: x * 2), {"x": X})
