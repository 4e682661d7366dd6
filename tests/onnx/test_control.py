"""Loops and scans: as loops of the graph IR, and where only a call tells their rounds in the reference evaluator."""

from __future__ import annotations

import _thread
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx import ModelProto, TensorProto, helper

import mirage
from mirage.errors import InputError, MirageError, UnsupportedNode
from mirage.frontends.onnx import reference_ops
from tests.onnx.models import model, node, value

#: operators run one by one
OPTIONS: Any = {"without": ("superoptimize", "fuse", "libraries", "plan", "merge"), "cache": False}
INT, BOOL = TensorProto.INT64, TensorProto.BOOL
X = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)


def looped(count: int | None, data: bool = False, rows: bool = True, condition: str = "") -> ModelProto:
    """`s = s / 2 + i`, so many times, of which each round gives `s` and where it is positive.

    With `data` it ends where the sum of `s` is at least 100, or without rows never. Without a count, it is the length of an
    input.
    """
    going = node("Less", ["total", "limit"], ["going"]) if data else node("Identity", ["flag"], ["going"])
    nodes = [
        node("Mul", ["s", "half"], ["h"]), node("Cast", ["i"], ["f"], to=TensorProto.FLOAT), node("Add", ["h", "f"], ["next"]),
        node("ReduceSum", ["next"], ["total"], keepdims=0), going,
        node("Identity", ["next"], ["row"]), node("Greater", ["next", "zero"], ["positive"]),
    ]  # fmt: skip
    kept = [value("row", ["n", 2]), value("positive", (["n", 2], BOOL))] if rows else []
    body = helper.make_graph(
        nodes, "body", [value("i", ((), INT)), value("flag", ((), BOOL)), value("s", ["n", 2])],
        [value("going", ((), BOOL)), value("next", ["n", 2]), *kept],
    )  # fmt: skip
    names = ["last", "rows", "where"][: 3 if rows else 1]
    before = [] if count is not None else [node("Shape", ["w"], ["shape"]), node("Squeeze", ["shape"], ["count"])]
    floats = {"half": 0.5, "zero": 0.0, "limit": 100.0 if rows else np.inf}
    return model(
        [*before, node("Loop", ["count", condition, "x"], names, body=body)],
        {"x": ["n", 2], **({"w": ["k"]} if count is None else {})},
        {"last": ["n", 2], **({"rows": ["k", "n", 2], "where": (["k", "n", 2], BOOL)} if rows else {})},
        {**({} if count is None else {"count": np.array(count)}), "yes": np.array(True),
         **{n: np.array(v, np.float32) for n, v in floats.items()}},
    )  # fmt: skip


def wanted(count: int, data: bool = False) -> tuple[np.ndarray, ...]:
    s, rows = X, []
    for i in range(count):
        s = s * np.float32(0.5) + np.float32(i)
        rows.append(s)
        if data and s.sum() >= 100:
            break
    stacked = np.array(rows, np.float32).reshape(len(rows), *X.shape)
    return s, stacked, stacked > 0


