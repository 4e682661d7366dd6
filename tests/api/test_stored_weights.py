"""Weights of products stored in 16 and 8 bits: `weights=` of `mirage.compile`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mirage as mi
from mirage.errors import InputError

K, N = 96, 80
RNG = np.random.default_rng(0)
W, V, B = (RNG.standard_normal(s).astype(np.float32) for s in ((K, N), (N, 50), (N,)))
SPECS = {"x": mi.tensor("m", K), "w": mi.tensor(K, N), "b": mi.tensor(N), "v": mi.tensor(N, 50)}
OPTIONS: Any = {"without": ("superoptimize",), "cache": False}


def network(x: Any, w: Any, b: Any, v: Any) -> Any:
    return mi.silu(x @ w + b) @ v


def narrow(w: np.ndarray, group: int) -> np.ndarray:
    parts = w.astype(np.float64).reshape(-1, group or len(w), w.shape[1])
    scale = np.abs(parts).max(1, keepdims=True) / 127
    return np.asarray((np.rint(parts / scale) * scale).reshape(w.shape))


@pytest.mark.parametrize(("weights", "groups"), [("int8", (0, 0)), ("int8/32", (32, None)), ("int8/128", (None, None))])
def test_every_size_is_that_of_the_stored_weights(weights: str, groups: tuple[int | None, ...]) -> None:
    """A weight whose terms are no multiple of a group stays as it is."""
    run = mi.compile(network, SPECS, constants=("w", "v"), weights=weights, **OPTIONS)
    assert str(run.program).count("cpu.narrowed_matmul") == sum(g is not None for g in groups)
    w, v = (a if g is None else narrow(a, g) for a, g in zip((W, V), groups, strict=True))
    for m in (0, 1, 7, 40):
        x = RNG.standard_normal((m, K)).astype(np.float32)
        y = x @ w + B
        np.testing.assert_allclose(run(x, W, B, V), (y / (1 + np.exp(-y))) @ v, rtol=1e-3, atol=1e-3)


def test_a_search_and_a_file_keep_it(tmp_path: Path) -> None:
    run = mi.compile(network, SPECS, constants=("w", "v"), weights="int8", budget=1, cache=False)
    path = tmp_path / "program.mirage"
    run.save(path)
    x = RNG.standard_normal((3, K)).astype(np.float32)
    found = run(x, W, B, V)
    np.testing.assert_array_equal(mi.load_executable(path)(x, W, B, V), found)
    y = x @ narrow(W, 0) + B
    np.testing.assert_allclose(found, (y / (1 + np.exp(-y))) @ narrow(V, 0), rtol=1e-3, atol=1e-3)


def test_weights_of_bfloat16(tmp_path: Path) -> None:
    run = mi.compile(network, SPECS, constants=("w", "v"), weights="bfloat16", **OPTIONS)
    assert str(run.program).count("cpu.narrowed_matmul") == 2
    run.save(tmp_path / "program.mirage")
    w, v = (a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in (W, V))
    for m in (0, 1, 7, 40):
        x = RNG.standard_normal((m, K)).astype(np.float32)
        y = x @ w + B
        found = run(x, W, B, V)
        np.testing.assert_allclose(found, (y / (1 + np.exp(-y))) @ v, rtol=1e-3, atol=1e-3)
        np.testing.assert_array_equal(mi.load_executable(tmp_path / "program.mirage")(x, W, B, V), found)


def test_what_changes_between_calls_is_not_stored() -> None:
    run = mi.compile(network, SPECS, weights="int8", **OPTIONS)
    assert "narrowed" not in str(run.program)
    wide = {n: mi.tensor(*(t.shape), dtype="float64") for n, t in SPECS.items()}
    assert "narrowed" not in str(mi.compile(network, wide, constants=("w", "v"), weights="int8", **OPTIONS).program)


@pytest.mark.parametrize("weights", ["int4", "int8/7", "", None, 8, "float16"])
def test_other_types_are_refused(weights: Any) -> None:
    with pytest.raises(InputError, match="weights are stored as float32, bfloat16, int8, int8/32, int8/128"):
        mi.compile(network, SPECS, constants=("w",), weights=weights, **OPTIONS)


def test_only_processors_have_it() -> None:
    with pytest.raises(InputError, match="weights='int8' is for processors; leave it out for target='cuda:sm_90'"):
        mi.compile(network, SPECS, constants=("w",), weights="int8", target="cuda:sm_90", **OPTIONS)
