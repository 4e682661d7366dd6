"""Attention in C, beside float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import InputError, LibraryError, MirageError
from mirage.ir.types import ELEMENTS, HALVES, epsilon
from mirage.kernels.cpu.launch import attention
from mirage.kernels.cpu.launch.attention import library, prepare
from tests.kernels.cpu.launch.test_narrowed import launched

DTYPES = ("float32", *HALVES)
#: dims in memory: heads before tokens, and behind them; how keys become columns; and dims of values
ORDERS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((), (0, 1, 3, 2), ()), ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)), ((1, 0, 2, 3), (0, 1, 3, 2), (2, 1, 0, 3)),
]  # fmt: skip
#: batch, heads, rows, keys, elements of a key and of a value
SIZES = [
    (1, 1, 1, 1, 1, 1), (2, 3, 5, 7, 8, 8), (1, 2, 1, 300, 64, 64), (1, 2, 130, 129, 20, 33), (3, 1, 64, 128, 16, 1),
    (2, 2, 70, 257, 7, 16), (1, 4, 330, 300, 20, 33),
]  # fmt: skip


@pytest.fixture(params=[1, 9])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With few threads, many rows read a copy of keys."""
    monkeypatch.setattr(attention, "num_threads", lambda: request.param)


def exact(q: Any, k: Any, v: Any, scale: float, bias: Any = 0.0) -> Any:
    scores = scale * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3)) + np.asarray(bias, np.float64)
    shares = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return shares / shares.sum(-1, keepdims=True) @ v.astype(np.float64)


def tensors(sizes: tuple[int, ...], dtype: str) -> list[np.ndarray]:
    b, h, s, t, d, e = sizes
    rng = np.random.default_rng(sizes)
    return [rng.standard_normal(shape).astype(ELEMENTS[dtype]) for shape in ((b, h, s, d), (b, h, t, d), (b, h, t, e))]


def stored(x: np.ndarray, perm: tuple[int, ...]) -> np.ndarray:
    """What a tensor is in memory that is read through a permutation."""
    return np.ascontiguousarray(x.transpose(np.argsort(perm))) if perm else x


def close(out: np.ndarray, wanted: Any) -> None:
    # of bfloat16, shares may be rounded, too
    share = epsilon(out.dtype) * np.fmax.reduce(np.abs(wanted), axis=None, initial=0) if out.dtype.name == "bfloat16" else 0
    np.testing.assert_allclose(out.astype(np.float64), wanted, rtol=max(epsilon(out.dtype), 1e-5), atol=1e-5 + share)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_order(sizes: tuple[int, ...], order: tuple[tuple[int, ...], ...], dtype: str) -> None:
    q, k, v = tensors(sizes, dtype)
    left, right, values = order
    given = [stored(q, left), stored(k.swapaxes(2, 3), right), stored(v, values)]
    out = np.ones((*q.shape[:3], v.shape[3]), ELEMENTS[dtype])
    attrs: dict[str, Any] = {"left": left, "right": right, "values": values, "scale": 0.3}
    library(given, [out], **attrs)
    close(out, exact(q, k, v, 0.3))
    out[...] = 1
    launched(prepare(given, [out], **attrs), [*given, out])
    close(out, exact(q, k, v, 0.3))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 70])
def test_the_first_keys(rows: int, dtype: str) -> None:
    """Of more than these, as caches with room have them; as many of both, or of one alone."""
    q, k, v = tensors((2, 3, rows, 200, 8, 9), dtype)
    out = np.empty((2, 3, rows, 9), ELEMENTS[dtype])
    for keys in (1, 150, 200):
        first_k, first_v = k[:, :, :keys], v[:, :, :keys]
        for given in ((q, k, v), (q, k, first_v.copy()), (q, first_k.copy(), v)):
            library(given, [out], keys=keys)
            close(out, exact(q, first_k, first_v, 1.0))
        out[...] = 1
        launched(prepare([q, k, v], [out], keys=keys), [q, k, v, out])
        close(out, exact(q, first_k, first_v, 1.0))
    library([q, k, v], [out], keys=0)
    assert not out.any()
    for keys in (-1, 201):
        with pytest.raises(LibraryError, match="there is no attention of"):
            library([q, k, v], [out], keys=keys)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["b1st", "1h1t", "bhst", "st", "s1", "1t", "b111", "bh1t"])