def check(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    for x, y in zip(found, expected, strict=True):
        assert x.shape == y.shape and x.dtype == y.dtype
        np.testing.assert_allclose(x, y, rtol=1e-5)


@pytest.mark.parametrize("count", [0, 3, 100])
def test_a_loop_of_known_length_is_native(count: int) -> None:
    run: Any = mirage.compile(looped(count, condition="yes" if count == 3 else ""), **OPTIONS)
    check(run(X), wanted(count))
    assert not run.programs[0].imported.fallback


def test_one_program_has_loops_of_all_lengths() -> None:
    run: Any = mirage.compile(looped(None), **OPTIONS)
    for count in (0, 1, 70):
        check(run(X, np.zeros(count, np.float32)), wanted(count))
    assert len(run.programs) == 1 and not run.programs[0].imported.fallback


def test_a_loop_ends_where_its_condition_says(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = mirage.compile(looped((1 << 63) - 1, data=True), **OPTIONS)
    check(run(X), wanted(1 << 62, data=True))
    assert run.programs[0].imported.fallback == {"Loop": 1}
    monkeypatch.setattr(reference_ops, "memory_bytes", lambda: 1000)
    with pytest.raises(InputError, match=r"Loop: MemoryError: what its first \d+ rounds give"):
        run(X)


@pytest.mark.parametrize("options", [OPTIONS, {"without": ("superoptimize",), "cache": False}])
def test_a_loop_whose_rounds_have_no_room_in_memory_is_refused(options: Any) -> None:
    count = 2 * 10**15
    given = looped(count)
    run: Any = mirage.compile(given, **options)
    with pytest.raises(MirageError, match=f"no memory for .*{count}, 3, 2"):
        run(X)
    for v in (*given.graph.input, *given.graph.output):
        shape = v.type.tensor_type.shape
        shape.dim[len(shape.dim) - 2].dim_value = 3
    with pytest.raises(UnsupportedNode, match=r"Loop 'last': .* memory"):
        mirage.compile(given, **options)


@pytest.mark.parametrize("data", [False, True])
def test_a_long_loop_that_keeps_nothing_ends_at_an_interrupt(data: bool) -> None:
    run: Any = mirage.compile(looped(2 * 10**15, data, rows=False), **OPTIONS)
    timer = threading.Timer(0.2, _thread.interrupt_main)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        run(X)
    timer.join()


@pytest.mark.parametrize("length", [5, 100, None])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_scan_is_native_at_all_lengths(length: int | None, backwards: bool) -> None:
    nodes = [node("Add", ["s", "a"], ["next"]), node("Mul", ["next", "two"], ["row"])]
    body = helper.make_graph(nodes, "body", [value("s", [3]), value("a", [3])], [value("next", [3]), value("row", [3])])
    ways = [int(backwards)]
    scan = node(
        "Scan", ["s", "a"], ["last", "rows"], body=body, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1],
        scan_input_directions=ways, scan_output_directions=ways,
    )  # fmt: skip
    given = model(
        [scan], {"s": [3], "a": [3, length or "k"]}, {"last": [3], "rows": [3, "k"]}, {"two": np.array(2, np.float32)}
    )
    run: Any = mirage.compile(given, **OPTIONS)
    for n in (length,) if length else (1, 5, 80):
        a, s = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32), np.ones(3, np.float32)
        order = a[:, ::-1] if backwards else a
        sums = s[:, None] + np.cumsum(order, 1)
        last, rows = run(s, a)
        np.testing.assert_allclose(last, sums[:, -1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rows, 2 * (sums[:, ::-1] if backwards else sums), rtol=1e-4, atol=1e-5)
    assert len(run.programs) == 1 and not run.programs[0].imported.fallback


@pytest.mark.parametrize(
    ("first", "last", "step", "dtype"),
    [
        (0, 5000, 1.5, "float32"),
        (10, -3000, -0.5, "float64"),
        (7, -9000, -3, "int32"),
        (0, 4, 0.5, "float32"),
        (3, 0, 1, "float32"),
    ],
)
def test_ranges_of_all_lengths_are_native(first: float, last: float, step: float, dtype: str) -> None:
    numbers = {n: np.array(v, dtype) for n, v in (("a", first), ("b", last), ("c", step))}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given = model(
        [node("Range", ["a", "b", "c"], ["r"]), node("Add", ["r", "x"], ["y"])],
        {"x": ([1], kind)}, {"y": (["k"], kind)}, numbers,
    )  # fmt: skip
    run: Any = mirage.compile(given, **OPTIONS)
    np.testing.assert_array_equal(run(np.zeros(1, dtype)), np.arange(first, last, step, dtype))
    assert not run.programs[0].imported.fallback


def test_a_range_that_a_call_tells_and_that_has_no_room_in_memory_is_refused() -> None:
    nodes = [node("Range", ["zero", "b", "one"], ["r"]), node("ReduceMax", ["r"], ["y"], keepdims=0)]
    given = model(nodes, {"b": ()}, {"y": ()}, {n: np.array(v, np.float32) for n, v in (("zero", 0), ("one", 1))})
    run: Any = mirage.compile(given, **OPTIONS)
    for b in range(3, 12):
        assert run(np.array(b, np.float32)) == b - 1
    # beyond eight programs the reference evaluator has the range
    assert run.programs[-1].imported.fallback["Range"] == 1
    with pytest.raises(InputError, match="Range: MemoryError"):
        run(np.array(2e15, np.float32))
