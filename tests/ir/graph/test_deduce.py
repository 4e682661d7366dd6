"""Forward deduction: calls from signatures alone, joins of branches, and redoing it after a change."""

from __future__ import annotations

import pytest
from sympy import Integer

from mirage.errors import GraphError, ShapeError
from mirage.ir.annotations import ObjectType
from mirage.ir.dims import to_dim
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.deduce import signature_result
from mirage.ir.graph.fit import check_cast, join
from mirage.ir.graph.nodes import Function, OpCall, PackedCall, ShapeValue, Var
from mirage.ir.graph.order import callees_first, reachable
from mirage.ir.graph.parse import parse_annotation
from mirage.ir.graph.traverse import determined, dims_in, signature_symbols, symbols_used, uses
from mirage.ir.types import tensor
from tests.ir.graph.modules import showcase

A = parse_annotation


@pytest.mark.parametrize(
    ("parameters", "result", "arguments", "wanted"),
    [
        (["float32[n, m]"], "float32[n*m]", ["float32[2*k, 3]"], "float32[6*k]"),
        (["float32[n]", "float32[n]"], "float32[n]", ["float32[a]", "float32[b]"], "float32[a]"),
        # a symbol of the caller of the same name is another one
        (["float32[n, m]"], "float32[n + m]", ["float32[m, n]"], "float32[m + n]"),
        (["float32[n, m]"], "float32[m]", ["float32[m, n]"], "float32[n]"),
        (["float32[2*n]"], "float32[n]", ["float32[6*k]"], "float32[3*k]"),
        (["float32[2*n + 1]"], "float32[n]", ["float32[4*k + 3]"], "float32[2*k + 1]"),
        (["float32[n*m]", "float32[m]"], "float32[n]", ["float32[k*j]", "float32[j]"], "float32[k]"),
        (["float32[2*n]"], "float32[n]", ["float32[k]"], "float32[_]"),
        (["float32[n]"], "float32[n]", ["float32[_]"], "float32[_]"),
        (["float32[n]"], "float32[n]", ["float32[...]"], "float32[_]"),
        (["float32[n]"], "float32[q]", ["float32[k]"], "float32[_]"),
        (["Shape[n, m]"], "float32[m, n]", ["Shape[2, k]"], "float32[k, 2]"),
        (["Tuple[float32[n], Shape[m]]"], "Tuple[Shape[m]]", ["Tuple[float32[a], Shape[b]]"], "Tuple[Shape[b]]"),
        (["float32[n, _]"], "float32[n, 2]", ["float32[k, 7]"], "float32[k, 2]"),
        (["float32[...]"], "float32[...]", ["float32[k, 7]"], "float32[...]"),
    ],
)  # fmt: skip
def test_calls(parameters: list[str], result: str, arguments: list[str], wanted: str) -> None:
    callee = _function(parameters, result)
    assert signature_result(callee, [A(a) for a in arguments], ()) == A(wanted)


def _function(parameters: list[str], result: str, dims: tuple[str, ...] = ()) -> Function:
    variables = tuple(Var(f"x{i}", A(p)) for i, p in enumerate(parameters))
    return Function("f", variables, (), Var("r", A(result)), dims)


def test_extra_shape_arguments() -> None:
    callee = _function(["float32[n]"], "float32[n + k]", ("k",))
    assert signature_result(callee, [A("float32[m]")], (to_dim("2*n"),)) == A("float32[m + 2*n]")


@pytest.mark.parametrize(
    ("parameter", "argument", "message"),
    [
        ("float32[n]", "float64[n]", "argument 'x0' is float64.*cast it to float32"),
        ("float32[n]", "float32[n, m]", "rank 2 instead of 1"),
        ("float32[4]", "float32[5]", "dim 0 is 5 instead of 4"),
        ("float32[n, n]", "float32[4, 5]", "dim 1 is 5, but n is 4 here"),
        ("Shape[n]", "float32[n]", "pass a value of that kind"),
        ("Tuple[float32[n]]", "Tuple[float32[n], float32[n]]", "pass a value of that kind"),
        ("Object", "float32[n]", "pass a value of that kind"),
    ],
)
def test_calls_that_cannot_fit(parameter: str, argument: str, message: str) -> None:
    with pytest.raises(GraphError, match=f"call of f: {message}|call of f: argument .*{message}"):
        signature_result(_function([parameter], "Object"), [A(argument)], ())


@pytest.mark.parametrize(
    ("a", "b", "wanted"),
    [
        ("float32[n]", "float32[n]", "float32[n]"),
        ("float32[n, m]", "float32[n, k]", "float32[n, _]"),
        ("float32[n]", "float32[n, m]", "float32[...]"),
        ("float32[_]", "float32[n]", "float32[_]"),
        ("Shape[n, 2]", "Shape[n, 3]", "Shape[n, _]"),
        ("Tuple[float32[n], Object]", "Tuple[float32[m], Object]", "Tuple[float32[_], Object]"),
        ("Callable[[float32[n]], Object]", "Callable[[float32[n]], Object]", "Callable[[float32[n]], Object]"),
    ],
)
def test_joins(a: str, b: str, wanted: str) -> None:
    assert join(A(a), A(b), "if") == join(A(b), A(a), "if") == A(wanted)


