"""Every operator: its meaning against NumPy, its shapes, its attributes; operators added from outside."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import (
    AttributeValueError,
    DimError,
    DTypeError,
    DuplicateOperator,
    MirageError,
    ShapeError,
    UnknownOperator,
)
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.functions import FUNCTIONS
from mirage.ir.interpret import evaluate, run_reference
from mirage.ir.operator import REGISTRY, get_operator
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import tensor
from tests.ir.cases import CASES, SIZES, Case, case_program

#: the others are tested in `tests/ir/operators`
LAX = {name for name, op in REGISTRY.items() if op.lax}


def test_every_operator_that_can_be_superoptimized_has_a_case() -> None:
    assert {c.op for c in CASES} == LAX


def _arrays(case: Case, sizes: dict[str, int], seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = [t.bind(sizes) for t in case_program(case).input_types]
    return [np.abs(a) + 0.1 if case.positive else a for a in (rng.standard_normal(s) for s in shapes)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meaning(case: Case) -> None:
    arrays = _arrays(case, SIZES, 0)
    expected = case.expected(*arrays) if case.dims else arrays[0] + case.expected()
    (result,) = run_reference(case_program(case), arrays, SIZES, "float64")
    assert result.shape == case_program(case).output_types[0].bind(SIZES)
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if c.dims], ids=str)
def test_shapes_at_any_size(case: Case) -> None:
    """The inferred shape is the computed one, at size 0 and 1 too; float32 stays float32."""
    p = case_program(case)
    for drawn in itertools.product((0, 1, 3), repeat=len(p.symbols())):
        sizes = {**SIZES, **dict(zip(p.symbols(), drawn, strict=True))}
        if case.attrs.get("shape") == ("b", -1):
            # the size that -1 stands for cannot be found from zero elements
            sizes["b"] += 1
        (result,) = run_reference(p, _arrays(case, sizes, 1), sizes)
        assert result.shape == p.output_types[0].bind(sizes)
        assert result.dtype == np.float32


class BatchedFloats(FloatArithmetic):
    """Floats with one leading batch dim, evaluated by expansion as an exact arithmetic is."""

    lead = 1
    is_float = False

    def einsum(
        self, x: np.ndarray, y: np.ndarray, xl: Sequence[int], yl: Sequence[int], ol: Sequence[int]
    ) -> np.ndarray:
        return np.stack(
            [super(BatchedFloats, self).einsum(a, b, xl, yl, ol) for a, b in zip(x, y, strict=True)]
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_meaning_over_a_batch_of_runs(case: Case) -> None:
    """Operators never see the lead dims of an arithmetic: a batch of runs is the runs one by one."""
    runs = [_arrays(case, SIZES, seed) for seed in range(3)]
    p = case_program(case)
    ar = BatchedFloats(SIZES)
    (batched,) = evaluate(p, [np.stack(xs) for xs in zip(*runs, strict=True)], ar)
    for got, arrays in zip(batched, runs, strict=True):
        np.testing.assert_allclose(got, run_reference(p, arrays, SIZES, "float64")[0], rtol=1e-12, atol=1e-12)


def test_rank_0_tensor_meets_a_tensor_over_a_batch_of_runs() -> None:
    p = mi.trace(lambda x: x / x.sum(), x=tensor("b", "n"))
    x = np.random.default_rng(0).random((2, 2, 3))
    (got,) = evaluate(p, [x], BatchedFloats(SIZES))
    np.testing.assert_allclose(got, x / x.sum(axis=(1, 2), keepdims=True), rtol=1e-12)


def test_large_logits_do_not_overflow() -> None:
    p = mi.trace(lambda x: mi.softmax(x), x=tensor("b", "n"))
    (y,) = run_reference(p, [np.array([[1e4, 1e4, -1e4]], np.float32)], {"b": 1, "n": 3})
    np.testing.assert_allclose(y, [[0.5, 0.5, 0.0]])
    p = mi.trace(lambda x: mi.log_softmax(x), x=tensor("b", "n"))
    (y,) = run_reference(p, [np.array([[1e4, 1e4, -1e4]], np.float32)], {"b": 1, "n": 3})
    np.testing.assert_allclose(y, np.array([[0, 0, -2e4]]) - np.log(2), rtol=1e-6)
    p = mi.trace(lambda x: mi.sigmoid(x), x=tensor("n"))
    (y,) = run_reference(p, [np.array([-1e4, 0.0, 1e4], np.float32)], {"n": 3})
    np.testing.assert_array_equal(y, np.array([0.0, 0.5, 1.0], np.float32))


def test_gelu_keeps_its_left_tail() -> None:
    p = mi.trace(lambda x: mi.gelu(x), x=tensor("n"))
    (y,) = run_reference(p, [np.array([-12.0])], {"n": 1}, "float64")
    np.testing.assert_allclose(y, [-12 * 1.7764821120776e-33], rtol=1e-10)


BAD_SHAPES: list[tuple[str, list[Any], dict[str, Any], list[str]]] = [
    ("add", [("m", 4), ("m", 5)], {}, ["[m, 4]", "[m, 5]", "do not broadcast"]),
    ("mul", [("m",), ("n",)], {}, ["[m]", "[n]", "dim -1 is m"]),
    ("matmul", [("m", "k"), ("m", "k")], {}, ["[m, k]", "transpose"]),
    ("matmul", [("m", "k"), ("k",)], {}, ["[k]", "rank 2", "reshape"]),
    ("matmul", [(2, "m", "k"), (3, "k", "n")], {}, ["batch dims", "[2]", "[3]"]),
    ("matmul", [("m", "k")], {}, ["takes 2 operands, got 1"]),
    ("concat_matmul", [("m", "k"), ("k", "n")], {}, ["takes 4 operands, got 2"]),
    ("concat_matmul", [("m", "k"), ("k", "n"), ("m", 2), (2, "n")], {}, ["matmul", "[m, k]", "[m, 2]"]),
    ("concat_matmul", [("m", "k"), ("m", 2), ("k", "n"), (2, "m")], {}, ["[m, n] and [m, m]", "one shape"]),
    ("sum", [("m", "n")], {"axes": (2,)}, ["sum", "axis 2", "rank 2", "use -2 to 1"]),
    ("sum", [("m", "n")], {"axes": (1, -1)}, ["(1, -1)", "once"]),
    ("mean", [("m", "n")], {"axes": (-3,)}, ["mean: axis -3"]),
    ("concat", [("m", "n"), ("k", "n")], {"axis": 1}, ["[m, n]", "[k, n]", "axis 1"]),
    ("concat", [("m", "n"), ("m",)], {"axis": 0}, ["[m, n]", "[m]"]),
    ("concat", [("m", "n")], {"axis": 0}, ["2 to 16 operands"]),
    ("reshape", [("m", 6)], {"shape": ("m", 5)}, ["[m, 6] to [m, 5]", "6*m", "5*m"]),
    ("reshape", [("m", 6)], {"shape": ("m", -1, 4)}, ["4*m does not divide 6*m"]),
    ("reshape", [("m", 6)], {"shape": (-1, -1)}, ["only one dim may be -1"]),
    ("transpose", [("m", "n")], {"perm": (0,)}, ["each of the 2 dims once"]),
    ("transpose", [("m", "n")], {"perm": (0, 2)}, ["axis 2"]),
    ("repeat", [("m", "n")], {"axis": 2, "times": 2}, ["repeat: axis 2"]),
    ("softmax", [("m", "n")], {"axis": 2}, ["softmax: axis 2"]),
    ("softmax", [()], {}, ["softmax", "rank 0"]),
    ("log_softmax", [("m", "n")], {"axis": 2}, ["log_softmax: axis 2"]),
    ("rms_norm", [("m", "n"), ("m",)], {}, ["[m]", "[m, n]", "last dim"]),
    ("layer_norm", [("m", "n"), ("n",), ("n", 1)], {}, ["[n, 1]", "[m, n]"]),
]


@pytest.mark.parametrize(("op", "dims", "attrs", "parts"), BAD_SHAPES)
def test_shape_errors(op: str, dims: list[Any], attrs: dict[str, Any], parts: list[str]) -> None:
    b = ProgramBuilder("f")
    inputs = [b.input(f"x{i}", tensor(*d)) for i, d in enumerate(dims)]
    with pytest.raises(ShapeError) as e:
        b.op(op, *inputs, **attrs)
    for part in [op, *parts]:
        assert part in str(e.value)


BAD_ATTRS: list[tuple[str, dict[str, Any], str]] = [
    ("exp", {"axis": 0}, "unknown attribute 'axis'; it takes none"),
    ("sum", {}, "attribute 'axes' is missing"),
    ("sum", {"axes": None}, "axes=None is wrong"),
    ("sum", {"axes": (0.5,)}, "expected an integer"),
    ("sum", {"axes": (True,)}, "expected an integer"),
    ("sum", {"axes": (0,), "keepdims": 1}, "expected True or False"),
    ("softmax", {"axis": "x"}, "expected an integer"),
    ("clamp", {"lo": 1, "hi": 0}, "lo=1.0 is above hi=0.0"),
    ("maximum", {"value": float("inf")}, "expected a finite number"),
    ("maximum", {"value": float("nan")}, "expected a finite number"),
    ("maximum", {"value": 10**400}, "expected a finite number"),
    ("maximum", {"value": "1"}, "expected a number"),
    ("pow", {"exponent": True}, "expected a number"),
]


@pytest.mark.parametrize(("op", "attrs", "message"), BAD_ATTRS)
def test_attribute_errors(op: str, attrs: dict[str, Any], message: str) -> None:
    b = ProgramBuilder("f")
    x = b.input("x", tensor("m", "n"))
    with pytest.raises(AttributeValueError, match=op) as e:
        b.op(op, x, **attrs)
    assert message in str(e.value)


@pytest.mark.parametrize("times", [-1, "n -", 1.5, None])
def test_bad_repeats(times: Any) -> None:
    b = ProgramBuilder("f")
    with pytest.raises((DimError, AttributeValueError)):
        b.op("repeat", b.input("x", tensor("m")), axis=0, times=times)


def test_a_lone_dim_is_a_shape_of_one() -> None:
    b = ProgramBuilder("f")
    x = b.input("x", tensor("rows"))
    assert b.type(b.op("reshape", x, shape="rows")) == tensor("rows")


def test_operands_of_two_dtypes() -> None:
    b = ProgramBuilder("f")
    x, y = b.input("x", tensor("n")), b.input("y", tensor("n", dtype="float64"))
    with pytest.raises(DTypeError, match="add: operands of dtypes float32, float64"):
        b.op("add", x, y)


def test_constants_take_the_dtype_they_meet() -> None:
    b = ProgramBuilder("f")
    x = b.input("x", tensor("n", dtype="float64"))
    c = b.op("mul", b.op("constant", value=2), b.op("size", dim="n"))
    assert b.type(b.op("add", c, x)) == tensor("n", dtype="float64")


def test_unknown_operator_suggests_near_names() -> None:
    with pytest.raises(UnknownOperator, match=r"'sofmax'.*softmax"):
        get_operator("sofmax")


@pytest.fixture
def hard_swish() -> Iterator[str]:
    """An operator from outside the package: a definition over any algebra."""

    def define(al: Any, x: Any, slope: Fraction) -> Any:
        shifted = al.add(al.mul(al.constant(slope), x), al.constant(Fraction(1, 2)))
        return al.mul(x, al.function(FUNCTIONS["clamp"], shifted, Fraction(0), Fraction(1)))

    name = "test_hard_swish"
    mi.elementwise(name, define, attributes=[mi.Attribute("slope", "number", Fraction(1, 6))])
    yield name
    del REGISTRY[name]


def test_operator_from_outside(hard_swish: str) -> None:
    p = mi.trace(lambda x: mi.apply(hard_swish, x) + 1, x=tensor("n"))
    x = np.linspace(-5, 5, 11)
    (y,) = run_reference(p, [x], {"n": 11}, "float64")
    np.testing.assert_allclose(y, x * np.clip(x / 6 + 0.5, 0, 1) + 1, rtol=1e-12)
    with pytest.raises(AttributeValueError, match="slope"):
        mi.trace(lambda x: mi.apply(hard_swish, x, slope="steep"), x=tensor("n"))
    with pytest.raises(DuplicateOperator, match=hard_swish):
        mi.elementwise(hard_swish, lambda al, x: x)
    with pytest.raises(AttributeValueError, match="its definition is 3; pass a function"):
        mi.elementwise("no_definition", 3)  # type: ignore[arg-type]
    assert "no_definition" not in REGISTRY


def test_function_from_outside() -> None:
    name = "test_softplus"
    fn = mi.register_function(name, lambda x: np.logaddexp(x, 0))
    mi.elementwise(name, lambda al, x: al.function(fn, x))
    try:
        x = np.linspace(-3, 3, 7)
        (y,) = run_reference(mi.trace(lambda x: mi.apply(name, x), x=tensor("n")), [x], {"n": 7}, "float64")
        np.testing.assert_allclose(y, np.log1p(np.exp(x)), rtol=1e-12)
        with pytest.raises(DuplicateOperator, match=name):
            mi.register_function(name, np.exp)
    finally:
        del REGISTRY[name], FUNCTIONS[name]


def test_operator_names_are_identifiers() -> None:
    with pytest.raises(MirageError, match="not an identifier"):
        mi.elementwise("hard-swish", lambda al, x: x)
    assert "hard-swish" not in REGISTRY


def test_programs_share_equal_nodes_and_drop_unused_ones() -> None:
    b = ProgramBuilder("f")
    x = b.input("x", tensor("n"))
    e = b.op("exp", x)
    assert b.op("exp", x) == e
    b.op("tanh", x)
    y = b.input("y", tensor("n"))
    p = b.finish([b.op("add", e, y)])
    assert [n.op for n in p] == ["input", "input", "exp", "add"]
    assert p.input_names == ("x", "y")
    assert p.symbols() == ["n"]
