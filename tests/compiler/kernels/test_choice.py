"""Of several kernels of one program, the one that is measured to be the fastest runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

import mirage as mi
from mirage.compiler.kernels import choice
from mirage.compiler.kernels.mugraph import MuGraphKernel
from mirage.kernels.profile import Timing

PROGRAM = mi.trace(lambda x, w: mi.relu(x @ w), "f", x=mi.tensor("b", 8), w=mi.tensor(8, 4))
SIZES = [{"b": 1}, {"b": 16}]


def choose(monkeypatch: pytest.MonkeyPatch, us: Callable[[str, Mapping[str, int]], float]) -> str:
    """The choice between two kernels of such times, both of which run."""

    def interleave(runs: Mapping[str, partial[Any]], **_: Any) -> dict[str, Timing]:
        for run in runs.values():
            run()
        return {name: Timing(t, t, 1) for name, run in runs.items() if (t := us(name, run.args[1]))}

    monkeypatch.setattr(choice, "interleave", interleave)
    kernels = {name: MuGraphKernel.of_library(PROGRAM) for name in ("found", "fused")}
    return choice.fastest(PROGRAM, kernels, SIZES, 1.0)


def test_the_faster_one_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in ("found", "fused"):
        assert choose(monkeypatch, lambda name, sizes, wanted=wanted: 1.0 if name == wanted else 2.0) == wanted  # type: ignore[misc]


def test_the_geometric_mean_over_all_sizes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # 4 times as fast at one size, 3 times as slow at the other
    times = {("found", 1): 1.0, ("fused", 1): 4.0, ("found", 16): 300.0, ("fused", 16): 100.0}
    assert choose(monkeypatch, lambda name, sizes: times[name, sizes["b"]]) == "found"
