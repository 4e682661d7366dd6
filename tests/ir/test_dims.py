"""Symbolic dims: reading, exact division, binding; and the types made of them."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import sympy
from hypothesis import assume, given
from hypothesis import strategies as st

from mirage.errors import DimError, DTypeError
from mirage.ir.dim_bounds import Interval, interval
from mirage.ir.dim_functions import rounded_up
from mirage.ir.dims import (
    ceil_div,
    check_complete,
    dim_text,
    divide,
    evaluate,
    floor_div,
    is_polynomial,
    maximum,
    minimum,
    modulo,
    solve,
    substitute,
    symbol,
    symbols_of,
    to_dim,
    value_at,
)
from mirage.ir.types import (
    DTYPES,
    ELEMENTS,
    TensorType,
    between_dtype,
    check_dtype,
    check_float,
    compute_dtype,
    epsilon,
    tensor,
)
from tests.work import at_most

NAMES = ["a", "b", "n"]


@st.composite
def dims(draw: st.DrawFn) -> sympy.Expr:
    """A polynomial over the names with non-negative coefficients."""
    terms = draw(
        st.lists(st.tuples(st.integers(0, 9), st.lists(st.sampled_from(NAMES), max_size=3)), max_size=3)
    )
    return to_dim(sympy.Add(*(sympy.Mul(c, *map(symbol, names)) for c, names in terms)))


sizes = st.fixed_dictionaries({n: st.integers(0, 50) for n in NAMES})

#: text of integer expressions of Python
expressions = st.recursive(
    st.sampled_from(NAMES) | st.integers(0, 12).map(str),
    lambda x: st.one_of(
        st.tuples(x, st.sampled_from(["+", "-", "*", "//", "%"]), x).map(lambda t: f"({t[0]}) {t[1]} ({t[2]})"),
        st.tuples(x, st.sampled_from(["//", "%"]), st.sampled_from([1, 2, 3, 4, 6, 8, -2, -3])).map(
            lambda t: f"({t[0]}) {t[1]} ({t[2]})"
        ),
        st.tuples(st.sampled_from(["min", "max"]), x, x).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
    ),
    max_leaves=8,
)


def python_value(node: ast.expr, s: dict[str, int]) -> int:
    """What Python computes for an expression."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.Name(id=name):
            return s[name]
        case ast.UnaryOp(operand=x):
            return -python_value(x, s)
        case ast.Call(func=ast.Name(id=name), args=args):
            return {"min": min, "max": max}[name](python_value(a, s) for a in args)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = python_value(left, s), python_value(right, s)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.FloorDiv():
                    return a // b
                case ast.Mod():
                    return a % b
    raise AssertionError(ast.dump(node))


def read(text: str) -> sympy.Expr:
    """The dim that the text denotes; texts that divide by a literal 0, or are a negative number, denote none."""
    try:
        return to_dim(text)
    except DimError as e:
        assume("divided by 0" not in str(e) and "is negative" not in str(e))
        raise


@given(dims())
def test_text_is_read_back(d: sympy.Expr) -> None:
    assert to_dim(dim_text(d)) == d


@given(dims(), dims(), sizes)
def test_arithmetic_in_text_is_arithmetic_on_sizes(a: sympy.Expr, b: sympy.Expr, s: dict[str, int]) -> None:
    x, y = evaluate(a, s), evaluate(b, s)
    assert evaluate(to_dim(f"({a}) * ({b})"), s) == x * y
    assert evaluate(to_dim(f"({a}) + ({b})"), s) == x + y
    assert evaluate(to_dim(f"({a}) - ({b}) + ({b})"), s) == x


@given(expressions, st.lists(sizes, min_size=6, max_size=6))
def test_the_canonical_form_has_the_value_that_python_computes(text: str, bindings: list[dict[str, int]]) -> None:
    d = read(text)
    assert to_dim(dim_text(d)) == d
    tree = ast.parse(text, mode="eval").body
    for s in bindings:
        try:
            want = python_value(tree, s)
        except ZeroDivisionError:
            # a divisor that is 0 may have been cancelled
            continue
        assert value_at(d, s) == want


@given(expressions, sizes)
def test_intervals_hold_every_value(text: str, s: dict[str, int]) -> None:
    d = read(text)
    ranges = {symbol("a"): Interval(0, 50), symbol("b"): Interval(s["b"], s["b"] + 3)}
    try:
        assert interval(d, ranges).has(value_at(d, s))
    except DimError as e:
        assert "choose sizes that make no divisor 0" in str(e)


