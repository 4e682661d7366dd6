"""The race of ONNX models of networks: what it measures, and its table."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

from benchmarks.flow import networks  # noqa: E402
from benchmarks.flow.networks import NETWORKS, OURS, NetworkRow, made, measure, network_table, written  # noqa: E402
from mirage.errors import InputError  # noqa: E402
from mirage.frontends.onnx.files import load_model  # noqa: E402
from mirage.frontends.onnx.importer import import_model  # noqa: E402


def test_every_network_is_small_and_base() -> None:
    names = {n.name for n in NETWORKS.values()}
    assert NETWORKS.keys() == {f"{name} {size}" for name in names for size in ("small", "base")}
    for name in names:
        small, base = (sum(p.numel() for p in made(NETWORKS[f"{name} {size}"]).parameters()) for size in ("small", "base"))
        assert small < base, name


def test_a_name_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no network is named alexnet; choose from dqn, dqn base"):
        list(measure(["alexnet"]))


def test_table() -> None:
    rows = [
        NetworkRow("dqn", "small", 1, {"PyTorch": 4.0, "ONNX Runtime": 1.0}, 2.0, 3.25),
        NetworkRow("dqn", "base", 8, {"PyTorch": 1.0}, 2.0, 3.0, {"ONNX Runtime": "it is wrong"}, 3.0),
    ]
    assert [r.ratio for r in rows] == [0.5, 0.5]
    table = network_table(rows)
    own = ["ours, ms", "ours from PyTorch, ms", "ratio", "compile, s"]
    assert table.header == ["network", "batch", "PyTorch, ms", "ONNX Runtime, ms", *own]
    assert table.rows == [
        ["dqn small", "1", "4.00", "1.00", "2.00", "", "0.50", "3.2"],
        ["dqn base", "8", "1.00", "", "2.00", "3.00", "0.50", "3.0"],
        ["mean of times over ours", "", "1.00", "0.50", "1.00", "1.50", "0.50", ""],
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NETWORKS if n.endswith("small")])
def test_files_are_native_for_all_batches(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    model = load_model(written(network, made(network), tmp_path))
    imported = import_model(model)
    assert not imported.fallback, imported.reasons
    (declared,) = model.graph.input
    assert declared.type.tensor_type.shape.dim[0].dim_param


@pytest.mark.slow
def test_a_race_has_a_row_for_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "BATCHES", (2,))
    (row,) = measure(["dqn small"], say=lambda line: None, seconds=0.01)
    assert (row.network, row.size, row.batch) == ("dqn", "small", 2)
    assert row.ours > 0 and row.peers["PyTorch"] > 0 and OURS not in row.peers
