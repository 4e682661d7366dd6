"""Programs that grow, and what the ablation and the scaling measure of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from benchmarks.large import LARGE
from benchmarks.search import large_programs, pruning, scaling
from benchmarks.search.pruning import VARIANTS, PruningRow, ablation, pruning_table
from benchmarks.search.scaling import PANELS, SERIES, WORKERS, ScalingRow, scaling_table, worker_counts
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference


@pytest.mark.parametrize("name", SERIES)
def test_programs_of_a_series_grow(name: str) -> None:
    make, counts = SERIES[name]
    found = [to_axes(make(n)) for n in counts]
    size = [
        len(p.reduction_axes())
        if name == "axes of a normalisation"
        else len(p.axes)
        if "axes" in name
        else len(p.nodes)
        for p in found
    ]
    assert all(x < y for x, y in itertools.pairwise(size))


def test_the_block_is_an_mlp_with_norm_and_gate() -> None:
    rng = np.random.default_rng(0)
    x, w1, w2, g, w3 = (rng.standard_normal(s) for s in ((2, 4), (4, 4), (4, 4), (4,), (4, 4)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling, "WIDTH", 4)
        program = scaling.block(12)
    (found,) = run_reference(program, [x, w1, w2, g, w3], {"batch": 2}, "float64")
    h = np.maximum(x @ w1, 0) @ w2 + x
    y = h / np.sqrt((h * h).sum(axis=1, keepdims=True)) * g @ w3
    np.testing.assert_allclose(found, y / (1 + np.exp(-y)), rtol=1e-12)


def test_rows_of_the_scaling(monkeypatch: pytest.MonkeyPatch) -> None:
    make, _ = SERIES["layers of an MLP"]
    monkeypatch.setattr(scaling, "SERIES", {"layers of an MLP": (make, range(1, 3))})
    monkeypatch.setattr(scaling, "SLOWEST", "softmax")
    monkeypatch.setattr(scaling, "worker_counts", lambda _: [1, 2])
    one, two, alone, shared = scaling.scaling(60.0)
    assert [(r.series, r.count, r.operators, r.cut) for r in (one, two)] == [
        ("layers of an MLP", 1, 2, False),
        ("layers of an MLP", 2, 4, False),
    ]
    assert one.candidates < two.candidates
    assert alone.series == shared.series == WORKERS and (alone.count, shared.count) == (1, 2)
    assert alone.candidates == shared.candidates


def test_a_series_ends_with_the_first_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    make, _ = SERIES["operators of an MLP block"]
    monkeypatch.setattr(scaling, "SERIES", {"operators of an MLP block": (make, (2, 12, 11))})
    monkeypatch.setattr(scaling, "worker_counts", lambda _: [])
    first, last = scaling.scaling(0.1)
    assert (first.cut, last.cut) == (False, True) and last.count == 12


def test_every_series_is_drawn_once() -> None:
    assert sorted(itertools.chain(*PANELS.values())) == sorted([*SERIES, WORKERS])


def test_workers() -> None:
    assert [worker_counts(n) for n in (1, 2, 4, 12)] == [[1, 2], [1, 2], [1, 2, 4], [1, 2, 4, 8]]


def test_scaling_table_marks_what_was_cut() -> None:
    row = ScalingRow("layers", 3, 6, 20.0, 1000, 2000, 0, True)
    assert scaling_table([row]).rows == [["layers", "3", "6", "> 20", "1,000", "2,000", "0"]]


def test_the_ablation_stops_a_variant_at_its_first_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "KERNELS", (1,))
    monkeypatch.setattr(pruning, "VARIANTS", {v: VARIANTS[v] for v in VARIANTS if v != "without the normal form"})
    rows = list(ablation(1.0))
    by_variant = {v: [r for r in rows if r.variant == v] for v in pruning.VARIANTS}
    (unpruned,) = by_variant["without abstract expressions"]
    assert unpruned.cut and unpruned.operators == 4
    full, again = by_variant["full"], by_variant["without canonical form"]
    assert [r.operators for r in full] == [r.operators for r in again] == [4, 5, 6, 7]
    assert all(x.prefixes < y.prefixes for x, y in zip(full, again, strict=True))
    assert unpruned.prefixes > again[0].prefixes
    assert [r.candidates > 0 for r in full] == [False, False, True, True]


def test_pruning_table_marks_what_was_cut() -> None:
    rows = [PruningRow("SMT", 1, 4, 1.5, 30, 400, 2, False), PruningRow("SMT", 1, 5, 20.0, 1000, 4000, 0, True)]
    rows.append(PruningRow("full", 1, 6, 0.25, 35, 700, 9, False))
    assert pruning_table(rows).rows == [
        ["SMT", "1", "1.50 s, 30, 2", "> 20 s, 1,000+", "not tried"],
        ["full", "1", "not tried", "not tried", "0.25 s, 35, 9"],
    ]


def test_rows_of_large_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_programs, "LARGE", {"mlp_block": LARGE["mlp_block"]})
    rows = list(large_programs.measure(1e-3))
    assert [(r.program, r.variant, r.operators, r.cut) for r in rows] == [("mlp_block", v, 13, True) for v in VARIANTS]
    for r in rows:
        assert r.graphs and r.first_seconds <= r.seconds and r.searched < r.pieces
    table = large_programs.large_table(rows)
    assert [cells[:3] for cells in table.rows] == [["mlp_block", "13", v] for v in VARIANTS]
    assert all(cells[4].startswith("> ") for cells in table.rows)