def test_intervals_of_quotients() -> None:
    n, m = symbol("n"), symbol("m")
    for b, quotients, remainders in [
        ((0, 0), (None, None), (None, None)),
        ((2, 4), (1, 5), (0, 3)),
        ((0, 4), (1, 10), (0, 3)),
        ((2, None), (0, 5), (0, 10)),
        ((20, 30), (0, 0), (5, 10)),
    ]:
        ranges = {n: Interval(5, 10), m: Interval(*b)}
        assert interval(to_dim("n // m"), ranges) == Interval(*quotients)
        assert interval(to_dim("n % m"), ranges) == Interval(*remainders)
    assert interval(to_dim("(n - 20) // m"), {n: Interval(5, 10), m: Interval(2, 4)}) == Interval(-8, -3)
    assert interval(to_dim("n // (3 - m)"), {n: Interval(5, 10), m: Interval(5, 7)}) == Interval(-5, -2)


@given(expressions, expressions, sizes)
def test_substitution_is_evaluation_at_values(text: str, by: str, s: dict[str, int]) -> None:
    d, e = read(text), read(by)
    try:
        value = value_at(e, s)
        assume(value >= 0)
        want = value_at(d, {**s, "n": value})
    except DimError:
        assume(False)
    assert value_at(substitute(d, {"n": e}), s) == want


def test_substitution_replaces_all_at_once() -> None:
    found = substitute(to_dim("n // 2 + a"), {"n": to_dim("4*a + 1"), "a": symbol("n")})
    assert found == to_dim("2*a + n")
    with pytest.raises(DimError, match="divided by 0"):
        substitute(to_dim("n // a"), {"a": to_dim(0)})


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("(4*n) // 4", "n"),
        ("(4*n + 8) // 4", "n + 2"),
        ("(n*m) % m", "0"),
        ("(n*m) // m", "n"),
        ("(n*k) // (m*k)", "n // m"),
        ("(4*n) % 4", "0"),
        ("5*n // 4", "n + n // 4"),
        ("(n - 1) // 2 + 1", "(n + 1) // 2"),
        ("-(-n // 8)", "(n + 7) // 8"),
        ("(2*n + 1) // 4", "n // 2"),
        ("n // 2 // 3", "n // 6"),
        ("(n // 2 + 1) // 4", "(n + 2) // 8"),
        ("n % 8 % 4", "n % 4"),
        ("(n % 8 + m) % 4", "(m + n) % 4"),
        ("6*n % 4", "2*(n % 2)"),
        ("n % 4 // 4", "0"),
        ("n // -3", "-((n + 2) // 3)"),
        ("((n + 1)*m) // (n + 1)", "m"),
        ("(m*n + m) // (2*n + 2)", "m // 2"),
        ("min(n, n)", "n"),
        ("min(n, n + 1)", "n"),
        ("min(8, n, 4)", "min(n, 4)"),
        ("min(min(n, m), k)", "min(k, m, n)"),
        ("max(n, 0)", "n"),
        ("max(n, min(n, 8))", "n"),
        ("min(3, 2)", "2"),
        ("(n + m) ** 2", "n**2 + 2*m*n + m**2"),
        ("7 // 2 + 7 % 4", "6"),
        ("7 ** 2", "49"),
    ],
)
def test_what_is_simplified(text: str, simple: str) -> None:
    assert dim_text(to_dim(text)) == dim_text(to_dim(simple))
    assert len(dim_text(to_dim(text))) <= len(simple) + 2


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("n + 63*n % 64", "64*((n + 63) // 64)"),
        ("n + (7 - n % 7) % 7", "7*((n + 6) // 7)"),
        ("b*n + b*(63*n % 64) + 5", "64*b*((n + 63) // 64) + 5"),
        ("n//4 + (6*(n//4)) % 7", "7*((n + 24) // 28)"),
        ("2*n + n % 2", "2*n + n % 2"),
        ("n + 62*n % 64", "n + 62*n % 64"),
    ],
)
def test_what_is_padded_is_rounded_up(text: str, simple: str) -> None:
    found = rounded_up(to_dim(text))
    assert dim_text(found) == dim_text(to_dim(simple))
    for n in range(0, 200, 7):
        sizes = {"n": n, "b": 3, "m": 5}
        assert value_at(found, sizes) == value_at(to_dim(text), sizes)


@pytest.mark.parametrize(
    "text",
    ["n // 2", "n % 4", "min(n, 8)", "-n + n // 2", "2*(n // 2) + 1", "(n // 2) ** 2", "n // (m - 1)", "-(n % 3)"],
)
def test_what_is_printed_is_python(text: str) -> None:
    d = to_dim(text)
    assert to_dim(dim_text(d)) == d
    assert not is_polynomial(d) and is_polynomial(to_dim("4*n*m + 1"))


