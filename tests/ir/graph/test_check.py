"""Well-formedness: modules that break a rule are refused with the function and the binding."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from mirage.errors import DimError, GraphError, MirageError, TraceError
from mirage.ir.annotations import Annotation, NeverType, ObjectType, PartialTensor, ShapeType, TupleType, at_least
from mirage.ir.dims import symbol, to_dim
from mirage.ir.graph.check import check
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Block,
    Constant,
    Expr,
    Function,
    FunctionCall,
    KernelCall,
    LibraryCall,
    MatchCast,
    Module,
    OpCall,
    PackedCall,
    ShapeCall,
    ShapeValue,
    Var,
)
from mirage.ir.graph.parse import parse_annotation, parse_module
from mirage.ir.types import TensorType, tensor
from tests.ir.graph.modules import doubling, showcase
from tests.random_graphs import random_module

VECTOR = tensor("n")
X = Var("x", VECTOR)
FLAG = Var("flag", TensorType((), "bool"))


def main(*values: Expr, annotation: Annotation = VECTOR, result: Atom | None = None, dataflow: bool = True) -> Module:
    """A module of a main function with these bindings, of one annotation."""
    bindings = tuple(Binding(Var(f"y{k}", annotation), v) for k, v in enumerate(values))
    last = result or (bindings[-1].var if bindings else X)
    return Module({"main": Function("main", (X, FLAG), (Block(bindings, dataflow),), last)}, {"twice": doubling()})


def refused(module: Module, message: str, error: type[MirageError] = GraphError) -> None:
    with pytest.raises(error, match=message):
        check(module)


def test_showcase_and_random_modules_are_well_formed() -> None:
    check(showcase())
    for seed in range(20):
        check(random_module(Random(seed), 6))


def test_main_exists() -> None:
    refused(replace(main(), main="start"), "no function 'start' to begin with; its functions are main")


def test_functions_stand_under_their_names() -> None:
    refused(Module({"main": replace(main().functions["main"], name="f")}), "function f stands in the module as 'main'")


def test_a_name_is_of_a_function_or_a_kernel() -> None:
    refused(replace(main(), kernels={"main": doubling()}), "'main' is a function and a kernel")


def test_callees_exist() -> None:
    refused(main(FunctionCall("f", (X,))), "main: y0: calls 'f', which is no function")


def test_what_only_calls_itself_never_returns() -> None:
    never = main(FunctionCall("main", (X, FLAG)), annotation=NeverType())
    refused(never, "main: it never returns, since each of its cases calls itself")


def test_variables_are_defined_before() -> None:
    later = Binding(Var("b", VECTOR), OpCall("neg", (X,)))
    early = Binding(Var("a", VECTOR), OpCall("neg", (later.var,)))
    f = Function("main", (X,), (Block((early, later)),), early.var)
    refused(Module({"main": f}), "main: a: reads 'b', which is not defined before")


def test_variables_are_objects_not_names() -> None:
    refused(main(OpCall("neg", (Var("x", VECTOR),))), r"main: y0: reads 'x'.*\(another variable of that name is\)")


def test_names_are_unique() -> None:
    twice = Binding(Var("x", VECTOR), OpCall("neg", (X,)))
    refused(Module({"main": Function("main", (X,), (Block((twice,)),), X)}), "main: x: x: the name 'x' is taken")
    refused(Module({"main": Function("main", (X, X), (), X)}), "main: parameter 'x': the name 'x' is taken")


def test_names_are_identifiers() -> None:
    bad = Binding(Var("a b", VECTOR), OpCall("neg", (X,)))
    refused(Module({"main": Function("main", (X,), (Block((bad,)),), X)}), "'a b' is not an identifier", TraceError)


def test_the_user_s_line_comes_first() -> None:
    bad = Binding(Var("y", VECTOR), FunctionCall("f", (X,)), "model.py, line 3")
    refused(Module({"main": Function("main", (X,), (Block((bad,)),), X)}), "^model.py, line 3: main: y: ")


def test_dataflow_blocks_are_pure() -> None:
    call = PackedCall("log", (X,), VECTOR)
    refused(main(call), "main: y0: has effects, but stands in a dataflow block")
    check(main(call, dataflow=False))


def test_a_call_has_the_effects_of_its_callee() -> None:
    note = Binding(Var("e", ObjectType()), PackedCall("log", (X,), ObjectType()))
    callee = Function("note", (X,), (Block((note,), dataflow=False),), X)
    refused(main(FunctionCall("note", (X,))).with_function(callee), "main: y0: has effects")


def test_symbols_of_parameters_are_determined() -> None:
    x = Var("x", tensor("n*m"))
    refused(
        Module({"main": Function("main", (x,), (), x)}),
        r"parameter 'x' is float32\[m\*n\]: nothing gives the size of m, n",
    )
    half = Var("h", tensor("n//2"))
    refused(Module({"main": Function("main", (half,), (), half)}), "nothing gives the size of n")
    check(Module({"main": Function("main", (Var("m", tensor("m")), x), (), x)}))


def test_extra_shape_parameters_give_sizes() -> None:
    f = Function("f", (), (), ShapeValue((to_dim("k"),)), ("k",))
    check(main().with_function(f))
    refused(
        main().with_function(replace(f, dims=())), r"f: the result: the shape Shape\[k\]: nothing gives the size of k"
    )
    refused(main().with_function(replace(f, dims=("k", "k"))), "repeat a name")
    refused(main().with_function(replace(f, dims=("1k",))), "'1k' is not an identifier", DimError)


def test_dims_are_known_before_they_are_used() -> None:
    full = OpCall("full", (), (("shape", (symbol("q"),)), ("value", 1), ("dtype", "float32")))
    cast = MatchCast((X,), tensor("q"))
    refused(main(full, annotation=tensor("q")), "main: y0: nothing gives the size of q")
    refused(main(full, cast, annotation=tensor("q")), "main: y0: nothing gives the size of q")
    check(main(cast, full, annotation=tensor("q")))


def test_a_cast_introduces_what_it_determines() -> None:
    refused(main(MatchCast((X,), tensor("p*q")), annotation=tensor("p*q")), "main: y0: nothing gives the size of p, q")
    check(main(MatchCast((X,), tensor("2*q")), annotation=tensor("2*q")))


def test_a_cast_can_hold() -> None:
    refused(main(MatchCast((X,), tensor("n", dtype="float64"))), "match_cast: the value is .* cast it to float64")
    refused(main(MatchCast((FLAG,), TensorType((), "int64"))), "match_cast: the value")
    refused(main(MatchCast((X,), ShapeType((to_dim("n"),)))), "pass a value of that kind")


def test_an_object_may_be_anything() -> None:
    x = Var("x", ObjectType())
    b = Binding(Var("y", tensor("q", 3)), MatchCast((x,), tensor("q", 3)))
    check(Module({"main": Function("main", (x,), (Block((b,)),), b.var)}))


def test_annotations_follow_from_the_operands() -> None:
    refused(
        main(OpCall("neg", (X,)), annotation=tensor("n", 1)),
        r"main: y0: is annotated as float32\[n, 1\], but its value is",
    )
    refused(main(MatchCast((X,), PartialTensor((None,), "float32"))), "only a match_cast may say more")


def test_annotations_may_say_less() -> None:
    check(main(OpCall("neg", (X,)), annotation=PartialTensor((None,), "float32")))


def test_what_operators_say_names_the_binding() -> None:
    refused(main(OpCall("neg", (X, X))), "^main: y0: neg: takes 1 operands, got 2", MirageError)


def test_attributes_are_canonical() -> None:
    refused(main(OpCall("maximum", (X,), (("value", "3"),))), "main: y0: maximum: value='3' is wrong", MirageError)
    refused(main(OpCall("transpose", (X,), (("perm", [0]),))), "attributes .* are not as the operator gives them")


def test_constants_are_what_they_say() -> None:
    wrong = Constant(np.zeros(3, np.float32), tensor(4))
    refused(main(OpCall("add", (X, wrong))), r"a constant of float32\[3\] is annotated as float32\[4\]")


def test_results_have_an_element_type() -> None:
    one = main(OpCall("constant", (), (("value", 1),)), annotation=TensorType((), "scalar"))
    refused(one, "main: the result: .* has no element type of its own")
    refused(Module({"main": Function("main", (Var("s", TensorType((), "scalar")),), (), X)}), "without an element type")


def test_kernels_exist_and_fit() -> None:
    n = symbol("n")
    refused(main(KernelCall("k", (X,), (VECTOR,))), "calls kernel 'k', which is not in the module")
    refused(main(KernelCall("twice", (X,), (VECTOR,))), "kernel twice: 0 sizes for its symbols")
    refused(main(KernelCall("twice", (X,), (VECTOR, VECTOR), (n,))), "kernel twice: results float32.*but it computes")
    refused(main(KernelCall("twice", (ShapeValue((n,)),), (VECTOR,), (n,))), "argument 0 is Shape")
    check(main(KernelCall("twice", (X,), (VECTOR,), (n,))))


def test_library_functions_give_tensors() -> None:
    refused(main(LibraryCall("f", (X,), ())), "results none")
    refused(main(LibraryCall("f", (X,), (VECTOR,), (("a", object()),))), "has no text")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (PackedCall("f", (X,), VECTOR, (), (1,)), "argument 1, written in place, is no tensor"),
        (
            PackedCall("f", (Constant(np.zeros(()), TensorType((), "float64")),), VECTOR, (), (0,)),
            "argument 0, written",
        ),
        (PackedCall("add_", (X, X), VECTOR), "effect 'add_': use in_place"),
        (PackedCall("add_", (X, X), ObjectType(), (), (0,)), r"effect 'add_' gives float32\[n\], not Object"),
        (PackedCall("f", (X,), VECTOR, (("a", [1]),)), "has no text"),
        (ShapeCall("f", (X,), -1), "rank -1 is negative"),
    ],
)
def test_effects_and_shape_functions_fit(call: Expr, message: str) -> None:
    refused(main(call, dataflow=isinstance(call, ShapeCall)), message)


IF = """
def then(a: float32[p]):
    return a

