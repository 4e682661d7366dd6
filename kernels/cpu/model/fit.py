"""The cost model's coefficients, fitted to kernels that were measured on this machine.

Tuning measures kernels anyway: what the model counted for them and how long they took is kept in the cache folder, and
the next model is fitted to it. A machine of which nothing is known yet has the coefficients of `FEATURES`.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np

from mirage.cache import CorruptRecordWarning
from mirage.errors import DegradedWarning, FormatError, MirageError
from mirage.folders import write_whole
from mirage.ir.codec import above_zero, at_least, decode, encode, read_json
from mirage.kernels.cpu.model.cost import FEATURES
from mirage.kernels.cpu.processor import Processor
from mirage.settings import cache_dir

#: measurements kept per machine: the latest
KEPT = 1000
#: weight of the known coefficients, in measurements: features that no kernel exercised keep them. With less, kernels of
#: programs that were not measured are ordered worse
_PRIOR = 0.1
#: relative errors from which a measurement counts less: others may have had the cores
_OUTLIER = 0.3
#: steps of the fit, which ends sooner where nothing changes by more than this share
_STEPS, _SAME = 30, 1e-3


@dataclass(frozen=True)
class Sample:
    """A measured muGraph: the model's counts [features], and the nanoseconds of a call.

    Those of one `race` were measured in turns: a busy machine slowed all of them alike.
    """

    counts: np.ndarray
    ns: float
    race: str


def nnls(a: np.ndarray, b: np.ndarray, start: np.ndarray | None = None) -> np.ndarray:
    """The x >= 0 for which |a x - b| is least, by the active-set method (Lawson and Hanson, 1974, chapter 23).

    `a` is [m, n] of full column rank and well conditioned, as its normal equations are solved; `b` is [m]. It is found sooner
    from a `start` >= 0 [n] that is positive where the answer is (by default zeros).
    """
    n = a.shape[1]
    gram, right = a.T @ a, a.T @ b
    x = np.zeros(n) if start is None else start
    passive = x > 0
    tolerance = 1e-10 * float(np.abs(right).max(initial=0.0))
    gradient = right
    first = bool(passive.any())
    while first or (not passive.all() and gradient[~passive].max() > tolerance):
        if not first:
            passive[np.argmax(np.where(passive, -np.inf, gradient))] = True
        first = False
        while True:
            trial = np.zeros(n)
            trial[passive] = np.linalg.solve(gram[np.ix_(passive, passive)], right[passive])
            negative = passive & (trial <= 0)
            if not negative.any():
                break
            # as far towards the trial as all stay positive
            step = (x[negative] / (x[negative] - trial[negative])).min()
            x = x + step * (trial - x)
            passive &= x > 1e-14 * max(float(x.max()), 1e-300)
            x[~passive] = 0.0
        x = trial
        gradient = right - gram @ x
    return x


def fit(samples: Sequence[Sample], known: np.ndarray | None = None) -> np.ndarray:
    """Coefficients, in ns per feature, whose estimates are in the proportions of the times measured in each race.

    Least squares of the logarithms, less those of a factor per race, by Gauss-Newton steps that each solve a nonnegative
    problem. Outliers count less, by Cauchy's weights. `known` (by default the coefficients of `FEATURES`) are what the
    answer is drawn to, weakly: they decide about features that no sample has or that always go together, and the unit.
    """
    prior = np.array(list(FEATURES.values())) if known is None else known
    # a graph that only returns inputs has nothing that the model counts
    samples = [s for s in samples if s.counts.any()]
    if not samples:
        return prior
    # in multiples of the known ones, so that all features weigh alike
    counts = np.array([s.counts for s in samples]) * prior
    times = np.log([s.ns for s in samples])
    races = np.unique([s.race for s in samples], return_inverse=True)[1]
    sizes = np.bincount(races)
    found, solved = np.ones(len(prior)), None
    for _ in range(_STEPS):
        estimates = counts @ found
        errors = times - np.log(estimates)
        errors -= (np.bincount(races, errors) / sizes)[races]
        weights = 1 / np.sqrt(1 + (errors / _OUTLIER) ** 2)
        relative = counts / estimates[:, None]
        # what a factor for the race would do is no news
        relative -= np.array([np.bincount(races, column) for column in relative.T]).T[races] / sizes[races][:, None]
        target = relative @ found + errors
        # what is many times as dear as it was thought to be is not drawn back the harder for it
        anchor = np.sqrt(_PRIOR) / np.maximum(found, 1.0)
        a = np.vstack([relative * weights[:, None], np.diag(anchor)])
        b = np.concatenate([target * weights, anchor])
        solved = nnls(a, b, solved)
        before, found = found, np.sqrt(np.maximum(solved, 1e-6) * found)
        if np.abs(found - before).max() <= _SAME * np.abs(found).max():
            break
    return prior * found


def coefficients(target: Processor) -> np.ndarray:
    """The coefficients fitted to what was measured on this machine so far."""
    return fit(load(target))


def load(target: Processor) -> list[Sample]:
    """What was measured on this machine; nothing, and a CorruptRecordWarning, where the file was altered."""
    file, machine = _file(target)
    if not file.exists():
        return []
    try:
        found = decode(_Kept, read_json(file), str(file))
        if found.machine != machine or found.features != tuple(FEATURES):
            raise FormatError(f"{file}: of another machine or version")
    except MirageError as e:
        warnings.warn(
            f"{e}; not used: delete it, and measurements are collected anew", CorruptRecordWarning, stacklevel=2
        )
        return []
    return [Sample(np.array(counts, float), ns, race) for counts, ns, race in found.samples]


def _check_counts(counts: Sequence[float]) -> None:
    if len(counts) != len(FEATURES):
        raise ValueError(f"{len(FEATURES)} counts")


_Counts: TypeAlias = Annotated[tuple[Annotated[float, at_least(0)], ...], _check_counts]


@dataclass(frozen=True)
class _Kept:
    """What is kept of a machine; each sample has its counts, nanoseconds and race."""

    machine: str
    features: tuple[str, ...]
    samples: tuple[tuple[_Counts, Annotated[float, above_zero], str], ...]


def keep(target: Processor, samples: Sequence[Sample]) -> None:
    """Add measurements of this machine to those kept; the latest stay. Does nothing where the folder cannot be written."""
    file, machine = _file(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptRecordWarning)
        kept = [*load(target), *samples][-KEPT:]
    rows = tuple((tuple(float(f"{c:.6g}") for c in s.counts), s.ns, s.race) for s in kept)
    record = encode(_Kept(machine, tuple(FEATURES), rows))
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(file, json.dumps(record))
    except OSError as e:
        warnings.warn(f"{file}: cannot be written ({e.strerror}); the cost model does not learn", DegradedWarning, stacklevel=2)


def _file(target: Processor) -> tuple[Path, str]:
    """Where the measurements of a machine are kept, and its description."""
    machine = str(target)
    return cache_dir() / f"model-{hashlib.sha256(machine.encode()).hexdigest()[:16]}.json", machine
