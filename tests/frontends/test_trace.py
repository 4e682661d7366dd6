"""Tracing Python functions: what is recorded, and what is refused with the user's line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import (
    AttributeValueError,
    DimError,
    DTypeError,
    MirageError,
    ShapeError,
    TraceError,
    UnknownOperator,
)
from mirage.frontends.proxy import Proxy
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.kernels.library import LibraryProgram

SIZES = {"b": 2, "n": 3}
X, Y = mi.tensor("b", "4*n"), mi.tensor("4*n")
RNG = np.random.default_rng(0)
X0, Y0 = RNG.random((2, 12)) + 0.5, RNG.random(12) + 0.5


def result(fn: Callable[..., Any]) -> np.ndarray:
    """The traced function of one or two arrays, run in float64."""
    two = "y" in inspect.signature(fn).parameters
    p = mi.trace(fn, x=X, y=Y) if two else mi.trace(fn, x=X)
    (out,) = run_reference(p, [X0, Y0] if two else [X0], SIZES, "float64")
    assert out.shape == p.output_types[0].bind(SIZES)
    return out


# each runs on arrays and on traced tensors
SAME_AS_NUMPY: list[Callable[..., Any]] = [
    lambda x, y: x + y,
    lambda x, y: y - x,
    lambda x, y: x * y / (y + 1),
    lambda x, y: x @ y.reshape(-1, 1),
    lambda x: 2 + x,
    lambda x: 2 - x,
    lambda x: 2.5 * x,
    lambda x: 1 / x,
    lambda x: np.float32(0.5) * x + np.float64(2),
    lambda x: x - np.array(3.0),
    lambda x: -x + (+x),
    lambda x: x**2 + x**3 + x**-1 + x**0.5 + x**-0.5 + x**0,
    lambda x: x.T,
    lambda x: x.T.mT,
    lambda x: x.transpose(1, 0),
    lambda x: x.transpose((1, 0)),
    lambda x: x.swapaxes(0, -1),
    lambda x: x.sum(),
    lambda x: x.sum(0),
    lambda x: x.sum(axis=(0, 1), keepdims=True),
    lambda x: x.mean(-1, keepdims=True),
    lambda x: x.mean(),
    lambda x: x.reshape(-1, 4),
    lambda x: x.reshape((x.shape[0], 2, -1)),
    lambda x: x.reshape(-1),
    lambda x: x / x.shape[1] + x.shape[0] * x,
    lambda x: np.exp(x) + np.sqrt(x) + np.square(x) + np.tanh(x),
    lambda x: np.maximum(x, 1) + np.maximum(1, x) + np.power(x, 2) + np.negative(x),
    lambda x: np.matmul(x, np.transpose(x) if isinstance(x, np.ndarray) else x.T),
]


@pytest.mark.parametrize("fn", SAME_AS_NUMPY, ids=lambda f: inspect.getsource(f).strip(" ,\n"))
def test_same_as_numpy(fn: Callable[..., Any]) -> None:
    arrays = [X0, Y0][: len(inspect.signature(fn).parameters)]
    np.testing.assert_allclose(result(fn), fn(*arrays), rtol=1e-12)


FUNCTIONS: list[tuple[Callable[..., Any], Callable[[np.ndarray], np.ndarray]]] = [
    (lambda x: mi.matmul(x, mi.transpose(x)), lambda x: x @ x.T),
    (lambda x: mi.sum(x, axis=1) + mi.mean(x), lambda x: x.sum(1) + x.mean()),
    (lambda x: mi.exp(x) * mi.sqrt(x) * mi.rsqrt(x), lambda x: np.exp(x)),
    (lambda x: mi.square(x) + mi.pow(x, 1.5) + mi.neg(x), lambda x: x**2 + x**1.5 - x),
    (
        lambda x: mi.relu(x - 1) + mi.sigmoid(x) + mi.tanh(x),
        lambda x: np.maximum(x - 1, 0) + 1 / (1 + np.exp(-x)) + np.tanh(x),
    ),
    (lambda x: mi.silu(x), lambda x: x / (1 + np.exp(-x))),
    (lambda x: mi.gelu(x), lambda x: x * np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))(x)),
    (lambda x: mi.maximum(x, 1) + mi.maximum(1, x), lambda x: 2 * np.maximum(x, 1)),
    (lambda x: mi.clamp(x, 0.75, 1), lambda x: np.clip(x, 0.75, 1)),
    (lambda x: mi.repeat(x, 3, axis=1), lambda x: np.repeat(x, 3, axis=1)),
    (lambda x: mi.repeat(x, "n", axis=0), lambda x: np.repeat(x, 3, axis=0)),
    (lambda x: mi.reshape(x, "b", 4, "n"), lambda x: x.reshape(2, 4, 3)),
    (lambda x: mi.reshape(x, ("4*b*n",)), lambda x: x.reshape(-1)),
    (lambda x: x.reshape("4*b*n"), lambda x: x.reshape(-1)),
    (lambda x: mi.swapaxes(x, 0, 1), lambda x: x.T),
    (lambda x: mi.concat([x, 2 * x, x], axis=1), lambda x: np.concatenate([x, 2 * x, x], 1)),
    (lambda x: mi.concat([x]), lambda x: x),
    (lambda x: mi.softmax(x, axis=0), lambda x: np.exp(x) / np.exp(x).sum(0)),
    (lambda x: mi.rms_norm(x, eps=0), lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True))),
    (lambda x: mi.layer_norm(x, eps=0), lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)),
    (lambda x: mi.constant(0.5) * x + mi.constant(Fraction(1, 3)), lambda x: x / 2 + 1 / 3),
    (lambda x: x / mi.sqrt(x.shape[-1]), lambda x: x / np.sqrt(12)),
    (lambda x: mi.apply("mul", x, mi.apply("size", dim="4*n")), lambda x: 12 * x),
]


@pytest.mark.parametrize(("fn", "expected"), FUNCTIONS)
def test_functions(fn: Callable[..., Any], expected: Callable[[np.ndarray], np.ndarray]) -> None:
    np.testing.assert_allclose(result(fn), expected(X0), rtol=1e-10)


def test_norms_with_weight_and_bias() -> None:
    centered = (X0 - X0.mean(-1, keepdims=True)) / X0.std(-1, keepdims=True)
    rms = X0 / np.sqrt((X0**2).mean(-1, keepdims=True))
    np.testing.assert_allclose(result(lambda x, y: mi.rms_norm(x, y, eps=0)), rms * Y0, rtol=1e-12)
    np.testing.assert_allclose(
        result(lambda x, y: mi.layer_norm(x, y, y, eps=0)), centered * Y0 + Y0, rtol=1e-12
    )
    np.testing.assert_allclose(
        result(lambda x, y: mi.layer_norm(x, bias=y, eps=0)), centered + Y0, rtol=1e-12
    )


def test_what_is_recorded() -> None:
    def scaled(x: Any, w: Any, scale: float = 0.5) -> Any:
        h = x @ w
        return h * scale, h

    p = mi.trace(scaled, w=mi.tensor("n", 8), x=mi.tensor("b", "n"))
    assert p.name == "scaled"
    assert p.input_names == ("w", "x")
    assert [n.op for n in p] == ["input", "input", "matmul", "constant", "mul"]
    assert p.outputs == (4, 2)
    assert p.nodes[3].attr["value"] == Fraction(1, 2)
    assert mi.trace(scaled, "other", w=mi.tensor("n", 8), x=mi.tensor("b", "n")).name == "other"
    assert mi.trace(lambda x: mi.exp(x), x=X).name == "program"


def test_tensors_describe_themselves() -> None:
    def f(x: Any) -> Any:
        assert isinstance(x, Proxy)
        assert x.shape == (mi.tensor("b").shape[0], 64, mi.tensor("4*n").shape[0])
        assert type(x.shape[1]) is int
        assert (x.ndim, x.dtype, repr(x)) == (3, "float64", "Proxy(float64[b, 64, 4*n])")
        assert len({x, x}) == 1
        return x.reshape(x.shape[0] * 16, 4, x.shape[2]).sum(-1)

    p = mi.trace(f, x=mi.tensor("b", 64, "4*n", dtype="float64"))
    assert str(p.output_types[0]) == "float64[16*b, 4]"


def test_inferred_dims_are_written_out() -> None:
    p = mi.trace(lambda x: x.reshape(-1, 4), x=X)
    assert [str(d) for d in p.nodes[-1].attr["shape"]] == ["b*n", "4"]
    (y,) = run_reference(mi.trace(lambda x: x.reshape("b", -1), x=X), [np.zeros((0, 12))], {"b": 0, "n": 3})
    assert y.shape == (0, 12)


def line_of(fn: Callable[..., Any], code: str) -> int:
    lines, start = inspect.getsourcelines(fn)
    return next(start + i for i, text in enumerate(lines) if code in text)


def test_errors_name_the_users_line() -> None:
    def helper(x: Any, w: Any) -> Any:
        return x @ w  # the transpose is forgotten

    def f(x: Any, w: Any) -> Any:
        return mi.relu(helper(x, w))

    with pytest.raises(ShapeError) as e:
        mi.trace(f, x=mi.tensor("b", 64), w=mi.tensor(32, 64))
    line = line_of(helper, "x @ w")
    assert str(e.value).startswith(
        f"test_trace.py:{line}: return x @ w  # the transpose is forgotten: matmul: "
    )
    assert "[b, 64] and [32, 64]" in str(e.value)


def test_every_node_knows_the_users_line() -> None:
    def f(x: Any) -> Any:
        y = x.shape[0] * mi.rms_norm(x)
        y += np.float32(2) * x.reshape("b", -1)
        return mi.maximum(np.exp(y), 0.5)

    where = {n.op: n.where for n in mi.trace(f, x=X).nodes}
    for op, code in {
        "size": "x.shape[0]",
        "rms_norm": "x.shape[0]",
        "reshape": "+=",
        "exp": "return",
    }.items():
        assert where[op].startswith(f"test_trace.py:{line_of(f, code)}: "), op
    assert all(w.startswith("test_trace.py:") for op, w in where.items() if op != "input")


INDEXED: dict[str, Callable[..., Any]] = {
    "parts": lambda x: x[..., :4] - x[..., 4:8],
    "steps": lambda x: x[1:, ::2],
    "one": lambda x: x[0] + x[-1],
    "new dims": lambda x: x[:, None] * x[None],
    "largest": lambda x: abs(x) / x.max(-1, keepdims=True),
}


@pytest.mark.parametrize("name", INDEXED)
def test_programs_are_indexed_as_arrays_are(name: str) -> None:
    fn = INDEXED[name]
    p = mi.trace(fn, "indexed", x=mi.tensor("b", 12))
    for b in (2, 5):
        x = np.random.default_rng(b).uniform(1, 2, (b, 12)).astype(np.float32)
        np.testing.assert_allclose(run_reference(p, [x], {"b": b})[0], fn(x), rtol=1e-6)
        kernel = LibraryProgram(to_axes(p))
        np.testing.assert_allclose(kernel([x], {"b": b})[0], fn(x), rtol=1e-6)


ERRORS: list[tuple[Callable[..., Any], type[MirageError], str]] = [
    (lambda x: x[0, 0, 0], TraceError, "indexing of Proxy(float32[b, 4*n]): 3 indices for 2 dims"),
    (lambda x: x[[0, 1]], TraceError, "[0, 1] is no index"),
    (lambda x: x[::-1], TraceError, "step -1 is not a positive integer"),
    (lambda x: x[x], TraceError, "take cannot be superoptimized"),
    (lambda x: x if x else -x, TraceError, "truth value"),
    (lambda x: x if x > 0 else -x, TraceError, "comparison"),
    (lambda x: x if x == 0 else -x, TraceError, "comparison"),
    (lambda x: math.exp(x), TraceError, "float()"),
    (lambda x: int(x), TraceError, "int()"),
    (lambda x: [1, 2][x], TraceError, "use as an index"),
    (lambda x: sum(x), TraceError, "iteration"),
    (lambda x: len(x), TraceError, "len()"),
    (lambda x: 0 in x, TraceError, "`in`"),
    (lambda x: x // 2, TraceError, "//"),
    (lambda x: 2 % x, TraceError, "%"),
    (lambda x: x & x, TraceError, "bitwise"),
    (lambda x: round(x), TraceError, "round()"),
    (lambda x: 2**x, TraceError, "mirage.exp"),
    (lambda x: x**x, TraceError, "the exponent"),
    (lambda x: mi.pow(x, x), TraceError, "the exponent"),
    (lambda x: np.power(2.0, x), TraceError, "the exponent"),
    (lambda x: mi.maximum(x, x), TraceError, "maximum: of two tensors"),
    (lambda x: mi.clamp(x, 0, x), TraceError, "clamp: hi="),
    (lambda x: np.sin(x), TraceError, "numpy.sin is not an operator"),
    (lambda x: np.add.reduce(x), TraceError, "numpy.add.reduce"),
    (lambda x: np.exp(x, where=True), TraceError, "numpy.exp with where"),
    (lambda x: np.sum(x), TraceError, "numpy.sum"),
    (lambda x: np.asarray(x), TraceError, "conversion to an array"),
    (lambda x: x + np.ones(3), TraceError, "an array of shape (3,)"),
    (lambda x: np.ones(3) + x, TraceError, "an array of shape (3,)"),
    (lambda x: x + "1", TraceError, "a str is not a tensor"),
    (lambda x: x + None, TraceError, "a NoneType is not a tensor"),
    (lambda x: x * True, TraceError, "True is not a number"),
    (lambda x: mi.exp([x]), TraceError, "a list is not a tensor"),
    (lambda x: mi.concat(x), TraceError, "pass a list"),
    (lambda x: x / x.shape[0] ** 0.5, TraceError, "use mirage.sqrt"),
    (lambda x: x.sum("b"), TraceError, "axis='b'"),
    (lambda x: mi.trace(lambda y: x + y, y=X), TraceError, "another trace"),
    (lambda x: x + float("nan"), AttributeValueError, "finite number"),
    (lambda x: mi.apply("softmax", x, axis=None), AttributeValueError, "axis=None"),
    (lambda x: mi.apply("softmax", x, dim=0), AttributeValueError, "unknown attribute 'dim'"),
    (lambda x: mi.apply("softmaxx", x), UnknownOperator, "did you mean softmax"),
    (lambda x: mi.apply("qqq", x), UnknownOperator, "the operators are abs, "),
    (lambda x: mi.apply("add", x), ShapeError, "takes 2 operands, got 1"),
    (lambda x: x + x.T, ShapeError, "[b, 4*n] and [4*n, b]"),
    (lambda x: x.sum(2), ShapeError, "sum: axis 2"),
    (lambda x: x.swapaxes(0, 2), TraceError, "axis 2 is out of range"),
    (lambda x: x.sum().mT, TraceError, "mT"),
    (lambda x: x.reshape("b", 5), ShapeError, "[b, 4*n] to [b, 5]"),
    (lambda x: x.reshape("b", "4 n"), DimError, "cannot read '4 n'"),
    (lambda x: x.reshape(x.shape[0] / 2, -1), DimError, "b/2 is not an integer for every size"),
    (lambda x: mi.repeat(x, 1.5, axis=0), DimError, "1.5 of type float"),
]


@pytest.mark.parametrize(("fn", "error", "message"), ERRORS, ids=[m for *_, m in ERRORS])
def test_misuse(fn: Callable[..., Any], error: type[MirageError], message: str) -> None:
    with pytest.raises(error) as e:
        mi.trace(fn, x=X)
    assert type(e.value) is error
    assert message in str(e.value)
    line = fn.__code__.co_firstlineno
    assert str(e.value).count(f"test_trace.py:{line}: ") == 1
    assert str(e.value).startswith(f"test_trace.py:{line}: ")


def test_other_exceptions_propagate_with_a_note() -> None:
    def broken(x: Any) -> Any:
        settings: dict[str, float] = {}
        return x + settings["missing"]

    with pytest.raises(KeyError, match="missing") as e:
        mi.trace(broken, x=X)
    assert e.value.__notes__ == ["raised by broken while mirage traced it"]


def test_tensors_do_not_outlive_their_trace() -> None:
    leaked: list[Any] = []

    def leak(x: Any) -> Any:
        leaked.append(x)
        return x

    mi.trace(leak, x=X)
    with pytest.raises(TraceError, match="no function is being traced"):
        leaked[0] + 1
    with pytest.raises(TraceError, match="another trace"):
        mi.trace(lambda x: x + leaked[0], x=X)
    with pytest.raises(TraceError, match="of another trace"):
        mi.trace(lambda x: leaked[0], x=X)


@pytest.mark.parametrize("fn", [mi.exp, mi.constant, mi.softmax, mi.reshape, mi.sum, mi.rms_norm])
def test_functions_outside_of_a_trace(fn: Callable[..., Any]) -> None:
    with pytest.raises(TraceError, match=rf"{fn.__name__}: no function is being traced; call it inside"):
        fn(1)


def test_traces_nest() -> None:
    def outer(x: Any) -> Any:
        y = mi.exp(x)
        inner = mi.trace(lambda x: mi.tanh(x), x=X)
        assert [n.op for n in inner] == ["input", "tanh"]
        return y + 1

    assert [n.op for n in mi.trace(outer, x=X)] == ["input", "exp", "constant", "add"]


SIGNATURES: list[tuple[Any, dict[str, Any], str]] = [
    (lambda x, y: x, {"x": X}, "parameter 'y' has no type; pass y=tensor(...)"),
    (lambda x: x, {"x": X, "z": X}, "a type is given for 'z', but the parameters are: x"),
    (lambda x: x, {}, "parameter 'x' has no type"),
    (lambda *x: x[0], {"x": X}, "parameter *x cannot be traced"),
    (lambda **x: x["x"], {"x": X}, "parameter **x cannot be traced"),
    (lambda x, /: x, {"x": X}, "parameter x cannot be traced"),
    (lambda x: x, {"x": ("b", 4)}, "x=('b', 4) is not a tensor type"),
    (lambda x: None, {"x": X}, "returns a NoneType; return a tensor"),
    (lambda x: {"y": x}, {"x": X}, "returns a dict"),
    (lambda x: (x, 1), {"x": X}, "returns a int"),
    (lambda x: (), {"x": X}, "returns nothing"),
    (lambda x: mi.constant(1), {"x": X}, "scalar constant"),
    (3, {"x": X}, "3 is not a function"),
    (lambda x: x, {"x": X, "name": "not one"}, "name='not one' is not an identifier"),
    (lambda x, name: x, {"x": X, "name": X}, "is not an identifier"),
]


@pytest.mark.parametrize(("fn", "specs", "message"), SIGNATURES, ids=[m for *_, m in SIGNATURES])
def test_signatures(fn: Any, specs: dict[str, Any], message: str) -> None:
    with pytest.raises(TraceError) as e:
        mi.trace(fn, **specs)
    assert message in str(e.value)


def test_no_inputs_and_mixed_dtypes() -> None:
    with pytest.raises(MirageError, match=r"scalar constant|no tensor input"):
        mi.trace(lambda: mi.constant(1))
    with pytest.raises(DTypeError, match="input 'y' is float64, and the program computes float32"):
        mi.trace(lambda x, y: (x, y), x=mi.tensor("b"), y=mi.tensor("b", dtype="float64"))


def test_softmaxes_that_are_written_by_hand() -> None:
    """Their maximum is no operator of a program, and cancels."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT
        e = mi.exp(scores - mi.max(scores, axis=-1, keepdims=True))
        return (e / mi.sum(e, axis=1, keepdims=True)) @ v

    specs: dict[str, Any] = {"q": mi.tensor("s", 8), "k": mi.tensor("t", 8), "v": mi.tensor("t", 8)}
    assert str(mi.trace(attend, **specs)) == str(mi.trace(lambda q, k, v: mi.softmax(q @ k.mT, axis=1) @ v, **specs)).replace(
        "def program", "def attend"
    )

    def other_rows(x: Any) -> Any:
        e = mi.exp(x - mi.max(x, axis=0, keepdims=True))
        return e / mi.sum(e, axis=1, keepdims=True)

    assert "softmax" not in str(mi.trace(other_rows, x=mi.tensor("n", "m")))
