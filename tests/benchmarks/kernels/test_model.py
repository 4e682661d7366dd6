"""Rank correlation and regret of the cost model's benchmark."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.kernels.model import Measured, model_table, ranks, rows, samples, spearman
from benchmarks.programs import PROGRAMS
from mirage.kernels.cpu.model.cost import FEATURES
from mirage.kernels.cpu.model.fit import Sample

START = np.array(list(FEATURES.values()))


def test_ranks_share_the_mean_of_ties() -> None:
    assert ranks(np.array([3.0, 1.0, 2.0])).tolist() == [2.0, 0.0, 1.0]
    assert ranks(np.array([5.0, 5.0, 1.0, 5.0])).tolist() == [2.0, 2.0, 0.0, 2.0]


def test_spearman_of_known_values() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert spearman(x, np.exp(x)) == pytest.approx(1.0)
    assert spearman(x, -x) == pytest.approx(-1.0)
    # 1 - 6 * sum of squared differences / (n (n^2 - 1))
    assert spearman(x, np.array([2.0, 1.0, 4.0, 3.0, 5.0])) == pytest.approx(1 - 6 * 4 / (5 * 24))
    assert spearman(np.ones(3), x[:3]) == 1.0


def measured(name: str, seed: int, factor: float) -> Measured:
    """Kernels that take what the model says, but for the memory, which is `factor` times as slow."""
    rng = np.random.default_rng(seed)
    counts = 10 ** rng.uniform(0, 3, (12, len(START))) / START
    truth = START * np.where(np.array(list(FEATURES)) == "memory", factor, 1.0)
    return Measured(name, "default", [Sample(c, float(c @ truth), name) for c in counts])


def test_a_program_is_judged_by_what_the_others_taught() -> None:
    *found, total = rows([measured(name, seed, 50.0) for seed, name in enumerate("abcd")])
    assert [r.program for r in found] == list("abcd") and total.kernels == 48
    assert total.after > total.before and total.after > 0.95
    for r in (*found, total):
        assert r.regret[1] >= r.regret[3] >= r.regret[6] >= 1.0
    table = model_table([*found, total])
    assert len(table.rows) == 5 and all(len(row) == len(table.header) for row in table.rows)


def test_kernels_of_a_program_are_measured() -> None:
    found = samples(PROGRAMS["softmax"], "default", seconds=0.05)
    assert 2 <= len(found) <= 16
    assert all(s.ns > 0 and s.counts.shape == START.shape for s in found)
    assert len({tuple(s.counts) for s in found}) > 1
