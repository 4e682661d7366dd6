"""Small programs with a form that is known to be better, as in the literature on rewriting (TASO, PET, XLA's algebraic
simplifier) and in practice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mirage as mi

T = mi.tensor
#: elements of elementwise programs, and of the dims of products
N, M = 1 << 17, 256
_ROW = ("n",)


@dataclass(frozen=True)
class Rewrite:
    """A program as it is written, and as it is better written; of equal types, with the sizes at which both are measured.
    `constants` are inputs whose contents never change.
    """

    name: str
    written: Callable[..., Any]
    better: Callable[..., Any]
    specs: dict[str, Any]
    sizes: dict[str, int]
    constants: tuple[str, ...] = ()


def _row(name: str, written: Callable[..., Any], better: Callable[..., Any], inputs: str) -> Rewrite:
    """A program of vectors."""
    return Rewrite(name, written, better, {v: T(*_ROW) for v in inputs}, {"n": N})


def _exponentials() -> Iterator[Rewrite]:
    exp, log, sqrt = mi.exp, mi.log, mi.sqrt
    yield _row("product of exps", lambda x, y: exp(x) * exp(y), lambda x, y: exp(x + y), "xy")
    yield _row("product of three exps", lambda x, y, z: exp(x) * exp(y) * exp(z), lambda x, y, z: exp(x + y + z), "xyz")
    yield _row("quotient of exps", lambda x, y: exp(x) / exp(y), lambda x, y: exp(x - y), "xy")
    yield _row("reciprocal of an exp", lambda x: 1 / exp(x), lambda x: exp(-x), "x")
    yield _row("gaussians", lambda x, y: exp(-x * x) * exp(-y * y), lambda x, y: exp(-(x * x + y * y)), "xy")
    yield _row("log of exps", lambda x, y: log(exp(x) * exp(y)), lambda x, y: x + y, "xy")
    yield _row("log ratio", lambda x, y: log(exp(x) / exp(y)), lambda x, y: x - y, "xy")
    yield _row("geometric mean", lambda x, y: sqrt(exp(x)) * sqrt(exp(y)), lambda x, y: exp((x + y) / 2), "xy")
    yield _row("root of an exp", lambda x: sqrt(exp(x)), lambda x: exp(x / 2), "x")
    yield _row("whitened by an exp", lambda x, y: x / sqrt(exp(y)), lambda x, y: x * exp(-y / 2), "xy")
    yield _row(
        "sum of logs", lambda x, y: log(x * x + 1) + log(y * y + 1), lambda x, y: log((x * x + 1) * (y * y + 1)), "xy"
    )
    yield _row(
        "difference of logs", lambda x, y: log(x * x + 1) - log(y * y + 1), lambda x, y: log((x * x + 1) / (y * y + 1)), "xy"
    )
    yield _row("cancelled exp", lambda x, y, z: x * exp(y) / exp(y) + z, lambda x, y, z: x + z, "xyz")
    yield _row("softmax of two", lambda x, y: exp(x) / (exp(x) + exp(y)), lambda x, y: mi.sigmoid(x - y), "xy")
    yield _row("tanh by exps", lambda x: (exp(x) - exp(-x)) / (exp(x) + exp(-x)), mi.tanh, "x")
    yield _row("sigmoids of both signs", lambda x, y: y * (mi.sigmoid(x) + mi.sigmoid(-x)) + x, lambda x, y: y + x, "xy")


def _roots_and_signs() -> Iterator[Rewrite]:
    sqrt, relu, absolute, sin, cos = mi.sqrt, mi.relu, mi.abs, mi.sin, mi.cos
    yield _row("root of a square", lambda x, y: sqrt(x * x) + y, lambda x, y: absolute(x) + y, "xy")
    yield _row(
        "product of roots", lambda x, y: sqrt(x * x + 1) * sqrt(y * y + 1), lambda x, y: sqrt((x * x + 1) * (y * y + 1)), "xy"
    )
    yield _row(
        "quotient of roots", lambda x, y: sqrt(x * x + 1) / sqrt(y * y + 1), lambda x, y: sqrt((x * x + 1) / (y * y + 1)), "xy"
    )
    yield _row("divide by the own root", lambda x: (x * x + 1) / sqrt(x * x + 1), lambda x: sqrt(x * x + 1), "x")
    yield _row("square of a root", lambda x: sqrt(x * x + 1) * sqrt(x * x + 1), lambda x: x * x + 1, "x")
    yield _row(
        "reciprocal roots", lambda x, y: (1 / sqrt(x * x + 1)) * (1 / sqrt(y * y + 1)),
        lambda x, y: 1 / sqrt((x * x + 1) * (y * y + 1)), "xy",
    )  # fmt: skip
    yield _row("relus of both signs", lambda x, y: relu(x) + relu(-x) + y, lambda x, y: absolute(x) + y, "xy")
    yield _row("difference of relus", lambda x, y: relu(x) - relu(-x) + y, lambda x, y: x + y, "xy")
    yield _row("relu of a relu", lambda x, y: relu(relu(relu(x))) + y, lambda x, y: relu(x) + y, "xy")
    yield _row("abs of a positive", lambda x: absolute(mi.exp(x)), mi.exp, "x")
    yield _row("abs of a quotient", lambda x, y: absolute(x) / absolute(y * y + 1), lambda x, y: absolute(x / (y * y + 1)), "xy")
    yield _row("sine of a sum", lambda x, y: sin(x) * cos(y) + cos(x) * sin(y), lambda x, y: sin(x + y), "xy")
    yield _row("cosine of a difference", lambda x, y: cos(x) * cos(y) + sin(x) * sin(y), lambda x, y: cos(x - y), "xy")
    yield _row("sine of twice", lambda x: 2 * (sin(x) * cos(x)), lambda x: sin(2 * x), "x")
    yield _row("sine and cosine squared", lambda x, y: y * (sin(x) * sin(x) + cos(x) * cos(x)) + x, lambda x, y: y + x, "xy")


def _polynomials_and_quotients() -> Iterator[Rewrite]:
    def powers(x: Any) -> Any:
        return x * x * x * x + x * x * x + x * x + x

    def positive(x: Any) -> Any:
        return x * x + 1

    yield _row("polynomial", powers, lambda x: x * (1 + x * (1 + x * (1 + x))), "x")
    yield _row("common factor", lambda x, a, b, c: x * a + x * b + x * c, lambda x, a, b, c: x * (a + b + c), "xabc")
    yield _row(
        "common divisor", lambda x, y, z: x / positive(z) + y / positive(z), lambda x, y, z: (x + y) / positive(z), "xyz"
    )
    yield _row(
        "divided twice", lambda x, y, z: x / positive(y) / positive(z), lambda x, y, z: x / (positive(y) * positive(z)), "xyz"
    )
    yield _row(
        "quotient of quotients", lambda x, y, z: (x / positive(y)) / (positive(z) / positive(y)),
        lambda x, y, z: x / positive(z), "xyz",
    )  # fmt: skip
    yield _row("cancelled terms", lambda x, y, z: (x + y) * z - y * z, lambda x, y, z: x * z + 0 * y, "xyz")


def _squares_and_powers() -> Iterator[Rewrite]:
    exp, sqrt, absolute = mi.exp, mi.sqrt, mi.abs

    def positive(x: Any) -> Any:
        return x * x + 1

    def power(x: Any, exponent: float) -> Any:
        return x**exponent

    yield _row("square of a sum", lambda x, y: x * x + 2 * x * y + y * y, lambda x, y: mi.square(x + y), "xy")
    yield _row(
        "root of a square of a difference", lambda x, y: sqrt(x * x - 2 * x * y + y * y), lambda x, y: absolute(x - y), "xy"
    )
    yield _row(
        "difference of squares", lambda x, y: (exp(x) * exp(x) - exp(y) * exp(y)) / (exp(x) + exp(y)),
        lambda x, y: exp(x) - exp(y), "xy",
    )  # fmt: skip
    yield _row("power of an exp", lambda x: power(exp(x), 0.3), lambda x: exp(0.3 * x), "x")
    yield _row("product of powers", lambda x: power(positive(x), 0.3) * power(positive(x), 0.7), positive, "x")
    yield _row("power of a power", lambda x: power(power(positive(x), 0.2), 5), positive, "x")
    yield _row(
        "sum of reciprocals", lambda x, y: 1 / positive(x) + 1 / positive(y),
        lambda x, y: (positive(x) + positive(y)) / (positive(x) * positive(y)), "xy",
    )  # fmt: skip
    yield _row("log of a power", lambda x: mi.log(power(positive(x), 0.3)), lambda x: 0.3 * mi.log(positive(x)), "x")
    yield _row(
        "exp of a log of a maximum", lambda x: exp(mi.log(mi.maximum(x, 1e-6))), lambda x: mi.maximum(x, 1e-6), "x"
    )


def _reductions() -> Iterator[Rewrite]:
    rows = {"x": T("n", M), "y": T("n", M)}
    sizes = {"n": 512}
    total = mi.sum
    yield Rewrite(
        "shifted sum of exps", lambda x, c: total(mi.exp(x - c), axis=1, keepdims=True),
        lambda x, c: total(mi.exp(x), axis=1, keepdims=True) * mi.exp(-c),
        {"x": T("n", M), "c": T("n", 1)}, sizes,
    )  # fmt: skip
    yield Rewrite(
        "sum of sums", lambda x, y: total(x, axis=1) + total(y, axis=1), lambda x, y: total(x + y, axis=1), rows, sizes
    )
    yield Rewrite(
        "scaled sum", lambda x, c: total(x * c, axis=1, keepdims=True), lambda x, c: total(x, axis=1, keepdims=True) * c,
        {"x": T("n", M), "c": T("n", 1)}, sizes,
    )  # fmt: skip
    yield Rewrite(
        "divided sum", lambda x, c: total(x / (c * c + 1), axis=1, keepdims=True),
        lambda x, c: total(x, axis=1, keepdims=True) / (c * c + 1),
        {"x": T("n", M), "c": T("n", 1)}, sizes,
    )  # fmt: skip
    yield Rewrite(
        "variance", lambda x: mi.mean(mi.square(x - mi.mean(x, axis=1, keepdims=True)), axis=1),
        lambda x: mi.mean(x * x, axis=1) - mi.square(mi.mean(x, axis=1)), {"x": T("n", M)}, sizes,
    )  # fmt: skip
    yield Rewrite(
        "log-softmax", lambda x: mi.log(mi.softmax(x)), lambda x: x - mi.log(total(mi.exp(x), axis=1, keepdims=True)),
        {"x": T("n", M)}, sizes,
    )  # fmt: skip
    yield Rewrite(
        "cross-entropy", lambda x, y: total(y * mi.log(mi.softmax(x)), axis=1),
        lambda x, y: total(y * x, axis=1) - total(y, axis=1) * mi.log(total(mi.exp(x), axis=1)), rows, sizes,
    )  # fmt: skip
    yield Rewrite(
        "sum of a concat", lambda x, y: total(mi.exp(mi.concat([x, y], axis=1)), axis=1),
        lambda x, y: total(mi.exp(x), axis=1) + total(mi.exp(y), axis=1), rows, sizes,
    )  # fmt: skip
    yield Rewrite(
        "outer product summed", lambda u, v: total(mi.reshape(u, ("n", 1)) * mi.reshape(v, (1, "m")), axis=1),
        lambda u, v: u * total(v, axis=0), {"u": T("n"), "v": T("m")}, {"n": 1024, "m": 1024},
    )  # fmt: skip


def _products() -> Iterator[Rewrite]:
    total = mi.sum
    square = {"a": T("m", M), "b": T(M, "n")}
    sizes = {"m": M, "n": M}
    yield Rewrite(
        "sum of products", lambda a, b: total(mi.reshape(a, ("m", M, 1)) * mi.reshape(b, (1, M, "n")), axis=1),
        lambda a, b: a @ b, square, sizes,
    )  # fmt: skip

    def differences(a: Any, b: Any) -> Any:
        return total(mi.square(mi.reshape(a, ("m", 1, 64)) - mi.reshape(b, (1, "n", 64))), axis=2)

    def distances(a: Any, b: Any) -> Any:
        norms = mi.reshape(total(a * a, axis=1), ("m", 1)) + mi.reshape(total(b * b, axis=1), (1, "n"))
        return norms - (2 * a) @ b.mT

    points = {"a": T("m", 64), "b": T("n", 64)}
    yield Rewrite("pairwise distances", differences, distances, points, sizes)
    yield Rewrite(
        "gaussian kernel", lambda a, b: mi.exp(-differences(a, b)), lambda a, b: mi.exp(-distances(a, b)), points, sizes
    )
    yield Rewrite(
        "sum of a product", lambda a, b: total(total(a @ b, axis=1), axis=0),
        lambda a, b: total(total(a, axis=0) * total(b, axis=1), axis=0), square, sizes,
    )  # fmt: skip
    yield Rewrite(
        "row sums of a product", lambda a, b: total(a @ b, axis=1, keepdims=True),
        lambda a, b: a @ total(b, axis=1, keepdims=True), square, sizes,
    )  # fmt: skip
    yield Rewrite(
        "column sums of a product", lambda a, b: total(a @ b, axis=0, keepdims=True),
        lambda a, b: total(a, axis=0, keepdims=True) @ b, square, sizes,
    )  # fmt: skip
    yield Rewrite(
        "mean of a projection", lambda a, b: mi.mean(a @ b, axis=0, keepdims=True),
        lambda a, b: mi.mean(a, axis=0, keepdims=True) @ b, square, sizes,
    )  # fmt: skip
    vector = {"a": T("m", M), "b": T(M, M), "v": T(M, 1)}
    yield Rewrite("chain to a vector", lambda a, b, v: a @ b @ v, lambda a, b, v: a @ (b @ v), vector, {"m": M})
    yield Rewrite(
        "chain of four", lambda a, b, c, d: a @ b @ c @ d, lambda a, b, c, d: a @ (b @ (c @ d)),
        {"a": T("m", M), "b": T(M, M), "c": T(M, M), "d": T(M, 8)}, {"m": M},
    )  # fmt: skip
    yield Rewrite(
        "low rank", lambda x, a, c: x @ (a @ c), lambda x, a, c: (x @ a) @ c,
        {"x": T("m", M), "a": T(M, 8), "c": T(8, "n")}, sizes, ("a", "c"),
    )  # fmt: skip
    yield Rewrite(
        "sum of two products", lambda x, a, b: x @ a + x @ b, lambda x, a, b: x @ (a + b),
        {"x": T("m", M), "a": T(M, "n"), "b": T(M, "n")}, sizes, ("a", "b"),
    )  # fmt: skip
    yield Rewrite(
        "sum of three products", lambda x, a, b, c: x @ a + x @ b + x @ c, lambda x, a, b, c: x @ (a + b + c),
        {"x": T("m", M), "a": T(M, "n"), "b": T(M, "n"), "c": T(M, "n")}, sizes, ("a", "b", "c"),
    )  # fmt: skip
    yield Rewrite(
        "products with one matrix", lambda x, y, w: x @ w + y @ w, lambda x, y, w: (x + y) @ w,
        {"x": T("m", M), "y": T("m", M), "w": T(M, "n")}, sizes,
    )  # fmt: skip
    yield Rewrite(
        "residual of a product", lambda x, a, b: x @ a - x @ b, lambda x, a, b: x @ (a - b),
        {"x": T("m", M), "a": T(M, "n"), "b": T(M, "n")}, sizes, ("a", "b"),
    )  # fmt: skip
    yield Rewrite(
        "gain before a product", lambda x, g, w: (x * g) @ w, lambda x, g, w: x @ (mi.reshape(g, (M, 1)) * w),
        {"x": T("m", M), "g": T(M), "w": T(M, 8)}, {"m": 2048}, ("g", "w"),
    )  # fmt: skip
    yield Rewrite(
        "scaled rows", lambda x, s, w: (x * s) @ w, lambda x, s, w: (x @ w) * s,
        {"x": T("m", M), "s": T("m", 1), "w": T(M, 8)}, {"m": 2048},
    )  # fmt: skip
    heads = {"q": T("s", 64), "k": T("t", 64), "v": T("t", 64)}
    long = {"s": 512, "t": 512}
    yield Rewrite("linear attention", lambda q, k, v: (q @ k.mT) @ v, lambda q, k, v: q @ (k.mT @ v), heads, long)
    yield Rewrite(
        "scaled linear attention", lambda q, k, v: (q @ k.mT / 8) @ v, lambda q, k, v: (q / 8) @ (k.mT @ v), heads, long
    )
    yield Rewrite(
        "feature attention", lambda q, k, v: (mi.exp(q) @ mi.exp(k).mT) @ v, lambda q, k, v: mi.exp(q) @ (mi.exp(k).mT @ v),
        heads, long,
    )  # fmt: skip

    def length(x: Any) -> Any:
        return mi.sqrt(total(x * x, axis=1, keepdims=True) + 1e-6)

    yield Rewrite(
        "cosine similarity", lambda x, y: (x / length(x)) @ (y / length(y)).mT,
        lambda x, y: (x @ y.mT) / length(x) / length(y).mT, {"x": T("m", 64), "y": T("n", 64)}, sizes,
    )  # fmt: skip
    yield Rewrite(
        "trace of a product", lambda a, b: total(mi.reshape(a, ("m", 1, M)) @ mi.reshape(b.mT, ("m", M, 1)), axis=0),
        lambda a, b: mi.reshape(total(total(a * b.mT, axis=1), axis=0), (1, 1)), {"a": T("m", M), "b": T(M, "m")}, {"m": M},
    )  # fmt: skip
    yield Rewrite(
        "bilinear form", lambda x, a, y: total(total(mi.reshape(x, ("m", 1)) * a * y, axis=1), axis=0),
        lambda x, a, y: total(x * mi.reshape(a @ mi.reshape(y, (M, 1)), ("m",)), axis=0),
        {"x": T("m"), "a": T("m", M), "y": T(M)}, {"m": 1024},
    )  # fmt: skip
    yield Rewrite(
        "batch norm into a product", lambda x, s, b, w: (x * s + b) @ w,
        lambda x, s, b, w: x @ (mi.reshape(s, (M, 1)) * w) + mi.reshape(b, (1, M)) @ w,
        {"x": T("m", M), "s": T(M), "b": T(M), "w": T(M, 8)}, {"m": 2048}, ("s", "b", "w"),
    )  # fmt: skip


def _layers() -> Iterator[Rewrite]:
    """Parts of models and losses, as they are written by hand."""
    total, exp, log = mi.sum, mi.exp, mi.log
    yield Rewrite(
        "shifted logsumexp", lambda x, c: log(total(exp(x - c), axis=1, keepdims=True)) + c,
        lambda x, c: log(total(exp(x), axis=1, keepdims=True)) + 0 * c, {"x": T("n", M), "c": T("n", 1)}, {"n": 512},
    )  # fmt: skip

    def smoothed(x: Any, y: Any) -> Any:
        return -total((0.9 * y + 0.1 / M) * log(mi.softmax(x)), axis=1)

    def apart(x: Any, y: Any) -> Any:
        kept = 0.9 * total(y * x, axis=1) + 0.1 / M * total(x, axis=1)
        return (0.9 * total(y, axis=1) + 0.1) * log(total(exp(x), axis=1)) - kept

    yield Rewrite("label smoothing", smoothed, apart, {"x": T("n", M), "y": T("n", M)}, {"n": 512})
    gate = {"x": T("n", M), "a": T(M, 64), "b": T(M, 64)}

    def by_exp(x: Any, a: Any, b: Any) -> Any:
        gated = x @ a
        return gated / (1 + exp(-gated)) * (x @ b)

    yield Rewrite("gated MLP", by_exp, lambda x, a, b: mi.silu(x @ a) * (x @ b), gate, {"n": 512}, ("a", "b"))
    yield Rewrite(
        "low-rank MLP", lambda x, a, c, w: mi.relu(x @ (a @ c)) @ w, lambda x, a, c, w: mi.relu((x @ a) @ c) @ w,
        {"x": T("n", M), "a": T(M, 8), "c": T(8, M), "w": T(M, 8)}, {"n": 512}, ("a", "c", "w"),
    )  # fmt: skip
    yield Rewrite(
        "Mahalanobis distance", lambda x, w: total((x @ (w @ w.mT)) * x, axis=1), lambda x, w: total(mi.square(x @ w), axis=1),
        {"x": T("n", M), "w": T(M, 16)}, {"n": 512},
    )  # fmt: skip
    yield Rewrite(
        "gain of an RMSNorm", lambda x, g, w: (mi.rms_norm(x) * g) @ w,
        lambda x, g, w: mi.rms_norm(x) @ (mi.reshape(g, (M, 1)) * w),
        {"x": T("n", M), "g": T(M), "w": T(M, 64)}, {"n": 512}, ("g", "w"),
    )  # fmt: skip
    yield Rewrite(
        "residual over a concat", lambda x, a, b, r, s: mi.concat([x @ a, x @ b], axis=1) + mi.concat([r, s], axis=1),
        lambda x, a, b, r, s: mi.concat([x @ a + r, x @ b + s], axis=1),
        {"x": T("n", M), "a": T(M, 64), "b": T(M, 64), "r": T("n", 64), "s": T("n", 64)}, {"n": 512},
    )  # fmt: skip
    for rows, count in (("few rows", 8), ("many rows", 2048)):
        yield Rewrite(
            f"chain of {rows}", lambda a, b, c: a @ (b @ c), lambda a, b, c: (a @ b) @ c,
            {"a": T("m", M), "b": T(M, 16), "c": T(16, M)}, {"m": count},
        )  # fmt: skip


_GROUPS = (
    _exponentials, _roots_and_signs, _polynomials_and_quotients, _squares_and_powers, _reductions, _products, _layers
)  # fmt: skip
PROGRAMS: dict[str, Rewrite] = {r.name: r for group in _GROUPS for r in group()}
