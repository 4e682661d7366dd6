"""Products of matrices as they lie, one or a batch of them, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from mirage.errors import MirageError
from mirage.kernels.cpu.launch import linear
from mirage.kernels.cpu.launch import products as module
from mirage.kernels.cpu.launch.linear import contraction, matmul, prepare_contraction, prepare_matmul
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.panels import pack
from mirage.kernels.cpu.launch.rounds import LaunchedRounds
from tests.kernels.kernels import in_threads


def check(rows: int, k: int, n: int, *, transposed: bool, bias: bool) -> None:
    rng = np.random.default_rng([rows, k, n])
    x, w, b = (rng.standard_normal(s, np.float32) for s in ((rows, k), (k, n), (n,)))
    # what lies beside the result is not written to
    out = np.full((rows + 2, n), np.nan, np.float32)
    stored = np.ascontiguousarray(w.T) if transposed else w
    matmul([x, stored, b], [out[1:-1]], right=(1, 0) if transposed else (), bias=bias)
    wanted = x.astype(np.float64) @ w + (b if bias else 0)
    np.testing.assert_allclose(out[1:-1], wanted, rtol=0, atol=1e-6 * max(k, 1))
    assert np.isnan(out[0]).all() and np.isnan(out[-1]).all()


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", range(1, 4))
def test_all_sizes(rows: int, transposed: bool, bias: bool) -> None:
    for k in (1, 7, 16, 33, 300):
        for n in (1, 5, 16, 31, 257):
            check(rows, k, n, transposed=transposed, bias=bias)


@pytest.mark.parametrize("transposed", [False, True])
def test_many_blocks(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "num_threads", lambda: 3)
    check(2, 2100, 1030, transposed=transposed, bias=True)
    check(1, 70_000, 40, transposed=transposed, bias=False)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [33, 70, 600])
def test_many_rows(rows: int, transposed: bool) -> None:
    for k, n in ((45, 203), (768, 40), (1540, 9)):
        check(rows, k, n, transposed=transposed, bias=True)


#: shapes of the operands and of what is added, and permutations that the operands are read through
PRODUCTS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None, tuple[int, ...], tuple[int, ...]]] = [
    ((5, 7), (7, 9), None, (), ()),
    ((2, 3, 7), (9, 7), (9,), (), (1, 0)),
    ((3, 2, 7), (7, 9), (2, 3, 9), (1, 0, 2), ()),
    ((5, 7), (7, 9), (5, 9), (), (0, 1)),
    ((7, 5), (7, 9), (1, 9), (1, 0), ()),
    ((5, 7), (7, 1), (5, 1), (), ()),
    # batches, dims of size 1 that broadcast, and other orders of dims
    ((2, 5, 7), (2, 7, 9), (9,), (), ()),
    ((4, 1, 5, 7), (3, 9, 7), (4, 3, 5, 9), (), (0, 2, 1)),
    ((2, 6, 3, 7), (2, 4, 3, 7), None, (0, 2, 1, 3), (0, 2, 3, 1)),
    ((2, 1, 3, 1), (1, 4, 1, 9), (9,), (), ()),
    # sums that broadcast otherwise
    ((5, 7), (7, 9), (5, 1), (), ()),
    ((5, 7), (7, 9), (), (), ()),
    ((3, 5, 7), (3, 7, 9), (3, 1, 9), (), ()),
    # both operands in another order
    ((7, 5), (9, 7), (9,), (1, 0), (1, 0)),
]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products_as_programs_call_them(case: Any, relu: bool, dtype: str) -> None:
    xs, ys, added, left, right = case
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(s).astype(dtype) for s in (xs, ys, added) if s is not None]
    x, y = (a.astype("float64").transpose(p or range(a.ndim)) for a, p in zip(inputs[:2], (left, right), strict=True))
    wanted = x @ y + (inputs[2] if added is not None else 0)
    out = np.full(wanted.shape, np.nan, dtype)
    matmul(inputs, [out], left=left, right=right, bias=added is not None, relu=relu)
    tolerance = 0.05 if dtype == "float16" else 1e-5
    np.testing.assert_allclose(out, np.maximum(wanted, 0) if relu else wanted, rtol=tolerance, atol=tolerance)


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * special.ndtr(x),
    "sigmoid": special.expit,
    "silu": lambda x: x * special.expit(x),
    "tanh": np.tanh,
}


def test_gelu_far_from_zero() -> None:
    """Products of rows with 1."""
    x = np.concatenate([np.linspace(-40, 40, 9001), np.linspace(-5.7, -5.5, 99), [-3.4e38, -1e-40, 0, 1e-40, 3.4e38]])
    x = x.astype(np.float32)[:, None]
    out = np.empty_like(x)
    matmul([x, np.ones((1, 1), np.float32)], [out], activation="gelu")
    exact = ACTIVATIONS["gelu"](x.astype(np.float64))
    assert (np.abs(out - exact) <= 3e-7 * np.abs(x) + 1e-38).all()
    assert (out[x < -5.61] == 0).all()
    matmul([np.full_like(x, np.nan), np.ones((1, 1), np.float32)], [out], activation="gelu")
    assert np.isnan(out).all()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(activation: str) -> None:
    rng = np.random.default_rng(8)
    for rows, k, n in ((1, 30, 100), (7, 5, 33), (40, 9, 16)):
        x, w, b = (3 * rng.standard_normal(s, np.float32) for s in ((rows, k), (k, n), (n,)))
        x[-1, 0] = np.nan
        for form in ([], [pack(w)]):
            out = np.full((rows, n), np.inf, np.float32)
            given: list[Any] = [x, w, *form, b]
            options: Any = {"packed": bool(form), "bias": True, "activation": activation}
            matmul(given, [out], **options)
            wanted = ACTIVATIONS[activation](x.astype(np.float64) @ w + b)
            np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-4)
            launch = prepare_matmul(given, [out], **options)
            assert launch is not None
            out[...] = np.inf
            tensors = [x, w, *([x] if form else []), b, out]
            rounds = LaunchedRounds([[(launch, range(len(tensors)))]], np.zeros((), np.int64), len(tensors))
            rounds.tensors[:] = [address(a) for a in tensors]
            assert rounds.run_first() is None
            np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-4)


def test_nothing_to_sum_and_no_rows() -> None:
    b = np.arange(3, dtype=np.float32)
    for transposed in (False, True):
        out = np.full((2, 3), np.nan, np.float32)
        w = np.ones((3, 0) if transposed else (0, 3), np.float32)
        matmul([np.ones((2, 0), np.float32), w, b], [out], right=(1, 0) if transposed else (), bias=True)
        np.testing.assert_array_equal(out, np.broadcast_to(b, (2, 3)))
    matmul([np.ones((0, 4), np.float32), np.ones((4, 3), np.float32)], [np.ones((0, 3), np.float32)])
    matmul([np.ones((2, 0, 4), np.float32), np.ones((2, 4, 3), np.float32)], [np.ones((2, 0, 3), np.float32)])


def test_dims_in_front_and_many_callers() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((2, 1, 2, 64), np.float32), rng.standard_normal((64, 500), np.float32)

    def work(_: int) -> None:
        out = np.empty((2, 1, 2, 500), np.float32)
        for _ in range(20):
            matmul([x, w], [out])
            np.testing.assert_allclose(out, x @ w, rtol=0, atol=1e-4)

    in_threads(work)


def test_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_function", lambda: lambda *_: -1)
    one = np.ones((1, 1), np.float32)
    with pytest.raises(MirageError, match="no memory for a product of 1 rows"):
        matmul([one, one], [one.copy()])


@pytest.mark.parametrize("room", [0, 1 << 20])
@pytest.mark.parametrize("case", PRODUCTS, ids=str)
def test_products_that_are_made_again_and_again(case: Any, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With caches that have no room for the matrix, and with such that do."""
    monkeypatch.setattr(linear, "_cache_bytes", lambda: room)
    xs, ys, added, left, right = case
    rng = np.random.default_rng(4)
    inputs = [rng.standard_normal(s).astype("float32") for s in (xs, ys, added) if s is not None]
    x, y = (a.astype("float64").transpose(p or range(a.ndim)) for a, p in zip(inputs[:2], (left, right), strict=True))
    wanted = x @ y + (inputs[2] if added is not None else 0)
    out = np.full(wanted.shape, np.nan, np.float32)
    options: Any = {"left": left, "right": right, "bias": added is not None}
    launch = prepare_matmul(inputs, [out], **options)
    adds = added is None or added in (out.shape, out.shape[-1:], (1, out.shape[-1]))
    assert (launch is not None) == (adds and not left == right == (1, 0))
    assert launch is None or cast(tuple[module.Products, None], launch.keep)[0].resident == bool(room)
    assert prepare_matmul([a.astype("float64") for a in inputs], [out], **options) is None
    if launch is not None:
        rounds = LaunchedRounds([[(launch, range(len(inputs) + 1))]] * 3, np.zeros((), np.int64), len(inputs) + 1)
        rounds.tensors[:] = [address(a) for a in (*inputs, out)]
        assert not rounds.some(0, 3)
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)
        inputs[0].flat[0] = np.nan
        bounded = prepare_matmul(inputs, [out], relu=True, **options)
        assert bounded is not None
        rounds = LaunchedRounds([[(bounded, range(len(inputs) + 1))]], np.zeros((), np.int64), len(inputs) + 1)
        rounds.tensors[:] = [address(a) for a in (*inputs, out)]
        assert rounds.run_first() is None and np.isnan(out).any()
        wanted = np.where(np.isnan(out), np.nan, np.maximum(wanted, 0))
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-5)


