"""Printed C: readable and the same on every run, and no name or text of the user's reaches it as code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from mirage.errors import GraphError
from mirage.ir.axes import to_axes
from mirage.ir.functions import FUNCTIONS, ScalarFunction
from mirage.ir.interpret import run_reference
from mirage.ir.operator import REGISTRY, elementwise
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import tensor
from mirage.kernels.cpu.emit.algebra import literal
from mirage.kernels.cpu.emit.layout import c_names
from mirage.kernels.cpu.emit.mugraph import emit
from mirage.kernels.cpu.emit.writer import comment_text
from mirage.mugraph.degree import RunningMaximum, analyze
from mirage.mugraph.graph import MuGraph, Ref
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.kernels.cpu.check import check
from tests.kernels.kernels import error, random_inputs, single_kernel, tiles
from tests.mugraph.graphs import (
    OUT,
    ROWS,
    L,
    P,
    S,
    W,
    _attention_loop,
    accumulate,
    attention_program,
    block,
    flash_attention,
    flash_decoding,
    joined,
    kernel,
    mugraph,
    node,
    one,
    reads,
)
from tests.sampled import crossed

HINTS = {"b": 1, "h": 8, "s": 1, "t": 4096}


def test_flash_decoding_prints_as_recorded(golden: Callable[[str, str], None]) -> None:
    case = flash_decoding()
    schedule = Schedule(
        (
            KernelSchedule((("b", 1), ("h", 1), ("s", 1), ("t", 128)), (("t", 4),)),
            KernelSchedule((("b", 1), ("h", 1), ("d8", 8), ("s", 1), ("d64_2", 64))),
        )
    )
    text = emit(case.graph, schedule, analyze(case.graph), HINTS)
    assert text == emit(case.graph, schedule, analyze(case.graph), HINTS)
    golden("flash_decoding.c", text)


def test_scores_and_values_go_to_micro_kernels_and_accumulate_in_place() -> None:
    case = flash_attention()
    text = emit(case.graph, case.schedule, analyze(case.graph), HINTS)
    # queries and keys are both contiguous along d64; of the scores, tiles are longer along d8 than along t
    assert "mi_gemm_dot(e_t, 64, 8, " in text
    assert "m10_d8, 1);" in text  # the product with the values adds to the accumulator
    assert "m9" not in text  # which it does without a temporary
    assert "running_maximum(" in text
    assert "running_maximum(" not in emit(case.graph, case.schedule, RunningMaximum((), "", (), {}), HINTS)


def hostile(graph: MuGraph, names: dict[str, str]) -> MuGraph:
    """The graph with its name and those of its inputs changed to text that would be code."""
    inputs = tuple(replace(x, name=names.get(x.name, x.name)) for x in graph.inputs)
    return replace(graph, name="*/ #error injected /*", inputs=inputs)


def test_names_cannot_become_code() -> None:
    case = flash_attention()
    graph = hostile(case.graph, {"q": '*/ #error "injected"', "k": "\\\n#error", "v": "??/\n#error é"})
    exe = check(case.program, graph, case.schedule, case.sizes)
    assert exe.source.isascii()
    body = exe.source.split("*/\n#define MI_REAL", 1)
    assert len(body) == 2 and "*/" not in body[0] and "\\" not in body[0] and "?" not in body[0]
    assert "injected" not in body[1]


def test_comment_text() -> None:
    assert comment_text("a */ b /* c \\ ?\n é") == "a * / b / * c . .. ."
    assert "*/" not in comment_text("*" + "\\" + "/") and "*/" not in comment_text("**//")


def test_axis_names_are_distinct_identifiers() -> None:
    axes = ["t", "t.grid", "t_grid", "ä", "ö", "x" * 40, "x" * 41, "0"]
    names = c_names(axes)
    assert len(set(names.values())) == len(axes)
    assert all(n.isascii() and n.replace("_", "a").isalnum() for n in names.values())


def test_unicode_axes_run() -> None:
    b = ProgramBuilder("unicode")
    p = b.finish([b.op("softmax", b.input("größe", tensor("ä", "ö")))])
    graph = single_kernel(p)
    check(p, graph, tiles(graph, 3), {"ä": 5, "ö": 19})


def test_literals() -> None:
    assert literal(Fraction(1, 3)) == "((mi_real)0.3333333333333333)"
    assert literal(Fraction(10) ** 400) == "MI_INFINITY"
    assert literal(-(Fraction(10) ** 400)) == "(-MI_INFINITY)"


@pytest.fixture
def cube() -> Iterator[ScalarFunction]:
    """A user's function with C of its own, in an operator; both are taken out of the tables again."""
    source = "static inline mi_vec user_cube(mi_vec x, mi_vec c) { return x * x * x + c; }"
    fn = ScalarFunction("cube_plus", lambda x, c: x**3 + np.asarray(x).dtype.type(c), "user_cube", source)
    FUNCTIONS[fn.name] = fn
    elementwise("cube_plus", lambda al, x: al.function(fn, x, Fraction(1, 4)))
    yield fn
    del FUNCTIONS[fn.name], REGISTRY["cube_plus"]


def test_a_users_function_is_printed_once(cube: ScalarFunction) -> None:
    b = ProgramBuilder("user")
    x = b.input("x", tensor("m", "n"))
    p = b.finish([b.op("cube_plus", b.op("exp", b.op("cube_plus", x)))])
    graph = single_kernel(p)
    exe = check(p, graph, tiles(graph, 4), {"m": 3, "n": 21})
    assert exe.source.count("static inline mi_vec user_cube") == 1