def test_every_bias(shape: str, dtype: str) -> None:
    sizes = (2, 3, 70, 150, 8, 9)
    q, k, v = tensors(sizes, dtype)
    named = dict(zip("bhst", sizes, strict=False)) | {"1": 1}
    bias = np.random.default_rng(0).standard_normal([named[c] for c in shape]).astype(ELEMENTS[dtype])
    out = np.empty((*q.shape[:3], 9), ELEMENTS[dtype])
    library([q, k, v, bias], [out], bias=True)
    close(out, exact(q, k, v, 1.0, bias))
    out[...] = 1
    launched(prepare([q, k, v, bias], [out], bias=True), [q, k, v, bias, out])
    close(out, exact(q, k, v, 1.0, bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 6, 35, 150), (1, 1, 35, 150), (2, 6, 1, 150), (35, 150)])
def test_heads_that_share_keys(shape: tuple[int, ...], dtype: str) -> None:
    """Heads of queries are rows of a head, and those of the bias are told apart."""
    q, k, v = tensors((2, 2, 3 * 35, 150, 8, 9), dtype)
    bias = np.random.default_rng(0).standard_normal(shape).astype(ELEMENTS[dtype])
    out = np.empty((2, 2, 3 * 35, 9), ELEMENTS[dtype])
    library([q, k, v, bias], [out], bias=True, groups=3)
    wide = np.broadcast_to(bias, (2, 6, 35, 150)).reshape(2, 2, 3 * 35, 150)
    close(out, exact(q, k, v, 1.0, wide))
    library([q, k, v], [out], groups=3)
    close(out, exact(q, k, v, 1.0))


def masks() -> dict[str, np.ndarray]:
    """What is visible, of 200 rows and 300 keys."""
    rows, keys = np.arange(200)[:, None], np.arange(300)
    return {
        "causal": keys <= rows, "causal, of what came before": keys <= rows + 100,
        "window": (keys <= rows + 100) & (keys > rows + 60),
        "documents": rows // 50 == keys // 50, "last key": np.broadcast_to(keys == 299, (200, 300)),
        "one row sees nothing": (keys <= rows) & (rows != 70), "nothing": np.zeros((200, 300), bool),
    }  # fmt: skip


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("hidden", [-np.inf, -1.7e38, -1e9])
@pytest.mark.parametrize("name", masks())
def test_masks(name: str, hidden: float) -> None:
    """Tiles of keys that no row sees are left out, but where a row sees nothing else."""
    seen = masks()[name]
    q, k, v = tensors((1, 4, 200, 300, 16, 16), "float32")
    bias = np.where(seen, 0, hidden).astype(np.float32)
    out = np.empty(q.shape, np.float32)
    library([q, k, v, bias], [out], bias=True)
    some = seen.any(1)
    if hidden == -np.inf:
        assert np.isnan(out[:, :, ~some]).all()
    else:
        # what was added is much larger than the scores, of which float32 keeps little or nothing beside it
        scores = (q @ k.swapaxes(2, 3) + bias).astype(np.float64)[:, :, ~some]
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(out[:, :, ~some], shares / shares.sum(-1, keepdims=True) @ v, rtol=0, atol=1e-4)
    close(out[:, :, some], exact(q[:, :, some], k, v, 1.0, bias[some]))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("hidden", [-np.inf, -1e9, -3.0, np.inf])
