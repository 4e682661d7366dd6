"""Files that are damaged, or made to do harm: a clear error, and nothing is read or allocated for them."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto, helper

import mirage
from mirage.errors import FormatError, InputError, MirageError, UnsupportedNode
from mirage.frontends.onnx.fallback import evaluated
from tests.onnx.models import model, node, value

OPTIONS: Any = {"without": ("superoptimize", "fuse", "libraries", "plan", "merge"), "cache": False}
WEIGHTS = np.arange(32, dtype=np.float32).reshape(4, 8)


def small() -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Tanh", ["a"], ["y"])]
    return model(nodes, {"x": ["n", 4]}, {"y": ["n", 8]}, {"w": WEIGHTS})


def with_external(folder: Path, location: str, **info: str) -> Path:
    """A model whose weights are said to be in another file."""
    given = small()
    tensor = given.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": location, **info}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text
    path = folder / "model.onnx"
    path.write_bytes(given.SerializeToString())
    return path


def test_external_data_in_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"\0" * 16 + WEIGHTS.tobytes())
    path = with_external(tmp_path, "weights.bin", offset="16", length="128")
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(mirage.compile(path, **OPTIONS)(x), np.tanh(x @ WEIGHTS), rtol=1e-6)


def test_external_data_elsewhere_is_not_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "secret.bin"
    inside.mkdir()
    outside.write_bytes(WEIGHTS.tobytes())
    os.symlink(outside, inside / "link.bin")
    for location in ("../secret.bin", str(outside), "link.bin", "", "x/../../secret.bin"):
        with pytest.raises(FormatError, match="outside of its folder"):
            mirage.compile(with_external(inside, location), **OPTIONS)
    with pytest.raises(InputError, match="no such file"):
        mirage.compile(with_external(inside, "absent.bin"), **OPTIONS)


def test_external_data_that_ends_before_the_tensor_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(WEIGHTS.tobytes())
    for info in ({"offset": "8", "length": "128"}, {"length": "4000000000000"}, {"offset": "-8"}, {"length": "64"}):
        with pytest.raises(FormatError):
            mirage.compile(with_external(tmp_path, "weights.bin", **info), **OPTIONS)


def test_a_model_in_memory_has_to_hold_its_data(tmp_path: Path) -> None:
    given = onnx.load(with_external(tmp_path, "weights.bin"), load_external_data=False)
    with pytest.raises(FormatError, match="pass the path"):
        mirage.compile(given, **OPTIONS)


def test_a_tensor_of_more_elements_than_the_file_holds_is_refused() -> None:
    given = small()
    given.graph.initializer[0].dims[0] = 1 << 60
    with pytest.raises(FormatError, match="elements"):
        mirage.compile(given, **OPTIONS)


_WIDE = np.array([1 << 20, 1 << 20])


@pytest.mark.parametrize(
    ("op", "inputs", "weights", "shape"),
    [
        ("ConstantOfShape", ["s"], {"s": _WIDE}, [1]),
        ("Expand", ["x", "s"], {"s": _WIDE}, [1]),
        ("Tile", ["x", "s"], {"s": _WIDE}, [1, 1]),
        ("Pad", ["x", "s"], {"s": np.array([1 << 50, 0])}, [1]),
        ("Range", ["a", "b", "c"], {"a": np.array(0), "b": np.array(1 << 50), "c": np.array(1)}, [1]),
        ("Resize", ["x", "", "s"], {"s": np.array([1, 1, 1e9, 1e9], np.float32)}, [1, 1, 2, 2]),
        ("Exp", ["x"], {}, [1 << 30, 1 << 30]),
    ],
)
def test_a_tensor_that_has_no_room_in_memory_is_refused(
    op: str, inputs: list[str], weights: Any, shape: list[int]
) -> None:
    kept = TensorProto.INT64 if op == "Range" else TensorProto.FLOAT
    nodes = [node(op, inputs, ["z"]), node("ReduceMax", ["z"], ["y"], keepdims=0)]
    given = model(nodes, {"x": shape}, {"y": ((), kept)}, weights)
    with pytest.raises(UnsupportedNode, match="memory"):
        mirage.compile(given, **OPTIONS)


def test_circles_and_missing_values_are_refused() -> None:
    circle = model([node("Add", ["x", "b"], ["a"]), node("Tanh", ["a"], ["b"])], {"x": [2]}, {"b": [2]})
    missing = model([node("MatMul", ["x", "w"], ["y"])], {"x": [2, 4]}, {"y": [2, 8]})
    for given in (circle, missing):
        with pytest.raises(FormatError, match="no valid model"):
            mirage.compile(given, **OPTIONS)


def test_functions_that_call_each_other_in_a_circle_are_refused() -> None:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function("own", a, ["x"], ["y"], [node(b, ["x"], ["y"], domain="own")], imports)
        for a, b in (("F", "G"), ("G", "F"))
    ]
    given = model([node("F", ["x"], ["y"], domain="own")], {"x": [2]}, {"y": [2]})
    given.opset_import.append(helper.make_opsetid("own", 1))
    given.functions.extend(functions)
    with pytest.raises(MirageError):
        mirage.compile(given, **OPTIONS)


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(FormatError, match="no ONNX model"):
        mirage.compile(path, **OPTIONS)
    with pytest.raises(InputError, match="cannot be read"):
        mirage.compile(tmp_path / "absent.onnx", **OPTIONS)


@pytest.mark.parametrize("name", [b"batch", b"MatMul", b"small"])
def test_text_that_is_no_utf8_is_refused(name: bytes) -> None:
    """The name of a dim, of an operator, and of the graph."""
    given = small()
    given.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    content = given.SerializeToString()
    assert content.count(name) == 1
    with pytest.raises(FormatError, match="no UTF-8"):
        mirage.compile(onnx.ModelProto.FromString(content.replace(name, b"\xff" + name[1:])), **OPTIONS)


def test_the_name_of_a_file_of_data_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    path = with_external(tmp_path, "weights.bin")
    path.write_bytes(path.read_bytes().replace(b"weights.bin", b"weights.\xff\xfen"))
    with pytest.raises(FormatError, match="no UTF-8"):
        mirage.compile(path, **OPTIONS)


def test_an_opset_of_the_future_is_refused() -> None:
    given = small()
    given.opset_import[0].version = 99
    with pytest.raises((FormatError, UnsupportedNode)):
        mirage.compile(given, **OPTIONS)


def rich() -> onnx.ModelProto:
    """A model of many kinds of operators: windows, shapes that are computed, branches, loops, constants among attributes."""
    flag, total = value("flag", ((), TensorProto.BOOL)), value("total", ["n", 4])
    index, going = value("i", ((), TensorProto.INT64)), value("going", ((), TensorProto.BOOL))
    step = [
        node("Identity", ["flag"], ["going"]),
        node("Add", ["total", "z"], ["next"]),
        node("Exp", ["next"], ["row"]),
    ]
    body = helper.make_graph(
        step, "body", [index, flag, total], [going, value("next", ["n", 4]), value("row", ["n", 4])]
    )
    branches = [
        helper.make_graph([node(op, ["z"], [name])], name, [], [value(name, ["n", 4])])
        for op, name in (("Tanh", "then"), ("Neg", "else"))
    ]
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Unsqueeze", ["n", "zeros"], ["n1"]),
        node("Concat", ["n1", "sizes"], ["image"], axis=0),
        node("Reshape", ["x", "image"], ["images"]),
        node("Conv", ["images", "k"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("MaxPool", ["c"], ["p"], kernel_shape=[1, 1], strides=[1, 1]),
        node("Flatten", ["p"], ["f"]),
        node("Softmax", ["f"], ["z"], axis=-1),
        node("ReduceMax", ["z"], ["largest"], keepdims=0),
        node("Less", ["largest", "half"], ["less"]),
        node("If", ["less"], ["chosen"], then_branch=branches[0], else_branch=branches[1]),
        # of eight bits, no damage makes it long
        node("Cast", ["times"], ["count"], to=TensorProto.INT64),
        node("Loop", ["count", "", "chosen"], ["last", "rows"], body=body),
        node("ReduceSum", ["rows", "zeros"], ["summed"], keepdims=0),
        node("Range", ["from", "to", "by"], ["r"]),
        node("Constant", [], ["one"], value=onnx.numpy_helper.from_array(np.ones((1, 4), np.float32))),
        node("Where", ["less", "one", "r"], ["w"]),
        node("Sum", ["summed", "last", "w"], ["y"]),
    ]
    weights = {
        "zero": np.array(0), "zeros": np.array([0]), "sizes": np.array([1, 2, 2]), "times": np.array(70, np.int8),
        "k": np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3), "half": np.array(0.5, np.float32),
        "from": np.array(0, np.float32), "to": np.array(2, np.float32), "by": np.array(0.5, np.float32),
    }  # fmt: skip
    return model(nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, weights)


def _survives(content: bytes, path: Path) -> None:
    """A damaged file is a MirageError, or still a model."""
    path.write_bytes(content)
    try:
        run: Any = mirage.compile(path, **OPTIONS)
        run(np.ones((2, 4), np.float32))
    except MirageError:
        pass


def _mutated(content: bytes, seed: int) -> bytes:
    draw = random.Random(seed)
    found = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        found[draw.randrange(len(found))] = draw.randrange(256)
    return bytes(found)


def test_a_rich_model_is_right_without_the_reference_evaluator() -> None:
    given = rich()
    run: Any = mirage.compile(given, **OPTIONS)
    for n in (1, 2, 5):
        x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
        (expected,) = evaluated(given, {"x": x})
        np.testing.assert_allclose(run(x), expected, rtol=1e-5)
    assert not run.programs[0].imported.fallback


@pytest.mark.parametrize("make", [small, rich])
def test_mutated_files_are_errors_or_models(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    content = make().SerializeToString()
    for seed in range(60 if make is small else 20):
        _survives(_mutated(content, seed), tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("make", [small, rich])
def test_two_thousand_mutated_files_are_errors_or_models(make: Callable[[], onnx.ModelProto], tmp_path: Path) -> None:
    content = make().SerializeToString()
    for seed in range(2000):
        _survives(_mutated(content, seed), tmp_path / "model.onnx")
