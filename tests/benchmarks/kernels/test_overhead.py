"""The benchmark of what a call costs above its kernel."""

from __future__ import annotations

import pytest

import mirage as mi
from benchmarks.kernels import overhead
from tests.modelled import modelled


def test_rows_per_program_and_kind_of_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(mi, "superoptimize", lambda f, **_: modelled(f.trace(), f.sizes["default"]))
    monkeypatch.setattr(overhead, "_ROUNDS", 3)
    rows = list(overhead.measure())
    kinds = ["NumPy", "NumPy, out=", "torch", "torch, out="]
    assert [(r.program, r.arguments, r.kind) for r in rows] == [
        *((program, count, kind) for program, count in (("softmax_row", 1), ("adapter", 3)) for kind in kinds),
        ("reverse", 2, "item of a list"),
    ]
    assert all(r.kernel_us > 0 for r in rows[:-1]) and rows[-1].above_us > 0
    assert overhead.overhead_table(rows).rows[0][:3] == ["softmax_row", "1", "NumPy"]