@pytest.mark.parametrize("name", masks())
def test_masks_of_booleans(name: str, hidden: float) -> None:
    """What is hidden has that score, also in rows that see nothing; whatever it would be otherwise."""
    seen = masks()[name]
    q, k, v = tensors((1, 4, 200, 300, 16, 16), "float32")
    k[0, 0, 299, 0] = np.inf
    with np.errstate(invalid="ignore"):
        scores = np.where(seen, q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3), hidden)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = shares / shares.sum(-1, keepdims=True) @ v.astype(np.float64)
    out = np.empty(q.shape, np.float32)
    for mask, hiding in ((np.ascontiguousarray(seen), False), (~seen, True)):
        library([q, k, v, mask], [out], mask=True, hidden=hidden, hiding=hiding)
        np.testing.assert_array_equal(np.isnan(wanted), np.isnan(out))
        close(out, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", ["b1st", "1h1t", "st", "s1", "t", "hst", "b111"])
@pytest.mark.parametrize("rows", [3, 70])
def test_every_mask_beside_a_bias_and_sinks(rows: int, shape: str, dtype: str) -> None:
    q, k, v = tensors((2, 2, 3 * rows, 150, 8, 9), dtype)
    rng, element, named = np.random.default_rng(0), ELEMENTS[dtype], {"b": 2, "h": 6, "s": rows, "t": 150, "1": 1}
    mask = rng.random([named[c] for c in shape]) < 0.7
    bias, sink = rng.standard_normal((rows, 150)).astype(element), rng.standard_normal((6, 1, 1)).astype(element)
    scores = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3)).reshape(2, 6, rows, 150) + bias
    beside = np.broadcast_to(sink.astype(np.float64), (2, 6, rows, 1))
    scores = np.concatenate([np.where(mask, scores, -1e9), beside], -1)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (shares / shares.sum(-1, keepdims=True))[..., :150].reshape(2, 2, 3 * rows, 150) @ v.astype(np.float64)
    given: list[np.ndarray] = [q, k, v, bias, mask, sink]
    out = np.empty((2, 2, 3 * rows, 9), element)
    attrs: dict[str, Any] = {"bias": True, "mask": True, "sink": True, "hidden": -1e9, "groups": 3}
    library(given, [out], **attrs)
    close(out, wanted)
    out[...] = 1
    launched(prepare(given, [out], **attrs), [*given, out])
    close(out, wanted)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens_first", [False, True])
@pytest.mark.parametrize(("page", "pages"), [(1, 200), (16, 12), (150, 2), (7, 1)])
@pytest.mark.parametrize("rows", [1, 70])
def test_keys_in_pages(rows: int, page: int, pages: int, tokens_first: bool, dtype: str) -> None:
    """Of a pool, in any order, as a table lists them for each batch, or for the one that there is."""
    rng, element = np.random.default_rng(page), ELEMENTS[dtype]
    pools = [rng.standard_normal((2 * pages + 1, 3, page, width)).astype(element) for width in (8, 9)]
    q, table = rng.standard_normal((2, 3, rows, 8)).astype(element), rng.integers(-2 * pages, 2 * pages + 1, (2, pages))
    mask = rng.random((2, 1, 1, page * pages)) < 0.8
    mask[..., 0] = True
    attrs: dict[str, Any] = {"pages": True, "mask": True, "hidden": -np.inf, "right": (0, 1, 3, 2)}
    given = pools
    if tokens_first:
        given = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in pools]
        attrs |= {"right": (0, 2, 3, 1), "values": (0, 2, 1, 3)}
    for b in (2, 1):
        of = table[:b] if b == 2 else table[0]
        k, v = (x[table[:b]].swapaxes(1, 2).reshape(b, 3, -1, x.shape[-1]) for x in pools)
        out = np.empty((b, 3, rows, 9), element)
        inputs: list[np.ndarray] = [q[:b].copy(), *given, mask[:b].copy(), of]
        wanted = exact(q[:b], k, v, 1.0, np.where(mask[:b], 0, -np.inf))
        library(inputs, [out], **attrs)
        close(out, wanted)
        out[...] = 1
        launched(prepare(inputs, [out], **attrs), [*inputs, out])
        close(out, wanted)
    for wrong in (2 * pages + 1, -2 * pages - 2):
        table[0, -1] = wrong
        with pytest.raises(InputError, match=f"index {wrong} is outside of a pool of {2 * pages + 1} pages; use"):
            library(inputs, [out], **attrs)
        with pytest.raises(InputError, match=f"index {wrong} is outside"):
            launched(prepare(inputs, [out], **attrs), [*inputs, out])


