"""The benchmark of models in bfloat16: what it measures, and its table."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.flow.bfloat16 import Bfloat16Row, bfloat16_table, measure
from mirage.errors import InputError


def test_names() -> None:
    with pytest.raises(InputError, match="no case is named bloom; choose from bert encode"):
        list(measure(["bloom"]))


def test_table() -> None:
    rows = [
        Bfloat16Row(
            "gpt2 decode", 4, 1, 423, {"Mirage": 2.0, "Mirage, searched": 1.0, "PyTorch": 9.0, "OpenVINO": 8.0},
            {"Mirage": 0.01, "Mirage, searched": 0.01, "PyTorch": 0.0123, "OpenVINO": 0.5},
        ),
        Bfloat16Row("vit encode", 2, 0, 0, {"Mirage": 2.0, "PyTorch": 2.0}, {"Mirage": 0.01, "PyTorch": 0.5}),
    ]  # fmt: skip
    assert [r.ratio for r in rows] == [4.0, 1.0]
    table = bfloat16_table(rows)
    head = ["batch", "tokens", "cached", "Mirage", "Mirage, searched", "PyTorch", "OpenVINO", "ratio", "error", "PyTorch's"]
    assert table.header == ["median, ms", *head]
    assert table.rows == [
        ["gpt2 decode", "4", "1", "423", "2.00", "1.00", "9.00", "8.00", "4.00", "1.00%", "1.23%"],
        ["vit encode", "2", "", "", "2.00", "", "2.00", "", "1.00", "1.00%", "50.00%"],
        ["geometric mean", "", "", "", "", "", "", "", "2.00", "", ""],
    ]
