"""The functions for operators of graphs: traced, run by the reference interpreter, compared with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import AttributeValueError, DimError, DTypeError, MirageError, ShapeError, TraceError
from mirage.frontends import array_ops, graph_ops
from mirage.ir.graph.check import check
from mirage.ir.graph.interpret import run_module
from mirage.ir.interpret import run_reference
from tests.frontends.operator_calls import ARRAYS, CASES, SPECS


def run(fn: Callable[..., Any]) -> Any:
    names = list(inspect.signature(fn).parameters)
    module = mi.trace_module(fn, {name: SPECS[name] for name in names}, name="f")
    return run_module(module, [ARRAYS[name] for name in names])


@pytest.mark.parametrize(("fn", "expected"), CASES, ids=[inspect.getsource(f).strip()[:60] for f, _ in CASES])
def test_meaning(fn: Callable[..., Any], expected: Callable[..., Any]) -> None:
    found = run(fn)
    wanted = np.asarray(expected(*(ARRAYS[name] for name in inspect.signature(fn).parameters)))
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_split_gives_slices() -> None:
    module = mi.trace_module(lambda x: mi.split(x, 3, axis=-1), {"x": mi.tensor("n", 6)}, name="f")
    parts = run_module(module, [ARRAYS["x"]])
    assert len(parts) == 3
    np.testing.assert_array_equal(np.concatenate(parts, 1), ARRAYS["x"])
    halves = mi.trace_module(lambda x: mi.split(x, 2), {"x": mi.tensor("2*n", "m")}, name="f")
    assert str(halves.functions["f"].returns) == "Tuple[float32[n, m], float32[n, m]]"


def test_every_function_is_exported() -> None:
    modules = (array_ops, graph_ops)
    found = [(m, n, f) for m in modules for n, f in inspect.getmembers(m, inspect.isfunction)]
    public = {n for m, n, f in found if f.__module__ == m.__name__ and not n.startswith("_")}
    assert len(public) > 50
    assert public <= set(mi.__all__)
    sources = "".join(inspect.getsource(f) for f, _ in CASES) + inspect.getsource(test_split_gives_slices)
    assert {n for n in public if f"mi.{n}(" not in sources} == set()


def test_scalar_functions_are_operators_of_programs() -> None:
    p = mi.trace(lambda x: mi.minimum(mi.log(mi.abs(x) + 1) + mi.sin(x) * mi.cos(x), 0.5), x=mi.tensor("n"))
    x = np.linspace(-3, 3, 11)
    (found,) = run_reference(p, [x], {"n": 11}, "float64")
    np.testing.assert_allclose(found, np.minimum(np.log(np.abs(x) + 1) + np.sin(x) * np.cos(x), 0.5), rtol=1e-12)


_LIST: Any = [1, 2]

REFUSED: list[tuple[Callable[..., Any], type[MirageError], list[str]]] = [
    (lambda x: mi.split(x, 2), TraceError, ["split: 2 does not divide dim 0", "2*m"]),
    (lambda x: mi.split(x, 0), TraceError, ["parts=0 is not a positive integer"]),
    (lambda x: mi.split(x, 2, axis=3), TraceError, ["split: axis 3 is out of range"]),
    (lambda x: mi.squeeze(x, 0), TraceError, ["squeeze: dim 0", "is not 1"]),
    (lambda x: mi.expand_dims(x, 4), TraceError, ["expand_dims: axis 4", "use -3 to 2"]),
    (lambda x: mi.stack([]), TraceError, ["at least one tensor"]),
    (lambda x: mi.stack(x), TraceError, ["pass a list"]),
    (lambda x, at: mi.stack([x, at]), TraceError, ["differ in shape"]),
    (lambda x: mi.max(_LIST), TraceError, ["max: a list is not a tensor"]),
    (lambda x: mi.take(x, 0.5), DTypeError, ["take: the indices are scalar"]),
    (lambda x: mi.where(x, x, 0), DTypeError, ["where: the condition is float32"]),
    (lambda x: mi.where(x > 0, 1, 0), DTypeError, ["mirage.full"]),
    (lambda x: mi.update_slice(x, x, ("n + 1", 0)), ShapeError, ["2*n + 1 <= n"]),
    (lambda x: mi.full("q", 1), TraceError, ["dim 'q' is not known here"]),
    (lambda x: mi.full(2, x), TraceError, ["value=", "is a tensor"]),
    (lambda x: mi.full(2, 0.5, "int64"), DTypeError, ["0.5 is no int64"]),
    (lambda x: mi.arange("n", dtype="complex64"), AttributeValueError, ["'complex64' is not supported"]),
    (lambda x: mi.causal_mask("n", "n -"), DimError, ["causal_mask: keys", "n -"]),
    (lambda x: mi.cast(x, "f4"), AttributeValueError, ["'f4' is not supported"]),
    (lambda x: mi.any(x), DTypeError, ["any: operand 1 is float32[n, m]", "it takes bool"]),
    (lambda i: mi.exp(i), DTypeError, ["exp: operand 1 is int64[n, m]", "cast it first"]),
    (lambda x: mi.reshape_to(x, x), ShapeError, ["not a shape"]),
    (lambda x: mi.topk(x, 2.5), DimError, ["topk: k=2.5"]),
    (lambda i: mi.floor_divide(i, 0.5), DTypeError, ["0.5"]),
]


@pytest.mark.parametrize(
    ("fn", "error", "parts"), REFUSED, ids=[inspect.getsource(f).strip()[:60] for f, _, _ in REFUSED]
)
def test_refusals_name_the_line(fn: Callable[..., Any], error: type[MirageError], parts: list[str]) -> None:
    with pytest.raises(error, match=r"test_graph_ops\.py:\d+: ") as e:
        run(fn)
    for part in parts:
        assert part in str(e.value)


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda i: i + 0.5, r"v1: add: 0\.5 is no int64; cast the tensor"),
        (lambda i: mi.where(i > 2**70, i, 0), "v1: greater: 1180591620717411303424 is no int64"),
        (lambda b: mi.equal(b, 2), "v1: equal: 2 is no bool"),
    ],
)
def test_numbers_that_an_integer_type_lacks(fn: Callable[..., Any], what: str) -> None:
    name = inspect.signature(fn).parameters
    module = mi.trace_module(fn, {n: SPECS[n] for n in name}, name="f")
    with pytest.raises(DTypeError, match=r"test_graph_ops\.py:\d+: .*f: " + what):
        check(module)


@pytest.mark.parametrize(
    ("fn", "what"),
    [
        (lambda x: mi.maximum(x, x), "maximum: of two tensors"),
        (lambda x: mi.minimum(x, x), "minimum: of two tensors"),
        (lambda x: mi.where(x > 0, x, 0), "comparison"),
        (lambda x: mi.min(x, 0), "min cannot be superoptimized; compile"),
    ],
)
def test_programs_have_none_of_them(fn: Callable[..., Any], what: str) -> None:
    with pytest.raises(TraceError, match=what):
        mi.trace(fn, x=mi.tensor("n", "m"))


def test_outside_of_a_trace() -> None:
    for call in (lambda: mi.zeros(3), lambda: mi.max(_LIST)):
        with pytest.raises(TraceError, match="no function is being traced"):
            call()