def test_what_a_mask_shows_beside_a_bias_that_hides() -> None:
    """A mask's number is a score as any other, also where the bias hides all keys of a tile."""
    q, k, v = tensors((1, 2, 70, 300, 8, 8), "float32")
    bias, mask = np.zeros(300, np.float32), np.ones(300, bool)
    bias[144:288], mask[200:210] = -np.inf, False
    out = np.empty(q.shape, np.float32)
    for hidden in (-3.0, -1e9):
        scores = np.where(mask, q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3) + bias, hidden)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        library([q, k, v, bias, mask], [out], bias=True, mask=True, hidden=hidden)
        close(out, shares / shares.sum(-1, keepdims=True) @ v.astype(np.float64))


def test_no_pages() -> None:
    out, pool = np.ones((1, 2, 3, 8), np.float32), np.ones((4, 2, 16, 8), np.float32)
    for pools, table in ((pool, np.zeros((1, 0), np.int64)), (pool[:, :, :0].copy(), np.zeros((1, 5), np.int64))):
        given: list[np.ndarray] = [out.copy(), pools, pools, table]
        library(given, [out], pages=True)
        assert not out.any() and prepare(given, [out], pages=True) is None
    with pytest.raises(InputError, match="index 0 is outside of a pool of 0 pages; there is none"):
        library([out, pool[:0], pool[:0], np.zeros((1, 1), np.int64)], [out], pages=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cap", [0.0, 3.0])
@pytest.mark.parametrize("rows", [4, 150])
@pytest.mark.parametrize("shape", ["1h11", "bhs1", "1s1", None], ids=str)
def test_caps_and_sinks(shape: str | None, rows: int, cap: float, dtype: str) -> None:
    """A sink is one more key, whose values are 0; heads that share keys have sinks of their own."""
    q, k, v = tensors((2, 2, 3 * rows, 150, 8, 9), dtype)
    rng, element = np.random.default_rng(1), ELEMENTS[dtype]
    bias = np.where(rng.random((rows, 150)) < 0.5, 0, -np.inf).astype(element)
    bias[1] = -np.inf
    given = [q, k, v, bias]
    attrs: dict[str, Any] = {"bias": True, "groups": 3, "scale": 2.0, "cap": cap}
    scores = 2.0 * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3)).reshape(2, 6, rows, 150)
    scores = (cap * np.tanh(scores) if cap else scores) + bias
    if shape is not None:
        sizes = {"b": 2, "h": 6, "s": rows, "1": 1}
        sink = (3 * rng.standard_normal([sizes[c] for c in shape])).astype(element)
        given, attrs = [*given, sink], attrs | {"sink": True}
        scores = np.concatenate([scores, np.broadcast_to(sink.astype(np.float64), (2, 6, rows, 1))], -1)
    with np.errstate(invalid="ignore"):
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares = (shares / shares.sum(-1, keepdims=True))[..., :150].reshape(2, 2, 3 * rows, 150)
    wanted = shares @ v.astype(np.float64)
    out = np.empty((2, 2, 3 * rows, 9), element)
    library(given, [out], **attrs)
    np.testing.assert_array_equal(np.isnan(wanted), np.isnan(out.astype(np.float64)))
    close(out, wanted)
    out[...] = 1
    launched(prepare(given, [out], **attrs), [*given, out])
    close(out, wanted)


def test_rows_that_see_a_sink_alone() -> None:
    q, k, v = tensors((1, 4, 200, 300, 8, 8), "float32")
    bias, sink = np.full((200, 300), -np.inf, np.float32), np.zeros((4, 1, 1), np.float32)
    out = np.ones((1, 4, 200, 8), np.float32)
    library([q, k, v, bias, sink], [out], bias=True, sink=True)
    assert not out.any()
    # what a mask of large numbers hides is nothing beside a sink
    library([q, k, v, np.full_like(bias, -1e9), sink], [out], bias=True, sink=True)
    assert not out.any()


