"""For a device, the largest of few elements, and what is put at their places, are comparisons."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage.compiler.context import Context
from mirage.compiler.passes import dead_code, rank_few, route_experts
from mirage.ir.graph.parse import parse_module
from tests.compiler.passes import test_route_experts
from tests.compiler.passes.running import after, evaluate, main_text, ops

#: of kernels for a device
DEVICE: Any = Context(kernels=SimpleNamespace(on_host=False))  # type: ignore[arg-type]


def topk(dtype: str, k: int, largest: bool = True, axis: int = -1, shape: str = "n, 7") -> str:
    return main_text(f"r = topk(x, k={k}, axis={axis}, largest={largest})", f"x: {dtype}[{shape}]")


ROWS = np.array(
    [
        [3, 1, 3, -2, 0, 5, 5],
        [np.nan, 2, np.inf, np.nan, -np.inf, np.inf, 0],
        [-np.inf] * 7,
        [np.nan] * 7,
        [0.0, -0.0, 1e-30, -1e-30, 0.0, 2, 1],
    ]
)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
def test_the_first_of_few_are_those_that_fewest_go_before(dtype: str, k: int, largest: bool) -> None:
    source = topk(dtype, k, largest)
    m = after(source, rank_few.run, context=DEVICE)
    assert "topk" not in ops(m)
    rows = ROWS if dtype.startswith("float") else np.nan_to_num(ROWS, posinf=9, neginf=-9)
    for x in (rows.astype(dtype), np.random.default_rng(0).integers(-3, 3, (50, 7)).astype(dtype), np.zeros((0, 7), dtype)):
        for found, wanted in zip(evaluate(m, x), evaluate(parse_module(source), x), strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(("shape", "axis"), [("n, 65", -1), ("n, m", -1), ("7, n", 0)])
def test_many_elements_and_other_axes_are_left(shape: str, axis: int) -> None:
    assert ops(after(topk("float32", 2, axis=axis, shape=shape), rank_few.run, context=DEVICE)) == ["topk"]


def test_a_processor_has_a_function_for_it() -> None:
    assert "topk" in ops(after(topk("float32", 2), rank_few.run))


@pytest.mark.parametrize("n", [0, 1, 9])
def test_shares_of_experts_are_put_at_their_places(n: int) -> None:
    source = test_route_experts.text()
    m = after(source, route_experts.run, rank_few.run, dead_code.run, context=DEVICE)
    assert not {"topk", "put_along_axis", "grouped_matmul"} & {*ops(m)}
    rng = np.random.default_rng(n)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in ((n, 6), (6, 5), (5, 6, 7), (5, 1, 7), (5, 7, 4), (4,))]
    np.testing.assert_allclose(evaluate(m, *arrays), evaluate(parse_module(source), *arrays), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("places", "add", "left"), [("chosen", False, False), ("chosen", True, True), ("other", False, True)]
)
def test_other_places_are_left(places: str, add: bool, left: bool) -> None:
    """Those may be out of range, which is an error; several values at one place may be a sum."""
    body = f"""
best = topk(x, k=2, axis=-1, largest=True)
chosen = item[1](best)
r = put_along_axis(x, {places}, values, axis=-1, add={add})
"""
    source = main_text(body, "x: float32[n, 5], values: float32[n, 2], other: int64[n, 2]")
    m = after(source, rank_few.run, context=DEVICE)
    assert "topk" not in ops(m) and ("put_along_axis" in ops(m)) is left
    x, values = (np.random.default_rng(k).standard_normal((4, n)).astype(np.float32) for k, n in enumerate((5, 2)))
    other = np.array([[0, 4]] * 4)
    np.testing.assert_array_equal(evaluate(m, x, values, other), evaluate(parse_module(source), x, values, other))
