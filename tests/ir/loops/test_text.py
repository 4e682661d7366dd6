"""Loop programs as text: printing and parsing are inverse, and bad text is an error with its line."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.errors import LoopError, MirageError, ParseError
from mirage.ir.loops.parse import parse_loops
from mirage.ir.loops.program import LoopProgram, compute, operands, single
from mirage.ir.loops.scalars import Scalar, constant, maximum, select
from mirage.ir.loops.simplify import simplify_program
from mirage.ir.types import tensor
from tests.ir.loops.programs import TEXTS, programs


@pytest.mark.parametrize("text", TEXTS, ids=programs().keys())
def test_prints_as_it_was_written(text: str) -> None:
    assert parse_loops(text).to_text() == text


@pytest.mark.parametrize("name", programs())
def test_parses_back(name: str) -> None:
    simple = simplify_program(programs()[name])
    assert parse_loops(simple.to_text()) == simple


def test_golden(golden: Callable[[str, str], None]) -> None:
    text = "\n".join(p.to_text() for p in map(simplify_program, programs().values()))
    golden("loops.txt", text)


def row(body: Callable[[Scalar], Scalar], dtype: str = "float32") -> LoopProgram:
    x = tensor("n", dtype=dtype)
    (operand,) = operands([x])
    return single("row", [x], compute(x, lambda i: body(operand[i])))


@given(st.fractions() | st.floats(allow_nan=False).map(lambda x: x if abs(x) == float("inf") else Fraction(x)))
def test_numbers_are_exact(value: Fraction | float) -> None:
    for program in (
        row(lambda x: x + value),
        row(lambda x: constant(value, "float32")),
        row(lambda x: select(x < value, value, x)),
    ):
        assert parse_loops(program.to_text()) == program


@given(st.integers(-(2**63), 2**63 - 1))
def test_integers_are_exact(value: int) -> None:
    program = row(lambda x: maximum(x % value, constant(value, "int64")), "int64")
    assert parse_loops(program.to_text()) == program


def test_shared_values_are_printed_once() -> None:
    def doubled(x: Scalar) -> Scalar:
        for _k in range(200):
            x = x + x * x
        return x

    program = row(doubled)
    text = program.to_text()
    assert len(text) < 20_000 and parse_loops(text) == program


GOOD = """\
def f(x: float32[n, m]) -> float32[n]:
    @sum
    def out(i0) -> float32[n]:
        for r0 in range(m):
            yield x[i0, r0]
    return out
"""


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        ("x[i0, r0]", "x[i0, r0", ParseError, "line"),
        ("def f", "class f", ParseError, "line 1"),
        ("x: float32[n, m]", "x", ParseError, "line 1: expected parameters NAME: float32"),
        ("x: float32[n, m]", "x: float32[n, m], x: float32[n]", ParseError, "each name once"),
        ("@sum", "@mean", ParseError, "line 3: expected @COMBINER before a reduction, one of sum"),
        ("    @sum\n", "", ParseError, "line 2: expected @COMBINER"),
        ("yield", "return", ParseError, "line 5: expected yield EXPRESSION"),
        ("return out", "return x", LoopError, "line 6: f: outputs x; name stages"),
        ("return out", "out", ParseError, "line 6: expected return STAGE"),
        ("x[i0, r0]", "x[i0]", LoopError, "1 indices for a tensor of rank 2"),
        ("x[i0, r0]", "y[i0, r0]", ParseError, "line 5: expected an expression"),
        ("x[i0, r0]", "x[i0, r1]", LoopError, "nothing gives the dims r1"),
        ("x[i0, r0]", "1.0", ParseError, "line 5: expected a number with its type"),
        ("x[i0, r0]", "x[i0, r0] + r0", LoopError, "add: operands are float32 and int64"),
        ("x[i0, r0]", "x[i0, r0] ** 2", ParseError, "line 5: expected one of"),
        ("x[i0, r0]", "exit(x[i0, r0])", LoopError, "function 'exit' is not registered"),
        ("x[i0, r0]", "x.__class__", ParseError, "line 5: expected an expression"),
        ("x[i0, r0]", "x[i0, int64(x[i0, r0])]", LoopError, "put it in checked"),
        ("x[i0, r0]", "int64(x[i0, r0])", LoopError, "the body is int64, the tensor float32"),
        ("x[i0, r0]", "int64(inf)", LoopError, "not a whole number"),
        ("float32[n, m]", "float8[n, m]", MirageError, "float8"),
        ("-> float32[n]:\n    @", "-> float32[m]:\n    @", ParseError, "line 1: expected the types of the outputs"),
        ("def out(i0)", "def out(i0, i1)", LoopError, "loops i0, i1, r0 for a tensor of rank 1"),
        ("def out(i0)", "def x(i0)", ParseError, "expected another name"),
        ("out", "x y", ParseError, "line"),
        ("range(m)", "range(m, k)", ParseError, "line"),
        ("x[i0, r0]", "(" * 300 + "x[i0, r0]" + ")" * 300, ParseError, "line"),
    ],
)
def test_bad_text(old: str, new: str, error: type[MirageError], message: str) -> None:
    assert parse_loops(GOOD).to_text() == GOOD and old in GOOD
    with pytest.raises(error, match=message):
        parse_loops(GOOD.replace(old, new))


def test_a_number_beyond_all_floats_is_infinite() -> None:
    small, least = (GOOD.replace("x[i0, r0]", f"max(x[i0, r0], {n})") for n in ("-1e999", "-inf"))
    assert parse_loops(small) == parse_loops(least)


def test_long_text() -> None:
    with pytest.raises(ParseError, match="at most 1000000"):
        parse_loops("#" * 1_000_001)


def test_names_that_are_no_identifiers() -> None:
    (x,) = operands([tensor("n")])
    expression = compute(tensor("n"), lambda i: x[i])
    for name in ("a b", "lambda", "1", "a.b"):
        with pytest.raises(LoopError, match="is not an identifier"):
            LoopProgram("f", (("x0", tensor("n")),), (), ((name, expression),), (name,))
