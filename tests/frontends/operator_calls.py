"""Calls of every function for operators of graphs, and the same in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mirage as mi

SPECS = {
    "x": mi.tensor("n", "m"),
    "i": mi.tensor("n", "m", dtype="int64"),
    "b": mi.tensor("n", "m", dtype="bool"),
    "at": mi.tensor("k", dtype="int64"),
}
N, M, K = 4, 6, 3
_rng = np.random.default_rng(0)
ARRAYS = {
    "x": np.round(_rng.standard_normal((N, M)), 1).astype(np.float32),
    "i": _rng.integers(-4, 5, (N, M)),
    "b": _rng.random((N, M)) < 0.5,
    "at": np.array([2, 0, -1]),
}


def _scattered(x: np.ndarray, at: np.ndarray, add: bool) -> np.ndarray:
    x = x.copy()
    for k in at:
        x[k] = x[k] + 1 if add else 1
    return x


def _put(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[:, 2] = 7
    return x


def _window(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[1:3, :2] = 1
    return x


#: a traced function, and the same in NumPy
CASES: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda x: mi.equal(x, x), lambda x: x == x),
    (lambda i: mi.not_equal(i, 2), lambda i: i != 2),
    (lambda x: mi.less(x, 0.5), lambda x: x < 0.5),
    (lambda i: mi.less_equal(1, i), lambda i: i >= 1),
    (lambda x: mi.greater(x, x.mean()), lambda x: x > x.mean()),
    (lambda i: mi.greater_equal(i, i.shape[0]), lambda i: i >= N),
    (lambda b: mi.logical_and(b, mi.logical_not(b)), lambda b: b & ~b),
    (lambda x, b: mi.logical_or(b, x > 0), lambda x, b: b | (x > 0)),
    (lambda x: mi.isnan(x / mi.zeros((), "float32")), lambda x: x == 0),
    (lambda x: mi.isfinite(1 / x), lambda x: x != 0),
    (lambda x, b: mi.where(b, x, -1.5), lambda x, b: np.where(b, x, -1.5)),
    (lambda i, b: mi.where(b, 0, i), lambda i, b: np.where(b, 0, i)),
    (lambda x: mi.sign(x), np.sign),
    (lambda i: mi.floor_divide(i, 3), lambda i: i // 3),
    (lambda i: mi.remainder(i, i.shape[1]), lambda i: i % M),
    (lambda x: mi.cast(x * 4, "int32"), lambda x: (x * 4).astype(np.int32)),
    (lambda x: mi.max(x, 1), lambda x: x.max(1)),
    (lambda i: mi.min(i), lambda i: i.min()),
    (lambda x: mi.prod(x, (0,), keepdims=True), lambda x: x.prod(0, keepdims=True)),
    (lambda b: mi.any(b, -1), lambda b: b.any(-1)),
    (lambda b: mi.all(b, (0, 1)), lambda b: b.all()),
    (lambda x: mi.argmax(x, 1), lambda x: x.argmax(1)),
    (lambda x: mi.argmin(x, 0, keepdims=True), lambda x: x.argmin(0)[None]),
    (lambda i: mi.cumsum(i, 1), lambda i: i.cumsum(1)),
    (lambda x, at: mi.take(x, at), lambda x, at: x[at]),
    (lambda x: mi.take(x, -1, axis=1), lambda x: x[:, -1]),
    (lambda x, i: mi.take_along_axis(x, i), lambda x, i: np.take_along_axis(x, i, 1)),
    (lambda x, at: mi.scatter(x, at, 1), lambda x, at: _scattered(x, at, False)),
    (lambda i, at: mi.scatter(i, at, 1, add=True), lambda i, at: _scattered(i, at, True)),
    (lambda x: mi.put_along_axis(x, mi.full(("n", 1), 2, "int64"), 7), _put),
    (lambda at: mi.one_hot(mi.abs(at), 4), lambda at: np.eye(4, dtype=np.float32)[abs(at)]),
    (lambda x: mi.pad(x, (1, 0), (0, 2), 9), lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=9)),
    (lambda x: mi.update_slice(x, mi.ones((2, 2)), (1, 0)), _window),
    (lambda x: mi.expand_dims(x, 1), lambda x: x[:, None]),
    (lambda x: mi.squeeze(mi.sum(x, 0, keepdims=True), 0), lambda x: x.sum(0)),
    (lambda x, i: mi.stack([x, mi.cast(i, "float32")], -1), lambda x, i: np.stack([x, i.astype(np.float32)], -1)),
    (lambda x: mi.broadcast_to(mi.max(x), ("n", 2)), lambda x: np.full((N, 2), x.max())),
    (lambda x: mi.flip(x), lambda x: x[::-1, ::-1]),
    (lambda b: mi.flip(b, 1), lambda b: b[:, ::-1]),
    (lambda x: mi.full(x.shape, 0.5) + x, lambda x: x + np.float32(0.5)),
    (lambda i: mi.zeros("n", "int64"), lambda i: np.zeros(N, np.int64)),
    (lambda x: mi.ones(("m", 2), "float16"), lambda x: np.ones((M, 2), np.float16)),
    (lambda x: mi.full((), True, dtype="bool"), lambda x: np.array(True)),
    (lambda x: mi.arange("n", "2*n"), lambda x: np.arange(N, 2 * N)),
    (lambda x: mi.arange(x.shape[0], step=2, dtype="float32"), lambda x: np.arange(0, N, 2, dtype=np.float32)),
    (lambda x: mi.dim_value("n*m"), lambda x: np.array(N * M)),
    (lambda x: mi.causal_mask("n", "m"), lambda x: np.tri(N, M, M - N, dtype=bool)),
    (lambda x: mi.sort(x, 0), lambda x: np.sort(x, 0)),
    (lambda i: mi.argsort(i, descending=True), lambda i: np.argsort(-i, kind="stable")),
    (lambda x: mi.topk(x, 2)[0], lambda x: -np.sort(-x)[:, :2]),
    (lambda x: mi.topk(x, 3, axis=0, largest=False)[1], lambda x: np.argsort(x, 0, kind="stable")[:3]),
    (
        lambda x: mi.grouped_matmul(x, mi.stack([x.T, -x.T]), mi.arange(1, 5, 2)),
        lambda x: np.concatenate([x[:1] @ x.T, -x[1:3] @ x.T, np.zeros((N - 3, N), np.float32)]),
    ),
    (lambda i: mi.unique(i), np.unique),
    (lambda b: mi.nonzero(b), np.argwhere),
    (lambda x, b: mi.boolean_mask(x, b), lambda x, b: x[b]),
    (lambda x: mi.reshape_to(x, mi.shape("m", "n")), lambda x: x.reshape(M, N)),
    (lambda x: mi.broadcast_to_shape(mi.max(x), mi.shape_of(x)), lambda x: np.full((N, M), x.max())),
    (lambda x, b: mi.full_of(mi.shape_of(mi.nonzero(b)), 2, "int32"), lambda x, b: np.full((b.sum(), 2), 2, np.int32)),
    (lambda x: mi.maximum(x, mi.flip(x)), lambda x: np.maximum(x, x[::-1, ::-1])),
    (lambda i: mi.maximum(1, i), lambda i: np.maximum(i, 1)),
    (lambda i: mi.minimum(i, i.shape[0]), lambda i: np.minimum(i, N)),
    (lambda x: mi.minimum(x, 0.25), lambda x: np.minimum(x, np.float32(0.25))),
    (lambda i: mi.abs(i), np.abs),
    (lambda x: mi.floor(x) + mi.ceil(x) * mi.round(x), lambda x: np.floor(x) + np.ceil(x) * np.rint(x)),
]
