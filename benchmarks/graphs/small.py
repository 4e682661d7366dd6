"""Small graph programs, each for one ability of the compiler, with its yardstick in NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import mirage as mi
from benchmarks.graphs.models import gelu, rms, softmax

# functions that call each other, with symbols of their own and an expression in a signature


@mi.function(x=mi.tensor("n", "d"), w=mi.tensor("d", "f"), v=mi.tensor("f", "d"))
def mlp(x: Any, w: Any, v: Any) -> Any:
    """An MLP with its residual, over rows."""
    return x + mi.gelu(x @ w) @ v


@mi.function(x=mi.tensor("2*n", "d"))
def halved(x: Any) -> Any:
    """The means of adjacent rows."""
    return x.reshape("n", 2, "d").mean(1)


TWO_FUNCTIONS = {"x": mi.tensor("b", "2*s", "d"), "w": mi.tensor("d", "f"), "v": mi.tensor("f", "d")}


def two_functions(x: Any, w: Any, v: Any) -> Any:
    """Rows of all sequences go through one function twice, with a number of rows of its own each time."""
    b, _, d = x.shape
    rows = mlp(x.reshape(-1, d), w, v)
    return mlp(halved(rows), w, v).reshape(b, -1, d)


def two_functions_yardstick(x: np.ndarray, w: np.ndarray, v: np.ndarray) -> np.ndarray:
    y = x + gelu(x @ w) @ v
    y = (y[:, ::2] + y[:, 1::2]) / 2
    return y + gelu(y @ w) @ v


# shapes that depend on data

SELECT_ROWS = {"x": mi.tensor("n", "d"), "labels": mi.tensor("n", dtype="int32")}


def select_rows(x: Any, labels: Any) -> Any:
    """Attention among the rows of one label, and the rows."""
    rows = mi.match_cast(x[labels == 1], mi.tensor("k", "d"))
    return mi.softmax(rows @ rows.T / mi.sqrt(rows.shape[1])) @ rows, rows


def select_rows_yardstick(x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = x[labels == 1]
    scores = rows @ rows.T / math.sqrt(x.shape[1])
    return (softmax(scores) @ rows if len(rows) else rows), rows


UNIQUE_TOKENS = {
    "tokens": mi.tensor("n", dtype="int64"),
    "table": mi.tensor("v", "d"),
    "gain": mi.tensor("d"),
    "w": mi.tensor("d", "d"),
}


def unique_tokens(tokens: Any, table: Any, gain: Any, w: Any) -> Any:
    """Embeddings of the distinct tokens, each computed once, and the tokens."""
    distinct = mi.match_cast(mi.unique(tokens), mi.tensor("u", dtype="int64"))
    return mi.rms_norm(table[distinct], gain) @ w, distinct


def unique_tokens_yardstick(
    tokens: np.ndarray, table: np.ndarray, gain: np.ndarray, w: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    distinct = np.array(sorted(set(tokens.tolist())), np.int64)
    return rms(table[distinct], gain) @ w, distinct


# control flow that depends on data

#: the most rounds that a call may ask for
MOST_STEPS = 12
REFINEMENT = {
    "a": mi.tensor("n", "n"),
    "y": mi.tensor("n", "m"),
    "steps": mi.tensor(dtype="int64"),
}


def refinement(a: Any, y: Any, steps: Any) -> Any:
    """Jacobi's iteration for a @ x = y, `steps` rounds and one more where the error is still large; and the error."""
    n = mi.arange(a.shape[0])
    diagonal = mi.where(n[:, None] == n, a, 0.0).sum(1, keepdims=True)

    def step(i: Any, x: Any) -> Any:
        return x + (y - a @ x) / diagonal

    x = mi.loop(steps, step, mi.zeros(y.shape), bound=MOST_STEPS)
    error = abs(y - a @ x).max()
    return mi.cond(error > 0.01, lambda x: step(0, x), lambda x: x, x), error


def refinement_yardstick(a: np.ndarray, y: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x, diagonal = np.zeros_like(y), np.diag(a)[:, None]
    for _ in range(int(steps)):
        x = x + (y - a @ x) / diagonal
    error = np.abs(y - a @ x).max()
    return (x + (y - a @ x) / diagonal if error > 0.01 else x), error


# an effect

CACHE_UPDATE = {
    "q": mi.tensor("b", "h", "s", 16),
    "k": mi.tensor("b", "h", "s", 16),
    "v": mi.tensor("b", "h", "s", 16),
    "k_cache": mi.tensor("b", "h", "t + s + rest", 16),
    "v_cache": mi.tensor("b", "h", "t + s + rest", 16),
    "length": mi.shape("t"),
}


def cache_update(q: Any, k: Any, v: Any, k_cache: Any, v_cache: Any, length: Any) -> Any:
    """Attention to what a cache holds and to new tokens, which are written behind the first `length` of the cache."""
    (t,) = length
    k_cache = mi.update_(k_cache, k, start=(0, 0, t, 0))
    v_cache = mi.update_(v_cache, v, start=(0, 0, t, 0))
    end = t + k.shape[2]
    scores = q @ k_cache[:, :, :end].mT / 4
    return mi.softmax(scores) @ v_cache[:, :, :end], k_cache, v_cache


def cache_update_yardstick(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, k_cache: np.ndarray, v_cache: np.ndarray, length: tuple[int]
) -> tuple[np.ndarray, ...]:
    end = length[0] + k.shape[2]
    k_cache[:, :, length[0] : end] = k
    v_cache[:, :, length[0] : end] = v
    scores = np.einsum("bhsd,bhtd->bhst", q, k_cache[:, :, :end]) / 4
    return np.einsum("bhst,bhtd->bhsd", softmax(scores), v_cache[:, :, :end]), k_cache, v_cache
