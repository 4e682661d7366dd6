"""What patterns match, and what they do not."""

from __future__ import annotations

import pytest

from mirage.compiler.patterns import Match, Pattern, number, one_of, op, optional, value, view
from mirage.errors import AttributeValueError, PatternError, ShapeError, UnknownOperator
from mirage.ir.graph.nodes import Constant, Var
from mirage.ir.graph.parse import parse_module

X, Y = value("x"), value("y")
SIGNATURE = "x: float32[n, 64], y: float32[64, m], z: float64[4], p: float32[_, 64], b: float32[m], i: int64[n]"


def matches(pattern: Pattern, body: str) -> list[Match]:
    """The matches whose root is the last line."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    f = parse_module(f"def main({SIGNATURE}):\n    with dataflow():\n{lines}\n    return r\n").functions["main"]
    return list(pattern.roots(f.bindings[-1].value, {b.var: b.value for b in f.bindings}))


def names(match: Match) -> dict[str, str]:
    return {k: v.name for k, v in match.operands.items() if isinstance(v, Var)}


def test_captures() -> None:
    (m,) = matches(op("relu", op("matmul", X, Y)), "t = matmul(x, y)\nr = relu(t)")
    assert names(m) == {"x": "x", "y": "y"}
    assert [v.name for v in m.inner] == ["t"]
    assert str(m.type("x")) == "float32[n, 64]"


@pytest.mark.parametrize("body", ["r = relu(x)", "t = exp(x)\nr = relu(t)", "t = matmul(x, y)\nr = exp(t)"])
def test_other_operators(body: str) -> None:
    assert not matches(op("relu", op("matmul", X, Y)), body)


def test_a_root_is_an_application() -> None:
    assert not matches(X, "r = relu(x)")


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [
        (value("x", rank=2), True),
        (value("x", rank=1), False),
        (value("x", dtype="float32"), True),
        (value("x", dtype=["float32", "float64"]), True),
        (value("x", dtype="float64"), False),
        (value("x", dims=[None, 64]), True),
        (value("x", dims=["n", None]), True),
        (value("x", dims=[None, 65]), False),
        (value("x", dims=[64]), False),
        (value("x", check=lambda t: str(t) == "float32[n, 64]"), True),
        (value("x", check=lambda t: False), False),
    ],
)
def test_predicates(pattern: Pattern, fits: bool) -> None:
    assert bool(matches(op("relu", pattern), "r = relu(x)")) is fits


def test_what_is_not_known_does_not_fit() -> None:
    assert matches(op("relu", value("x", rank=2)), "r = relu(p)")
    assert not matches(op("relu", value("x", dims=["n", 64])), "r = relu(p)")


def test_attributes() -> None:
    pattern = op("sum", X, axes=(1,), name="total")
    (m,) = matches(pattern, "r = sum(x, axes=(1,), keepdims=True)")
    assert m.attr("total", "keepdims") is True
    assert m.attr("other", "keepdims", "absent") == "absent"
    assert not matches(pattern, "r = sum(x, axes=(0,))")
    assert matches(op("sum", X, where=lambda c: dict(c.attrs)["keepdims"]), "r = sum(x, axes=(0,), keepdims=True)")
    assert not matches(op("sum", X, where=lambda c: dict(c.attrs)["keepdims"]), "r = sum(x, axes=(0,))")


def test_several_operators() -> None:
    pattern = op(["relu", "exp"], X)
    assert matches(pattern, "r = relu(x)") and matches(pattern, "r = exp(x)")
    assert not matches(pattern, "r = tanh(x)")


def test_both_orders() -> None:
    bias = op("add", op("matmul", X, Y), value("b"), commutative=True)
    for body in ("t = matmul(x, y)\nr = add(t, b)", "t = matmul(x, y)\nr = add(b, t)"):
        assert names(matches(bias, body)[0]) == {"x": "x", "y": "y", "b": "b"}
    assert not matches(op("add", op("matmul", X, Y), value("b")), "t = matmul(x, y)\nr = add(b, t)")


def test_one_name_is_one_operand() -> None:
    square = op("mul", X, X)
    assert matches(square, "r = mul(x, x)")
    assert not matches(square, "t = exp(x)\nr = mul(x, t)")


def test_alternatives_and_optional_parts() -> None:
    pattern = op("relu", optional(op("matmul", X, Y), lambda p: op("add", p, value("b"), name="bias")))
    (with_bias,) = matches(pattern, "t = matmul(x, y)\ns = add(t, b)\nr = relu(s)")
    (without,) = matches(pattern, "t = matmul(x, y)\nr = relu(t)")
    assert "bias" in with_bias.calls and "b" in with_bias.operands
    assert "bias" not in without.calls and "b" not in without.operands
    either = op("exp", X) | op("tanh", X)
    assert matches(either, "r = exp(x)") and matches(either, "r = tanh(x)") and not matches(either, "r = relu(x)")
    # every way is found, the first one first
    both = op("exp", one_of(op("relu", X), Y))
    assert [sorted(m.operands) for m in matches(both, "t = relu(x)\nr = exp(t)")] == [["x"], ["y"]]


def test_numbers() -> None:
    assert matches(op("mul", X, number(2)), "c = constant(value=2)\nr = mul(x, c)")
    assert matches(op("mul", X, number(2)), "r = mul(x, float32[()](2))")
    assert not matches(op("mul", X, number(2)), "c = constant(value=3)\nr = mul(x, c)")
    assert not matches(op("mul", X, number(2)), "r = mul(x, float32[1](2))")


def test_any_number_is_captured() -> None:
    for text in ("c = constant(value=1.5)\nr = mul(x, c)", "r = mul(x, float32[()](1.5))"):
        (found,) = matches(op("mul", X, number(name="factor")), text)
        factor = found.operands["factor"]
        assert isinstance(factor, Constant) and factor.array == 1.5
    assert not matches(op("mul", X, number(name="factor")), "r = mul(x, x)")


def test_views_are_not_computed() -> None:
    (m,) = matches(op("relu", view("transpose", X, perm=(1, 0))), "t = transpose(x, perm=(1, 0))\nr = relu(t)")
    assert not m.inner and [v.name for v in m.views] == ["t"]


def test_patterns_that_cannot_be() -> None:
    with pytest.raises(UnknownOperator, match="matmul"):
        op("matmull", X, Y)
    with pytest.raises(AttributeValueError, match="axis"):
        op("sum", X, axis=1)
    with pytest.raises(AttributeValueError, match="axes"):
        op("sum", X, axes="one")
    with pytest.raises(ShapeError, match="2 operands"):
        op("matmul", X)
    with pytest.raises(PatternError, match="write number"):
        op("add", value("x"), 1)  # type: ignore[arg-type]
    with pytest.raises(PatternError, match="commutative"):
        op("relu", X, commutative=True)
    with pytest.raises(PatternError, match="identifier"):
        value("a b")
