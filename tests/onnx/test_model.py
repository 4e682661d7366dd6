"""Compiled models: dims, inputs that decide shapes, control flow, objects, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper

import mirage
from mirage.errors import GuardError, InputError, UnsupportedNode
from mirage.frontends.onnx.importer import import_model
from tests.onnx.models import model, node, value

OPTIONS: Any = {"without": ("superoptimize",)}
RANDOM = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def mlp() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Add", ["a", "b"], ["c"]), node("Relu", ["c"], ["y"])]
    return model(nodes, {"x": ["batch", 8]}, {"y": ["batch", 16]}, {"w": random(8, 16), "b": random(16)})


def test_one_program_runs_at_all_sizes_of_a_named_dim(tmp_path: Path) -> None:
    given = mlp()
    onnx.save(given, tmp_path / "mlp.onnx")
    run: Any = mirage.compile(tmp_path / "mlp.onnx", **OPTIONS)
    w, b = (onnx.numpy_helper.to_array(t) for t in given.graph.initializer)
    for n in (0, 1, 5):
        x = random(n, 8)
        np.testing.assert_allclose(run(x), np.maximum(x @ w + b, 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run(x=x), run(x))
    assert "0 calls of the reference evaluator" in run.explain()
    assert len(run.programs) == 1


def test_a_size_that_the_model_does_not_take_is_a_guard_error() -> None:
    run: Any = mirage.compile(mlp(), **OPTIONS)
    with pytest.raises(GuardError, match="8"):
        run(random(2, 7))
    with pytest.raises(InputError, match="the inputs are x"):
        run(y=random(2, 8))
    with pytest.raises(InputError, match="no input 'x'"):
        run()


def test_shapes_that_a_model_computes_of_shapes_are_dims() -> None:
    """The pattern that exporters write for `x.reshape(x.shape[0], -1, 4)`."""
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "axes"], ["n1"]),
        node("Concat", ["n1", "minus", "four"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
    ]
    ints = {"zero": np.array(0), "axes": np.array([0]), "minus": np.array([-1]), "four": np.array([4])}
    given = model(nodes, {"x": ["n", "m", 8]}, {"y": ["n", "k", 4]}, ints)
    imported = import_model(given, only_native=True)
    assert set(imported.native) == {"Reshape"}
    run: Any = mirage.compile(given, **OPTIONS)
    x = random(3, 5, 8)
    np.testing.assert_array_equal(run(x), x.reshape(3, 10, 4))


def test_an_input_that_decides_a_shape_makes_a_program_for_each_of_its_values() -> None:
    given = model(
        [node("Reshape", ["x", "shape"], ["r"]), node("Exp", ["r"], ["y"])],
        {"x": ["n", 4], "shape": ([2], TensorProto.INT64)}, {"y": ["a", "b"]},
    )  # fmt: skip
    run: Any = mirage.compile(given, **OPTIONS)
    assert run.deciding == ("shape",)
    x = random(3, 4)
    for shape in ([4, 3], [2, -1], [4, 3], [12, 1]):
        np.testing.assert_allclose(run(x, np.array(shape)), np.exp(x).reshape(shape), rtol=1e-6)
    assert len(run.programs) == 3
    assert all(not p.imported.fallback for p in run.programs)


def test_beyond_eight_sets_of_values_one_program_serves_all_others() -> None:
    given = model([node("Tile", ["x", "times"], ["y"])], {"x": ["n"], "times": ([1], TensorProto.INT64)}, {"y": ["m"]})
    run: Any = mirage.compile(given, **OPTIONS)
    x = random(3)
    for k in range(1, 12):
        np.testing.assert_array_equal(run(x, np.array([k])), np.tile(x, k))
    assert len(run.programs) == 9


def test_branches_of_a_condition_that_only_the_call_tells() -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        return helper.make_graph([node(op, ["x"], [name])], name, [], [value(name, ["n"])])

    given = model(
        [
            node("ReduceSum", ["x"], ["total"], keepdims=0),
            node("Greater", ["total", "zero"], ["positive"]),
            node("If", ["positive"], ["y"], then_branch=branch("t", "Exp"), else_branch=branch("e", "Neg")),
        ],
        {"x": ["n"]}, {"y": ["n"]}, {"zero": np.zeros((), np.float32)},
    )  # fmt: skip
    run: Any = mirage.compile(given, **OPTIONS)
    x = np.abs(random(4))
    np.testing.assert_allclose(run(x), np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(run(-x), x)
    assert not run.programs[0].imported.fallback


def test_a_recurrent_network_runs_for_all_lengths_and_stops_each_sequence_at_its_own() -> None:
    w, r, b = random(2, 5, 3), random(2, 5, 5), random(2, 10)
    given = model(
        [node("RNN", ["x", "w", "r", "b", "lengths"], ["y", "last"], hidden_size=5, direction="bidirectional")],
        {"x": ["time", "batch", 3], "lengths": (["batch"], TensorProto.INT32)},
        {"y": ["time", 2, "batch", 5], "last": [2, "batch", 5]}, {"w": w, "r": r, "b": b},
    )  # fmt: skip
    run: Any = mirage.compile(given, **OPTIONS)
    for lengths in ([4, 1, 3], [2, 6]):
        x = random(max(lengths), len(lengths), 3)
        wanted, last = np.zeros((len(x), 2, len(lengths), 5), np.float32), np.zeros((2, len(lengths), 5), np.float32)
        for k, n in enumerate(lengths):
            for way, order in ((0, range(n)), (1, range(n - 1, -1, -1))):
                for t in order:
                    inner = x[t, k] @ w[way].T + last[way, k] @ r[way].T + b[way, :5] + b[way, 5:]
                    last[way, k] = wanted[t, way, k] = np.tanh(inner)
        y, h = run(x, np.array(lengths, np.int32))
        np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(h, last, rtol=1e-4, atol=1e-5)
    assert len(run.programs) == 1 and not run.programs[0].imported.fallback


def test_sequences_and_strings_are_objects_that_calls_hand_on() -> None:
    given = model(
        [
            node("SequenceConstruct", ["x", "z"], ["s"]),
            node("SequenceAt", ["s", "one"], ["t"]),
            node("Add", ["t", "x"], ["y"]),
        ],
        {"x": [2], "z": [2]}, {"y": [2]}, {"one": np.array(1)},
    )  # fmt: skip
    run: Any = mirage.compile(given, **OPTIONS)
    x, z = random(2), random(2)
    np.testing.assert_allclose(run(x, z), x + z)
    words = model([node("StringConcat", ["a", "b"], ["y"])], {"a": ([2], 8), "b": ([2], 8)}, {"y": ([2], 8)})
    found = mirage.compile(words, **OPTIONS)(np.array(["a", "b"], object), np.array(["c", "d"], object))
    assert list(found) == ["ac", "bd"]


def test_a_quantized_product_runs() -> None:
    given = model(
        [
            node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
            node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
            node("MatMul", ["d", "w"], ["y"]),
        ],
        {"x": ["n", 4]}, {"y": ["n", 2]},
        {"scale": np.array(0.1, np.float32), "zero": np.array(3, np.int8), "w": random(4, 2)},
    )  # fmt: skip
    run: Any = mirage.compile(given, **OPTIONS)
    x, w = random(3, 4), onnx.numpy_helper.to_array(given.graph.initializer[2])
    wanted = (np.clip(np.round(x / np.float32(0.1)) + 3, -128, 127) - 3) * np.float32(0.1)
    np.testing.assert_allclose(run(x), wanted @ w, rtol=1e-5, atol=1e-6)


def test_operators_that_no_one_knows_are_listed_at_once() -> None:
    nodes = [
        node("Wizardry", ["x"], ["a"], domain="magic"),
        node("Exp", ["a"], ["b"]),
        node("Sorcery", ["x"], ["y"], domain="magic"),
    ]
    given = model(nodes, {"x": [2]}, {"y": [2]})
    given.opset_import.append(helper.make_opsetid("magic", 1))
    with pytest.raises(UnsupportedNode, match=r"2 nodes(.|\n)*Wizardry(.|\n)*Sorcery"):
        mirage.compile(given, **OPTIONS)


def test_options_that_have_no_meaning_for_a_model_are_refused() -> None:
    with pytest.raises(InputError, match="constants"):
        mirage.compile(mlp(), constants=("w",), **OPTIONS)
