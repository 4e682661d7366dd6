"""Convolutions of ONNX models with what is around them: one call of the processor's own each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import mirage  # noqa: E402
import mirage.onnx  # noqa: E402


def normalized_block() -> Any:
    """A convolution with a bias, batch normalizations, a pointwise convolution, what is added, and bounds."""
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 8, 3, 3), "p": (16, 16, 1, 1), **dict.fromkeys(("b", "scale", "offset", "mean"), (16,))}
    arrays: dict[str, Any] = {name: rng.standard_normal(s, np.float32) for name, s in shapes.items()}
    arrays |= {"variance": rng.random(16, np.float32) + 0.5, "low": np.float32(0), "high": np.float32(6)}
    node, norm = onnx.helper.make_node, ["scale", "offset", "mean", "variance"]
    nodes = [
        node("Conv", ["x", "w", "b"], ["v"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["v", *norm], ["n"]),
        node("Clip", ["n", "low", "high"], ["a"]),
        node("Conv", ["a", "p"], ["q"]),
        node("BatchNormalization", ["q", *norm], ["t"]),
        node("Add", ["a", "t"], ["u"]),
        node("Relu", ["u"], ["y"]),
    ]
    info = onnx.helper.make_tensor_value_info
    ends = [info("x", 1, ["n", 8, 20, 17])], [info("y", 1, ["n", 16, 10, 9])]
    weights = [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()]
    graph = onnx.helper.make_graph(nodes, "block", *ends, weights)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=10)


def test_normalizations_and_bounds_are_a_part_of_convolutions(tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    model = normalized_block()
    run = mirage.compile(model, without=("superoptimize",))
    assert "function main: 2 library functions, " in run.explain(), "no kernels"
    run.save(tmp_path / "block.mirage")
    loaded = mirage.onnx.load(tmp_path / "block.mirage")
    for n in (1, 3, 0):
        x = np.random.default_rng(n).standard_normal((n, 8, 20, 17), np.float32)
        wanted: Any
        (wanted,) = ReferenceEvaluator(model).run(None, {"x": x}) if n else [np.empty((0, 16, 10, 9), np.float32)]
        np.testing.assert_allclose(run(x), wanted, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(loaded(x), run(x))
