"""The race of Relay's models: ours compute what PyTorch's do, and its table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.flow import relay  # noqa: E402
from benchmarks.flow.relay import COMPILED, EAGER, OURS, RelayRow, measure, relay_table  # noqa: E402
from benchmarks.graphs.relay import MODELS, Model, arrays_of, with_arrays  # noqa: E402
from mirage.errors import InputError, VerificationError  # noqa: E402
from mirage.frontends.functions import trace_module  # noqa: E402
from mirage.ir.graph.interpret import run_module  # noqa: E402


def small(name: str) -> list[Any]:
    args = MODELS[name].arguments(np.random.default_rng(1))
    return [a[:3] if isinstance(a, list) else a for a in args]


def flat(found: Any) -> list[Any]:
    return [a for f in found for a in flat(f)] if isinstance(found, list | tuple) else [np.asarray(found)]


@pytest.mark.parametrize("name", MODELS)
def test_models_are_those_of_pytorch(name: str) -> None:
    model, args = MODELS[name], small(name)
    wanted = model.torch(*(with_arrays(a, lambda x: torch.from_numpy(x).double()) for a in args))
    found = run_module(trace_module(model.ours, model.specs), args, wide=True)
    assert len(flat(found)) == len(flat(wanted))
    for f, w in zip(flat(found), flat(wanted), strict=True):
        np.testing.assert_allclose(f, w, rtol=1e-6, atol=1e-9)


def test_states_and_steps_change_and_weights_do_not() -> None:
    args = MODELS["LSTM"].arguments(np.random.default_rng(1))
    arrays = [a for x in args for a in arrays_of(x)]
    assert relay._changing(arrays) == [True] * 34 + [False] * 2


def test_a_name_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="no model is named BERT; choose from CharRNN, TreeLSTM"):
        list(measure(["BERT"]))


def test_table() -> None:
    times = {OURS: 100.0, EAGER: 400.0, COMPILED: 200.0}
    rows = [
        RelayRow("RNN", "3 steps", times, {n: t / 2 for n, t in times.items()}, 1.25),
        RelayRow("MLP", "2 layers", {OURS: 2000.0, EAGER: 1000.0}, {OURS: 1500.0, EAGER: 900.0}, 0.5, {COMPILED: "it is wrong"}),
    ]
    assert [r.ratio for r in rows] == [2.0, 0.5]
    table = relay_table(rows)
    assert table.header == ["model", "of", "PyTorch, us", "torch.compile, us", "Mirage, us", "ratio", "compile, s"]
    assert table.rows == [
        ["RNN", "3 steps", "400 (200)", "200 (100)", "100 (50)", "2.00", "1.2"],
        ["MLP", "2 layers", "1,000 (900)", "", "2,000 (1,500)", "0.50", "0.5"],
        ["mean of times over ours", "", "1.41", "2.00", "1.00", "1.00", ""],
    ]


@pytest.mark.slow
def test_a_wrong_result_of_ours_is_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    right = MODELS["MLP"]
    wrong = Model("MLP", lambda layers, x: right.ours(layers, x) + 1, right.specs, right.torch, right.arguments, "wrong")
    monkeypatch.setattr(relay, "MODELS", {"MLP": wrong})
    with pytest.raises(VerificationError, match="MLP: it differs"):
        list(measure(["MLP"], say=lambda line: None, seconds=0.1))
