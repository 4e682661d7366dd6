"""Arguments that a program uses under several axes: which inputs read them, and that the meaning stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mirage as mi
from mirage.errors import AxisError, InputError, VerificationError
from mirage.ir.axes import AxisInput, AxisProgram, argument_places, read_arguments, to_axes
from mirage.ir.expand import expand
from mirage.ir.moves import Move, Moves
from mirage.ir.reads import MAX_READS, lower
from mirage.ir.unify import resolve
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.validate import validate
from mirage.verify.lowering import check_lowering
from mirage.verify.primes import draw_primes
from tests.ir.programs import shared_program
from tests.shared import SHARED, shared

T = mi.tensor
PRIMES = draw_primes(0)


def inputs(p: AxisProgram) -> list[str]:
    """`name = argument [dims]` per input."""
    return [f"{x.name} = {x.argument} [{', '.join('*'.join(d) or '1' for d in x.dims)}]" for x in p.inputs]


def lowered(fn: Callable[..., Any], **types: Any) -> AxisProgram:
    return to_axes(mi.trace(fn, "f", **types))


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "gram": ["x = x [m, k]", "x_2 = x [m_2, k]"],
        "covariance": ["x = x [m, k]", "x_2 = x [m, k_2]"],
        # keys and values are one input
        "self attention": ["x = x [m, k]", "x_2 = x [m_2, k]"],
        "square": ["a = a [n, n_2]", "a_2 = a [n_2, n_3]"],
        "times transpose": ["a = a [n, n_2]", "a_2 = a [n_3, n_2]"],
        "symmetric": ["a = a [n, n_2]", "a_2 = a [n_2, n]"],
        "pairwise": ["x = x [m]", "x_2 = x [m_2]"],
        "rows and columns": ["x = x [m, k]", "y = y [m, m_2]", "x_2 = x [m_2, k]"],
        "two factorizations": ["x = x [m, d2*d3]", "x_2 = x [m, d3_2*d2_2]"],
        # only what has to be: the weights are read once
        "shared rows": ["x = x [m, k]", "w = w [k, j]", "v = v [k_2, j]", "x_2 = x [m_2, k_2]"],
        "gram squared": ["x = x [m, k]", "x_2 = x [m_2, k]", "x_3 = x [m_3, k]"],
        "cube": ["a = a [n, n_2]", "a_2 = a [n_2, n_3]", "a_3 = a [n_3, n_4]"],
        "several outputs": ["x = x [m, k]", "x_2 = x [m_2, k]", "x_3 = x [m, k_2]"],
        "joined and split": ["x = x [m, d4]", "y = y [m, d3]", "x_2 = x [m, d2*d2_2]"],
    }.items(),
)
def test_inputs_read_an_argument_again_where_an_axis_would_occur_twice(name: str, expected: list[str]) -> None:
    p = to_axes(shared(name))
    assert inputs(p) == expected
    assert to_axes(shared(name)) == p


@pytest.mark.parametrize("name", SHARED)
def test_the_axis_form_of_shared_arguments_is_the_program(name: str) -> None:
    program = shared(name)
    reference = reference_graph(to_axes(program))
    validate(reference)
    assert "8 random tests" in check_lowering(program, reference, 0)


@settings(max_examples=2 * settings().max_examples)
@given(st.integers(0, 10**6))
def test_random_programs_with_shared_inputs_keep_their_meaning(seed: int) -> None:
    program = shared_program(Random(seed), 7)
    p = to_axes(program)
    reference = reference_graph(p)
    validate(reference)
    check_lowering(program, reference, seed)
    for dims in [x.dims for x in p.inputs] + [o.dims for o in p.outputs]:
        axes = [a for d in dims for a in d]
        assert len(set(axes)) == len(axes)


def test_what_did_not_fit_keeps_nobody_alive() -> None:
    """A first form that is given up raises an error, whose traceback has the frames of all callers."""

    class Local:
        pass

    def calls() -> weakref.ref[Local]:
        local = Local()
        lowered(lambda x: x @ x.mT, x=T("m", "k"))
        return weakref.ref(local)

    gc.disable()
    try:
        assert calls()() is None
    finally:
        gc.enable()


def test_a_wrong_reading_is_found() -> None:
    program = shared("square")
    p = to_axes(program)
    transposed = replace(p.inputs[1], dims=p.inputs[1].dims[::-1])
    wrong = replace(p, inputs=(p.inputs[0], transposed))
    with pytest.raises(VerificationError, match="its axis form differs from it at n=2"):
        check_lowering(program, reference_graph(wrong), 0)


def test_arguments_come_first_and_in_order_whether_read_or_not() -> None:
    p = lowered(lambda x, w, u: mi.transpose(w, (1, 0)) @ w, x=T("m"), w=T("m", "n"), u=T("n"))
    assert inputs(p) == ["x = x [m]", "w = w [m_2, n]", "u = u [n_2]", "w_2 = w [m_2, n_3]"]
    assert argument_places(p.inputs) == (0, 1, 2, 1)


def test_names_of_further_inputs_are_free() -> None:
    def fn(x: Any, x_2: Any) -> Any:
        return x @ mi.transpose(x, (1, 0)) + x_2

    p = lowered(fn, x=T("m", "k"), x_2=T("m", "m"))
    assert inputs(p) == ["x = x [m, k]", "x_2 = x_2 [m, m_2]", "x_3 = x [m_2, k]"]


def test_constants_and_values_without_the_axis_are_shared() -> None:
    def fn(x: Any, s: Any) -> Any:
        scaled = x * mi.exp(s) * 2
        return scaled @ mi.transpose(scaled, (1, 0))

    p = lowered(fn, x=T("m", "k"), s=T(1))
    assert [x.argument for x in p.inputs] == ["x", "s", "x"]
    assert [n.op for n in p.nodes].count("exp") == 1
    assert [n.op for n in p.nodes].count("constant") == 1


def test_the_text_names_the_argument() -> None:
    assert str(to_axes(shared("gram"))).splitlines()[1:3] == [
        "v0[m,k] = input(name=x)",
        "v1[m_2,k] = input(name=x_2, argument=x)",
    ]


def outer(rank: int) -> Callable[[Any], Any]:
    """The product of `rank` vectors, each along a dim of its own."""

    def fn(x: Any) -> Any:
        result = mi.reshape(x, ("m", *(1,) * (rank - 1)))
        for i in range(1, rank):
            result = result * mi.reshape(x, (*(1,) * i, "m", *(1,) * (rank - 1 - i)))
        return result

    return fn


def test_the_number_of_further_inputs_is_bounded() -> None:
    p = lowered(outer(MAX_READS + 1), x=T("m"))
    assert [x.name for x in p.inputs] == ["x", *(f"x_{k}" for k in range(2, MAX_READS + 2))]
    message = rf"mul: an axis of size m would occur twice.*more than {MAX_READS} further inputs; pass some uses"
    with pytest.raises(AxisError, match=message):
        lowered(outer(MAX_READS + 2), x=T("m"))


def test_a_long_chain_reads_few_inputs() -> None:
    """An axis that has been summed may be that of a later result."""

    def power(a: Any) -> Any:
        result = a
        for _ in range(11):
            result = result @ a
        return result

    assert len(lowered(power, a=T("n", "n")).inputs) == 3


def test_what_reading_again_does_not_help() -> None:
    def straddling(x: Any) -> Any:
        return mi.reshape(mi.reshape(x, (2, 3, "n")), (3, 2, "n"))

    with pytest.raises(AxisError, match="the factor 2 straddles the new dim 3"):
        lowered(straddling, x=T(6, "n"))


def test_a_program_that_shares_nothing_has_its_parameters_as_inputs() -> None:
    p = lowered(lambda x, w: mi.softmax(x @ w) * mi.exp(x @ w), x=T("m", "k"), w=T("k", "n"))
    assert inputs(p) == ["x = x [m, k]", "w = w [k, n]"]


def test_uniting_equal_factors_in_another_order_ends() -> None:
    """A product of two axes and the same in the other order: unified naively, each stands for the other."""

    def fn(a: Any) -> Any:
        return mi.reshape(a, ("n*n",)) + mi.reshape(mi.transpose(a, (1, 0)), ("n*n",))

    p = lowered(fn, a=T("n", "n"))
    assert inputs(p) == ["a = a [n, n_2]", "a_2 = a [n_2, n]"]


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_no_further_input_could_be_spared(seed: int) -> None:
    """Uniting any two inputs of one argument gives a tensor an axis twice, or does not unify."""
    result = lower(expand(shared_program(Random(seed), 7)))
    low = result.low
    given_inputs = [raw for raw in low.raw if raw.op == "input"]
    for k, x in enumerate(given_inputs):
        for j, y in enumerate(given_inputs[:k]):
            if result.read[k] != result.read[j]:
                continue
            mark = low.mark()
            try:
                for a, b in zip(x.dims, y.dims, strict=True):
                    low.unify(a, b, "input")
                flat = [resolve([leaf for d in raw.dims for leaf in d]) for raw in low.raw]
                assert any(len(set(leaves)) < len(leaves) for leaves in flat)
            except AxisError:
                pass
            low.back_to(mark)


def test_arguments_are_read_in_order_of_their_first_input() -> None:
    read = [AxisInput("x", ()), AxisInput("y", ()), AxisInput("x_2", (), "x")]
    assert argument_places(read) == (0, 1, 0)

    def moved(moves: Moves, value: int) -> int:
        return value + len(moves)

    assert read_arguments("f", read, [10, 20], moved) == [10, 20, 10]
    read.append(AxisInput("x_3", (), "x", (Move("windows", ()),)))
    assert read_arguments("f", read, [10, 20], moved) == [10, 20, 10, 11]
    with pytest.raises(InputError, match="f: takes 2 arrays, got 3"):
        read_arguments("f", read, [10, 20, 30], moved)
