"""Groups of bindings as functions of their own."""

from __future__ import annotations

import pytest

from mirage.compiler.outline import Group, Outliner
from mirage.errors import GraphError
from mirage.ir.graph.builder import ModuleBuilder
from mirage.ir.graph.nodes import Block, Function, FunctionCall, Module
from mirage.ir.graph.parse import parse_module
from mirage.ir.graph.text import print_function


def outlined(text: str, *groups: Group) -> Module:
    """The module of one function with groups of its first block outlined."""
    module = parse_module(text)
    main = module.functions["main"]
    builder = ModuleBuilder(module)
    block = Outliner(main, 0).outline(groups, builder)
    builder.add(Function(main.name, main.parameters, (block,), main.result))
    return builder.finish()


CHAIN = """
def main(x: float32[n, 4], w: float32[4]) -> float32[n, 4]:
    with dataflow():
        two = constant(value=2)
        a = mul(x, two)
        b = exp(a)
        c = add(b, w)
    return c
"""


def test_a_group_becomes_a_call_and_takes_its_scalars_along() -> None:
    module = outlined(CHAIN, Group((1, 2), (0,), "part"))
    call = module.functions["main"].bindings[1].value
    assert isinstance(call, FunctionCall) and call.function == "part" and [a.name for a in call.args] == ["x"]  # type: ignore[union-attr]
    assert "constant(value=2)" in print_function(module.functions["part"])
    assert len(module.functions["part"].bindings) == 3


def test_several_results_come_as_a_tuple() -> None:
    text = CHAIN.replace("c = add(b, w)", "c = add(b, a)")
    module = outlined(text, Group((1, 2), (0,), "part"))
    assert str(module.functions["part"].returns) == "Tuple[float32[n, 4], float32[n, 4]]"
    assert [b.var.name for b in module.functions["main"].bindings] == ["two", "part", "a", "b", "c"]


def test_dims_that_no_parameter_binds_are_extra_arguments() -> None:
    text = """
def main(x: float32[n, m]) -> float32[m*n, 2]:
    with dataflow():
        a = reshape(x, shape=(m*n,))
        b = reshape(a, shape=(m*n, 1))
        c = concat(b, b, axis=1)
    return c
"""
    module = outlined(text, Group((1, 2), (), "part"))
    assert module.functions["part"].dims == ("m", "n")
    call = module.functions["main"].bindings[-1].value
    assert isinstance(call, FunctionCall) and [str(d) for d in call.dims] == ["m", "n"]


def test_bindings_move_behind_what_they_wait_for() -> None:
    text = """
def main(x: float32[n], y: float32[n]) -> float32[n]:
    with dataflow():
        a = exp(x)
        b = exp(y)
        c = add(a, b)
        d = neg(b)
        e = add(c, d)
    return e
"""
    module = outlined(text, Group((0, 2), (), "part"))
    names = [b.var.name for b in module.functions["main"].bindings]
    assert names.index("b") < names.index("c") < names.index("e")


def test_groups_that_wait_for_each_other_are_refused() -> None:
    text = """
def main(x: float32[n]) -> float32[n]:
    with dataflow():
        a = exp(x)
        b = neg(a)
        c = sqrt(b)
    return c
"""
    with pytest.raises(GraphError, match="wait for each other"):
        outlined(text, Group((0, 2), (), "part"))


def test_a_group_that_nothing_reads_is_refused() -> None:
    text = CHAIN.replace("return c", "return x").replace("-> float32[n, 4]", "-> float32[n, 4]")
    with pytest.raises(GraphError, match="nothing reads"):
        outlined(text, Group((3,), (), "part"))


def test_tensors_that_the_compiler_knows_become_parameters() -> None:
    text = """
def main(x: float32[2]) -> float32[2]:
    with dataflow():
        a = mul(x, float32[2](1.0, 2.0))
    return a
"""
    module = outlined(text, Group((0,), (), "part"))
    part = module.functions["part"]
    assert [str(p.annotation) for p in part.parameters] == ["float32[2]", "float32[2]"]
    assert isinstance(module.functions["main"].blocks[0], Block)


def test_a_group_stands_behind_the_cast_that_introduces_its_dims() -> None:
    text = """
def main(x: float32[n]) -> float32[k]:
    with dataflow():
        z = full(shape=(), value=2, dtype='float32')
        p = nonzero(x)
        q = match_cast[int64[k, 1]](p)
        r = full(shape=(k,), value=1, dtype='float32')
        s = add(r, z)
    return s
"""
    module = outlined(text, Group((0, 3, 4), (), "part"))
    assert [b.var.name for b in module.functions["main"].bindings] == ["p", "q", "s"]
