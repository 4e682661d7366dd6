"""Program text: printing and parsing are inverse, and what does not parse is refused with its line."""

from __future__ import annotations

import ast
import contextlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage as mi
from mirage.errors import (
    AttributeValueError,
    DimError,
    DTypeError,
    MirageError,
    ParseError,
    ShapeError,
    UnknownOperator,
)
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.text import MAX_TEXT, number_text, parse_program, print_program
from tests.ir.cases import CASES, Case, case_program, programs


@given(programs())
def test_round_trip(p: Program) -> None:
    text = print_program(p)
    assert parse_program(text) == p
    assert print_program(parse_program(text)) == text


@pytest.mark.parametrize("case", CASES, ids=str)
def test_round_trip_of_every_operator(case: Case) -> None:
    p = case_program(case)
    assert parse_program(str(p)) == p


@given(st.one_of(st.fractions(), st.floats(allow_nan=False, allow_infinity=False).map(Fraction)))
def test_numbers_are_exact(value: Fraction) -> None:
    b = ProgramBuilder("f")
    x = b.input("x", mi.tensor("n"))
    p = b.finish([b.op("maximum", x, value=value)])
    assert parse_program(print_program(p)).nodes[-1].attr["value"] == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(1, 8), "1/8"),
        (Fraction(0.1), "0.1"),
        (Fraction(1, 10), "1/10"),
        (Fraction(-3), "-3"),
        (Fraction(1e300), "1e+300"),
    ],
)
def test_numbers_are_readable(value: Fraction, text: str) -> None:
    assert number_text(value) == text


TEXT = """\
def attend(q: float32[b, s, 64], k: float32[b, t, 64]) -> float32[b, s, t]:
    v0 = transpose(k, perm=(0, 2, 1))
    v1 = matmul(q, v0)
    v2 = constant(value=1/8)
    v3 = mul(v1, v2)
    return v3
"""


def test_text_of_a_program() -> None:
    p = mi.trace(
        lambda q, k: q @ k.mT * 0.125, "attend", q=mi.tensor("b", "s", 64), k=mi.tensor("b", "t", 64)
    )
    assert print_program(p) == TEXT
    assert parse_program(TEXT) == p


def test_hand_written_text() -> None:
    text = """
# comments, other names, no declared result, two results
def f(x: float64[2*n,]):
    top = exp(x)
    again = exp(x)

    total = sum(top, axes=0)  # one axis without a tuple
    return total, again
"""
    p = parse_program(text)
    assert [n.op for n in p] == ["input", "exp", "sum"]
    assert p.outputs == (2, 1)
    assert parse_program(str(p)) == p


def replaced(old: str, new: str) -> str:
    assert TEXT.count(old) == 1
    return TEXT.replace(old, new)


BAD: list[tuple[str, type[MirageError], int, str]] = [
    ("", ParseError, 1, "expected one function"),
    ("x = 1", ParseError, 1, "expected one function"),
    (TEXT + "x = 1", ParseError, 7, "expected one function"),
    (TEXT + "  x = 1", ParseError, 7, "expected Python syntax"),
    (replaced("v1 = matmul(q, v0)", "v1 = matmul(q, v0"), ParseError, 3, "expected Python syntax"),
    (replaced("q, v0", "q, v9"), ParseError, 3, "'v9' is not defined"),
    (
        replaced("q, v0", "q, 2"),
        ParseError,
        3,
        "expected the name of a parameter or of an earlier value; found '2'",
    ),
    (replaced("q, v0", "q, exp(v0)"), ParseError, 3, "expected the name"),
    (replaced("q, v0", "q, *v0"), ParseError, 3, "expected the name"),
    (replaced("v3 = mul", "v1 = mul"), ParseError, 5, "'v1' is assigned twice"),
    (replaced("v3 = mul", "q = mul"), ParseError, 5, "'q' is assigned twice"),
    (replaced("v3 = mul(v1, v2)", "v3 = v1 * v2"), ParseError, 5, "expected NAME = operator("),
    (replaced("v3 = mul(v1, v2)", "v3 = v2 = mul(v1, v2)"), ParseError, 5, "expected NAME = operator("),
    (replaced("v3 = mul(v1, v2)", "v3 = os.system(v1)"), ParseError, 5, "expected NAME = operator("),
    (replaced("v3 = mul(v1, v2)", "import os"), ParseError, 5, "expected NAME = operator("),
    (replaced("v3 = mul(v1, v2)", "v3 = mul(v1, v2, **v0)"), ParseError, 5, "not **"),
    (replaced("    return v3\n", ""), ParseError, 5, "expected return NAME"),
    (replaced("return v3", "return"), ParseError, 6, "expected the name"),
    (replaced("return v3", "return v3 + 1"), ParseError, 6, "expected the name"),
    (replaced("1/8", "1/0"), ParseError, 4, "expected a number for value"),
    (replaced("1/8", "(1).real"), ParseError, 4, "expected a number for value"),
    (replaced("1/8", "'1'"), ParseError, 4, "expected a number for value"),
    (replaced("(0, 2, 1)", "(0, 2.0, 1)"), ParseError, 2, "expected integers for perm"),
    (replaced("(0, 2, 1)", "(0, i, 1)"), ParseError, 2, "expected integers for perm"),
    (replaced("q: float32[b, s, 64]", "q"), ParseError, 1, "expected a type, q: float32"),
    (replaced("q: float32[b, s, 64]", "q: float32"), ParseError, 1, "expected a type such as"),
    (replaced("q: float32[b, s, 64]", "*q: float32[b, s, 64]"), ParseError, 1, "expected parameters"),
    (replaced("k: float32[b, t, 64]", "k: float32[b, t, 64] = 0"), ParseError, 1, "expected parameters"),
    (replaced("-> float32[b, s, t]", "-> float32[b, t, s]"), ParseError, 1, "float32[b, s, t]; correct one"),
    (replaced("-> float32[b, s, t]", "-> float64[b, s, t]"), ParseError, 1, "declared as float64[b, s, t]"),
    (replaced("matmul", "matmull"), UnknownOperator, 3, "did you mean matmul"),
    (replaced("q, v0", "q, k"), ShapeError, 3, "matmul: shapes [b, s, 64] and [b, t, 64]"),
    (replaced("perm=", "order="), AttributeValueError, 2, "unknown attribute 'order'"),
    (replaced("1/8", "1e999"), AttributeValueError, 4, "expected a finite number"),
    (replaced("q: float32", "q: float8"), DTypeError, 1, "'float8' is not supported"),
    (replaced("k: float32", "k: float64"), DTypeError, 3, "float32, float64"),
    (replaced("q: float32[b, s, 64]", "q: float32[b, s/2, 64]"), DimError, 1, "cannot read 's / 2'"),
]