@pytest.mark.parametrize(
    ("a", "b"), [("float32[n]", "float64[n]"), ("float32[n]", "Shape[n]"), ("Tuple[Object]", "Tuple[Object, Object]")]
)
def test_values_that_cannot_be_one(a: str, b: str) -> None:
    with pytest.raises(GraphError, match=r"^if: results"):
        join(A(a), A(b), "if")


def test_casts() -> None:
    check_cast(ObjectType(), A("float32[n]"), "cast")
    check_cast(A("float32[...]"), A("float32[n, n]"), "cast")
    with pytest.raises(GraphError, match="dim 1 is 3, but n is 2 here"):
        check_cast(A("float32[2, 3]"), A("float32[n, n]"), "cast")


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (["float32[_]", "float32[n, 4]"], "float32[n, 4]"),
        (["float32[_]", "float32[n, m]"], "float32[n, _]"),
        (["float32[_, 3]", "float32[n, 3]"], "float32[_, 3]"),
        (["float32[_]", "float32[1]"], "float32[_]"),
        (["float32[_]", "float32[0]"], "float32[0]"),
        (["float32[_]", "float32[...]"], "float32[...]"),
        (["float32[_]", "float32[()]"], "float32[_]"),
        (["Tensor[n]", "float32[n]"], "float32[n]"),
    ],
)
def test_unknown_dims_of_elementwise_operators(args: list[str], wanted: str) -> None:
    b = FunctionBuilder("f", {})
    x, y = (b.parameter(f"x{i}", A(a)) for i, a in enumerate(args))
    assert b.emit(OpCall("add", (x, y))).annotation == A(wanted)


@pytest.mark.parametrize(
    ("given", "known", "wanted"),
    [
        (["float32[n, 2*m]"], "", "nm"),
        (["float32[n*m]"], "", ""),
        (["float32[n*m]"], "m", "nm"),
        (["float32[n*m]", "Shape[n]"], "", "nm"),
        (["Tuple[float32[n**2 + n], Shape[_]]"], "", "n"),
        (["float32[n**2 - 4*n]"], "", ""),
        (["float32[m - n]"], "m", "nm"),
        (["float32[n//2, n%3]"], "", ""),
        (["Callable[[float32[n]], float32[n]]", "float32[...]"], "", ""),
    ],
)
def test_what_shapes_determine(given: list[str], known: str, wanted: str) -> None:
    assert determined(map(A, given), known) == set(wanted)


def test_symbols_of_expressions() -> None:
    start = showcase().functions["start"]
    values = {b.var.name: b.value for b in start.bindings}
    assert symbols_used(values["h"]) == {"q"} and symbols_used(values["t"]) == {"q", "k"}
    assert [str(d) for d in dims_in(values["l"])] == ["3", "10"]
    assert signature_symbols(showcase().functions["sub"]) == {"n", "m", "k"}
    assert uses(start)[start.parameters[0]] == 1


# ---- builders


def test_effects_stand_between_dataflow_blocks() -> None:
    b = FunctionBuilder("f", {})
    x = b.parameter("x", tensor("n"))
    y = b.emit(OpCall("neg", (x,)))
    b.emit(PackedCall("log", (y,), ObjectType()))
    z = b.emit(OpCall("neg", (y,)), name="x")
    f = b.finish(z)
    assert [(block.dataflow, len(block.bindings)) for block in f.blocks] == [(True, 1), (False, 1), (True, 1)]
    assert [v.var.name for v in f.bindings] == ["v0", "v1", "x0"]


def test_builders_name_the_line() -> None:
    b = FunctionBuilder("f", {})
    x = b.parameter("x", tensor("n", 3))
    with pytest.raises(ShapeError, match=r"^model.py:7: matmul: shapes"):
        b.emit(OpCall("matmul", (x, x)), where="model.py:7")


def test_names_are_fresh_in_little_time() -> None:
    b = FunctionBuilder("f", {})
    assert [b.fresh() for _ in range(3)] == ["v0", "v1", "v2"]
    assert [b.fresh("x7"), b.fresh("x7"), b.fresh("x7")] == ["x7", "x0", "x1"]
    assert len({b.fresh() for _ in range(20_000)}) == 20_000


def test_a_reshape_knows_its_sizes() -> None:
    b = FunctionBuilder("f", {})
    x = b.parameter("x", tensor("n", "m"))
    y = b.emit(OpCall("reshape", (x,), (("shape", (Integer(-1),)),)))
    (binding,) = b.finish(y).bindings
    assert isinstance(binding.value, OpCall)
    assert binding.value.attrs == (("shape", (to_dim("m*n"),)),)
    unknown = b.parameter("u", A("float32[_, 4]"))
    assert b.emit(OpCall("reshape", (unknown,), (("shape", (Integer(-1),)),))).annotation == A("float32[_]")


# ---- call graphs


def test_call_graphs() -> None:
    module = showcase()
    order = callees_first(module)
    assert sorted(order) == sorted(module.functions) and order[-1] == "start"
    assert reachable(module) == set(module.functions)
    alone = module.with_function(Function("alone", (), (), ShapeValue(())))
    assert "alone" not in reachable(alone) and "alone" in callees_first(alone)


def test_functions_print_themselves() -> None:
    assert str(showcase().functions["else_0"]).splitlines()[0] == "def else_0(b: float32[q]) -> float32[q]:"