@st.composite
def contractions(draw: Any) -> tuple[list[int], list[tuple[int, ...]]]:
    """Sizes by label, and the labels of x, w and the result in any order: batches, rows, columns and terms."""
    kinds = draw(st.lists(st.sampled_from("brct"), max_size=3)) + list("rct")
    sizes = [draw(st.sampled_from([1, 2, 3, 5, 33])) for _ in kinds]
    of = [[v for v, kind in enumerate(kinds) if kind in tensors] for tensors in ("brt", "bct", "brc")]
    return sizes, [tuple(draw(st.permutations(labels))) for labels in of]


@given(contractions())
def test_contractions(case: Any) -> None:
    sizes, (left, right, result) = case
    rng = np.random.default_rng(5)
    # sums of small whole numbers are exact
    x, w = (rng.integers(-2, 3, [sizes[v] for v in labels]).astype(np.float32) for labels in (left, right))
    wanted = np.einsum(x.astype(float), left, w.astype(float), right, result)
    labels: Any = {"left": left, "right": right, "result": result}
    out = np.full(wanted.shape, np.nan, np.float32)
    contraction([x, w], [out], **labels)
    np.testing.assert_array_equal(out, wanted)
    launch = prepare_contraction([x, w], [out], **labels)
    if launch is not None:
        out[...] = np.nan
        rounds = LaunchedRounds([[(launch, range(3))]], np.zeros((), np.int64), 3)
        rounds.tensors[:] = [address(a) for a in (x, w, out)]
        assert not rounds.some(0, 1)
        np.testing.assert_array_equal(out, wanted)


