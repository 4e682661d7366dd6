"""Compiled models in files: they load in another process, also without onnx, and damaged or altered files are refused."""

from __future__ import annotations

import json
import random as randomness
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("onnx")

import onnx
from onnx import TensorProto

import mirage
import mirage.onnx
from mirage.cli import app
from mirage.errors import FormatError, GuardError, InputError, MirageError
from tests.api.archives import members, write
from tests.onnx.models import model, node

#: operators run one by one
OPTIONS: Any = {"without": ("superoptimize", "fuse", "libraries", "plan", "merge"), "cache": False}
RANDOM = np.random.default_rng(0)
W = RANDOM.standard_normal((40, 40)).astype(np.float32)
X = RANDOM.standard_normal((3, 40)).astype(np.float32)

#: a process in which onnx is not installed: the arguments are a saved model, and files of inputs and outputs
WITHOUT_ONNX = """
import sys
sys.modules["onnx"] = None
import numpy as np, mirage, mirage.onnx
try:
    run = mirage.onnx.load(sys.argv[1])
except mirage.MirageError as e:
    print(f"{type(e).__name__}: {e}")
else:
    np.save(sys.argv[3], run(np.load(sys.argv[2])))
"""


def layer() -> onnx.ModelProto:
    """A product whose weights are used twice, an output that is constant, one that is an input."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]), node("Tanh", ["a"], ["t"]), node("MatMul", ["t", "w"], ["y"]),
        node("Identity", ["x"], ["same"]), node("Identity", ["w"], ["constant"]),
    ]  # fmt: skip
    return model(nodes, {"x": ["n", 40]}, {"y": ["n", 40], "same": ["n", 40], "constant": [40, 40]}, {"w": W})


def saved(given: onnx.ModelProto, folder: Path, *calls: tuple[Any, ...], **options: Any) -> Path:
    run: Any = mirage.compile(given, **(options or OPTIONS))
    for args in calls:
        run(*args)
    run.save(folder / "model.mirage")
    return folder / "model.mirage"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(layer(), tmp_path_factory.mktemp("saved"))


def check(run: Any) -> None:
    for n in (3, 0, 1):
        y, same, constant = run(X[:n])
        np.testing.assert_allclose(y, np.tanh(X[:n] @ W) @ W, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(same, X[:n])
        np.testing.assert_array_equal(constant, W)


def test_what_is_loaded_gives_the_same(file: Path, tmp_path: Path) -> None:
    run = mirage.onnx.load(file)
    check(run)
    assert (run.inputs, run.outputs) == (("x",), ("y", "same", "constant"))
    assert "0 calls of the reference evaluator" in run.explain()
    with pytest.raises(GuardError, match="40"):
        run(X[:, :3])
    # kernels are compiled again
    check(mirage.onnx.load(saved(layer(), tmp_path, without=("superoptimize",), cache=False)))


def test_weights_are_in_the_file_once(file: Path) -> None:
    head = json.loads(members(file)["model.json"])
    assert head["arrays"] == [{"dtype": "float32", "shape": [40, 40]}]


def outside(file: Path, folder: Path, x: np.ndarray) -> tuple[np.ndarray | None, str]:
    """What a saved model gives in a process without onnx, and what that says."""
    np.save(folder / "x.npy", x)
    command = [sys.executable, "-c", WITHOUT_ONNX, str(file), str(folder / "x.npy"), str(folder / "y.npy")]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return (None if told else np.load(folder / "y.npy")), told


def test_it_loads_in_a_process_without_onnx(tmp_path: Path) -> None:
    given = model([node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["y"])], {"x": ["n", 40]}, {"y": ["n", 40]}, {"w": W})
    y, told = outside(saved(given, tmp_path), tmp_path, X)
    assert not told
    assert y is not None
    np.testing.assert_allclose(y, np.maximum(X @ W, 0), rtol=1e-4, atol=1e-4)


def test_a_call_of_the_reference_evaluator_needs_onnx(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["x"], ["small"], to=TensorProto.FLOAT8E5M2),
        node("Cast", ["small"], ["y"], to=TensorProto.FLOAT),
    ]
    file = saved(model(nodes, {"x": ["n", 40]}, {"y": ["n", 40]}), tmp_path)
    np.testing.assert_allclose(mirage.onnx.load(file)(X), X, rtol=0.2)
    _, told = outside(file, tmp_path, X)
    assert told.startswith("UnknownFunction") and "onnx" in told and "install it" in told


def test_programs_for_values_that_decide_shapes_are_in_the_file(tmp_path: Path) -> None:
    given = model(
        [node("Reshape", ["x", "shape"], ["r"]), node("Exp", ["r"], ["y"])],
        {"x": ["n", 4], "shape": ([2], TensorProto.INT64)}, {"y": ["a", "b"]},
    )  # fmt: skip
    x, shapes = X[:, :4], [np.array([4, 3]), np.array([-1, 2])]
    run = mirage.onnx.load(saved(given, tmp_path, *((x, s) for s in shapes)))
    for shape in shapes:
        np.testing.assert_allclose(run(x, shape), np.exp(x).reshape(shape), rtol=1e-6)
    with pytest.raises(GuardError, match=r"no program for shape = \[6, 2\](.|\n)*\[4, 3\](.|\n)*\[-1,  2\]"):
        run(x, np.array([6, 2]))
    with pytest.raises(InputError, match="no program to save"):
        saved(given, tmp_path)


def test_programs_keep_their_values_when_the_caller_writes_to_its_array(tmp_path: Path) -> None:
    given = model(
        [node("Expand", ["x", "shape"], ["y"]), node("Identity", ["shape"], ["s"])],
        {"x": [1], "shape": ([1], TensorProto.INT64)}, {"y": ["a"], "s": ([1], TensorProto.INT64)},
    )  # fmt: skip
    run: Any = mirage.compile(given, **OPTIONS)
    shape = np.array([4])
    run(X[0, :1], shape)
    shape[0] = 7
    run.save(tmp_path / "model.mirage")
    for again in (run, mirage.onnx.load(tmp_path / "model.mirage")):
        y, s = again(X[0, :1], np.array([4]))
        assert y.shape == (4,) and s == 4


def test_constants_of_every_kind_are_in_the_file(tmp_path: Path) -> None:
    weights: dict[str, np.ndarray] = {
        "bytes": np.arange(-64, 64, dtype=np.int8), "halves": np.ones(3, np.float16), "flags": np.array([True, False]),
        "words": np.array(["one", "zwei", "trois – ✓"], object), "whole": np.arange(5, dtype=np.uint16),
    }  # fmt: skip
    given = model(
        [node("Identity", [n], [f"{n}_out"]) for n in weights] + [node("Exp", ["x"], ["y"])], {"x": ["n"]},
        {"y": ["n"], **{f"{n}_out": ([None], onnx.helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in weights.items()}},
        weights,
    )  # fmt: skip
    y, *found = mirage.onnx.load(saved(given, tmp_path))(X[0])
    np.testing.assert_allclose(y, np.exp(X[0]), rtol=1e-6)
    for x, wanted in zip(found, weights.values(), strict=True):
        assert x.dtype == wanted.dtype
        np.testing.assert_array_equal(x, wanted)


def test_the_command_writes_a_model_that_loads(tmp_path: Path) -> None:
    onnx.save(layer(), tmp_path / "layer.onnx")
    file = tmp_path / "layer.mirage"
    without = [a for name in OPTIONS["without"] for a in ("--without", name)]
    found = CliRunner().invoke(app, ["compile", str(tmp_path / "layer.onnx"), *without, "--no-cache", "--save", str(file)])
    assert found.exit_code == 0, found.output
    check(mirage.onnx.load(file))


# files that are damaged, or altered


def test_a_damaged_file_is_refused(file: Path, tmp_path: Path) -> None:
    content, damaged = file.read_bytes(), tmp_path / "damaged.mirage"
    draw = randomness.Random(0)
    for _ in range(20):
        damaged.write_bytes(content[: draw.randrange(len(content))])
        with pytest.raises(FormatError, match=r"damaged\.mirage"):
            mirage.onnx.load(damaged)
    for _ in range(40):
        altered = bytearray(content)
        altered[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        damaged.write_bytes(altered)
        try:
            # of the bytes that a zip has, some are not read
            check(mirage.onnx.load(damaged))
        except MirageError as e:
            assert "damaged.mirage" in str(e)
    with pytest.raises(InputError, match="cannot be read"):
        mirage.onnx.load(tmp_path / "none")


def test_a_file_of_another_kind_is_refused_with_what_reads_it(file: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"a mirage ONNX model, not a mirage executable; pass it to mirage\.onnx\.load"):
        mirage.load_executable(file)
    mirage.compile(lambda x: x + x, {"x": mirage.tensor("n")}, **OPTIONS).save(tmp_path / "executable.mirage")
    with pytest.raises(FormatError, match=r"a mirage executable, not a mirage ONNX model; pass it to mirage\.load_executable"):
        mirage.onnx.load(tmp_path / "executable.mirage")


def first(head: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = head["programs"][0]
    return found


EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "format": lambda h: h.update(format="model"),
    "schema": lambda h: h.update(schema=99),
    "a type": lambda h: h["arrays"].__setitem__(0, {"dtype": "float64", "shape": [40, 40]}),
    "a type of the same size": lambda h: h["arrays"].__setitem__(0, {"dtype": "int32", "shape": [40, 40]}),
    "objects": lambda h: h["arrays"].__setitem__(0, {"dtype": "object", "shape": [40, 40]}),
    "no type": lambda h: h["arrays"].__setitem__(0, {"dtype": "f4,i4", "shape": [40, 40]}),
    "a shape": lambda h: h["arrays"].__setitem__(0, {"dtype": "float32", "shape": [20, 80]}),
    "no shape": lambda h: h["arrays"].__setitem__(0, {"dtype": "float32", "shape": [-40, -40]}),
    "more arrays": lambda h: h["arrays"].append({"dtype": "float32", "shape": [1]}),
    "an input": lambda h: first(h)["inputs"].__setitem__(0, 9),
    "no inputs": lambda h: first(h)["inputs"].clear(),
    "an output": lambda h: first(h)["outputs"].__setitem__(0, 99),
    "an output before the first": lambda h: first(h)["outputs"].__setitem__(0, -1),
    "an output that is given": lambda h: first(h)["outputs"].__setitem__(1, {"position": 9, "is": "Given"}),
    "an output of another kind": lambda h: first(h)["outputs"].__setitem__(1, {"value": 3, "is": "Given"}),
    "fewer outputs": lambda h: first(h)["outputs"].pop(),
    "a weight": lambda h: first(h)["attributes"].__setitem__(0, 99),
    "no weights": lambda h: first(h)["attributes"].clear(),
    "values": lambda h: first(h).update(values=[0]),
    "a deciding input": lambda h: h.update(deciding=["w"]),
    "two names": lambda h: h.update(inputs=["x", "x"]),
    "a module": lambda h: first(h).update(module="import os"),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_altered_file_is_refused(file: Path, tmp_path: Path, what: str) -> None:
    contents = members(file)
    head = json.loads(contents["model.json"])
    EDITS[what](head)
    write(tmp_path / "altered.mirage", contents | {"model.json": json.dumps(head).encode()})
    with pytest.raises(MirageError, match=r"altered\.mirage"):
        mirage.onnx.load(tmp_path / "altered.mirage")