def orelse(a: {orelse}):
    return a

def main(x: float32[n], c: {condition}):
    y = if_else[then, orelse](c, x)
    return y
"""


def test_branches_take_the_same_arguments() -> None:
    assert parse_module(IF.format(orelse="float32[4]", condition="bool[()]")).functions[
        "main"
    ].returns == PartialTensor((None,), "float32")
    with pytest.raises(GraphError, match=r"line 9: call of orelse: argument 'a' is .*float64"):
        parse_module(IF.format(orelse="float64[p]", condition="bool[()]"))
    with pytest.raises(GraphError, match=r"line 9: if_else: the condition is bool"):
        parse_module(IF.format(orelse="float32[p]", condition="bool[1]"))


LOOP = """
def body(i: int64[()], a: float32[p]):
    b = {step}
    return b

def main(x: float32[n]):
    y = loop[body]((x,), (), count=3)
    return y
"""


def test_a_loop_carries_what_its_body_gives() -> None:
    assert parse_module(LOOP.format(step="neg(a)")).functions["main"].returns == VECTOR
    grown = parse_module(LOOP.format(step="concat(a, a, axis=0)")).functions["main"].returns
    assert grown == PartialTensor((None,), "float32")
    with pytest.raises(
        GraphError, match=r"line 7: loop: what goes into and comes out of body: results .* cast one of them"
    ):
        parse_module(LOOP.format(step="cast(a, dtype='float64')"))
    with pytest.raises(GraphError, match=r"line 7: call of body: argument 'a'.*rank 2"):
        parse_module(LOOP.format(step="reshape(a, shape=(1, p))"))


@pytest.mark.parametrize(
    ("coarse", "fine", "holds"),
    [
        ("float32[n]", "float32[n]", True),
        ("float32[_]", "float32[n]", True),
        ("float32[...]", "float32[_]", True),
        ("Tensor", "float32[n]", True),
        ("Tensor[n]", "float32[n]", True),
        ("float32[n]", "float32[_]", False),
        ("float32[n]", "float32[m]", False),
        ("float32[_]", "float32[n, m]", False),
        ("float32[_]", "float64[n]", False),
        ("Shape", "Shape[n]", True),
        ("Shape[_]", "Shape[n, m]", False),
        ("Tuple[float32[_], Object]", "Tuple[float32[n], Object]", True),
        ("Tuple[float32[_]]", "Tuple[float32[n], Object]", False),
        ("Object", "float32[n]", False),
    ],
)
def test_at_least(coarse: str, fine: str, holds: bool) -> None:
    assert at_least(parse_annotation(coarse), parse_annotation(fine)) == holds
    assert at_least(TupleType((parse_annotation(coarse),)), TupleType((parse_annotation(fine),))) == holds
