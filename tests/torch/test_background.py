"""Superoptimization beside calls: what was found replaces what runs, between calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import mirage.torch  # noqa: E402
from mirage.cache import ResultStore  # noqa: E402


def norm(x: Any, weight: Any) -> Any:
    return torch.nn.functional.silu(x @ weight) * x.sum(-1, keepdim=True)


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


def check(run: Any, *args: Any) -> None:
    torch.testing.assert_close(run(*args), norm(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_what_was_found_is_swapped_in_and_kept(tmp_path: Path) -> None:
    store = ResultStore(f"sqlite:///{tmp_path}/results.sqlite")
    run = mirage.torch.compile(norm, budget=3, cache=store)
    x, weight = torch.randn(6, 16), torch.randn(16, 16)
    check(run, x, weight)
    before = run.programs[0].graph
    assert run.wait(240), "the search in the background does not end"
    assert run.programs[0].graph is not before, run.explain()
    assert "superoptimized in the background in" in run.explain()
    assert store.list()
    for n in (1, 6, 9):
        check(run, torch.randn(n, 16), weight)
    run.close()


def test_a_closed_model_runs_what_it_has() -> None:
    run = mirage.torch.compile(norm, budget=60, cache=False)
    x, weight = torch.randn(6, 16), torch.randn(16, 16)
    check(run, x, weight)
    run.close()
    assert run.wait(60), "the process beside does not end"
    assert "not superoptimized: closed" in run.explain()
    check(run, x, weight)


def test_without_a_search_nothing_runs_beside() -> None:
    run = mirage.torch.compile(norm, without=("superoptimize",), cache=False)
    check(run, torch.randn(6, 16), torch.randn(16, 16))
    assert run.wait(0) and "not superoptimized" in run.explain()
