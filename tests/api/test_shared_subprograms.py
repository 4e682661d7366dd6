"""Equal subprograms of different models are searched once, whatever the names, the order of arguments and of dims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage import subprograms
from mirage.cache import ResultStore
from mirage.results.forms import StoredForms, StoredKernel
from mirage.results.stored import stored_in
from tests.api.small import BUDGET


def first(x: Any, w: Any, v: Any) -> Any:
    """A model whose adapter is between two sorts."""
    return mi.sort(mi.relu(mi.sort(x, axis=1) @ w) @ v, axis=1)


def second(down: Any, tokens: Any, up: Any) -> Any:
    """Another one, with the same adapter."""
    return mi.relu(mi.sort(tokens, axis=0) @ up) @ down


def _searches(store: ResultStore) -> set[str]:
    """The keys of what was found of programs; which forms run, and kernels made without a search, which ones depends on what is
    fast here, are other records.
    """
    return {r.key for r in store.records() if not isinstance(stored_in(r), StoredForms | StoredKernel)}


@pytest.mark.slow
def test_a_model_has_what_was_found_for_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recalled: list[bool] = []

    def asked(*args: Any, **options: Any) -> Any:
        result = mi.superoptimize(*args, **options)
        recalled.append(result.cache_hit)
        return result

    monkeypatch.setattr(subprograms, "superoptimize", asked)
    store = ResultStore(f"sqlite:///{tmp_path}/store.sqlite")
    n, r, s, t = 8, 4, "rows", "tokens"
    mi.compile(first, {"x": mi.tensor(s, n), "w": mi.tensor(n, r), "v": mi.tensor(r, n)}, budget=BUDGET, cache=store)
    kept = _searches(store)
    assert kept and not any(recalled)
    recalled.clear()
    specs = {"down": mi.tensor(r, n), "tokens": mi.tensor(t, n), "up": mi.tensor(n, r)}
    b = mi.compile(second, specs, budget=BUDGET, cache=store)
    assert recalled and all(recalled)
    assert _searches(store) == kept, "nothing was searched"
    rng = np.random.default_rng(0)
    down, tokens, up = (rng.standard_normal(shape).astype(np.float32) for shape in ((r, n), (5, n), (n, r)))
    want = np.maximum(np.sort(tokens, axis=0) @ up, 0) @ down
    np.testing.assert_allclose(b(down, tokens, up), want, rtol=1e-4, atol=1e-5)
