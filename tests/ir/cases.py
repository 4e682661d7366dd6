"""One valid application of every built-in operator, and random programs made of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import sympy
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view

from mirage.errors import AttributeValueError, DTypeError, ShapeError
from mirage.ir.dims import to_dim
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import DTYPES, tensor

Array = np.ndarray
ONE_ARG = [("b", "n")]
BROADCAST: list[tuple[int | str, ...]] = [("b", 1, "n"), ("m", 1)]


@dataclass(frozen=True)
class Case:
    """An operator on operands of these dims; `expected` is its meaning, written independently in NumPy."""

    op: str
    dims: list[tuple[Any, ...]]
    expected: Callable[..., Array]
    attrs: dict[str, Any] = field(default_factory=dict)
    positive: bool = False

    def __str__(self) -> str:
        return f"{self.op}({', '.join(f'{k}={v}' for k, v in self.attrs.items())})"


def _norm(x: Array, weight: Array | float, eps: float, axis: int = -1) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=axis, keepdims=True) + eps) * weight)


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x)
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


_erf = np.vectorize(math.erf, otypes=[np.float64])
_EPS = 1e-6

CASES = [
    Case("add", BROADCAST, lambda x, y: x + y),
    Case("sub", BROADCAST, lambda x, y: x - y),
    Case("mul", BROADCAST, lambda x, y: x * y),
    Case("div", BROADCAST, lambda x, y: x / y, positive=True),
    Case("add", [("b", "n"), ()], lambda x, y: x + y),
    Case("neg", ONE_ARG, lambda x: -x),
    Case("cast", ONE_ARG, lambda x: x, {"dtype": "float32"}),
    Case("square", ONE_ARG, lambda x: x**2),
    Case("exp", ONE_ARG, np.exp),
    Case("log", ONE_ARG, np.log, positive=True),
    Case("sqrt", ONE_ARG, np.sqrt, positive=True),
    Case("rsqrt", ONE_ARG, lambda x: x**-0.5, positive=True),
    Case("sin", ONE_ARG, np.sin),
    Case("cos", ONE_ARG, np.cos),
    Case("abs", ONE_ARG, lambda x: np.where(x < 0, -x, x)),
    Case("gauss_cdf", ONE_ARG, lambda x: (1 + _erf(x / math.sqrt(2))) / 2),
    Case("floor", ONE_ARG, lambda x: x // 1),
    Case("ceil", ONE_ARG, lambda x: -(-x // 1)),
    Case("round", ONE_ARG, lambda x: (x + 0.5) // 1),
    Case("log_step", ONE_ARG, np.zeros_like, positive=True),
    Case("relu", ONE_ARG, lambda x: np.where(x > 0, x, 0)),
    Case("sigmoid", ONE_ARG, lambda x: 1 / (1 + np.exp(-x))),
    Case("tanh", ONE_ARG, np.tanh),
    Case("silu", ONE_ARG, lambda x: x / (1 + np.exp(-x))),
    Case("gelu", ONE_ARG, lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2),
    Case("maximum", ONE_ARG, lambda x: np.maximum(x, 0.25), {"value": 0.25}),
    Case("clamp", ONE_ARG, lambda x: np.clip(x, -0.5, 0.5), {"lo": -0.5, "hi": 0.5}),
    *(
        Case("pow", ONE_ARG, lambda x, e=e: x**e, {"exponent": e}, positive=True)
        for e in (0, 1, 3, -2, 0.5, 2.5, -1.5, 0.3, 9)
    ),
    Case("constant", [], lambda: np.asarray(0.125), {"value": Fraction(1, 8)}),
    Case("size", [], lambda: np.asarray(4.0 * 3), {"dim": "4*n"}),
    Case("matmul", [("m", "k"), ("k", "n")], np.matmul),
    Case("matmul", [("b", 1, "m", "k"), ("h", "k", "n")], np.matmul),
    Case("concat_matmul", [("m", "k"), ("m", 2), ("k", "n"), (2, "n")], lambda w, x, y, z: w @ y + x @ z),
    Case(
        "concat_matmul",
        [("b", "h", "m", "k"), ("h", "m", 3), ("k", "n"), ("b", 1, 3, "n")],
        lambda w, x, y, z: w @ y + x @ z,
    ),
    Case("sum", [("b", "m", "n")], lambda x: x.sum(axis=(0, 2)), {"axes": (0, -1)}),
    Case("sum", [("b", "m", "n")], lambda x: x.sum(axis=1, keepdims=True), {"axes": (1,), "keepdims": True}),
    Case("sum", [("b", "m", "n")], lambda x: x, {"axes": ()}),
    Case("mean", [("b", "m", "n")], lambda x: x.mean(axis=(1, 2)), {"axes": (1, 2)}),
    Case("mean", [("b", 4)], lambda x: x.mean(axis=-1, keepdims=True), {"axes": (-1,), "keepdims": True}),
    Case("concat", [("b", "n"), ("b", "m"), ("b", 2)], lambda *x: np.concatenate(x, -1), {"axis": -1}),
    Case("reshape", [("b", "2*n", 3)], lambda x: x.reshape(len(x), -1, 6), {"shape": ("b", "n", 6)}),
    Case("reshape", [("b", "2*n", 3)], lambda x: x.reshape(len(x), -1), {"shape": ("b", -1)}),
    Case("transpose", [("b", "m", "n")], lambda x: x.transpose(2, 0, 1), {"perm": (2, 0, 1)}),
    Case("transpose", [("b", "m", "n")], lambda x: x.transpose(0, 2, 1), {"perm": (0, -1, 1)}),
    Case("repeat", [("b", "n")], lambda x: np.repeat(x, 3, axis=1), {"axis": -1, "times": 3}),
    Case("repeat", [("b", "n")], lambda x: np.repeat(x, 3, axis=0), {"axis": 0, "times": "n"}),
    Case("softmax", [("b", "m", "n")], lambda x: _softmax(x, -1)),
    Case("softmax", [("b", "m", "n")], lambda x: _softmax(x, 1), {"axis": 1}),
    Case("log_softmax", [("b", "m", "n")], lambda x: np.log(_softmax(x, -1))),
    Case("log_softmax", [("b", "m", "n")], lambda x: np.log(_softmax(x, 1)), {"axis": 1}),
    Case("rms_norm", ONE_ARG, lambda x: _norm(x, 1.0, _EPS)),
    Case("rms_norm", [("b", "n"), ("n",)], lambda x, g: _norm(x, g, 0.5), {"eps": 0.5}),
    Case("rms_norm", [("b", "n", "m")], lambda x: _norm(x, 1.0, _EPS, 1), {"axis": 1}),
    Case("layer_norm", ONE_ARG, lambda x: _norm(x - x.mean(-1, keepdims=True), 1.0, _EPS)),
    Case("layer_norm", [("b", "n"), ("n",)], lambda x, g: _norm(x - x.mean(-1, keepdims=True), g, _EPS)),
    Case(
        "layer_norm",
        [("b", "n"), ("n",), ("n",)],
        lambda x, g, c: _norm(x - x.mean(-1, keepdims=True), g, _EPS) + c,
    ),
    Case(
        "windows",
        [("b", "n + 3")],
        lambda x: np.stack([x[:, :-3:2], x[:, 3::2]], 1),
        {"kernel": 2, "strides": 2, "dilations": 3},
    ),
    Case("pad", [("b", "n")], lambda x: np.pad(x, ((0, 2), (1, 0))), {"low": (0, 1), "high": (2, 0)}),
    Case("slice", [("b", "n")], lambda x: x[:, ::2], {"axes": 1, "starts": 0, "stops": "n", "steps": 2}),
    Case(
        "sum_pool",
        [("b", "n + 1")],
        lambda x: x[:, :-1] + x[:, 1:],
        {"kernel": 2, "strides": 1, "dilations": 1},
    ),
    Case("max", [("b", "n")], lambda x: x.max(1, initial=-np.inf), {"axes": 1, "keepdims": False}),
    Case(
        "max_pool",
        [("b", "n + 1")],
        lambda x: np.maximum(x[:, :-1], x[:, 1:]),
        {"kernel": 2, "strides": 1, "dilations": 1},
    ),
    Case(
        "convolution",
        [("b", 2, "n + 1"), (4, 1, 2)],
        lambda x, w: np.concatenate(
            [np.einsum("bnk,ok->bon", sliding_window_view(x[:, g], 2, axis=1), w[2 * g : 2 * g + 2, 0]) for g in (0, 1)], 1
        ),
        {"strides": 1, "dilations": 1, "groups": 2},
    ),
]

SIZES = {"b": 2, "h": 2, "k": 5, "m": 4, "n": 3}


def case_program(case: Case) -> Program:
    """The operator as a program; a constant result is added to an input, so that a tensor is returned."""
    b = ProgramBuilder(case.op)
    if not case.dims:
        return b.finish([b.op("add", b.input("x", tensor()), b.op(case.op, **case.attrs))])
    inputs = [b.input(f"x{i}", tensor(*dims)) for i, dims in enumerate(case.dims)]
    return b.finish([b.op(case.op, *inputs, **case.attrs)])


_DIMS = ["a", "b", "4*n", "n", "n + 1", "2*a*b", 1, 2, 7]
_NUMBERS = st.one_of(
    st.fractions(),
    st.floats(allow_nan=False, allow_infinity=False).map(Fraction),
    st.integers(-(10**30), 10**30).map(Fraction),
)
_UNARY = ["neg", "square", "exp", "sqrt", "rsqrt", "relu", "sigmoid", "tanh", "silu", "gelu"]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """A random program: every attribute kind, symbolic dims, shared values, several outputs."""
    b = ProgramBuilder(draw(st.sampled_from(["f", "softmax", "v0", "_g1"])))
    dtype = draw(st.sampled_from(list(DTYPES)))
    names = draw(
        st.lists(st.sampled_from(["x", "v0", "v1", "vv0", "n", "exp"]), unique=True, min_size=1, max_size=3)
    )
    # most operands fit each other: one pool of dims, a suffix of it per input
    pool = draw(st.lists(st.sampled_from(_DIMS), max_size=3))
    values = [b.input(name, tensor(*pool[draw(st.integers(0, len(pool))) :], dtype=dtype)) for name in names]
    for _ in range(draw(st.integers(2, 10))):
        try:
            values.append(_random_op(draw, b, values))
        except (ShapeError, AttributeValueError, DTypeError):
            continue
    tensors = [v for v in values if b.type(v).dtype != "scalar"]
    return b.finish([tensors[-1], *draw(st.lists(st.sampled_from(tensors), max_size=2))])


def _random_op(draw: st.DrawFn, b: ProgramBuilder, values: list[int]) -> int:
    x, y = draw(st.sampled_from(values[-2:])), draw(st.sampled_from(values))
    shape = b.type(x).shape
    axis = draw(st.integers(-len(shape), max(len(shape) - 1, 0)))
    match draw(st.sampled_from(["unary", "binary", "number", "dim", "reduce", "move", "join", "norm"])):
        case "unary":
            return b.op(draw(st.sampled_from(_UNARY)), x)
        case "binary":
            return b.op(draw(st.sampled_from(["add", "sub", "mul", "div", "matmul"])), x, y)
        case "number":
            lo, hi = sorted([draw(_NUMBERS), draw(_NUMBERS)])
            made = b.op("constant", value=lo)
            return draw(
                st.sampled_from(
                    [
                        made,
                        b.op("clamp", x, lo=lo, hi=hi),
                        b.op("maximum", x, value=hi),
                        b.op("pow", x, exponent=lo),
                    ]
                )
            )
        case "dim":
            return b.op("size", dim=to_dim(draw(st.sampled_from(_DIMS))))
        case "reduce":
            axes = draw(st.lists(st.integers(0, max(len(shape) - 1, 0)), unique=True, max_size=2))
            return b.op(draw(st.sampled_from(["sum", "mean"])), x, axes=axes, keepdims=draw(st.booleans()))
        case "move":
            if draw(st.booleans()):
                return b.op("transpose", x, perm=draw(st.permutations(range(len(shape)))))
            if draw(st.booleans()):
                return b.op("repeat", x, axis=axis, times=to_dim(draw(st.sampled_from(_DIMS))))
            total = sympy.expand(sympy.prod(shape))
            return b.op("reshape", x, shape=draw(st.sampled_from([(-1,), (total,), (1, total), (*shape, 1)])))
        case "join":
            return b.op("concat", x, y, axis=axis)
    return b.op(draw(st.sampled_from(["softmax", "log_softmax", "rms_norm", "layer_norm"])), x, axis=axis)
