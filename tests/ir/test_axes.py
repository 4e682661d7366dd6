"""Lowering to named axes: which axes there are, that the meaning stays, and why some programs have none."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage as mi
from mirage.errors import AxisError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import AxisProgram, read_arguments, to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.moves import moved
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.schedule import Schedule
from mirage.mugraph.validate import validate
from tests.mugraph.graphs import as_library, attention_program, joined_program
from tests.random_programs import random_program


def unary(op: str, *shape: Any, **attrs: Any) -> AxisProgram:
    b = ProgramBuilder("f")
    return to_axes(b.finish([b.op(op, b.input("x", tensor(*shape)), **attrs)]))


def binary(op: str, x: tuple[Any, ...], y: tuple[Any, ...], **attrs: Any) -> AxisProgram:
    b = ProgramBuilder("f")
    return to_axes(b.finish([b.op(op, b.input("x", tensor(*x)), b.input("y", tensor(*y)), **attrs)]))


def sizes(p: AxisProgram) -> dict[str, str]:
    return {a: str(d) for a, d in p.axes.items()}


def test_repeat_is_an_absent_axis() -> None:
    p = to_axes(attention_program())
    q, k, v = (x.dims for x in p.inputs)
    assert sizes(p) == {"b": "b", "h": "h", "d8": "8", "s": "s", "d64": "64", "t": "t", "d64_2": "64"}
    assert q == (("b",), ("h", "d8"), ("s",), ("d64",))
    assert k == (("b",), ("h",), ("t",), ("d64",))
    assert v == (("b",), ("h",), ("t",), ("d64_2",))
    assert p.outputs[0].dims == (("b",), ("h", "d8"), ("s",), ("d64_2",))
    assert p.reduction_axes() == ("t", "d64")
    assert p.output_axes() == ("b", "h", "d8", "s", "d64_2")
    assert {n.op for n in p.nodes} == {"input", "matmul", "constant", "mul", "exp", "sum", "div"}


def test_values_are_stored_as_numpy_would_store_them() -> None:
    """Keys and values of a self-attention have rows of their own, and are contiguous along the columns of their weights."""

    def attention(x: Any, wq: Any, wk: Any, wv: Any) -> Any:
        x = x * 2
        return mi.softmax((x @ wq) @ (x @ wk).mT) @ (x @ wv)

    weights: dict[str, Any] = {name: mi.tensor("k", n) for name, n in (("wq", 8), ("wk", 8), ("wv", 16))}
    p = to_axes(mi.trace(attention, x=mi.tensor("s", "k"), **weights))
    assert p.axes["s_2"] == p.axes["s"]
    products = {n.axes for n in p.nodes if n.op == "matmul"}
    assert products == {("s", "d8"), ("s_2", "d8"), ("s", "s_2"), ("s_2", "d16"), ("s", "d16")}
    # inputs, too, as far as that allows it
    assert all(n.axes == x.axes for n, x in zip([n for n in p.nodes if n.op == "input"], p.inputs, strict=True))


def test_an_order_that_suits_no_other_value_suits_the_first() -> None:
    """What is read along rows and along columns."""
    b = ProgramBuilder("f")
    x, y = b.input("x", tensor("m", "n")), b.input("y", tensor("n", "m"))
    first = b.op("mul", x, x)
    p = to_axes(b.finish([b.op("add", b.op("transpose", first, perm=(1, 0)), b.op("exp", y))]))
    assert all(n.axes == ("m", "n") for n in p.nodes)


def test_elementwise_unifies_and_broadcasts() -> None:
    p = binary("add", ("m", "n"), ("n",))
    assert p.inputs[0].dims == (("m",), ("n",)) and p.inputs[1].dims == (("n",),)
    assert p.nodes[2].axes == ("m", "n")
    p = binary("add", ("m", 1), (1, "n"))
    assert p.inputs[0].dims == (("m",), ()) and p.inputs[1].dims == ((), ("n",))
    assert p.outputs[0].dims == (("m",), ("n",))


def test_equal_sizes_are_not_one_axis_unless_unified() -> None:
    p = binary("matmul", ("m", "n"), ("n", "n"))
    assert sizes(p) == {"m": "m", "n": "n", "n_2": "n"}
    assert p.nodes[2].reduce == ("n",) and p.nodes[2].axes == ("m", "n_2")


def test_reshape_splits_and_merges() -> None:
    p = unary("reshape", "m", "4*n", shape=("m", 4, "n"))
    assert sizes(p) == {"m": "m", "d4": "4", "n": "n"}
    assert p.inputs[0].dims == (("m",), ("d4", "n"))
    assert p.outputs[0].dims == (("m",), ("d4",), ("n",))
    p = unary("reshape", "m", "n", shape=("m*n",))
    assert p.outputs[0].dims == (("m", "n"),)


def test_a_later_split_reaches_earlier_values() -> None:
    b = ProgramBuilder("f")
    x, y = b.input("x", tensor("m", "8*n")), b.input("y", tensor("m", 8, "n"))
    total = b.op("add", b.op("reshape", b.op("exp", x), shape=("m", 8, "n")), y)
    p = to_axes(b.finish([total]))
    assert p.inputs[0].dims == (("m",), ("d8", "n"))
    assert p.nodes[2].axes == ("m", "d8", "n")


def test_a_sum_over_a_repeated_dim_multiplies_by_its_size() -> None:
    b = ProgramBuilder("f")
    x = b.op("repeat", b.input("x", tensor("m", 1)), axis=1, times="n")
    p = to_axes(b.finish([b.op("sum", x, axes=(1,))]))
    assert [n.op for n in p.nodes] == ["input", "size", "mul"]
    assert str(p.nodes[1].attr["dim"]) == "n"


def maxima(build: Callable[[ProgramBuilder, int], int], *shape: Any) -> AxisProgram:
    b = ProgramBuilder("f")
    return to_axes(b.finish([build(b, b.input("x", tensor(*shape)))]))


def test_a_maximum_over_a_repeated_dim_is_the_operand() -> None:
    p = maxima(lambda b, x: b.op("max", b.op("repeat", x, axis=0, times=4), axes=(0,)), 1, "n")
    assert [n.op for n in p.nodes] == ["input"]
    with pytest.raises(AxisError, match=r"max: over a dim of size k, along which its operand is the same"):
        # of no elements it is -inf
        maxima(lambda b, x: b.op("max", b.op("repeat", x, axis=0, times="k"), axes=(0,)), 1, "n")


def test_equal_values_are_computed_once() -> None:
    b = ProgramBuilder("f")
    x = b.input("x", tensor("m", "n"))
    transposed = b.op("transpose", b.op("exp", b.op("transpose", x, perm=(1, 0))), perm=(1, 0))
    p = to_axes(b.finish([b.op("add", b.op("exp", x), transposed)]))
    assert [n.op for n in p.nodes] == ["input", "exp", "add"]


def test_concat_joins_axes_into_one() -> None:
    p = to_axes(joined_program())
    node = next(n for n in p.nodes if n.op == "concat")
    assert node.joined == ("knx", ("n", "k")) and str(p.axes["knx"]) == "k + n"


def refused(program: Program, message: str) -> None:
    with pytest.raises(AxisError, match=message):
        to_axes(program)


@pytest.mark.parametrize("dim", ["n // 2", "n % 4", "min(n, 8)", "m * max(n, 2)"])
def test_only_polynomials_are_axes(dim: str) -> None:
    b = ProgramBuilder("f")
    x = b.input("x", tensor("m", dim))
    refused(b.finish([b.op("exp", x)]), "input: dim .* is not a sum of products of dims, so it cannot be an axis")
    b = ProgramBuilder("f")
    x = b.input("x", tensor("m", "n"))
    refused(b.finish([b.op("mul", x, b.op("size", dim=dim, where="line 7"))]), "line 7: size: dim .* cannot be an axis")


def test_programs_without_axes_say_why() -> None:
    b = ProgramBuilder("f")
    x = b.input("x", tensor(6, "n"))
    split = b.op("reshape", b.op("exp", x), shape=(2, 3, "n"))
    refused(b.finish([b.op("reshape", split, shape=(3, 2, "n"))]), "the factor 2 straddles the new dim 3")
    b = ProgramBuilder("f")
    x, y = b.input("x", tensor(2, 3)), b.input("y", tensor(3, 2))
    flat = [b.op("reshape", v, shape=(6,)) for v in (x, y)]
    refused(b.finish([b.op("add", *flat)]), "neither of the factors 2 and 3 divides the other")
    b = ProgramBuilder("f")
    x, y = b.input("x", tensor("m", 4)), b.input("y", tensor("m", 1))
    refused(b.finish([b.op("concat", x, y, axis=1)]), "only dims of one factor larger than 1 can be joined")


def test_text_lists_axes_values_and_results() -> None:
    assert str(binary("matmul", ("m", "k"), ("k", "n"))).splitlines() == [
        "axes m=m, k=k, n=n",
        "v0[m,k] = input(name=x)",
        "v1[k,n] = input(name=y)",
        "v2[m,n] = matmul(v0, v1) over k",
        "return v2[m, n]",
    ]


@settings(max_examples=3 * settings().max_examples // 2)
@given(st.integers(0, 10**6))
def test_lowering_keeps_the_meaning(seed: int) -> None:
    """Run as predefined kernels over named axes, a random program computes what the reference computes."""
    program = random_program(Random(seed), 6)
    axes = to_axes(program)
    graph = as_library(axes)
    validate(graph)
    bound = {"m": 3, "n": 2, "k": 4}
    rng = np.random.default_rng(seed)
    # small values: a softmax over named axes has no maximum of its own
    inputs = [rng.standard_normal(t.bind(bound)) / 8 for t in program.input_types]
    with np.errstate(all="ignore"):
        want = run_reference(program, inputs, bound, "float64")
        read = read_arguments("random", axes.inputs, inputs, lambda moves, x: moved(moves, x, bound))
        got = run_mugraph(graph, Schedule(()), read, FloatArithmetic(bound))
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)
