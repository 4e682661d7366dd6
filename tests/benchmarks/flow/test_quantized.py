"""The benchmark of quantized networks: what it measures, and its tables."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from benchmarks.flow import quantized
from benchmarks.flow.quantized import (
    NETWORKS,
    OUTLIER,
    SCHEMES,
    Network,
    QuantizedRow,
    error_table,
    measure,
    time_table,
)
from mirage.errors import InputError


def test_a_name_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no network is named alexnet; choose from mlp, transformer"):
        list(measure(["alexnet"]))


@pytest.mark.parametrize("network", NETWORKS.values(), ids=lambda n: n.name)
def test_one_channel_is_an_outlier(network: Network) -> None:
    (x,) = quantized._data(network, 1, 8, 0)
    first, *others = np.moveaxis(x, network.channels, 0)
    assert first.std() > 0.5 * OUTLIER and np.std(others) < 1.5


def test_tables() -> None:
    rows = [
        QuantizedRow("mlp", batch, 3, {}, {"max": 0.0123, "mse": 0.5}, {"Mirage": (1.0, 2.0), "PyTorch": (0.25, 0.5)})
        for batch in (1, 64)
    ]
    peers = {"Mirage": (3.0, 4.0), "ONNX Runtime": (5.0, 6.0)}
    rows.append(QuantizedRow("resnet-18", 1, 1, {"convolution": 20}, {"max": 0.01, "mse": 0.02}, peers))
    errors, times = error_table(rows), time_table(rows)
    assert errors.header == ["scheme", "mlp", "resnet-18"]
    assert errors.rows == [
        ["max", "1.23%", "1.00%"],
        ["mse", "50.00%", "2.00%"],
        ["products of whole numbers", "3", "1"],
        ["products that stay float", "none", "20 convolution"],
    ]
    assert times.header == ["minimum / median, ms", "mlp, batch 1", "mlp, batch 64", "resnet-18, batch 1"]
    assert times.rows[0] == ["Mirage", "1.000 / 2.000", "1.000 / 2.000", "3.000 / 4.000"]
    # not every peer runs every network
    assert times.rows[1:] == [["PyTorch", "0.250 / 0.500", "0.250 / 0.500", ""], ["ONNX Runtime", "", "", "5.000 / 6.000"]]


@pytest.mark.slow
def test_a_row_has_every_scheme_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    small = Network("small", lambda: torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.ReLU()), (32,), -1, (2,))
    monkeypatch.setattr(quantized, "NETWORKS", {"small": small})
    (row,) = measure(say=lambda line: None, seconds=0.01)
    assert SCHEMES.keys() < row.errors.keys() and all(0 < e < 1 for e in row.errors.values())
    assert (row.products, row.stays, row.batch) == (1, {}, 2) and all(low <= mid for low, mid in row.times.values())
