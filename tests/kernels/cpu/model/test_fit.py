"""Fitting the cost model: known answers, races on a busy machine, and files that were altered."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from mirage.cache import CorruptRecordWarning
from mirage.kernels.cpu.model import fit as fitting
from mirage.kernels.cpu.model.cost import FEATURES
from mirage.kernels.cpu.model.fit import KEPT, Sample, coefficients, fit, keep, load, nnls
from mirage.kernels.cpu.processor import processor

TARGET = processor()
START = np.array(list(FEATURES.values()))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the measurements of this machine are kept."""
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path))
    return fitting._file(TARGET)[0]


def samples(truth: np.ndarray, count: int, factors: tuple[float, ...] = (1.0,), seed: int = 0) -> list[Sample]:
    """Random kernels whose times are what `truth` says, times a factor for each race."""
    rng = np.random.default_rng(seed)
    # every feature matters for some kernel
    counts = 10 ** rng.uniform(0, 4, (count, len(truth))) / START
    return [
        Sample(c, float(c @ truth) * factors[i % len(factors)], str(i % len(factors))) for i, c in enumerate(counts)
    ]


def best_subset(a: np.ndarray, b: np.ndarray) -> float:
    """The least residual of any nonnegative solution, by trying which unknowns are zero."""
    least = float(np.linalg.norm(b))
    for size in range(1, a.shape[1] + 1):
        for chosen in itertools.combinations(range(a.shape[1]), size):
            x = np.linalg.lstsq(a[:, chosen], b, rcond=None)[0]
            if (x >= 0).all():
                least = min(least, float(np.linalg.norm(a[:, chosen] @ x - b)))
    return least


@pytest.mark.parametrize("seed", range(20))
def test_nonnegative_least_squares_finds_the_least_residual(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(12, 5)), rng.normal(size=12)
    least = best_subset(a, b)
    for start in (None, rng.integers(0, 2, 5) * rng.uniform(0, 2, 5), np.ones(5)):
        x = nnls(a, b, start)
        assert (x >= 0).all()
        assert np.linalg.norm(a @ x - b) == pytest.approx(least, rel=1e-9)


def test_nonnegative_least_squares_of_known_answers() -> None:
    assert nnls(np.eye(3), np.array([1.0, -2.0, 3.0])).tolist() == [1.0, 0.0, 3.0]
    assert nnls(-np.eye(2), np.ones(2)).tolist() == [0.0, 0.0]
    a = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert nnls(a, a @ [2.0, 5.0]) == pytest.approx([2.0, 5.0])


def test_nothing_measured_leaves_what_is_known() -> None:
    assert fit([]).tolist() == START.tolist()
    assert fit([], 2 * START).tolist() == (2 * START).tolist()


def test_true_coefficients_are_found_whatever_the_races_had_of_the_cores() -> None:
    truth = START * np.exp(np.random.default_rng(1).normal(0, 0.7, len(START)))
    found = fit(samples(truth, 400, factors=(1.0, 3.0, 0.5)))
    # the unit is that of what was known before, as races only tell proportions
    ratios = np.log(found / truth)
    assert np.ptp(ratios) < 0.15
    assert np.ptp(np.log(START / truth)) > 1.5


def test_single_outliers_change_little() -> None:
    truth = START * np.exp(np.random.default_rng(2).normal(0, 0.5, len(START)))
    measured = samples(truth, 300)
    spoilt = [Sample(s.counts, s.ns * (20 if i % 30 == 0 else 1), s.race) for i, s in enumerate(measured)]
    assert np.abs(np.log(fit(spoilt) / fit(measured))).max() < 0.3


def test_features_that_nobody_measured_keep_their_cost() -> None:
    measured = [Sample(np.where(np.arange(len(START)) == 3, 0, s.counts), s.ns, s.race) for s in samples(START, 50)]
    assert fit(measured)[3] == pytest.approx(START[3])


def test_fitting_is_deterministic() -> None:
    measured = samples(2 * START, 60, factors=(1.0, 2.0))
    assert fit(measured).tolist() == fit(measured).tolist()


def test_measurements_are_kept_and_bounded(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(TARGET) == [] and coefficients(TARGET).tolist() == START.tolist()
    first, second = samples(START, 3), samples(START, 2, seed=5)
    keep(TARGET, first)
    keep(TARGET, second)
    found = load(TARGET)
    assert [s.ns for s in found] == [s.ns for s in (*first, *second)]
    assert found[0].counts == pytest.approx(first[0].counts, rel=1e-5)
    monkeypatch.setattr(fitting, "KEPT", 4)
    keep(TARGET, samples(START, 1, seed=6))
    assert len(load(TARGET)) == 4 < KEPT
    assert load(TARGET)[0].ns == first[2].ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        json.dumps({"machine": "another", "features": list(FEATURES), "samples": []}),
        json.dumps({"machine": str(TARGET), "features": ["launch"], "samples": []}),
        json.dumps({"machine": str(TARGET), "features": list(FEATURES), "samples": [[[1.0], 5.0, "a"]]}),
        json.dumps({"machine": str(TARGET), "features": list(FEATURES), "samples": [[[1.0] * len(START), -5.0, "a"]]}),
        json.dumps({"machine": str(TARGET), "features": list(FEATURES), "samples": [[[-1.0] * len(START), 5.0, "a"]]}),
        json.dumps({"machine": str(TARGET), "features": list(FEATURES), "samples": [[["x"] * len(START), 5.0, "a"]]}),
        '{"machine": "' + str(TARGET) + '", "features": ' + json.dumps(list(FEATURES)) + ', "samples": [[[NaN], 1, "a"]]}',
        "[" * 100_000,
    ],
)  # fmt: skip
def test_an_altered_file_is_not_used(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.warns(CorruptRecordWarning, match="delete it"):
        assert coefficients(TARGET).tolist() == START.tolist()
    # and what is measured next replaces it
    keep(TARGET, samples(START, 2))
    assert len(load(TARGET)) == 2


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "file" / "folder"))
    with pytest.warns(UserWarning, match="does not learn"):
        keep(TARGET, samples(START, 1))