def test_functions_of_sympy_are_read() -> None:
    n, m = symbol("n"), symbol("m")
    assert to_dim(n // 2) == floor_div(n, to_dim(2)) == to_dim("n // 2")
    assert to_dim((n + m) // m) == to_dim("n // m + 1")
    assert to_dim(n % 4) == modulo(n, to_dim(4)) == to_dim("n % 4")
    assert to_dim(sympy.ceiling(n / 8)) == ceil_div(n, to_dim(8)) == to_dim("(n + 7) // 8")
    assert to_dim(sympy.Min(n, m, 3)) == minimum(n, m, to_dim(3)) == to_dim("min(m, n, 3)")
    assert minimum(n) == maximum(n) == n
    assert to_dim(sympy.Max(n, m)) == maximum(n, m) == to_dim("max(m, n)")
    assert evaluate(sympy.floor(n / 2) + sympy.Min(n, 3), {"n": 9}) == 7


def test_division_by_a_size_of_0_names_the_dim() -> None:
    for text in ("n // m", "n % m", "1 + min(n, n // m)"):
        with pytest.raises(DimError, match=r"dim n (//|%) m: m is 0 at .*; choose sizes that make no divisor 0"):
            evaluate(to_dim(text), {"n": 3, "m": 0})


@pytest.mark.parametrize(
    ("dim", "size", "bound", "found"),
    [
        ("n + m // 2", 12, {"m": 5}, ("n", 10)),
        ("n * (m // 2)", 12, {"m": 5}, ("n", 6)),
        ("n*n + n", 12, {}, ("n", 3)),
        ("n*n", 0, {}, ("n", 0)),
        ("n // 2", 6, {}, None),
        ("n // 2 + n", 6, {}, None),
        ("n * (m // 2)", 0, {"m": 1}, None),
        ("n*n - 5*n + 6", 0, {}, None),
    ],
)
def test_solve_beside_functions(dim: str, size: int, bound: dict[str, int], found: tuple[str, int] | None) -> None:
    assert solve(to_dim(dim), size, bound) == found


@given(dims(), dims())
def test_equal_polynomials_are_equal_dims(a: sympy.Expr, b: sympy.Expr) -> None:
    assert to_dim(sympy.Mul(a, sympy.Add(b, 1, evaluate=False), evaluate=False)) == to_dim(a * b + a)


@given(dims(), dims())
def test_division_inverts_multiplication(a: sympy.Expr, b: sympy.Expr) -> None:
    assume(a != 0 and b != 0)
    assert divide(to_dim(a * b), b) == a
    assert to_dim(f"({to_dim(a * b)}) // ({b})") == a


@given(dims(), dims(), sizes)
def test_quotients_are_exact(a: sympy.Expr, b: sympy.Expr, s: dict[str, int]) -> None:
    quotient = divide(a, b)
    if quotient is not None:
        assert evaluate(quotient, s) * evaluate(b, s) == evaluate(a, s)


@pytest.mark.parametrize(
    ("a", "b"), [("n", "2"), ("6", "4"), ("n", "b"), ("n + 1", "n"), ("n", "0"), ("4*n", "8")]
)
def test_inexact_division(a: str, b: str) -> None:
    assert divide(to_dim(a), to_dim(b)) is None


@given(st.integers(1, 9), st.integers(0, 9), st.integers(0, 1000))
def test_solve_inverts_evaluate(c: int, k: int, n: int) -> None:
    d = to_dim(f"{c}*n + {k}*b")
    assert solve(d, c * n + k * 3, {"b": 3}) == ("n", n)


@pytest.mark.parametrize(("dim", "size"), [("4*n", 6), ("n*b", 6), ("n + 8", 4), ("7", 7), ("2*n - n", -1)])
def test_solve_without_solution(dim: str, size: int) -> None:
    assert solve(to_dim(dim), size, {}) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "negative"),
        ("-2", "negative"),
        (True, "not a size"),
        (1.5, "not a dim"),
        (None, "not a dim"),
        ("", "cannot read"),
        ("n m", "cannot read"),
        ("n / 2", "cannot read"),
        ("f(n)", "cannot read"),
        ("n.real", "cannot read"),
        ("__import__('os')", "cannot read"),
        ("1.5", "cannot read"),
        ("n ** m", "cannot read"),
        ("n ** -1", "cannot read"),
        ("min(n)", "cannot read"),
        ("max(n, key=m)", "cannot read"),
        ("min(*n)", "cannot read"),
        ("n // 0", "divided by 0"),
        ("n % (4 - 4)", "divided by 0"),
        ("(" * 1200, "1200 characters"),
        ("-" * 990 + "n", "nested too deeply"),
        ("n\0", "cannot read"),
        (symbol("n") / 2, "not an integer for every size"),
        (sympy.Float(2) * symbol("n"), "not a dim"),
        (sympy.sqrt(symbol("n")), "not a dim"),
        (sympy.floor(sympy.sqrt(symbol("n"))), "not a dim"),
        (sympy.floor(symbol("n") / 2) / 2, "not an integer for every size"),
        (1 / symbol("n"), "not a dim"),
        (sympy.Symbol("n"), "not a dim"),
    ],
)
def test_what_is_not_a_dim(value: object, message: str) -> None:
    with pytest.raises(DimError, match=message) as e:
        to_dim(value, "x, dim 0")
    assert str(e.value).startswith("x, dim 0: ")


