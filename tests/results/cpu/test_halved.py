"""Symmetric products with half of the work, from the search to what is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import MirageError
from mirage.ir.codec import read_json
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.profile import Timing
from mirage.results.cpu.result import Superoptimized
from mirage.search import cold, explore, tune, versions
from tests.api.small import BUDGET


def halves(r: Superoptimized) -> list[Any]:
    assert r.best.candidate is not None and r.best.candidate.schedule is not None
    return [k.halved for k in r.best.candidate.schedule.kernels]


def fast_halves(calls: Mapping[str, Any], **_: Any) -> dict[str, Timing]:
    """Stands for a race, which kernels with half of the work win."""

    def us(call: Any) -> float:
        kernel = getattr(call, "func", None)
        if not isinstance(kernel, CpuExecutable):
            return 10.0
        return 1.0 if any(k.halved for k in kernel.schedule.kernels) else 5.0

    return {name: Timing(us(c), us(c), 5) for name, c in calls.items()}


def schedules(stored: Any) -> Iterator[dict[str, Any]]:
    """The schedules of kernels in what was stored."""
    if isinstance(stored, dict):
        if "tiles" in stored:
            yield stored
        stored = list(stored.values())
    if isinstance(stored, list):
        for x in stored:
            yield from schedules(x)


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuExecutable, "prepared", lambda self, inputs, sizes: partial(self, inputs, sizes))
    monkeypatch.setattr(tune, "interleave", fast_halves)
    monkeypatch.setattr(versions, "interleave", fast_halves)
    monkeypatch.setattr(cold, "in_both_states", lambda *_: {})
    monkeypatch.setattr(tune, "keep", lambda *_: None)
    monkeypatch.setattr(explore, "FAR", 1e6)
    # on another machine, the halved one may come late
    monkeypatch.setattr(tune, "MAX_KERNELS", 32)
    monkeypatch.setattr(versions, "FAR", 1e6)


def test_a_search_finds_it_and_it_is_kept_saved_and_loaded(races: None, tmp_path: Path) -> None:
    program = mi.trace(lambda x: mi.relu(x @ x.mT), x=mi.tensor("n", 24))
    store = mi.cache.ResultStore(f"sqlite:///{tmp_path}/results.db")
    found = mi.superoptimize(program, sizes={"n": 200}, budget=BUDGET, cache=store)
    # with other names
    alike = mi.trace(lambda a: mi.relu(a @ a.mT), a=mi.tensor("m", 24))
    again = mi.superoptimize(alike, sizes={"m": 200}, budget=BUDGET, cache=store)
    found.save(tmp_path / "gram.json")
    loaded = mi.load(tmp_path / "gram.json")
    assert again.cache_hit
    for r in (found, again, loaded):
        assert isinstance(r, Superoptimized) and any(halves(r))
        x = np.random.default_rng(0).standard_normal((77, 24)).astype("f4")
        np.testing.assert_allclose(r(x), np.maximum(x.astype("f8") @ x.T.astype("f8"), 0), atol=1e-4)
    assert any(a and a != b for a, b in zip(halves(found), halves(again), strict=True))


def test_half_of_what_is_not_symmetric_is_not_loaded(races: None, tmp_path: Path) -> None:
    program = mi.trace(lambda x, b: mi.relu(x @ x.mT + b), x=mi.tensor("n", 24), b=mi.tensor("n"))
    found = mi.superoptimize(program, sizes={"n": 200}, budget=BUDGET, cache=False)
    assert not any(halves(found))
    path = tmp_path / "look-alike.json"
    found.save(path)
    stored = read_json(path)
    kernels = list(schedules(stored))
    assert kernels
    for k in kernels:
        k["halved"] = ["n", "n_2"]
    path.write_text(json.dumps(stored))
    with pytest.raises(MirageError, match="n and n_2 are halved"):
        mi.load(path)(np.ones((8, 24), "f4"), np.ones(8, "f4"))
