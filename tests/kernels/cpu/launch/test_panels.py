"""Products of rows with weights in panels, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import MirageError
from mirage.kernels.cpu.launch import panels as module
from mirage.kernels.cpu.launch import products
from mirage.kernels.cpu.launch.linear import matmul, prepare_matmul
from mirage.kernels.cpu.launch.memory import address
from mirage.kernels.cpu.launch.panels import Panels, pack
from mirage.kernels.cpu.launch.rounds import LaunchedRounds
from tests.kernels.kernels import in_threads


def stored(k: int, n: int, right: tuple[int, ...]) -> np.ndarray:
    w = np.random.default_rng([k, n]).standard_normal((k, n)).astype(np.float32)
    return np.ascontiguousarray(w.T) if right else w


@pytest.mark.parametrize("right", [(), (1, 0)])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (17, 47), (16, 48), (33, 49), (130, 150), (0, 5)])
def test_columns_are_in_panels(k: int, n: int, right: tuple[int, ...]) -> None:
    w = stored(k, n, right)
    found = pack(w, right=right).array
    count, depth, width = found.shape
    assert depth == k and count == -(-n // width)
    columns = found.transpose(1, 0, 2).reshape(k, count * width)
    np.testing.assert_array_equal(columns[:, :n], w.T if right else w)
    assert not columns[:, n:].any()


@pytest.mark.parametrize("right", [(), (1, 0)])
@pytest.mark.parametrize("rows", [*range(1, 26), 31, 33, 48, 63, 64, 70, 100, 130, 600])
def test_products(rows: int, right: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(rows)
    for k, n, threads in ((45, 203, 1), (300, 96, 3), (7, 40, 2), (0, 3, 2)):
        monkeypatch.setattr(products, "num_threads", lambda t=threads: t)
        w, c = stored(k, n, right), rng.standard_normal(n, np.float32)
        x = rng.standard_normal((rows, k), np.float32)
        form = pack(w, right=right)
        # what lies beside the result is not written to
        out = np.full((rows + 2, n), np.nan, np.float32)
        wanted = x.astype(np.float64) @ (w.T if right else w) + c
        matmul([x, w, form, c], [out[1:-1]], right=right, packed=True, bias=True, relu=rows % 2 == 0)
        np.testing.assert_allclose(out[1:-1], np.maximum(wanted, 0) if rows % 2 == 0 else wanted, rtol=0, atol=1e-4)
        assert np.isnan(out[0]).all() and np.isnan(out[-1]).all()
    # of no rows, nothing is read
    form = pack(stored(5, 7, right), right=right)
    matmul([np.empty((0, 5), np.float32), form.weight, form], [np.empty((0, 7), np.float32)], right=right, packed=True)
    assert "array" not in vars(form)


#: shapes of the left operand, the permutation that it is read through, and shapes of what is added
FORMS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]] = [
    ((3, 4, 20), (), None),
    ((20, 9), (1, 0), (9, 50)),
    ((5, 20, 3), (2, 0, 1), (50,)),
    ((2, 20, 6), (0, 2, 1), (2, 6, 50)),
    ((7, 20), (), (7, 1)),
    ((7, 20), (), ()),
]


@pytest.mark.parametrize("right", [(), (1, 0)])
@pytest.mark.parametrize(("shape", "left", "added"), FORMS, ids=str)
def test_every_form(shape: tuple[int, ...], left: tuple[int, ...], added: Any, right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal(shape, np.float32), stored(20, 50, right)
    summands = [] if added is None else [np.asarray(rng.standard_normal(added), np.float32)]
    given = [x, w, pack(w, right=right), *summands]
    wanted = x.transpose(left or range(x.ndim)).astype(np.float64) @ (w.T if right else w)
    wanted = wanted + (summands[0] if summands else 0)
    out = np.full(wanted.shape, np.nan, np.float32)
    options: Any = {"left": left, "right": right, "packed": True, "bias": bool(summands)}
    matmul(given, [out], **options)
    np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5)
    launch = prepare_matmul(given, [out], **options)
    assert (launch is not None) == (added not in ((7, 1), ()))
    if launch is not None:
        out[...] = np.nan
        tensors = [x, w, x, *summands, out]
        rounds = LaunchedRounds([[(launch, range(len(tensors)))]] * 3, np.zeros((), np.int64), len(tensors))
        rounds.tensors[:] = [address(a) for a in tensors]
        assert not rounds.some(0, 3)
        np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5)


def test_a_single_column_is_read_as_it_is() -> None:
    x, w = np.ones((9, 5), np.float32), np.ones((5, 1), np.float32)
    form, out = pack(w), np.empty((9, 1), np.float32)
    matmul([x, w, form], [out], packed=True)
    assert (out == 5).all() and "array" not in vars(form)


def test_other_types_are_left_to_libraries() -> None:
    x, w = np.ones((9, 5)), np.ones((5, 3))
    out = np.empty((9, 3))
    matmul([x, w, pack(w)], [out], packed=True)
    assert (out == 5).all()


def test_many_callers() -> None:
    w = stored(64, 500, ())
    form = pack(w)

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal((9, 64), np.float32)
        out = np.empty((9, 500), np.float32)
        for _ in range(20):
            matmul([x, w, form], [out], packed=True)
            np.testing.assert_allclose(out, x @ w, rtol=0, atol=1e-4)

    in_threads(work)


def test_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_function", lambda: lambda *_: -1)
    with pytest.raises(MirageError, match="no memory to pack a weight of 2 rows and 3 columns"):
        _ = Panels(np.ones((2, 3), np.float32), transposed=False).array
