"""Models of PyTorch against peers: what is measured, and what the tables say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.flow import exported  # noqa: E402
from benchmarks.flow.models import CASES  # noqa: E402
from benchmarks.flow.race import FlowRow, flow_table, mean_table, measure  # noqa: E402
from mirage.errors import InputError  # noqa: E402


class Small(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)
        self.eval().requires_grad_(False)

    def forward(self, x: Any, more: Any) -> Any:
        return (torch.softmax(self.linear(x) + more[0], -1),)


def row(peers: dict[str, float], ours: float, mode: str = "encode") -> FlowRow:
    best = min(peers, key=lambda n: peers[n])
    return FlowRow("m", mode, 2, 1, 7, 0, peers, best, ours, ours / 2, peers[best] / ours, 1.0, 2.0, 3, 4, 5.0)


def test_a_model_is_counted_and_profiled() -> None:
    model, example = Small(), [torch.randn(3, 5, 8), [torch.randn(4)]]
    mine = exported.ours(model, example, without=("superoptimize",))
    inputs = [torch.randn(2, 7, 8), [torch.randn(4)]]
    torch.testing.assert_close(mine(inputs), model(*inputs))
    kernels, libraries = mine.counts
    assert (kernels, libraries, mine.fallbacks, mine.programs) == (1, 1, {}, 1)
    assert mine.activation_bytes(inputs) >= 2 * 7 * 4 * 4
    spent = mine.profile(inputs)
    assert len(spent) == kernels + libraries and all(ms > 0 for ms in spent.values())
    assert any(name.startswith("blas.matmul") for name in spent)
    # the profile is of a copy
    torch.testing.assert_close(mine(inputs), model(*inputs))


def test_an_exported_model_runs_in_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model, example = Small(), [torch.randn(3, 5, 8), [torch.randn(4)]]
    run = exported.in_onnx_runtime(exported.onnx_file(exported.exported(model, example), tmp_path), threads=1)
    inputs = [torch.randn(2, 7, 8), [torch.randn(4)]]
    np.testing.assert_allclose(run(inputs)[0], model(*inputs)[0], atol=1e-5)


def test_sizes_are_the_same_in_every_run_and_distinct() -> None:
    for case in CASES.values():
        sizes = case.sizes(20)
        assert sizes == case.sizes(20) and sizes[:3] == case.sizes(3)
        assert len(set(sizes)) == len(sizes) and len(sizes) == (4 if case.name in ("vit encode", "whisper encode") else 20)
        assert all(cached < case.cached for _, _, cached in sizes)
        assert all(length == 1 for _, length, _ in sizes) or case.mode != "decode"


def test_tables() -> None:
    rows = [row({"a": 4.0, "b": 2.0}, 1.0), row({"a": 1.0}, 2.0, "decode")]
    means = {line[0]: line[2:] for line in mean_table(rows).rows}
    assert means["m encode"] == ["4.00", "2.00", "2.00", "4.00", "2.00", "1.0", "2", "3", "4", "5.0"]
    assert means["m decode"][:5] == ["0.50", "", "0.50", "1.00", "0.50"]
    assert means["batch 1, and decoding"] == means["all"] == ["1.41", "2.00", "1.00", "2.00", "0.50", *[""] * 5]
    assert flow_table(rows).rows[1][:10] == ["m", "decode", "1", "7", "", "1.00", "", "2.00", "1.00", "0.50"]


def test_a_name_of_nothing() -> None:
    with pytest.raises(InputError, match=r"no model is named nothing; choose from .*gpt2 decode"):
        next(measure(["nothing"]))