@pytest.mark.parametrize(("text", "error", "line", "message"), BAD)
def test_errors_name_the_line(text: str, error: type[MirageError], line: int, message: str) -> None:
    with pytest.raises(error) as e:
        parse_program(text)
    assert type(e.value) is error
    assert str(e.value).startswith(f"line {line}: ")
    assert message in str(e.value)


@pytest.mark.parametrize(
    "text",
    [
        "x" * (MAX_TEXT + 1),
        "def f(x: float32[" + "(" * 5000 + "n" + ")" * 5000 + "]):\n    return x",
        "def f(x: float32[" + "-" * 50_000 + "n]):\n    return x",
        "def f(x: float32[n]):\n    y = exp(" + "x." * 50_000 + "x)\n    return y",
        "def f(x: float32[n]):\n    return x\0",
        "def f(x: float32[n]):\n    y = maximum(x, value=" + "9" * 10_000 + ")\n    return y",
    ],
    ids=["long", "parentheses", "signs", "attributes", "null", "digits"],
)
def test_hostile_text_is_an_error(text: str) -> None:
    with pytest.raises(MirageError):
        parse_program(text)


@given(st.data())
def test_damaged_text_never_raises_anything_else(data: st.DataObject) -> None:
    """Any edit of a valid text parses or is a MirageError."""
    at = data.draw(st.integers(0, len(TEXT)))
    cut = data.draw(st.integers(0, 6))
    token = data.draw(
        st.sampled_from(["", "(", ")", ",", "v0", "q", "=", "*", "**", "-1", "[]", ":", "None", "'s'", "\n"])
    )
    with contextlib.suppress(MirageError):
        parse_program(TEXT[:at] + token + TEXT[at + cut :])


def test_values_never_take_an_input_s_name() -> None:
    p = mi.trace(lambda v0, vv1: mi.exp(v0) + vv1, v0=mi.tensor("n"), vv1=mi.tensor("n"))
    text = print_program(p)
    assert "vvv1 = add(vvv0, vv1)" in text
    assert parse_program(text) == p
    assert isinstance(ast.parse(text).body[0], ast.FunctionDef)


def test_programs_that_differ_in_names_alone_have_one_nameless_form() -> None:
    a = mi.trace(lambda x, w: mi.relu(x @ w), "a", x=mi.tensor("b", 8), w=mi.tensor(8, 4))
    b = mi.trace(lambda rows, weight: mi.relu(rows @ weight), "b", rows=mi.tensor("b", 8), weight=mi.tensor(8, 4))
    assert a != b and a.nameless() == b.nameless()
    other = mi.trace(lambda x, w: mi.relu(x @ w), "a", x=mi.tensor("c", 8), w=mi.tensor(8, 4))
    assert other.nameless() != a.nameless()
    assert Program.from_text(str(a.nameless())) == a.nameless()
