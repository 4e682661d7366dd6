"""Applications of every operator of graphs, with their meaning written independently in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirage.ir.types import ELEMENTS, TensorType, tensor

Array = np.ndarray
#: dims, element type, and for indices the dim that they are positions in
Operand = tuple[tuple[int | str, ...], str] | tuple[tuple[int | str, ...], str, int | str]

SIZES = [{"n": 4, "m": 3, "k": 2}, {"n": 1, "m": 1, "k": 1}, {"n": 0, "m": 0, "k": 0}, {"n": 9, "m": 0, "k": 5}]


@dataclass(frozen=True)
class Case:
    """An operator on operands; `expected` takes the arrays, and the sizes by keyword."""

    op: str
    operands: list[Operand]
    expected: Callable[..., Any]
    attrs: dict[str, Any] = field(default_factory=dict)
    #: whether it has a loop-level definition
    loops: bool = True
    #: operands as the operator takes them, from those that are drawn
    taken: Callable[[list[Array]], list[Array]] = list

    def __str__(self) -> str:
        dtypes = "-".join(o[1] for o in self.operands)
        return f"{self.op}({dtypes}; {', '.join(f'{k}={v}' for k, v in self.attrs.items())})"

    @property
    def types(self) -> list[TensorType]:
        return [tensor(*o[0], dtype=o[1]) for o in self.operands]

    def arrays(self, sizes: Mapping[str, int], seed: int = 0) -> list[Array]:
        rng = np.random.default_rng(seed)
        found = []
        for o in self.operands:
            shape = tensor(*o[0]).bind(sizes)
            if len(o) == 3:
                extent = tensor(o[2]).bind(sizes)[0]
                # none is in range where there are no elements
                found.append(rng.integers(-extent, max(extent, 1), shape).astype(o[1]))
            elif o[1] == "bool":
                found.append(rng.random(shape) < 0.5)
            elif ELEMENTS[o[1]].kind == "i":
                found.append(rng.integers(-4, 5, shape).astype(o[1]))
            else:
                found.append(np.round(rng.standard_normal(shape) * 2, 1).astype(ELEMENTS[o[1]]))
        return self.taken(found)


def _loop(shape: tuple[int, ...], element: Callable[..., Any], dtype: Any) -> Array:
    """A tensor made element by element."""
    found = np.zeros(shape, dtype)
    for i in np.ndindex(*shape):
        found[i] = element(*i)
    return found


def _scatter(x: Array, indices: Array, values: Array, add: bool) -> Array:
    """Rows written or added one after the other."""
    found = x.copy()
    for i in np.ndindex(*indices.shape):
        found[indices[i]] = found[indices[i]] + values[i] if add else values[i]
    return found


def _put(x: Array, indices: Array, values: Array, add: bool) -> Array:
    """Elements along the last axis of a matrix."""
    found = x.copy()
    for i, j in np.ndindex(*indices.shape):
        found[i, indices[i, j]] = found[i, indices[i, j]] + values[i, j] if add else values[i, j]
    return found


def _topk(x: Array, k: int, sign: int) -> tuple[Array, Array]:
    order = np.array([sorted(range(len(r)), key=lambda j: (sign * r[j], j))[:k] for r in x.tolist()], np.int64)
    order = order.reshape(len(x), k)
    return np.array([r[o] for r, o in zip(x, order, strict=True)], x.dtype).reshape(len(x), k), order


F32, F64, F16, BF16, I64, I32, BOOL = "float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"
I8 = "int8"
MATRIX, ROW, COLUMN = ("n", "m"), ("m",), ("n", 1)
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
}


def _at(n: int) -> dict[str, Any]:
    return {"axes": (n,), "keepdims": False}


def _or_nan(f: Callable[..., float]) -> Callable[..., float]:
    """The function of Python with NaN where it is not defined, and infinity at poles."""

    def value(*x: float) -> float:
        try:
            return f(*x)
        except ValueError:
            return math.inf * x[0] if f is math.atanh and abs(x[0]) == 1 else math.nan

    return value


def _logarithm(f: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: f(x) if x > 0 else -math.inf if x == 0 else math.nan


#: operator -> what it is for Python's floats
FUNCTIONS: dict[str, Callable[[float], float]] = {
    "erf": math.erf,
    "log1p": lambda x: _logarithm(lambda y: math.log1p(x))(1 + x),
    "expm1": math.expm1,
    "exp2": lambda x: 2.0**x,
    "log2": _logarithm(math.log2),
    "log10": _logarithm(math.log10),
    **{name: _or_nan(getattr(math, name)) for name in ("tan", "sinh", "cosh", "asin", "acos", "atan", "asinh")},
    **{name: _or_nan(getattr(math, name)) for name in ("acosh", "atanh")},
    "trunc": math.trunc,
}
FUNCTIONS_OF_TWO: dict[str, Callable[[float, float], float]] = {
    "atan2": math.atan2,
    "fmod": _or_nan(math.fmod),
    "power": lambda x, y: math.nan if x < 0 and y % 1 else math.inf if x == 0 and y < 0 else x**y,
    "hypot": math.hypot,
    "copysign": math.copysign,
}


def _pairwise(f: Callable[[float, float], float]) -> Callable[..., Array]:
    return lambda x, y, **_: np.vectorize(f, otypes=[np.float64])(x.astype(np.float64), y.astype(np.float64))


ELEMENTWISE = [
    *(
        Case(op, [(MATRIX, t), (ROW, t)], lambda x, y, f=f, **_: np.vectorize(f, otypes=[bool])(x, y))
        for op, f in COMPARISONS.items()
        for t in (F32, I64, BF16)
    ),
    Case("equal", [(MATRIX, BOOL), (COLUMN, BOOL)], lambda x, y, **_: ~(x ^ y)),
    Case("logical_and", [(MATRIX, BOOL), (ROW, BOOL)], lambda x, y, **_: x & y),
    Case("logical_or", [(MATRIX, BOOL), (ROW, BOOL)], lambda x, y, **_: x | y),
    Case("logical_not", [(MATRIX, BOOL)], lambda x, **_: ~x),
    Case("isnan", [(MATRIX, F32)], lambda x, **_: x != x),
    Case("isfinite", [(MATRIX, F16)], lambda x, **_: np.abs(x) < np.inf),
    *(
        Case("where", [(COLUMN, BOOL), (MATRIX, t), (ROW, t)], lambda c, x, y, **_: c * x + (1 - c) * y)
        for t in (F32, I32)
    ),
    Case("where", [(MATRIX, BOOL), (ROW, BOOL), (ROW, BOOL)], lambda c, x, y, **_: c & x | ~c & y),
    *(
        Case(op, [(MATRIX, t), (ROW, t)], f)
        for t in (F32, I64, BF16)
        for op, f in {
            "elementwise_max": lambda x, y, **_: np.where(x > y, x, y),
            "elementwise_min": lambda x, y, **_: np.where(x < y, x, y),
        }.items()
    ),
    *(Case("stop_gradient", [(MATRIX, t)], lambda x, **_: x) for t in (F32, I32, BOOL)),
    *(Case("sign", [(MATRIX, t)], lambda x, **_: 1 * (x > 0) - 1 * (x < 0)) for t in (F32, F16, I32)),
    *(Case("floor_divide", [(MATRIX, t), (ROW, t)], lambda x, y, **_: _divided(x, y)) for t in (I64, I32)),
    *(Case("remainder", [(MATRIX, t), (ROW, t)], lambda x, y, **_: _rest(x, y)) for t in (I64, I32)),
    *(
        Case("cast", [(MATRIX, t)], lambda x, to=to, **_: x.astype(np.float64).astype(ELEMENTS[to]), {"dtype": to})
        for t in (F32, BF16, I64, BOOL)
        for to in (F32, F16, BF16, "float64", I64, I32, BOOL)
    ),
    *(
        Case(op, [(MATRIX, t)], lambda x, f=f, **_: np.vectorize(f, otypes=[np.float64])(x.astype(np.float64)))
        for t in (F32, F64, F16)
        for op, f in FUNCTIONS.items()
    ),
    *(
        Case(op, [(MATRIX, t), (ROW, t)], _pairwise(f), loops=op == "atan2")
        for t in (F32, F64)
        for op, f in FUNCTIONS_OF_TWO.items()
    ),
    *(
        Case(op, [(MATRIX, t), (ROW, t)], lambda x, y, f=f, **_: np.vectorize(f, otypes=[x.dtype])(x, y), loops=False)
        for t in (I64, I32)
        for op, f in {
            "bitwise_and": lambda x, y: int(x) & int(y),
            "bitwise_or": lambda x, y: int(x) | int(y),
            "bitwise_xor": lambda x, y: int(x) ^ int(y),
            "left_shift": lambda x, y: int(x) << int(y) if y >= 0 else 0,
            "right_shift": lambda x, y: int(x) >> (int(y) if y >= 0 else 99),
        }.items()
    ),
    # operators of programs on integers
    Case("add", [(MATRIX, I64), (ROW, I64)], lambda x, y, **_: x + y),
    Case("sub", [(MATRIX, I32), (ROW, I32)], lambda x, y, **_: x - y),
    Case("mul", [(MATRIX, I64), (COLUMN, I64)], lambda x, y, **_: x * y),
    Case("neg", [(MATRIX, I64)], lambda x, **_: -x),
    Case("square", [(MATRIX, I32)], lambda x, **_: x * x),
    Case("abs", [(MATRIX, I64)], lambda x, **_: np.where(x < 0, -x, x)),
    Case("sum", [(MATRIX, I64)], lambda x, **_: x.sum(axis=1), _at(1)),
    Case("reshape", [(MATRIX, BOOL)], lambda x, n, m, **_: x.reshape(m, n), {"shape": ("m", "n")}),
    Case("transpose", [(MATRIX, I64)], lambda x, **_: x.T, {"perm": (1, 0)}),
    Case("repeat", [(MATRIX, BOOL)], lambda x, **_: np.repeat(x, 2, 0), {"axis": 0, "times": 2}),
    Case("concat", [(MATRIX, I32), (MATRIX, I32)], lambda x, y, **_: np.vstack([x, y]), {"axis": 0}),
]


def _divided(x: Array, y: Array) -> Array:
    return np.vectorize(lambda a, b: a // b if b else 0, otypes=[x.dtype])(x, y)


def _rest(x: Array, y: Array) -> Array:
    return np.vectorize(lambda a, b: a - b * (a // b) if b else 0, otypes=[x.dtype])(x, y)


def _extreme(x: Array, axis: int, first: Callable[[Any, Any], bool]) -> Array:
    """Positions of the first extreme element, found by a scan."""
    found = np.zeros(np.delete(x.shape, axis), np.int64)
    for i in np.ndindex(*found.shape):
        line = np.moveaxis(x, axis, -1)[i]
        for j in range(1, len(line)):
            if first(line[j], line[found[i]]):
                found[i] = j
    return found


REDUCTIONS = [
    *(
        Case(op, [(("n", "m", 2), t)], lambda x, f=f, axes=axes, **_: f(x, axes), {"axes": axes})
        for t in (F32, I32, F16)
        for axes in ((0,), (-1, 0), (0, 1, 2), ())
        for op, f in {
            "max": lambda x, axes: np.max(x, axis=axes, initial=_least(x)),
            "min": lambda x, axes: (
                -np.max(-x, axis=axes, initial=_least(-x)) if x.dtype.kind == "f" else _int_min(x, axes)
            ),
        }.items()
    ),
    Case(
        "max",
        [(MATRIX, BF16)],
        lambda x, **_: x.max(axis=1, keepdims=True, initial=-np.inf),
        {"axes": 1, "keepdims": True},
    ),
    *(Case("prod", [(MATRIX, t)], lambda x, **_: np.prod(x, axis=0, dtype=x.dtype), _at(0)) for t in (F32, I64)),
    Case("any", [(MATRIX, BOOL)], lambda x, **_: x.sum(axis=1) > 0, _at(1)),
    Case("all", [(MATRIX, BOOL)], lambda x, **_: (~x).sum(axis=0) == 0, _at(0)),
    *(
        Case("argmax", [(MATRIX, t)], lambda x, **_: _extreme(x, 1, lambda a, b: a > b), {"axis": -1})
        for t in (F32, I64)
    ),
    Case("argmin", [(MATRIX, F16)], lambda x, **_: _extreme(x, 0, lambda a, b: a < b), {"axis": 0}),
    Case(
        "argmax",
        [(MATRIX, F32)],
        lambda x, **_: _extreme(x, 0, lambda a, b: a > b)[None],
        {"axis": 0, "keepdims": True},
    ),
    *(
        Case(
            op,
            [(MATRIX, t)],
            lambda x, n, m, f=f, **_: _loop((n, m), lambda i, j: f(x[i, : j + 1].astype(float)), x.dtype),
            {"axis": 1},
            loops=False,
        )
        for t in (F32, I64)
        for op, f in {
            "cumsum": np.sum,
            "cumprod": np.prod,
            "cummax": max,
            "cummin": min,
            **({"cumlogsumexp": lambda x: np.log(np.exp(x).sum())} if t == F32 else {}),
        }.items()
    ),
]


def _least(x: Array) -> Any:
    return -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min


def _int_min(x: Array, axes: tuple[int, ...]) -> Array:
    return np.asarray(-np.max(-x.astype(np.int64), axis=axes, initial=-np.iinfo(x.dtype).max), x.dtype)


INDEXING = [
    *(
        Case("take", [(MATRIX, t), (("k", 2), i, "n")], lambda x, i, **_: x[i], {"axis": 0})
        for t, i in ((F32, I64), (BF16, I32), (BOOL, I64))
    ),
    Case("take", [(("k", "n", "m"), F32), ((3,), I64, "n")], lambda x, i, **_: x[:, i], {"axis": -2}),
    Case("take", [(MATRIX, I64), ((), I64, "m")], lambda x, i, **_: x[:, int(i)], {"axis": 1}),
    Case(
        "take_along_axis",
        [(MATRIX, F32), (("n", "k"), I64, "m")],
        lambda x, i, n, k, **_: _loop((n, k), lambda a, b: x[a, i[a, b]], np.float32),
    ),
    Case(
        "take_along_axis",
        [(MATRIX, I32), (("k", 1), I64, "n")],
        lambda x, i, m, k, **_: _loop((k, m), lambda a, b: x[i[a, 0], b], np.int32),
        {"axis": 0},
    ),
    Case(
        "take_along_axis",
        [((1, "m"), F32), (("n", "k"), I64, "m")],
        lambda x, i, n, k, **_: _loop((n, k), lambda a, b: x[0, i[a, b]], np.float32),
        {"axis": 1},
    ),
    *(
        Case(
            "scatter",
            [(MATRIX, t), (("k", 2), I64, "n"), (("k", 2, "m"), t)],
            lambda x, i, v, add=add, **_: _scatter(x, i, v, add),
            {"add": add},
            loops=False,
        )
        for t in (F32, I64)
        for add in (False, True)
    ),
    Case(
        "scatter",
        [(MATRIX, BF16), (("k",), I32, "m"), ((1,), BF16)],
        lambda x, i, v, k, **_: _scatter(x.T, i, np.repeat(v, k), False).T,
        {"axis": 1},
        loops=False,
    ),
    *(
        Case(
            "put_along_axis",
            [(MATRIX, F32), (("n", "k"), I64, "m"), (("n", "k"), F32)],
            lambda x, i, v, add=add, **_: _put(x, i, v, add),
            {"add": add},
            loops=False,
        )
        for add in (False, True)
    ),
]

WINDOWS = [
    *(
        Case(
            "slice",
            [(("n", "m", 6), t)],
            lambda x, n, **_: np.stack([x[i, :, 1:5:2] for i in range(1, n)]) if n > 1 else x[1:, :, 1:5:2],
            {"axes": (0, -1), "starts": (1, 1), "stops": ("n", 5), "steps": (1, 2)},
        )
        for t in (F32, I64)
    ),
    Case("slice", [(("2*n",), BOOL)], lambda x, n, **_: x[n:], {"axes": 0, "starts": ("n",), "stops": ("2*n",)}),
    Case("slice", [(("n",), F32)], lambda x, n, **_: x[: n // 2], {"axes": 0, "starts": 0, "stops": ("n // 2",)}),
    Case("slice", [(("n",), F32)], lambda x, **_: x[::3], {"axes": 0, "starts": 0, "stops": ("n",), "steps": (3,)}),
    *(
        Case(
            "pad",
            [(MATRIX, t)],
            lambda x, n, m, k, v=v, **_: np.block(
                [[np.full((1, m + k + 2), v)], [np.full((n, k), v), x, np.full((n, 2), v)]]
            ),
            {"low": (1, "k"), "high": (0, 2), "value": v},
        )
        for t, v in ((F32, 0.5), (I32, -3), (F16, 0))
    ),
    *(
        Case(
            "update_slice",
            [(("n + k", "m + 3"), t), (("n", 2), t)],
            lambda x, w, n, m, k: _loop(
                (n + k, m + 3),
                lambda i, j: w[i - k, j - 1] if i >= k and 1 <= j < 3 else x[i, j],
                x.dtype,
            ),
            {"starts": ("k", 1)},
        )
        for t in (F32, I64, BOOL)
    ),
    Case("update_slice", [(MATRIX, F32), (MATRIX, F32)], lambda x, w, **_: w, {"starts": (0, 0)}),
    Case(
        "broadcast_to",
        [(("n", 1), F32)],
        lambda x, n, m, k: _loop((k, n, m), lambda i, j, _: x[j, 0], np.float32),
        {"shape": ("k", "n", "m")},
    ),
    Case("broadcast_to", [((), I64)], lambda x, n, **_: np.repeat(x, n), {"shape": "n"}),
    Case("flip", [(("n", "m", 2), BF16)], lambda x, **_: x[::-1, :, ::-1], {"axes": (0, -1)}),
]



def _convolved(x: Array, w: Array, strides: Sequence[int], gaps: Sequence[int], groups: int) -> Array:
    """Each window and its products, one by one."""
    space = [
        max(-(-(n - (k - 1) * d) // s), 0) for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, gaps, strict=True)
    ]
    found = np.zeros((x.shape[0], w.shape[0], *space), np.float64)
    for b, o, *at in np.ndindex(*found.shape):
        for c, *r in np.ndindex(*w.shape[1:]):
            channel = o // (w.shape[0] // groups) * w.shape[1] + c
            place = tuple(a * s + j * d for a, s, j, d in zip(at, strides, r, gaps, strict=True))
            found[(b, o, *at)] += float(x[(b, channel, *place)]) * float(w[(o, c, *r)])
    return found.astype(x.dtype)


def _pooled(x: Array, kernel: Sequence[int], strides: Sequence[int], gaps: Sequence[int], fn: Callable[..., Any]) -> Array:
    space = [max(-(-(n - (k - 1) * d) // s), 0) for n, k, s, d in zip(x.shape[1:], kernel, strides, gaps, strict=True)]
    found = np.zeros((x.shape[0], *space), x.dtype)
    for b, *at in np.ndindex(*found.shape):
        places = [tuple(a * s + j * d for a, s, j, d in zip(at, strides, r, gaps, strict=True)) for r in np.ndindex(*kernel)]
        found[(b, *at)] = fn([x[(b, *place)] for place in places])
    return found


CONVOLUTION = [
    Case(
        "convolution",
        [(("n", 4, "m + 4", 6), F64), ((6, 2, 3, 2), F64)],
        lambda x, w, **_: _convolved(x, w, (1, 2), (2, 3), 2),
        {"strides": (1, 2), "dilations": (2, 3), "groups": 2},
        loops=False,
    ),
    Case(
        "convolution",
        [(("n", 3, "m + 2"), F64), ((5, 3, 2), F64)],
        lambda x, w, **_: _convolved(x, w, (2,), (1,), 1),
        {"strides": 2, "dilations": 1},
        loops=False,
    ),
    Case(
        "convolution",
        [(("n", 3, "m + 2", 4), F64), ((3, 1, 2, 3), F64)],
        lambda x, w, **_: _convolved(x, w, (2, 1), (1, 1), 3),
        {"strides": (2, 1), "dilations": (1, 1), "groups": 3},
    ),
    *(
        Case(
            op,
            [(("n", "m + 4", 5), t)],
            lambda x, f=f, **_: _pooled(x, (3, 2), (2, 1), (2, 1), f),
            {"kernel": (3, 2), "strides": (2, 1), "dilations": (2, 1)},
        )
        for t in (F64, I64)
        for op, f in (("max_pool", max), ("sum_pool", sum))
    ),
]

CONVOLUTION.append(
    Case(
        "windows",
        [(("n", "m + 4", 5), F32)],
        lambda x, **_: np.moveaxis(
            np.array([[x[:, r : r + x.shape[1] - 4 : 2, s : s + 4] for s in (0, 1)] for r in (0, 2, 4)]), 2, 0
        ),
        {"kernel": (3, 2), "strides": (2, 1), "dilations": (2, 1)},
    )
)

CREATION = [
    Case(
        "full",
        [],
        lambda n, **_: np.array([[0.1] * 2] * n, np.float32).reshape(n, 2),
        {"shape": ("n", 2), "value": 0.1},
    ),
    Case("full", [], lambda **_: np.array(7), {"shape": (), "value": 7, "dtype": I64}),
    Case("full", [], lambda n, **_: np.ones(n, bool), {"shape": "n", "value": 1, "dtype": BOOL}),
    Case(
        "full",
        [],
        lambda n, **_: np.full(n, 0.1, np.float32).astype(ELEMENTS[BF16]),
        {"shape": "n", "value": 0.1, "dtype": BF16},
    ),
    Case("arange", [], lambda n, **_: np.array(range(n), np.int64), {"stop": "n"}),
    Case(
        "arange",
        [],
        lambda n, **_: np.array(range(2, n + 3, 2), np.float32),
        {"stop": "n + 3", "start": 2, "step": 2, "dtype": F32},
    ),
    Case("dim_value", [], lambda n, m, **_: np.array(n * m // 2), {"dim": "n * m // 2"}),
]

DATA_DEPENDENT = [
    *(
        Case(
            "sort",
            [(MATRIX, t)],
            lambda x, **_: np.array([sorted(r) for r in x.tolist()], x.dtype).reshape(x.shape),
            loops=False,
        )
        for t in (F32, I64, BF16)
    ),
    Case(
        "sort",
        [(MATRIX, F32)],
        lambda x, **_: np.array([sorted(c, reverse=True) for c in x.T.tolist()], x.dtype).reshape(x.T.shape).T,
        {"axis": 0, "descending": True},
        loops=False,
    ),
    *(
        Case(
            "argsort",
            [(MATRIX, I32)],
            lambda x, m, s=s, **_: _topk(x, m, s)[1],
            {"descending": s < 0},
            loops=False,
        )
        for s in (1, -1)
    ),
    *(
        Case("topk", [(("n", "m + 2"), t)], lambda x, s=s, **_: _topk(x, 2, s), {"k": 2, "largest": s < 0}, loops=False)
        for t, s in ((F32, -1), (I64, 1), (BF16, -1))
    ),
    Case("unique", [(MATRIX, I32)], lambda x, **_: np.array(sorted(set(x.ravel().tolist())), np.int32), loops=False),
    Case(
        "nonzero",
        [(MATRIX, BOOL)],
        lambda x, **_: np.array([i for i in np.ndindex(*x.shape) if x[i]], np.int64).reshape(-1, 2),
        loops=False,
    ),
    Case(
        "boolean_mask",
        [(MATRIX, F32), (("n",), BOOL)],
        lambda x, mask, m, **_: np.array([r for r, keep in zip(x, mask, strict=True) if keep], np.float32).reshape(
            mask.sum(), m
        ),
        loops=False,
    ),
    Case("boolean_mask", [(MATRIX, I64), (MATRIX, BOOL)], lambda x, mask, **_: x.ravel()[mask.ravel()], loops=False),
]

MATRIX_OF_CHANNELS: Any = ("n", 2, "m")


def _quantized(x: Array, scale: Array, zero: Any) -> Array:
    whole = np.vectorize(lambda v, s: float(round(v / s)) if s else math.copysign(math.inf, v), otypes=[np.float64])(x, scale)
    return np.clip(whole + zero, -128, 127).astype(np.int8)


def _grouped(x: Array, w: Array, ends: Array, **_: int) -> Array:
    """Every row times the matrix of the first group that ends behind it."""
    found = np.zeros((len(x), w.shape[2]))
    for i, row in enumerate(x):
        group = int(np.searchsorted(ends, i, side="right"))
        found[i] = row.astype(np.float64) @ w[group].astype(np.float64) if group < len(w) else 0
    return found.astype(x.dtype)


GROUPED = [
    Case(
        "grouped_matmul",
        [(("n", "m"), t), (("k", "m", 2), t), (("k",), ends, "n")],
        _grouped,
        loops=False,
        taken=lambda arrays: [*arrays[:2], np.sort(np.abs(arrays[2]))],
    )
    for t, ends in ((F32, I64), (BF16, I32))
]

QUANTIZATION = [
    Case("quantize", [(MATRIX, F32), ((), F32)], lambda x, s, **_: _quantized(x, s, 0)),
    Case("quantize", [(MATRIX, F32), (("n",), F32), ((), I8)], lambda x, s, z, **_: _quantized(x, s[:, None], z), {"axis": 0}),
    Case("dequantize", [(MATRIX, I8), (ROW, F32), (ROW, I8)], lambda x, s, z, **_: (x.astype(np.int32) - z) * s),
    Case("dequantize", [(MATRIX, I32), ((), F32)], lambda x, s, **_: x * s),
    Case(
        "dequantize",
        [(("3*n", "m"), I8), (MATRIX, F32)],
        lambda x, s, **_: x * np.repeat(s, 3, 0),
        {"axis": 0, "group": 3},
    ),
    Case("sim_quantize", [(MATRIX, F32)], lambda x, **_: x, loops=False),
    Case("sim_quantize", [(MATRIX, F32), ((), F32)], lambda x, s, **_: _quantized(x, s, 0) * s, loops=False),
    Case(
        "quantized_matmul",
        [(MATRIX, I8), (("m", "k"), I8), (("k",), F32), (("k",), F32)],
        lambda x, w, s, b, **_: np.maximum((x.astype(np.int64) - 3) @ w.astype(np.int64) * s + b, 0),
        {"x_zero": 3, "relu": True},
        loops=False,
    ),
    Case(
        "quantized_convolution",
        [(MATRIX_OF_CHANNELS, I8), (("k", 2, 1), I8), (("k",), F32), (("k",), F32)],
        lambda x, w, s, b, **_: np.minimum(
            np.einsum("bcn,oc->bon", x.astype(np.int64) - 3, w[..., 0].astype(np.int64)) * s[:, None] + b[:, None], 9
        ),
        {"strides": (1,), "dilations": (1,), "low": (0,), "high": (0,), "x_zero": 3, "most": 9},
        loops=False,
    ),
]

CASES = [*GROUPED, *QUANTIZATION, *ELEMENTWISE, *REDUCTIONS, *INDEXING, *WINDOWS, *CONVOLUTION, *CREATION, *DATA_DEPENDENT]
