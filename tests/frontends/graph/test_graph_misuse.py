"""What the graph IR does not have is a clear error that names the user's line and says what to do."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import (
    AttributeValueError,
    DimError,
    DTypeError,
    GraphError,
    MirageError,
    ShapeError,
    TraceError,
)

SPECS = {"x": mi.tensor("b", "m"), "i": mi.tensor("m", dtype="int64"), "p": mi.tensor(dtype="bool")}

WRONG: Any = 3
TRUE: Any = True

# in a function of a graph
ERRORS: list[tuple[Callable[..., Any], type[MirageError], str]] = [
    # values that are not there yet
    (lambda x, i, p: x if x.sum() > 0 else -x, TraceError, "truth value of GraphTensor(bool[()]): a traced tensor has no"),
    (lambda x, i, p: x if p else -x, TraceError, "choose between functions with mirage.cond"),
    (lambda x, i, p: [row for row in x], TraceError, "a Python loop cannot run over a traced tensor; use mirage.loop"),
    (lambda x, i, p: [x for _ in range(i)], TraceError, "count with mirage.loop"),
    (lambda x, i, p: math.exp(x), TraceError, "float() of GraphTensor"),
    (lambda x, i, p: len(x), TraceError, "use x.shape[0]"),
    (lambda x, i, p: 0 in x, TraceError, "`in` of GraphTensor"),
    (lambda x, i, p: np.asarray(x), TraceError, "conversion to an array"),
    (lambda x, i, p: x if x.shape[0] > 4 else -x, TraceError, "b > 4; a dim has no value while program is traced"),
    (lambda x, i, p: x.__setitem__(0, 1), TraceError, "mirage.update_ writes in place"),
    # operands
    (lambda x, i, p: x + i, DTypeError, "operands of dtypes float32, int64"),
    (lambda x, i, p: x + np.ones(3), ShapeError, "shapes [b, m] and [3] do not broadcast"),
    (lambda x, i, p: x * np.ones((2048, 1024)), TraceError, "an array of 16777216 bytes as an operand; make it a parameter"),
    (lambda x, i, p: x * np.ones(2, np.complex64), DTypeError, "complex64"),
    (lambda x, i, p: x & p, DTypeError, "logical_and: operand 1 is float32[b, m]"),
    (lambda x, i, p: x // 2, DTypeError, "floor_divide: operand 1 is float32[b, m]"),
    (lambda x, i, p: x * mi.shape("b"), ShapeError, "operand 2 is Shape[b], not a tensor"),
    (lambda x, i, p: x.astype("int7"), AttributeValueError, "dtype='int7'"),
    (lambda x, i, p: np.fft.fft(x), TraceError, "numpy.fft of a traced tensor"),
    (lambda x, i, p: x << 1, TraceError, "a shift of GraphTensor"),
    (lambda x, i, p: mi.trace_module(lambda y: x + y, {"y": SPECS["x"]}), TraceError, "belongs to another trace"),
    # dims
    (lambda x, i, p: mi.zeros(("q",)), TraceError, "dim 'q' is not known here; known are: b, m"),
    (lambda x, i, p: mi.match_cast(x[:1], mi.tensor("q", "q + r")), TraceError, "no dim is 'r' alone"),
    (lambda x, i, p: mi.match_cast(x, mi.tensor("b")), GraphError, "rank 2 instead of 1"),
    (lambda x, i, p: mi.match_cast(x, mi.tensor("b", "m", dtype="int32")), GraphError, "not int32[b, m]"),
    (lambda x, i, p: mi.match_cast(WRONG, mi.tensor()), TraceError, "a int is no traced value"),
    (lambda x, i, p: mi.match_cast(x, WRONG), TraceError, "3 is no type"),
    (lambda x, i, p: mi.nonzero(x).shape[0] * 2, TraceError, "dim 0 of GraphTensor(int64[_, 2]) is only known at run time"),
    (lambda x, i, p: mi.unique(x).reshape(-1, 2), TraceError, "mirage.match_cast(x, mirage.tensor('m', ...))"),
    (lambda x, i, p: mi.shape("b", "2 m"), DimError, "cannot read '2 m'"),
    (lambda x, i, p: mi.shape_of(WRONG), TraceError, "a int is no traced tensor"),
    # indexing
    (lambda x, i, p: x[0, 0, 0], TraceError, "3 indices for 2 dims"),
    (lambda x, i, p: x[..., 0, ...], TraceError, "more than one ellipsis"),
    (lambda x, i, p: x[::-1], TraceError, "step -1 is not a positive integer; use mirage.flip"),
    (lambda x, i, p: x[1.5], TraceError, "1.5 is no index"),
    (lambda x, i, p: x[i:], TraceError, "is no start; use an integer or a dim, and mirage.take for tensors"),
    (lambda x, i, p: x[i, i], TraceError, "two tensors as indices"),
    (lambda x, i, p: x[x > 0, None], TraceError, "a mask beside other indices"),
    (lambda x, i, p: x[np.array([0, 1])], TraceError, "an array as an index; use mirage.take"),
    (lambda x, i, p: x[True], TraceError, "True is not an index"),
    (lambda x, i, p: x[:2][2], TraceError, "index 2 is outside of dim 0 of 2 elements"),
    (lambda x, i, p: x[:2][-3], DimError, "-1"),
    (lambda x, i, p: x["b + 1":"b"], ShapeError, "which no size fulfils"),
    (lambda x, i, p: x[x], DTypeError, "take: the indices are float32[b, m]"),
    # control flow
    (lambda x, i, p: mi.cond(TRUE, lambda: x, lambda: x), TraceError, "use Python's `if`"),
    (lambda x, i, p: mi.cond(x > 0, lambda: x, lambda: x), TraceError, "reduce with .any() or .all()"),
    (lambda x, i, p: mi.cond(p, x, lambda: x), TraceError, "is not a function; pass a Python function"),
    (lambda x, i, p: mi.cond(p, lambda: x, lambda: i), GraphError, "differ in element type"),
    (lambda x, i, p: mi.cond(p, lambda: x, lambda: (x, x)), GraphError, "of different kinds"),
    (lambda x, i, p: mi.cond(p, lambda: None, lambda: x), TraceError, "returns nothing"),
    (lambda x, i, p: mi.cond(p, lambda y: y, lambda y: y, mi.sqrt(2)), TraceError, "has no element type"),
    (lambda x, i, p: mi.loop(3, lambda i: x), TraceError, "loop: nothing is carried"),
    (lambda x, i, p: mi.loop(i.sum(), lambda i, y: y, x), TraceError, "without bound; pass bound="),
    (lambda x, i, p: mi.loop(i, lambda i, y: y, x, bound=3), TraceError, "not an int64 scalar"),
    (lambda x, i, p: mi.loop(1.5, lambda i, y: y, x), DimError, "loop: count"),
    (lambda x, i, p: mi.loop("q", lambda i, y: y, x), TraceError, "dim 'q' is not known"),
    (lambda x, i, p: mi.loop(2, lambda i, y, z: y, x, x), TraceError, "returns 1 values for 2 carried ones"),
    (lambda x, i, p: mi.loop(2, lambda i, y: y > 0, x), GraphError, "differ in element type"),
    # effects and registered functions
    (lambda x, i, p: mi.update_(x, x, start=(0,)), ShapeError, "1 starts for [b, m]"),
    (lambda x, i, p: mi.update_(x, x, start=(1, 0)), ShapeError, "no size fulfils"),
    (lambda x, i, p: mi.add_(x, i), DTypeError, "into float32[b, m]; cast it"),
    (lambda x, i, p: mi.fill_(mi.constant(np.ones(3)), 0), TraceError, "cannot be written to"),
    (lambda x, i, p: mi.call_packed("f", x, result=mi.tensor("q")), TraceError, "dim 'q' is not known"),
    (lambda x, i, p: mi.call_packed("f", x, result=(), in_place=(1,)), TraceError, "in_place=1 is not the position"),
    (lambda x, i, p: mi.call_packed("f", x, result=WRONG), TraceError, "result=3 is no type"),
    (lambda x, i, p: mi.call_packed("f", x, result=(), scale=x), TraceError, "is no constant"),
    (lambda x, i, p: mi.call_library("f", x, out=mi.tensor(None)), TraceError, "not a tensor of known shape"),
    (lambda x, i, p: mi.call_library("", x, out=mi.tensor()), TraceError, "'' is not a name"),
    (lambda x, i, p: mi.call_shape("f", x, rank=1), TraceError, "float32[b, m] is no shape"),
    (lambda x, i, p: mi.call_shape("f", rank=-1), TraceError, "rank=-1"),
    # results
    (lambda x, i, p: None, TraceError, "program: returns nothing"),
    (lambda x, i, p: {"y": x}, TraceError, "program: the result: a dict is no value of a graph"),
    (lambda x, i, p: (x, "y"), TraceError, "a str is no value of a graph"),
    (lambda x, i, p: (x, x.shape[0]), TraceError, "the dim b is no value by itself; use mirage.shape(b)"),
    (lambda x, i, p: mi.sqrt(x.shape[0]), TraceError, "has no element type; give it one with .astype('float32')"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "error", "message"), ERRORS, ids=[m for *_, m in ERRORS])
def test_misuse(fn: Callable[..., Any], error: type[MirageError], message: str) -> None:
    with pytest.raises(error) as e:
        mi.trace_module(fn, SPECS)
    assert type(e.value) is error
    assert message in str(e.value)
    assert str(e.value).startswith(f"test_graph_misuse.py:{fn.__code__.co_firstlineno}: ")
    assert str(e.value).count("test_graph_misuse.py") == 1


# what only graphs have, in a program
IN_PROGRAMS: list[Callable[..., Any]] = [
    lambda x: x[x],
    lambda x: mi.relu(x) * (x > 0),
    lambda x: x == x,
    lambda x: x // 2,
    lambda x: ~x,
    lambda x: round(x),
    lambda x: mi.cond(x, lambda: x, lambda: x),
    lambda x: mi.loop(3, lambda i, y: y, x),
    lambda x: mi.match_cast(x, mi.tensor("k", 4)),
    lambda x: mi.shape_of(x),
    lambda x: mi.update_(x, x, start=(0, 0)),
    lambda x: mi.call_packed("f", x, result=()),
    lambda x: mi.call_library("f", x, out=mi.tensor()),
    lambda x: mi.where(mi.less(x, 0), x, x),
]


@pytest.mark.parametrize("fn", IN_PROGRAMS, ids=lambda f: inspect.getsource(f).strip(" ,\n"))
def test_programs_point_to_compile(fn: Callable[..., Any]) -> None:
    with pytest.raises(TraceError, match=r"mirage\.compile") as e:
        mi.trace(fn, x=mi.tensor("b", 4))
    assert str(e.value).startswith(f"test_graph_misuse.py:{fn.__code__.co_firstlineno}: ")


def test_errors_name_the_line_inside_of_a_branch() -> None:
    def f(x: Any) -> Any:
        def then() -> Any:
            return x @ x

        return mi.cond(x.sum() > 0, then, lambda: x)

    line = inspect.getsourcelines(f)[1] + 2
    with pytest.raises(ShapeError, match=rf"^test_graph_misuse.py:{line}: return x @ x: matmul"):
        mi.trace_module(f, {"x": mi.tensor("b", 4)})


def test_results_that_are_wrong_name_the_function() -> None:
    def f(x: Any) -> Any:
        return mi.cond(x.sum() > 0, lambda: x, nothing)

    def nothing() -> None:
        pass

    line = inspect.getsourcelines(nothing)[1]
    with pytest.raises(
        TraceError, match=rf"^test_graph_misuse.py:{line}: def nothing\(\) -> None:: nothing: returns nothing"
    ):
        mi.trace_module(f, {"x": mi.tensor("b", 4)})


def test_values_of_a_branch_do_not_leave_it() -> None:
    def f(x: Any) -> Any:
        kept = []

        def then() -> Any:
            kept.append(x * 2)
            return x

        return mi.cond(x.sum() > 0, then, lambda: x) + kept[0]

    with pytest.raises(TraceError, match="belongs to another trace, of then; return it from there"):
        mi.trace_module(f, {"x": mi.tensor("b", 4)})


def test_functions_outside_of_a_trace() -> None:
    x: Any = None
    for call in (
        lambda: mi.cond(x, lambda: 1, lambda: 2),
        lambda: mi.loop(3, lambda i, y: y, 1),
        lambda: mi.match_cast(x, mi.tensor()),
        lambda: mi.update_(x, x, start=()),
    ):
        with pytest.raises(TraceError, match="no function is being traced; call it inside a function"):
            call()


SIGNATURES: list[tuple[Any, Any, str]] = [
    (lambda x, y: x, {"x": mi.tensor("b")}, "parameter 'y' has no type"),
    (lambda x: x, {"x": mi.tensor("b"), "z": mi.tensor("b")}, "a type is given for 'z'"),
    (lambda *x: x, {}, "parameter *x cannot be traced"),
    (lambda x: x, {"x": 3}, "program: x=3 is no type"),
    (lambda x: x, {"x": (mi.tensor("b"), 3)}, "program: x=3 is no type"),
    (3, {}, "trace_module: 3 is not a function"),
    (lambda x: x, [mi.tensor("b")], "is not a mapping; pass {'x': mi.tensor(...)}"),
]


@pytest.mark.parametrize(("fn", "specs", "message"), SIGNATURES, ids=[m for *_, m in SIGNATURES])
def test_signatures(fn: Any, specs: Any, message: str) -> None:
    with pytest.raises(TraceError) as e:
        mi.trace_module(fn, specs)
    assert message in str(e.value)


def test_other_exceptions_propagate_with_a_note() -> None:
    def f(x: Any) -> Any:
        return mi.cond(x.sum() > 0, lambda: x + dict[str, int]()["missing"], lambda: x)

    with pytest.raises(KeyError, match="missing") as e:
        mi.trace_module(f, {"x": mi.tensor("b")})
    assert e.value.__notes__ == ["raised by then while mirage traced it", "raised by f while mirage traced it"]