def test_contractions_of_other_types_and_of_dims_that_broadcast() -> None:
    x, w = np.arange(24.0).reshape(2, 3, 4), np.arange(20.0).reshape(1, 4, 5)
    labels: Any = {"left": (0, 1, 2), "right": (-1, 2, 3), "result": (0, -1, 1, 3)}
    for dtype in ("float64", "float32", "float16"):
        out = np.full((2, 1, 3, 5), np.nan, dtype)
        contraction([x.astype(dtype), w.astype(dtype)], [out], **labels)
        np.testing.assert_array_equal(out, (x @ w[0])[:, None].astype(dtype))
        launch = prepare_contraction([x.astype(dtype), w.astype(dtype)], [out], **labels)
        assert (launch is not None) == (dtype != "float64")


@pytest.mark.parametrize("left, right", [((0, 0), ()), ((1, 2), ()), ((), (1, 1)), ((0,), ()), ((), (-2, -1))])
def test_what_is_no_order_of_dims_is_not_computed(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    """Programs come from files, too: sizes may fit where steps lead out of the tensor."""
    given, result = (np.ones((8, 64), np.float32), np.ones((8, 8), np.float32)), (np.zeros((8, 8), np.float32),)
    assert linear.prepare_matmul(given, result, left=left, right=right) is None
    with pytest.raises(ValueError):
        linear.matmul(given, result, left=left, right=right)


@pytest.mark.parametrize("x, w, out", [((8, 64), (16, 32), (8, 32)), ((8, 64), (64, 32), (4, 32)), ((8, 64), (64, 32), (8, 64)),
                                       ((2, 8, 4), (3, 4, 5), (2, 8, 5)), ((2, 8, 4), (4, 5), (3, 8, 5))])  # fmt: skip
def test_what_does_not_fit_is_not_computed(x: tuple[int, ...], w: tuple[int, ...], out: tuple[int, ...]) -> None:
    """Programs come from files, too."""
    given, result = (np.ones(x, np.float32), np.ones(w, np.float32)), (np.zeros(out, np.float32),)
    assert linear.prepare_matmul(given, result) is None
    with pytest.raises(ValueError):
        linear.matmul(given, result)
    left, right = (tuple(range(len(s))) for s in (x, w))
    assert linear.prepare_contraction(given, result, left=left, right=right, result=left) is None