def test_what_is_not_finite() -> None:
    """As in a softmax: NaN, and infinite scores, spoil their row alone, and what is infinite in a value its column."""
    q, k, v = tensors((1, 1, 4, 200, 8, 8), "float32")
    q[0, 0, 1, 0], q[0, 0, 2, 3], v[0, 0, 150, 5] = np.nan, np.inf, np.inf
    out = np.empty(q.shape, np.float32)
    library([q, k, v], [out])
    assert np.isnan(out[0, 0, [1, 2]]).all() and np.isinf(out[0, 0, [0, 3], 5]).all()
    assert np.isfinite(np.delete(out[0, 0, [0, 3]], 5, 1)).all()
    bias = np.zeros((1, 1, 4, 200), np.float32)
    bias[0, 0, 3] = -np.inf
    bias[0, 0, 3, 60] = np.nan
    library([q, k, np.nan_to_num(v), bias], [out], bias=True)
    assert np.isnan(out[0, 0, 3]).all() and np.isfinite(out[0, 0, 0]).all()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cached", [0, 1, 150, 299, 300])
@pytest.mark.parametrize("rows", [1, 40, 330])
def test_keys_behind_those_of_a_cache(rows: int, cached: int, dtype: str) -> None:
    q, k, v = tensors((2, 3, rows, 300, 20, 36), dtype)
    mask = np.random.default_rng(rows).random((rows, 300)) < 0.5
    given = [q, *(part.copy() for t in (k, v) for part in (t[:, :, :cached], t[:, :, cached:])), mask]
    attrs: dict[str, Any] = {"appended": True, "mask": True, "hidden": -1e9, "scale": 0.3}
    outputs = [np.ones((*q.shape[:3], 36), ELEMENTS[dtype]), np.ones_like(k), np.ones_like(v)]
    library(given, outputs, **attrs)
    for _ in range(2):
        close(outputs[0], exact(q, k, v, 0.3, np.where(mask, 0, -1e9)))
        assert (outputs[1] == k).all() and (outputs[2] == v).all()
        for o in outputs:
            o[...] = 1
        launched(prepare(given, outputs, **attrs), [*given, *outputs])


def test_keys_are_appended_where_nothing_is_computed() -> None:
    q, k, v = tensors((2, 3, 4, 5, 6, 7), "float32")
    given = [q[:, :, :0].copy(), k[:, :, :3].copy(), k[:, :, 3:].copy(), v[:, :, :3].copy(), v[:, :, 3:].copy()]
    outputs = [np.ones((2, 3, 0, 7), np.float32), np.ones_like(k), np.ones_like(v)]
    assert prepare(given, outputs, appended=True) is None
    library(given, outputs, appended=True)
    assert (outputs[1] == k).all() and (outputs[2] == v).all()


def test_nothing_to_compute() -> None:
    out = np.ones((1, 2, 3, 5), np.float32)
    none = [np.ones((1, 2, 3, 4), np.float32), np.ones((1, 2, 0, 4), np.float32), np.ones((1, 2, 0, 5), np.float32)]
    assert prepare(none, [out]) is None
    library(none, [out])
    assert not out.any()
    empty = [np.ones((0, 2, 3, 4), np.float32), np.ones((0, 2, 6, 4), np.float32), np.ones((0, 2, 6, 5), np.float32)]
    library(empty, [np.ones((0, 2, 3, 5), np.float32)])
    assert prepare(empty, [np.ones((0, 2, 3, 5), np.float32)]) is None
    # elements of a key may be none: all have the same share
    q, k, v = tensors((1, 2, 3, 6, 1, 5), "float32")
    library([q[..., :0].copy(), k[..., :0].copy(), v], [out])
    close(out, np.broadcast_to(v.mean(2, keepdims=True, dtype=np.float64), out.shape))


