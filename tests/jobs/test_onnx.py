"""Jobs of ONNX models: their subprograms as tasks, which the compiler of the model then finds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")

import onnx
from onnx import TensorProto

import mirage as mi
from mirage.errors import InputError, JobFileError
from mirage.jobs.extract import subprograms, survey
from mirage.jobs.file import read_job
from tests.api.small import BUDGET, Run, searches
from tests.onnx.models import model, node

WIDE = np.linspace(-1.0, 1.0, 4 * 72, dtype=np.float32).reshape(4, 72)


def attention_like() -> onnx.ModelProto:
    """Two products and a softmax of a tensor with a dim that has a name, and indices that are none of a subprogram."""
    nodes = [
        node("Gather", ["table", "tokens"], ["x"]),
        node("MatMul", ["x", "w"], ["a"]),
        node("Softmax", ["a"], ["b"], axis=-1),
        node("MatMul", ["b", "v"], ["y"]),
    ]
    table = np.ones((6, 4), np.float32)
    return model(
        nodes, {"tokens": (["n"], TensorProto.INT64)}, {"y": ["n", 4]}, {"table": table, "w": WIDE, "v": WIDE.T.copy()}
    )


def shaped() -> onnx.ModelProto:
    """A model of which a value decides a shape."""
    return model(
        [node("Reshape", ["x", "to"], ["z"]), node("Softmax", ["z"], ["y"])],
        {"x": ["n", 8], "to": ([2], TensorProto.INT64)}, {"y": ["a", "b"]},
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(attention_like(), tmp_path / "small.onnx")
    onnx.save(shaped(), tmp_path / "shaped.onnx")
    (tmp_path / "none.onnx").write_bytes(b"\x7fELF is no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    return tmp_path


@pytest.mark.slow
def test_the_subprograms_of_a_model_become_a_job_that_its_compiler_finds(command: Run, folder: Path) -> None:
    code, out, err = command("jobs", "from-model", "small.onnx", "--save", "parts.toml", "--json")
    assert code == 0, err
    parts = json.loads(out)
    assert parts and all(p["calls"] == 1 and p["us"] > 0 for p in parts)
    # the weights never change
    assert all(p["constants"] for p in parts)
    file = folder / "parts.toml"
    file.write_text("round = 120.0\n" + file.read_text().replace("weight", "rounds = 1\nsearch_steps = 20000\nweight"))
    code, _, err = command("jobs", "run", "parts.toml", "--folder", "state")
    assert code == 0, err
    before = searches()
    assert before
    run = mi.compile(folder / "small.onnx", budget=BUDGET)
    assert searches() == before
    x = np.ones((3, 4), np.float32) @ WIDE
    expected = (np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)) @ WIDE.T
    np.testing.assert_allclose(run(np.zeros(3, np.int64)), expected, rtol=1e-5)


def test_a_model_is_a_part_of_a_jobs_file(folder: Path) -> None:
    file = folder / "job.toml"
    file.write_text('[[model]]\nmodel = "small.onnx"\nweight = 3\nrounds = 2')
    tasks = read_job(file, subprograms).tasks
    found = survey("small.onnx", folder, 1).parts
    # the numbers in front are those of a measured order, which is another one each time
    assert sorted(t.name.partition("-")[2] for t in tasks) == sorted(p.task.name.partition("-")[2] for p in found)
    assert all(t.name.startswith("small/0") for t in tasks)
    assert {(t.weight, t.rounds) for t in tasks} == {(3.0, 2)}
    assert {t.key for t in tasks} == {p.task.key for p in found}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent.onnx", "cannot be read: No such file or directory"),
        (".onnx", "cannot be read"),
        ("none.onnx", "it is no ONNX model, or damaged"),
        ("empty.onnx", ""),
        ("shaped.onnx", "values of to decide shapes"),
    ],
)
def test_files_that_are_none(command: Run, folder: Path, name: str, said: str) -> None:
    code, out, err = command("jobs", "from-model", name)
    assert (code, out) == (2, "") and name in err and said in err and err.count("\n") == 1, err
    (folder / "job.toml").write_text(f'[[model]]\nmodel = "{name}"')
    with pytest.raises(JobFileError, match=f"model '{name}': key 'model'"):
        read_job(folder / "job.toml", subprograms)


def test_without_onnx_it_is_told_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mirage.onnx.model", None)
    with pytest.raises(InputError, match="install the package with the extra 'onnx'"):
        survey("small.onnx", folder, 1)