def test_a_function_name_that_is_no_identifier_is_refused(cube: ScalarFunction) -> None:
    b = ProgramBuilder("user")
    p = b.finish([b.op("cube_plus", b.input("x", tensor("m")))])
    object.__setattr__(cube, "c", "system(0);f")
    graph = single_kernel(p)
    with pytest.raises(GraphError, match="is not the name of a C function"):
        emit(graph, tiles(graph, 4), analyze(graph), {})


def test_a_shift_inside_an_operator_that_has_exp_in_it() -> None:
    elementwise("exp_twice", lambda al, x: al.function(FUNCTIONS["exp"], al.add(x, x)))
    try:
        b = ProgramBuilder("inner")
        e = b.op("exp_twice", b.input("x", tensor("m", "n")))
        p = b.finish([b.op("div", e, b.op("sum", e, axes=(1,), keepdims=True))])
        graph = single_kernel(p)
        assert analyze(graph).safe
        sizes = {"m": 4, "n": 37}
        inputs = [x * np.float32(100) for x in random_inputs(p, sizes)]
        shifted = [inputs[0].astype(np.float64) - inputs[0].max(axis=1, keepdims=True)]
        (want,) = run_reference(p, shifted, sizes, "float64")
        exe = check(p, graph, tiles(graph, 3), sizes, random_inputs(p, sizes))
        assert error(exe(inputs, sizes), [want]) < 1e-5
    finally:
        del REGISTRY["exp_twice"]


def test_a_running_maximum_rescales_what_was_concatenated() -> None:
    case = joined()
    for tile in (1, 2, 16):
        schedule = tiles(case.graph, {"m": 2, "k": tile})
        sizes = {"m": 3, "n": 4, "k": 21}
        inputs = random_inputs(case.program, sizes)
        inputs[0][:] = 0.5  # not an exponent: its terms have degree 0, so that no shift is safe
        check(case.program, case.graph, schedule, sizes, inputs)


def concatenated_softmax() -> tuple[Program, MuGraph]:
    """exp(x) / sum(exp(x)), the exponents of all tiles kept until the sum is known."""
    b = ProgramBuilder("softmax")
    program = b.finish([b.op("softmax", b.input("x", tensor("m", "n")))])
    p = to_axes(program)
    nodes = [
        *reads(p.inputs[0].dims),
        node("exp", (0,), ("m", "n")),
        accumulate(1, "n", ("m", "n"), "concat"),
        node("sum", (1,), ("m",), reduce=("n",)),
        accumulate(3, "n", ("m",)),
        node("div", (2, 4), ("m", "n")),
    ]
    return program, mugraph(p, [kernel(block(nodes, (5,), m=P, n=L), (Ref(0),), p.outputs[0].dims)], Ref(1))


@pytest.mark.parametrize("tile", [1, 5, 16, 64])
def test_softmax_in_one_pass_keeps_exponents_relative_to_the_final_maximum(tile: int) -> None:
    program, graph = concatenated_softmax()
    assert analyze(graph).safe and analyze(graph).sites[0].rows == ("m",)
    sizes = {"m": 5, "n": 61}
    for scale in (1, 1e3):
        inputs = [np.sort(x, axis=1) * np.float32(scale) for x in random_inputs(program, sizes)]
        check(program, graph, tiles(graph, {"m": 2, "n": tile}), sizes, inputs)


def attention_variants() -> dict[str, MuGraph]:
    """FlashDecoding whose second kernel loops over the partial results, and one that combines them in two kernels."""
    p = to_axes(attention_program())
    sums, values = one("t.grid", *ROWS), one("t.grid", *OUT)
    first = block(_attention_loop(p), (8, 10), b=P, h=P, d8=W, s=P, d64=W, t=S, d64_2=W)
    start = kernel(first, (Ref(0), Ref(1), Ref(2)), sums, values)
    nodes = [
        *reads(sums, values),
        node("sum", (0,), ROWS, reduce=("t.grid",)),
        accumulate(2, "t.grid", ROWS),
        node("sum", (1,), OUT, reduce=("t.grid",)),
        accumulate(4, "t.grid", OUT),
        node("div", (5, 3), OUT),
    ]
    looped = block(nodes, (6,), b=P, h=P, d8=P, s=P, t_grid=L, d64_2=P)
    second = block([*reads(sums), node("sum", (0,), ROWS, reduce=("t.grid",))], (1,), b=P, h=P, d8=P, s=P, t_grid=W)
    nodes = [
        *reads(one(*ROWS), values),
        node("sum", (1,), OUT, reduce=("t.grid",)),
        node("div", (2, 0), OUT),
    ]
    third = block(nodes, (3,), b=P, h=P, d8=P, s=P, t_grid=W, d64_2=P)
    dims = p.outputs[0].dims
    return {
        "looped": mugraph(p, [start, kernel(looped, (Ref(3, 0), Ref(3, 1)), dims)], Ref(4)),
        "three": mugraph(
            p,
            [start, kernel(second, (Ref(3, 0),), one(*ROWS)), kernel(third, (Ref(4), Ref(3, 1)), dims)],
            Ref(5),
        ),
    }


@pytest.mark.parametrize(("cut", "name"), crossed([(1, 1), (3, 7), (16, 3)], attention_variants()))
def test_partial_results_meet_at_a_common_maximum(name: str, cut: tuple[int, int]) -> None:
    graph = attention_variants()[name]
    sizes = {"b": 2, "h": 2, "s": 3, "t": 37}
    program = attention_program()
    inputs = random_inputs(program, sizes)
    inputs[0] *= np.float32(30)
    tile, splits = cut
    check(program, graph, tiles(graph, tile, splits), sizes, inputs)