def test_what_does_not_fit_is_an_error() -> None:
    """Programs come from files, too."""
    q, k, v = tensors((2, 3, 5, 7, 8, 9), "float32")
    out, bias = np.zeros((2, 3, 5, 9), np.float32), np.zeros((2, 1, 5, 7), np.float32)
    wrong: list[tuple[list[Any], Any, dict[str, Any]]] = [
        ([q[0], k, v], out, {}), ([q, k[:, :, :, :4].copy(), v], out, {}), ([q, k[:1].copy(), v], out, {}),
        ([q, k, v[:, :, :6].copy()], out, {}), ([q, k, v], out[:, :, :4].copy(), {}), ([q, k, v], out[..., :8].copy(), {}),
        ([q.astype(np.float16), k, v], out, {}), ([q, k, v], out.astype(np.float16), {}),
        ([a.astype(np.float64) for a in (q, k, v)], out.astype(np.float64), {}),
        ([q, k, v, bias[:, :, :4].copy()], out, {"bias": True}), ([q, k, v, bias.astype(np.float16)], out, {"bias": True}),
        ([q, k, v, np.zeros((5, 6), np.float32)], out, {"bias": True}), ([q, k, v, bias[None]], out, {"bias": True}),
        ([q, k, v, bias], out, {"mask": True}), ([q, k, v, np.ones((5, 7), np.uint8)], out, {"mask": True}),
        ([q, k, v, np.ones((5, 6), bool)], out, {"mask": True}), ([q, k, v, np.ones((5, 7), bool)], out, {"bias": True}),
        ([q, k, v, bias], out, {"sink": True}), ([q, k, v, bias], out, {"bias": True, "sink": True}), ([q, k], out, {}),
        ([q, k, v], out, {"groups": 2}), ([q, k, v], out, {"groups": 0}), ([q, k, v], out, {"groups": -5}),
        ([q, k, v], out, {"left": (0, 1, 1, 3)}), ([q, k, v], out, {"values": (0, 1, 2, 4)}),
        ([q, k, v], out, {"left": (0, 1, 2)}),
        ([q, k, v], out, {"left": (0, 1, 3, 2)}), ([q, np.ascontiguousarray(k.swapaxes(2, 3)), v], out, {"right": ()}),
    ]  # fmt: skip
    pool, table = np.zeros((6, 3, 7, 8), np.float32), np.zeros((2, 4), np.int64)
    wrong += [
        ([q, pool, pool[..., :8].copy(), table.astype(np.int32)], np.zeros_like(q), {"pages": True}),
        ([q, pool, pool[:5].copy(), table], np.zeros_like(q), {"pages": True}),
        ([q, pool, pool[:, :, :6].copy(), table], np.zeros_like(q), {"pages": True}),
        ([q, pool, pool, table[:1].copy()], np.zeros_like(q), {"pages": True}),
        ([q, pool, pool, table[None]], np.zeros_like(q), {"pages": True}),
        ([q, pool, pool, table], np.zeros_like(q), {"pages": True, "keys": 3}), ([q, pool, pool], np.zeros_like(q), {}),
        ([q, pool, pool, np.array(0)], np.zeros_like(q), {"pages": True}),
    ]  # fmt: skip
    parts = [q, k[:, :, :4].copy(), k[:, :, 4:].copy(), v[:, :, :4].copy(), v[:, :, 4:].copy()]
    made = [(inputs, [result], attrs) for inputs, result, attrs in wrong]
    made += [
        ([q, *more], [out, k, v], {"appended": True, **attrs})
        for more, attrs in (
            (parts[1:4], {}), ((parts[1], *parts[1:4]), {}), ((parts[2], parts[1], *parts[3:]), {}), (parts[1:3] * 2, {}),
            ([p[0] for p in parts[1:]], {}), (parts[1:], {"keys": 3}), (parts[1:], {"values": (0, 2, 1, 3)}),
            (parts[1:], {"right": (0, 2, 3, 1)}), ([p[:1].copy() for p in parts[1:]], {}), ((k, *parts[2:]), {}),
        )
    ]  # fmt: skip
    made += [(parts, [out, k], {"appended": True}), (parts, [out, k, v[:, :, :6].copy()], {"appended": True})]
    for call in (library, prepare):
        for inputs, results, attrs in made:
            with pytest.raises(LibraryError, match="there is no attention of"):
                call(inputs, results, **attrs)


def test_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors((2, 3, 5, 7, 8, 9), "float32")
    monkeypatch.setattr(attention, "_of", lambda dtype: lambda *_: -1)
    with pytest.raises(MirageError, match="no memory for the scores"):
        library([q, k, v], [np.empty((2, 3, 5, 9), np.float32)])
