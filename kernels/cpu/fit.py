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

import numpy as np

from mirage.cache import CorruptRecordWarning
from mirage.folders import write_whole
from mirage.kernels.cpu.model import FEATURES
from mirage.kernels.target import Target
from mirage.settings import cache_dir

#: measurements kept per machine: the latest
KEPT = 2000
#: how much the known coefficients count, in measurements: what no kernel exercised keeps them
_PRIOR = 2.0
#: a coefficient stays within this factor of the known one: features that go together share their cost sensibly
_RANGE = 20.0


@dataclass(frozen=True)
class Sample:
    """A measured muGraph: the model's counts [features], and the nanoseconds of a call."""

    counts: np.ndarray
    ns: float


def nnls(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The x >= 0 for which |a x - b| is least, by the active-set method (Lawson and Hanson, 1974, chapter 23).

    `a` is [m, n] of full column rank, `b` [m].
    """
    n = a.shape[1]
    x = np.zeros(n)
    passive = np.zeros(n, bool)
    tolerance = 1e-10 * float(np.abs(a).max(initial=0.0)) * float(np.abs(b).max(initial=0.0)) * max(a.shape)
    gradient = a.T @ b
    while not passive.all() and gradient[~passive].max() > tolerance:
        passive[np.argmax(np.where(passive, -np.inf, gradient))] = True
        while True:
            trial = np.zeros(n)
            trial[passive] = np.linalg.lstsq(a[:, passive], b, rcond=None)[0]
            negative = passive & (trial <= 0)
            if not negative.any():
                break
            # as far towards the trial as all stay positive
            step = (x[negative] / (x[negative] - trial[negative])).min()
            x = x + step * (trial - x)
            passive &= x > 1e-14 * max(float(x.max()), 1e-300)
            x[~passive] = 0.0
        x = trial
        gradient = a.T @ (b - a @ x)
    return x


def fit(samples: Sequence[Sample], known: np.ndarray | None = None) -> np.ndarray:
    """Coefficients, in ns per feature, by which relative errors of the samples are least.

    `known` (by default those of `FEATURES`) are what they are drawn to, weakly: they decide about features that no
    sample has, or that always go together.
    """
    prior = np.array(list(FEATURES.values())) if known is None else known
    if not samples:
        return prior
    # in multiples of the known ones, so that all features weigh alike
    rows = np.array([s.counts * prior / s.ns for s in samples])
    weight = np.sqrt(_PRIOR)
    a = np.vstack([rows, weight * np.eye(len(prior))])
    b = np.concatenate([np.ones(len(samples)), np.full(len(prior), weight)])
    found: np.ndarray = prior * np.clip(nnls(a, b), 1 / _RANGE, _RANGE)
    return found


def coefficients(target: Target) -> np.ndarray:
    """The coefficients fitted to what was measured on this machine so far."""
    return fit(load(target))


def load(target: Target) -> list[Sample]:
    """What was measured on this machine; nothing, and a CorruptRecordWarning, where the file was altered."""
    file, machine = _file(target)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["machine"] != machine or found["features"] != list(FEATURES):
            raise ValueError("it is of another machine or version")
        samples = [Sample(np.array(counts, float), float(ns)) for counts, ns in found["samples"]]
        for s in samples:
            if s.counts.shape != (len(FEATURES),) or not (np.isfinite(s.counts) & (s.counts >= 0)).all():
                raise ValueError("counts are malformed")
            if not 0 < s.ns < float("inf"):
                raise ValueError(f"{s.ns} is no time")
        return samples
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as e:
        warnings.warn(
            f"{file}: not used: {e}; delete it, and measurements are collected anew", CorruptRecordWarning, stacklevel=2
        )
        return []


def keep(target: Target, samples: Sequence[Sample]) -> None:
    """Add measurements of this machine to those kept; the latest stay. Does nothing where the folder cannot be written."""
    file, machine = _file(target)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptRecordWarning)
        kept = [*load(target), *samples][-KEPT:]
    rows = [[[float(f"{c:.6g}") for c in s.counts], s.ns] for s in kept]
    record = {"machine": machine, "features": list(FEATURES), "samples": rows}
    try:
        write_whole(file, json.dumps(record))
    except OSError as e:
        warnings.warn(f"{file}: cannot be written ({e.strerror}); the cost model does not learn", stacklevel=2)


def _file(target: Target) -> tuple[Path, str]:
    """Where the measurements of a machine are kept, and its description."""
    machine = str(target)
    return cache_dir() / f"model-{hashlib.sha256(machine.encode()).hexdigest()[:16]}.json", machine