@pytest.mark.parametrize(
    "text",
    [
        "*".join(["(a+b+c)"] * 25),
        "9" * 100,
        "*".join(["9**60"] * 30),
        "9**64",
        "*".join(f"({chr(97 + i)}+1)" for i in range(26)),
        "*".join(f"min({chr(97 + i)}+1, {chr(98 + i)})" for i in range(25)) + "*" + "*".join(["(a+b+c)"] * 25),
        "(a+b+c+d) ** 60",
        "(a+b) ** 5 // (9**20 + (a+b+c+d) ** 8)",
    ],
)
def test_short_text_cannot_denote_a_huge_dim(text: str) -> None:
    with at_most(2_000_000), pytest.raises(DimError, match="more terms or digits"):
        to_dim(text)


def test_names() -> None:
    assert to_dim("n") is symbol("n")
    assert symbols_of(to_dim("4*n*b + 1")) == {"n", "b"}
    for bad in ["lambda", "2n", "a-b", ""]:
        with pytest.raises(DimError, match="not an identifier"):
            symbol(bad)


def test_every_dim_without_a_size_is_named() -> None:
    check_complete("attention", ["n", "b"], {"n": 1, "b": 2, "other": 3})
    with pytest.raises(DimError, match=r"attention: no size for n, k; give one for every dim"):
        check_complete("attention", ["n", "b", "k"], {"b": 2})


def test_evaluate_names_what_is_missing() -> None:
    with pytest.raises(DimError, match=r"dim b\*n: no size for \['b'\]; give sizes=\{'b'"):
        evaluate(to_dim("n*b"), {"n": 1})
    with pytest.raises(DimError, match=r"dim n - 3 is -1"):
        evaluate(to_dim("n - 3"), {"n": 2})


@pytest.mark.parametrize("name", ELEMENTS)
def test_element_types_have_the_names_of_every_library(name: str) -> None:
    spellings: list[Any] = [name, ELEMENTS[name], ELEMENTS[name].type]
    torch = pytest.importorskip("torch")
    for dtype in (*spellings, getattr(torch, name)):
        assert tensor("n", dtype=dtype).dtype == name
    with pytest.raises(DTypeError, match=r"'torch\.complex64' is not supported"):
        check_dtype("torch.complex64")
    with pytest.raises(DTypeError, match=r"torch\.complex64 is not supported"):
        check_dtype(torch.complex64)


def test_what_element_types_are_computed_in() -> None:
    found = {name: (compute_dtype(t).name, between_dtype(t).name) for name, t in DTYPES.items()}
    assert found == {
        "float32": ("float32", "float32"),
        "float64": ("float64", "float64"),
        "float16": ("float32", "float32"),
        "bfloat16": ("float32", "bfloat16"),
    }
    assert [epsilon(t) for t in DTYPES.values()] == [2.0**-23, 2.0**-52, 2.0**-10, 2.0**-7]


def test_only_floating_point_types_are_superoptimized() -> None:
    assert [check_float(name, "x") for name in DTYPES] == list(DTYPES)
    for name in ELEMENTS.keys() - DTYPES.keys():
        with pytest.raises(DTypeError, match=f"the input is {name}; only float32, float64, .* are superoptimized: cast it"):
            check_float(name, "the input")
    with pytest.raises(DTypeError, match="'int4' is not supported"):
        check_float("int4", "the input")


def test_tensor_types() -> None:
    t = tensor("b", "4*n", 64)
    assert str(t) == "float32[b, 4*n, 64]"
    assert t == TensorType((symbol("b"), to_dim("n*4"), sympy.Integer(64)))
    assert t.bind({"b": 2, "n": 3}) == (2, 12, 64)
    assert str(tensor()) == "float32[()]"
    with pytest.raises(DTypeError, match=r"'int4' is not supported; use one of float32, float64, float16, bfloat16, int32"):
        tensor("n", dtype="int4")
    with pytest.raises(DimError, match=r"tensor\(\), dim 1: size -4 is negative"):
        tensor("n", -4)


@pytest.mark.parametrize("text", ["0 // 1", "0 // n", "0 % 1", "0 % n", "(n - n) // 2"])
def test_a_quotient_of_nothing_is_nothing(text: str) -> None:
    assert to_dim(text) == 0
