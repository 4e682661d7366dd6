"""The benchmark of weights in 8 bits: what it measures, and its table."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("onnxruntime")

from benchmarks.flow.models import CASES
from benchmarks.flow.stored import NAMES, OURS, StoredRow, measure, stored_table
from mirage.compilation import check_options
from mirage.errors import InputError


def test_names() -> None:
    assert set(NAMES) <= CASES.keys()
    with pytest.raises(InputError, match="no case is named bloom; choose from gpt2 decode"):
        list(measure(["bloom"]))
    for weights in OURS.values():
        check_options(1.0, (), weights)


def test_table() -> None:
    rows = [
        StoredRow("gpt2 decode", 4, 1, 423, {"Mirage": (1.0, 2.0), "PyTorch": (3.0, 4.0)}, {"Mirage": 0.0, "PyTorch": 0.5}),
        StoredRow("bert encode", 2, 56, 0, {"Mirage": (5.0, 6.0)}, {"Mirage": 0.0123}),
    ]
    table = stored_table(rows)
    assert table.header == ["minimum / median, ms, error", "gpt2 decode, 4 by 1, 423 cached", "bert encode, 2 by 56"]
    assert table.rows == [
        ["Mirage", "1.00 / 2.00, 0.00%", "5.00 / 6.00, 1.23%"], ["PyTorch", "3.00 / 4.00, 50.00%", ""]
    ]  # fmt: skip
