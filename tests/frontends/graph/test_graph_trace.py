"""Graph functions from Python: what is recorded, and that it means what NumPy computes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.frontends.graph import MAX_CONSTANT_BYTES
from mirage.frontends.tensors import GraphTensor, Shape
from mirage.ir.annotations import ObjectType, PartialTensor, ShapeType, TupleType
from mirage.ir.dims import to_dim
from mirage.ir.graph.check import check_module
from mirage.ir.graph.interpret import run_module
from mirage.ir.graph.nodes import Constant, LibraryCall, Module, OpCall, PackedCall, ShapeCall
from mirage.ir.graph.parse import parse_module

X = mi.tensor("b", "4*n")
RNG = np.random.default_rng(0)
X0 = RNG.standard_normal((3, 8))
I0 = RNG.integers(-5, 6, (3, 8))


def traced(fn: Callable[..., Any], **specs: Any) -> Module:
    """The module, which is well-formed and reads back from its text."""
    module = mi.trace_module(fn, specs)
    check_module(module)
    assert str(parse_module(str(module))) == str(module)
    return module


def run(fn: Callable[..., Any], arrays: Mapping[str, Any], specs: Mapping[str, Any]) -> Any:
    return run_module(traced(fn, **specs), list(arrays.values()))


def ops(module: Module) -> list[str]:
    """The operators of the main function."""
    return [b.value.op for b in module.functions[module.main].bindings if isinstance(b.value, OpCall)]


# each runs on arrays and on traced tensors
SAME_AS_NUMPY: list[Callable[..., Any]] = [
    lambda x: x[0],
    lambda x: x[-1],
    lambda x: x[:, 1:3],
    lambda x: x[1:],
    lambda x: x[:, :-2],
    lambda x: x[:, -3:],
    lambda x: x[:, 1::2],
    lambda x: x[..., -1],
    lambda x: x[..., None] + x[:, None, :1],
    lambda x: x[None, :, 2],
    lambda x: x[:, :],
    lambda x: x[0:2, ..., 1:4],
    lambda x: (x < 0.5) & (x >= -0.5) | ~(x > 0) ^ (x <= 1),
    lambda x: (x == x[0]) & (x != 3),
    lambda x: np.less(x, 0) | np.logical_not(x > 1),
    lambda x: np.float64(0.5) < x,
    lambda x: abs(x) + np.abs(x),
    lambda x: np.minimum(x, 0) + np.maximum(x, x[:1]),
    lambda x: x.max(0) + x.min(axis=0) * x.prod(0),
    lambda x: (x > 0).any(-1),
    lambda x: (x > 0).all(),
    lambda x: x.argmax(1) - x.argmin(axis=1),
    lambda x: x.mean(1, keepdims=True) + x.sum(),
    lambda x: x.astype("float32"),
    lambda x: (x > 0).astype("float64") * x,
    lambda x: x + np.arange(8.0),
    lambda x: np.arange(24.0).reshape(3, 8) - x,
    lambda x: x @ np.ones((8, 2)),
    lambda x: x[x[:, 0] > 0],
    lambda x: x.reshape(-1, 2)[1],
]


@pytest.mark.parametrize("fn", SAME_AS_NUMPY, ids=lambda f: inspect.getsource(f).strip(" ,\n"))
def test_floats_as_numpy(fn: Callable[..., Any]) -> None:
    given = mi.tensor(3, 8, dtype="float64")
    found = run(fn, {"x": X0}, {"x": given})
    assert found.dtype == np.asarray(fn(X0)).dtype
    np.testing.assert_allclose(found, fn(X0), rtol=1e-12)


INTEGERS: list[Callable[..., Any]] = [
    lambda x: x // 3 + x % 3,
    lambda x: 7 // (x * x + 1) - 7 % (x * x + 1),
    lambda x: x[:, x[0] % 8],
    lambda x: x[x[:, 1] % 3, 2:4],
    lambda x: x[x[0, :2] % 3, None],
    lambda x: x.astype("float32"),
]


@pytest.mark.parametrize("fn", INTEGERS, ids=lambda f: inspect.getsource(f).strip(" ,\n"))
def test_integers_as_numpy(fn: Callable[..., Any]) -> None:
    found = run(fn, {"x": I0}, {"x": mi.tensor("a", 8, dtype="int64")})
    np.testing.assert_array_equal(found, fn(I0))


def test_slices_at_symbolic_sizes() -> None:
    def f(x: Any) -> Any:
        n = x.shape[1] // 4
        return x[1:, :n], x[:, "n":"3*n"], x[-1, n:-1], x[:, n], x[:, ::3]

    module = traced(f, x=X)
    assert str(module.functions["f"].returns).startswith(
        "Tuple[float32[b - 1, n], float32[b, 2*n], float32[3*n - 1], float32[b]"
    )
    x = X0.astype(np.float32)
    expected = (x[1:, :2], x[:, 2:6], x[-1, 2:-1], x[:, 2], x[:, ::3])
    for found, wanted in zip(run_module(module, [x]), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_what_costs_nothing_is_not_recorded() -> None:
    assert ops(traced(lambda x: x[:, :], x=X)) == []
    assert ops(traced(lambda x: x[...], x=X)) == []
    assert ops(traced(lambda x: x[:, 1:2], x=X)) == ["slice"]


def test_the_same_function_is_a_program_and_a_module() -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        return mi.softmax(q @ k.mT / mi.sqrt(q.shape[-1])) @ v

    kv = mi.tensor("h", "t", 16)
    specs: dict[str, Any] = {"q": mi.tensor("h", "s", 16), "k": kv, "v": kv}
    program = mi.trace(attention, **specs)
    module = traced(attention, **specs)
    assert ops(module) == [n.op for n in program if n.op != "input"]
    assert module.functions["attention"].returns == program.output_types[0]


def test_arrays_become_constants_once_copied() -> None:
    table = np.arange(8, dtype=np.float32)
    module = traced(lambda x: x + table, x=mi.tensor("b", 8))
    (constant,) = (a for b in module.functions["program"].bindings for a in b.value.args if isinstance(a, Constant))  # type: ignore[union-attr]
    assert not constant.array.flags.writeable
    expected = np.ones((2, 8), np.float32) + table
    table[:] = -1
    np.testing.assert_array_equal(run_module(module, [np.ones((2, 8), np.float32)]), expected)
    most = np.zeros(MAX_CONSTANT_BYTES, np.bool_)
    mi.trace_module(lambda x: mi.constant(most)[:2] & x, {"x": mi.tensor(2, dtype="bool")})
    with pytest.raises(mi.MirageError, match="make it a parameter"):
        mi.trace_module(lambda x: mi.constant(np.append(most, True)) & x, {"x": mi.tensor(dtype="bool")})


def test_tuples_are_python_tuples() -> None:
    def f(pair: Any) -> Any:
        (x, (y, z)) = pair
        return (x + y, (z, y)), mi.topk(x, 2, axis=1)[1]

    a = mi.tensor("n", 4)
    module = traced(f, pair=(a, (a, mi.tensor("n", "m"))))
    assert isinstance(module.functions["f"].parameters[0].annotation, TupleType)
    x, z = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 3), np.float32)
    (total, (last, y)), positions = run_module(module, [(x, (x, z))])
    np.testing.assert_array_equal(total, 2 * x)
    np.testing.assert_array_equal(last, z)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(positions, [[3, 2], [3, 2]])


def test_shapes_are_values() -> None:
    def f(x: Any, s: Any) -> Any:
        assert isinstance(s, Shape) and len(s) == 2
        (n, m), known = s, mi.shape_of(x)
        assert known[0] == n * m and tuple(known) == x.shape
        return x.reshape(n, m), x.reshape(mi.shape(m, n)), s, known

    module = traced(f, x=mi.tensor("n*m"), s=mi.shape("n", "m"))
    x = np.arange(6, dtype=np.float32)
    rows, columns, shape, known = run_module(module, [x, (2, 3)])
    np.testing.assert_array_equal(rows, x.reshape(2, 3))
    np.testing.assert_array_equal(columns, x.reshape(3, 2))
    assert (shape, known) == ((2, 3), (6,))


def test_unknown_dims() -> None:
    def f(x: Any, y: Any) -> Any:
        assert isinstance(x, GraphTensor)
        assert (repr(x), x.ndim, x.shape[1], x.dtype) == ("GraphTensor(float32[_, 4])", 2, 4, "float32")
        rows = mi.match_cast(x, mi.tensor("k", 4))
        return x[:, 1:], mi.exp(y), rows[1:].reshape("4*k - 4")

    module = traced(f, x=mi.tensor(None, 4), y=mi.tensor(...))
    assert str(module.functions["f"].returns) == "Tuple[float32[_, 3], float32[...], float32[4*k - 4]]"
    found = run_module(module, [np.ones((2, 4), np.float32), np.zeros((1, 1, 1), np.float32)])
    assert [a.shape for a in found] == [(2, 3), (1, 1, 1), (4,)]


def test_data_dependent_shapes() -> None:
    def f(x: Any) -> Any:
        positions = mi.match_cast(mi.nonzero(x > 0), mi.tensor("k", 1, dtype="int64"))
        kept = x[positions.reshape("k")]
        return kept / kept.shape[0], mi.unique(x > 0)

    module = traced(f, x=mi.tensor("n", dtype="float64"))
    x = np.array([1.0, -2.0, 3.0])
    kept, signs = run_module(module, [x])
    np.testing.assert_array_equal(kept, [0.5, 1.5])
    np.testing.assert_array_equal(signs, [False, True])


def test_registered_functions() -> None:
    def f(x: Any, o: Any) -> Any:
        half = mi.match_cast(mi.call_shape("halved", mi.shape_of(x), rank=1), mi.shape("h"))
        (h,) = half
        y = mi.call_library("first", x, out=mi.tensor(h), scale=2.5)
        low, high = mi.call_library("extremes", y, out=(mi.tensor(), mi.tensor()))
        mi.call_packed("note", o, y, result=(), label="y", sizes=(h, 1))
        count = mi.call_packed("count", o, result=mi.tensor(dtype="int64"))
        return y, high - low, count

    module = traced(f, x=mi.tensor("n"), o=ObjectType())
    bindings = module.functions["f"].bindings
    assert [b.value.rank for b in bindings if isinstance(b.value, ShapeCall)] == [1]
    assert [dict(b.value.attrs) for b in bindings if isinstance(b.value, LibraryCall)] == [{"scale": 2.5}, {}]
    noted: list[Any] = []

    def first(inputs: Any, outputs: Any, scale: float) -> None:
        outputs[0][...] = scale * inputs[0][: len(outputs[0])]

    def extremes(inputs: Any, outputs: Any) -> None:
        outputs[0][...], outputs[1][...] = inputs[0].min(), inputs[0].max()

    def note(to: list[Any], y: Any, label: str, sizes: tuple[int, ...]) -> Any:
        to.append((label, len(y), sizes))
        return ()

    y, spread, count = run_module(
        module,
        [np.arange(4, dtype=np.float32), noted],
        packed={
            "halved": lambda s: (s[0] // 2,),
            "note": note,
            "count": lambda to: np.array(len(to)),
        },
        library={"first": first, "extremes": extremes},
    )
    np.testing.assert_array_equal(y, [0, 2.5])
    assert (float(spread), int(count), noted) == (2.5, 1, [("y", 2, (2, 1))])


def test_effects_keep_their_order() -> None:
    def f(x: Any, y: Any) -> Any:
        before = x + 0
        x = mi.update_(x, y[:1], start=(1, 0))
        between = x * 1
        mi.add_(x, y[1:2])
        mi.copy_(y, mi.fill_(x, 3)[:2])
        return before, between, x, y

    module = traced(f, x=mi.tensor(3, "n"), y=mi.tensor(2, "n"))
    calls = [b.value for b in module.functions["f"].bindings if isinstance(b.value, PackedCall)]
    assert [c.function for c in calls] == ["update_slice_", "add_", "fill_", "copy_"]
    assert all(c.in_place == (0,) for c in calls)
    assert [block.dataflow for block in module.functions["f"].blocks].count(False) >= 3
    x, y = np.zeros((3, 2), np.float32), np.array([[1, 2], [3, 4]], np.float32)
    before, between, after, copied = run_module(module, [x, y])
    np.testing.assert_array_equal(before, np.zeros((3, 2)))
    np.testing.assert_array_equal(between, [[0, 0], [1, 2], [0, 0]])
    np.testing.assert_array_equal(after, np.full((3, 2), 3))
    np.testing.assert_array_equal(copied, np.full((2, 2), 3))
    np.testing.assert_array_equal(x, after)


def test_effects_take_numbers_and_arrays() -> None:
    def f(x: Any, y: Any) -> Any:
        first = mi.add_(x, 2) * 1
        second = mi.copy_(x, 1.5) * 1
        mi.add_(x, x.shape[0])
        mi.update_(x, np.ones(1, np.float32), start=(0,))
        return first, second, mi.add_(x, y * x.shape[0])

    module = traced(f, x=mi.tensor("n"), y=mi.tensor())
    first, second, third = run_module(module, [np.zeros(3, np.float32), np.float32(1)])
    assert (first.tolist(), second.tolist(), third.tolist()) == ([2, 2, 2], [1.5, 1.5, 1.5], [4, 7.5, 7.5])


def test_bindings_know_the_users_line() -> None:
    def f(x: Any) -> Any:
        y = x[1:] // 2
        y = mi.match_cast(y, mi.tensor("k", dtype="int64"))
        return y, y.sum()

    lines, start = inspect.getsourcelines(f)
    where = [b.where for b in traced(f, x=mi.tensor("n", dtype="int64")).functions["f"].bindings]
    expected = [1, 1, 1, 2, 3, 0]
    assert [w.split(":")[1] for w in where] == [str(start + i) for i in expected]
    assert where[0] == f"test_graph_trace.py:{start + 1}: {lines[1].strip()}"


def test_types_of_values() -> None:
    partial: Any = mi.tensor("n", None), mi.tensor(..., dtype="int32")
    assert partial[0] == PartialTensor((to_dim("n"), None), "float32")
    assert partial[1] == PartialTensor(None, "int32")
    assert mi.shape("n", None, "2*m") == ShapeType((to_dim("n"), None, to_dim("2*m")))
    with pytest.raises(mi.MirageError, match="unknown rank"):
        mi.tensor("n", ...)
    with pytest.raises(mi.MirageError, match="dim 1"):
        mi.tensor(None, "a b")
