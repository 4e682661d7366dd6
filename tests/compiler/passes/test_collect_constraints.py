"""What passes may assume of dims: the guards of a function's boundary, and what is always true."""

from __future__ import annotations

import pytest

from mirage.compiler.constraints import from_bounds
from mirage.compiler.context import Context
from mirage.compiler.passes import collect_constraints, dead_code, fuse, generate, inline
from mirage.errors import ConstraintError
from tests.compiler.passes.running import after, main_text, ops


def collected(text: str, **bounds: int) -> Context:
    context = Context(bounds=from_bounds(bounds))
    after(text, collect_constraints.run, context=context)
    return context


def test_bounds_of_the_user_are_those_of_main_text() -> None:
    context = collected(main_text("r = exp(x)", "x: float32[n]"), n=32)
    assert context.of("main").upper_bound("2*n") == 64
    assert context.bounds is not context.of("main")


def test_what_operators_need() -> None:
    known = collected(
        main_text("r = slice(x, axes=(0,), starts=(k,), stops=(2*k,))", "x: float32[n], y: float32[k]")
    ).of("main")
    assert known.at_most("2*k", "n")
    assert any("slice" in f.reason for f in known.guards())


def test_what_casts_of_the_signature_need() -> None:
    known = collected(main_text("r = match_cast[float32[m]](x)", "x: float32[n], y: float32[m]")).of("main")
    assert known.equal("n", "m")


def test_what_reshapes_need() -> None:
    known = collected(main_text("r = reshape_to(x, s)", "x: float32[n], s: Shape[a, b]")).of("main")
    assert known.same_elements(["n"], ["a", "b"])


def test_what_calls_need() -> None:
    text = """
def f(x: float32[k], y: float32[k]) -> float32[k]:
    with dataflow():
        z = add(x, y)
    return z

def main(x: float32[n], y: float32[m], p: bool[()]):
    {line}
    return r
"""
    assert collected(text.format(line="with dataflow():\n        r = call[f](x, y)")).of("main").equal("n", "m")
    # the branch may not run
    assert (
        not collected(text.format(line="with dataflow():\n        r = if_else[f, f](p, x, y)"))
        .of("main")
        .equal("n", "m")
    )


def test_checks_of_dims_of_the_middle_prove_nothing_of_what_ran_before() -> None:
    body = "u = unique(x)\na = match_cast[float32[c]](u)\nb = match_cast[float32[c]](y)\nr = add(a, b)"
    known = collected(main_text(body, "x: float32[n], y: float32[m]")).of("main")
    assert not known.equal("c", "m") and not known.equal("n", "m")


@pytest.mark.parametrize(
    ("body", "bound"),
    [
        ("u = unique(x)\nr = match_cast[float32[c]](u)", "k*n"),
        ("u = nonzero(x)\nr = match_cast[int64[c, 2]](u)", "k*n"),
        ("u = boolean_mask(x, p)\nr = match_cast[float32[c, k]](u)", "n"),
    ],
)
def test_dims_that_depend_on_data_are_bounded(body: str, bound: str) -> None:
    known = collected(main_text(body, "x: float32[n, k], p: bool[n]"), n=10, k=3).of("main")
    assert known.at_most("c", bound)
    assert known.upper_bound("c") == (10 if bound == "n" else 30)


CALLS = """
def f(x: float32[a], y: float32[b]) -> float32[a]:
    with dataflow():
        z = exp(x)
    return z

def main(x: float32[n], y: float32[n], z: float32[m]):
    with dataflow():
        u = call[f](x, {second})
        v = call[f](z, z)
        r = (u, v)
    return r
"""


def test_all_calls_of_a_function_bound_its_dims() -> None:
    known = collected(CALLS.format(second="y"), n=8, m=16).of("f")
    assert known.upper_bound("a") == 16
    assert known.equal("a", "b")


def test_one_call_may_be_different() -> None:
    known = collected(CALLS.format(second="z"), n=8).of("f")
    assert known.upper_bound("a") is None
    assert not known.equal("a", "b")


def test_what_a_loop_carries_may_change_its_shape() -> None:
    text = """
def body(i: int64[()], x: float32[a], w: float32[c]):
    with dataflow():
        y = concat(x, x, axis=0)
        z = slice(y, axes=(0,), starts=(0,), stops=(a,))
    return z

def main(x: float32[n], w: float32[n]):
    with dataflow():
        r = loop[body]((x,), (w,), count=3)
    return r
"""
    known = collected(text, n=8).of("body")
    assert known.upper_bound("c") == 8
    assert known.upper_bound("a") is None


def test_what_is_in_kernels_by_now_is_still_a_guard() -> None:
    text = """
def f(x: float32[n], y: float32[k]) -> float32[k]:
    with dataflow():
        a = slice(x, axes=(0,), starts=(0,), stops=(k,))
        b = add(a, y)
    return b

def main(x: float32[n], y: float32[k], p: bool[()]):
    with dataflow():
        r = if_else[f, f](p, x, y)
    return r
"""
    context = Context(sizes=({"n": 8, "k": 8},))
    module = after(
        text, collect_constraints.run, fuse.run, generate.run, inline.run, dead_code.run, collect_constraints.run, context=context
    )  # fmt: skip
    assert ops(module, "f") == ["KernelCall"]
    assert any("slice" in g.reason for g in context.of("f").guards())
    # the branch may not run
    assert not context.of("main").at_most("k", "n")
    assert context.constraints.keys() == {"main", "f"}


def test_contradictions_name_both_sides() -> None:
    text = main_text("r = slice(x, axes=(0,), starts=(0,), stops=(64,))", "x: float32[n]")
    with pytest.raises(ConstraintError, match=r"bounds\['n'\]"):
        collected(text, n=32)
