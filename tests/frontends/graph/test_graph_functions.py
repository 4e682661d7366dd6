"""Functions of their own, branches and loops: captured values, shape arguments, recursion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import GraphError, TraceError
from mirage.ir.graph.check import check_module
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import FunctionCall, If, Loop, Module
from mirage.ir.graph.parse import parse_module
from mirage.ir.operators.in_place import EFFECTS

RNG = np.random.default_rng(0)


def traced(fn: Callable[..., Any], **specs: Any) -> Module:
    """The module, which is well-formed and reads back from its text."""
    module = mi.trace_module(fn, specs)
    check_module(module)
    assert str(parse_module(str(module))) == str(module)
    return module


def calls(module: Module, kind: type) -> list[Any]:
    """The expressions of one kind in the main function."""
    return [b.value for b in module.functions[module.main].bindings if isinstance(b.value, kind)]


@mi.function(x=mi.tensor("n", "m"), y=mi.tensor("m"))
def scaled(x: Any, y: Any, factor: float = 2.0) -> Any:
    return x * y * factor, mi.shape("n", "m")


@mi.function(x=mi.tensor("2*n", "d"))
def halves(x: Any) -> Any:
    return x[:"n"], x["n":]


@mi.function(x=mi.tensor("n*m"), dims=("m",))
def rows(x: Any, m: Any) -> Any:
    return x.reshape(-1, m)


@mi.function(x=mi.tensor("n", 4), w=mi.tensor(4, "k"))
def double(x: Any, w: Any) -> Any:
    return x @ w * 2


def test_a_function_is_traced_once_and_has_symbols_of_its_own() -> None:
    def f(x: Any, y: Any) -> Any:
        a, (n, m) = scaled(x, y)
        assert (n, m) == x.shape
        b, _ = scaled(y=a[0], x=a.T[:, :1].T)
        return b

    module = traced(f, x=mi.tensor("b", "3*c"), y=mi.tensor("3*c"))
    assert list(module.functions) == ["f", "scaled"]
    assert [c.function for c in calls(module, FunctionCall)] == ["scaled", "scaled"]
    assert str(module.functions["scaled"].returns) == "Tuple[float32[n, m], Shape[n, m]]"
    assert str(module.functions["f"].returns) == "float32[1, 3*c]"
    x, y = RNG.random((2, 6), np.float32), RNG.random(6, np.float32)
    a = 2 * x * y
    np.testing.assert_allclose(run_module(module, [x, y]), 2 * a[:1] * a[0], rtol=1e-6)


def test_plain_functions_are_recorded_in_place() -> None:
    def inner(x: Any) -> Any:
        return mi.exp(x)

    module = traced(lambda x: inner(inner(x)), x=mi.tensor("n"))
    assert list(module.functions) == ["program"]
    program = mi.trace(lambda x, w: double(x, w), x=mi.tensor("b", 4), w=mi.tensor(4, "k"))
    assert [n.op for n in program if n.op != "input"] == ["matmul", "constant", "mul"]


def test_shape_arguments() -> None:
    def f(x: Any) -> Any:
        first, second = halves(x)
        return first + second, rows(x.reshape(-1), m=x.shape[1]), rows(first.reshape(-1), m="d")

    module = traced(f, x=mi.tensor("6*b", "d"))
    assert module.functions["halves"].dims == ("n",)
    assert module.functions["rows"].dims == ("m", "n")
    assert [tuple(map(str, c.dims)) for c in calls(module, FunctionCall)] == [("3*b",), ("d", "6*b"), ("d", "3*b")]
    assert str(module.functions["f"].returns) == "Tuple[float32[3*b, d], float32[6*b, d], float32[3*b, d]]"
    x = RNG.random((6, 2), np.float32)
    total, whole, half = run_module(module, [x])
    np.testing.assert_array_equal(total, x[:3] + x[3:])
    np.testing.assert_array_equal(whole, x)
    np.testing.assert_array_equal(half, x[:3])


def test_decorated_functions_are_main_functions_and_plain_ones_too() -> None:
    module = mi.trace_module(halves)
    assert (module.main, module.functions["halves"].dims) == ("halves", ())
    x = np.ones((4, 1), np.float32)
    assert [a.shape for a in run_module(module, [x])] == [(2, 1), (2, 1)]
    np.testing.assert_array_equal(double(np.ones((1, 4)), np.ones((4, 1))), [[8]])
    with pytest.raises(TraceError, match=r"rows: its dims m come from a caller"):
        mi.trace_module(rows)


def test_branches_capture_what_they_use() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        scale = 1 / mi.sqrt(x.shape[0])
        table = np.arange(3, dtype=np.float32)

        def small(a: Any) -> Any:
            return mi.cond(z.any(), lambda: a * scale + table, lambda: a - y)

        return mi.cond((x > 0).all(), small, lambda a: a + z.astype("float32"), x + 1)

    module = traced(f, x=mi.tensor("2*b", 3), y=mi.tensor(3), z=mi.tensor("2*b", 3, dtype="bool"))
    (choice,) = calls(module, If)
    functions = [module.functions[name] for name in (choice.then, choice.orelse)]
    assert [p.annotation for p in functions[0].parameters] == [p.annotation for p in functions[1].parameters]
    # the condition, the operand and the captured z and y; the scale is computed again
    assert len(choice.args) == 4
    assert tuple(map(str, choice.dims)) == functions[0].dims == functions[1].dims == ("b",)
    y = RNG.standard_normal(3).astype(np.float32)
    x = RNG.random((4, 3), np.float32)
    z = np.zeros((4, 3), np.bool_)
    one = z.copy()
    one[0, 0] = True
    np.testing.assert_allclose(run_module(module, [x, y, one]), (x + 1) / 2 + np.arange(3), rtol=1e-6)
    np.testing.assert_allclose(run_module(module, [x, y, z]), x + 1 - y, rtol=1e-6)
    np.testing.assert_allclose(run_module(module, [-x, y, one]), 1 - x + one, rtol=1e-6)


def test_branches_of_different_shapes() -> None:
    def f(x: Any) -> Any:
        return mi.cond(x.sum() > 0, lambda: (x[1:], x), lambda: (x, x))

    module = traced(f, x=mi.tensor("n", 2))
    assert str(module.functions["f"].returns) == "Tuple[float32[_, 2], float32[n, 2]]"
    x = np.ones((3, 2), np.float32)
    assert [a.shape for a in run_module(module, [x])] == [(2, 2), (3, 2)]
    assert [a.shape for a in run_module(module, [-x])] == [(3, 2), (3, 2)]


def test_operands_of_all_kinds() -> None:
    def f(x: Any) -> Any:
        def then(pair: Any, s: Any, number: Any) -> Any:
            (a, b), (n,) = pair, s
            return a * b + n * number

        return mi.cond(x[0] > 0, then, lambda pair, s, number: pair[1], (x, x + 1), mi.shape_of(x), 0.5)

    x = np.array([1, 2], np.float32)
    module = traced(f, x=mi.tensor("n"))
    np.testing.assert_array_equal(run_module(module, [x]), x * (x + 1) + 1)
    np.testing.assert_array_equal(run_module(module, [-x]), 1 - x)


def test_loops() -> None:
    def f(x: Any, w: Any, k: Any) -> Any:
        def power(i: Any, y: Any, total: Any, w: Any) -> Any:
            assert (i.dtype, i.ndim) == ("int64", 0)
            y = y @ w + x
            return y, total + y * i.astype("float32")

        fixed = mi.loop(3, power, x, mi.zeros(x.shape), invariant=(w,))
        by_dim = mi.loop("b", lambda i, y: y + 1, x)
        by_data = mi.loop(k, lambda i, y: y * 2, 1.0, bound=10)
        return fixed, by_dim, by_data

    module = traced(f, x=mi.tensor("b", 3), w=mi.tensor(3, 3), k=mi.tensor(dtype="int64"))
    assert [(str(v.count), str(v.bound), v.carried) for v in calls(module, Loop)] == [
        ("3", "None", 2),
        ("b", "None", 1),
        ("None", "10", 1),
    ]
    x, w = RNG.random((2, 3), np.float32), RNG.random((3, 3), np.float32)
    y, total = x, np.zeros_like(x)
    for i in range(3):
        y = y @ w + x
        total = total + y * i
    (found, summed), by_dim, by_data = run_module(module, [x, w, np.int64(5)])
    np.testing.assert_allclose(found, y, rtol=1e-5)
    np.testing.assert_allclose(summed, total, rtol=1e-5)
    np.testing.assert_allclose(by_dim, x + 2)
    assert by_data == 32


def test_a_loop_that_changes_a_dim() -> None:
    bodies = 0

    def f(x: Any) -> Any:
        def grow(i: Any, y: Any, z: Any) -> Any:
            nonlocal bodies
            bodies += 1
            y = mi.match_cast(y, mi.tensor("rows", 2))
            return mi.concat([y, mi.cond(i > 0, lambda: z, lambda: x[:1])]), z

        return mi.loop(3, grow, x, x[:1])

    module = traced(f, x=mi.tensor("n", 2))
    # the first body that was recorded was for rows that stay
    assert bodies == 2
    assert set(module.functions) == {"f", "grow", "then", "orelse"}
    assert str(module.functions["f"].returns) == "Tuple[float32[_, 2], float32[1, 2]]"
    y, _ = run_module(module, [np.ones((2, 2), np.float32)])
    assert y.shape == (5, 2)


def test_functions_of_their_own_as_branches() -> None:
    def f(x: Any) -> Any:
        first, second = mi.cond(x.sum() > 0, halves, lambda x: (x["n":], x[:"n"]), x)
        return first - second

    module = traced(f, x=mi.tensor("2*n", 1))
    x = np.array([[1], [2]], np.float32)
    np.testing.assert_array_equal(run_module(module, [x]), [[-1]])
    np.testing.assert_array_equal(run_module(module, [-x]), [[-1]])


def test_nested_loops_reach_through_the_functions_around_them() -> None:
    def f(x: Any) -> Any:
        scale = 1 / mi.sqrt(x.shape[1])

        def outer(i: Any, total: Any) -> Any:
            return mi.loop("n", lambda j, t: t + (i * j).astype("float32") * x * scale, total)

        return mi.loop(3, outer, mi.zeros(x.shape))

    module = traced(f, x=mi.tensor("n", "4*m"))
    x = RNG.random((4, 4), np.float32)
    np.testing.assert_allclose(run_module(module, [x]), x / 2 * (0 + 1 + 2) * (0 + 1 + 2 + 3), rtol=1e-6)


def test_effects_in_branches_and_loops() -> None:
    def f(x: Any, flag: Any) -> Any:
        mi.cond(flag, lambda: mi.fill_(x, 1), lambda: x)
        before = x + 0

        def step(i: Any, y: Any) -> Any:
            return mi.update_(y, y[:1] + 1, start=(1, 0))

        return before, mi.loop(3, step, x)

    module = traced(f, x=mi.tensor(3, 2), flag=mi.tensor(dtype="bool"))
    x = np.zeros((3, 2), np.float32)
    before, after = run_module(module, [x, np.bool_(True)], packed=EFFECTS)
    np.testing.assert_array_equal(before, np.ones((3, 2)))
    np.testing.assert_array_equal(after, [[1, 1], [2, 2], [1, 1]])
    np.testing.assert_array_equal(x, after)


def test_names_of_dims_and_parameters_do_not_meet() -> None:
    def f(n: Any) -> Any:
        return mi.cond(n.sum() > 0, lambda b: b + n, lambda b: b, n * 2)

    module = traced(f, n=mi.tensor("2*b"))
    assert run_module(module, [np.ones(2, np.float32)]).tolist() == [3, 3]

    @mi.function(n=mi.tensor("2*n"))
    def bad(n: Any) -> Any:
        return n

    with pytest.raises(TraceError, match=r"'n' is a parameter and a dim that callers pass"):
        traced(lambda x: bad(x), x=mi.tensor("2*b"))


def test_recursion() -> None:
    @mi.function(x=mi.tensor("n"))
    def outer(x: Any) -> Any:
        return inner(x)

    @mi.function(x=mi.tensor("n"))
    def inner(x: Any) -> Any:
        return outer(x) + 1

    for fn in (outer, lambda x: outer(x)):
        with pytest.raises(TraceError, match=r"outer: it never returns, since each of its cases calls itself"):
            mi.trace_module(fn, {"x": mi.tensor("n")})


@mi.function(x=mi.tensor("n", "m", dtype="float64"))
def doubles(x: Any) -> Any:
    return x


WRONG_CALLS: list[tuple[Callable[..., Any], type[Exception], str]] = [
    (lambda x: scaled(x), TraceError, "no argument for 'y'"),
    (lambda x: scaled(x, x[0], 3.0), TraceError, "3 arguments for 2 parameters"),
    (lambda x: scaled(x, x[0], z=3), TraceError, "argument 'z' is not a parameter"),
    (lambda x: scaled(x, x=x, y=x[0]), TraceError, "argument 'x' is not a parameter"),
    (lambda x: scaled(x, [1, 2]), GraphError, "argument 'y' is Tuple[int64[()], int64[()]], not float32[m]"),
    (lambda x: scaled(x, x), GraphError, "rank 2 instead of 1"),
    (lambda x: scaled(x, np.ones(3, np.float32)), GraphError, "dim 0 is 3, but m is 4 here"),
    (lambda x: doubles(x), GraphError, "argument 'x' is float32[b, 4], not float64[n, m]; cast it to float64"),
    (lambda x: halves(x), GraphError, "do not tell its dim 'n'; declare it with dims=('n',)"),
    (lambda x: rows(x.reshape(-1)), GraphError, "do not tell its dim 'm'"),
    (lambda x: rows(x.reshape(-1), m="k"), TraceError, "dim 'k' is not known here"),
]


@pytest.mark.parametrize(("fn", "error", "message"), WRONG_CALLS, ids=[m for *_, m in WRONG_CALLS])
def test_wrong_calls(fn: Callable[..., Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as e:
        mi.trace_module(fn, {"x": mi.tensor("b", 4)})
    assert type(e.value) is error
    assert message in str(e.value)
    assert str(e.value).startswith(f"test_graph_functions.py:{fn.__code__.co_firstlineno}: ")


WRONG_DECORATORS: list[tuple[Callable[[], Any], str]] = [
    (lambda: mi.function(x=(1, 2)), "function: x=1 is no type"),
    (lambda: mi.function(dims=("2*n",)), "dim name '2*n' is not an identifier"),
    (lambda: mi.function(x=mi.tensor("n"))(scaled), "not a plain function"),
    (lambda: mi.function(x=mi.tensor("n"))(lambda *x: x), "parameter *x cannot be traced"),
    (lambda: mi.function(x=mi.tensor("n"))(lambda: 1), "a type is given for 'x'"),
]


@pytest.mark.parametrize(("make", "message"), WRONG_DECORATORS, ids=[m for _, m in WRONG_DECORATORS])
def test_wrong_decorators(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TraceError) as e:
        make()
    assert message in str(e.value)
