"""The benchmark of kernels: its rows, its limits, and what its command line refuses."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from itertools import count
from typing import Any

import numpy as np
import pytest

import benchmarks.kernels.race as benchmark
import mirage as mi
from benchmarks.kernels.race import (
    KernelRow,
    Race,
    _within_limits,
    better,
    check,
    compare,
    examined_elsewhere,
    kernel_table,
    measure,
    row,
    summary,
)
from benchmarks.programs import BATCH, KERNELS, PROGRAMS, WEIGHTS, batch_of, kernel_sizes
from mirage.errors import InputError, VerificationError
from mirage.ir.interpret import run_reference
from mirage.kernels.cpu.model.limits import Limits
from mirage.kernels.cpu.processor import processor
from mirage.kernels.profile import Timing
from mirage.results.cpu.result import Superoptimized
from tests.modelled import modelled

SIZES = {"m": 6, "n": 40}


@pytest.fixture(scope="module")
def result() -> Superoptimized:
    return modelled(PROGRAMS["softmax"].trace(), SIZES)


def one_peer(error: float) -> Any:
    """`peers` with the program itself, and an error, as the only one."""

    def peers(program: Any, inputs: list[np.ndarray], *_: object, **__: object) -> dict[str, Any]:
        sizes = dict(zip(SIZES, inputs[0].shape, strict=True))
        return {"PyTorch": lambda: run_reference(program, inputs, sizes)[0] + np.float32(error)}

    return peers


def test_a_race_hot_and_cold(result: Superoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "peers", one_peer(0.0))
    evictions: list[bool] = []
    hot, cold = compare("tiny", SIZES, result, lambda: evictions.append(True), seconds=0.05)
    assert (hot.cold, cold.cold) == (False, True)
    assert len(evictions) >= sum(t.runs for t in cold.times.values())
    for r in (hot, cold):
        assert (r.program, r.sizes, r.batch) == ("softmax", "tiny", 1)
        assert set(r.times) == {"mirage", "mirage out=", "reference", "library", "PyTorch"}
        # 6 x 40 values in and out
        assert r.cost[0] == 2 * 240 * 4
        assert (r.kind, r.kernels) == ("mugraph", 1)
        assert min(t.runs for t in r.times.values()) >= 5
        assert r.given == {"mirage out="}


def test_a_wrong_peer_is_left_out(result: Superoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    def peers(*args: Any, **options: Any) -> dict[str, Any]:
        return one_peer(0.0)(*args, **options) | {"JAX": one_peer(0.01)(*args, **options)["PyTorch"]}

    monkeypatch.setattr(benchmark, "peers", peers)
    said: list[str] = []
    for r in compare("tiny", SIZES, result, lambda: None, seconds=0.05, say=said.append):
        assert "PyTorch" in r.times and "JAX" not in r.times
    assert any("softmax tiny: JAX is not raced: it differs from float64 by" in line for line in said)


def test_a_race_without_peers_is_none(result: Superoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "peers", one_peer(0.01))
    with pytest.raises(VerificationError, match="softmax tiny: no peer is left"):
        compare("tiny", SIZES, result, lambda: None, seconds=0.05, say=lambda _: None)


def test_a_peer_that_is_right_only_before_it_is_timed(result: Superoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    def peers(program: Any, inputs: list[np.ndarray], *_: object, **__: object) -> dict[str, Any]:
        honest, calls = one_peer(0.0)(program, inputs)["PyTorch"], count()
        return {"PyTorch": honest, "JAX": lambda: honest() + np.float32(0.01 * (next(calls) >= 2))}

    monkeypatch.setattr(benchmark, "peers", peers)
    said: list[str] = []
    for r in compare("tiny", SIZES, result, lambda: None, seconds=0.05, say=said.append):
        assert "PyTorch" in r.times and "JAX" not in r.times
    assert len(said) == 1, "it is refused once, and not raced again"


def test_peers_that_compute_the_measured_sizes_only_are_left_out(
    result: Superoptimized, monkeypatch: pytest.MonkeyPatch
) -> None:
    def peers(program: Any, inputs: list[np.ndarray], *_: object, **__: object) -> dict[str, Any]:
        honest = one_peer(0.0)(program, inputs)["PyTorch"]
        only = one_peer(0.0 if inputs[0].shape == (6, 40) else 0.01)(program, inputs)["PyTorch"]
        return {"PyTorch": honest, "JAX": only}

    monkeypatch.setattr(benchmark, "peers", peers)
    said: list[str] = []
    refused = examined_elsewhere(result, said.append)
    assert refused == {"JAX"} and "softmax at {'m': 3, 'n': 5}: JAX is not raced" in said[0]
    for r in compare("tiny", SIZES, result, lambda: None, seconds=0.05, without=refused):
        assert "PyTorch" in r.times and "JAX" not in r.times


def test_ours_is_examined_elsewhere(result: Superoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Superoptimized.__call__

    def only(self: Superoptimized, *inputs: np.ndarray, **options: Any) -> Any:
        return honest(self, *inputs, **options) * np.float32(1.0 if inputs[0].shape == (6, 40) else 0.5)

    monkeypatch.setattr(benchmark, "peers", one_peer(0.0))
    monkeypatch.setattr(Superoptimized, "__call__", only)
    with pytest.raises(VerificationError, match=r"softmax at \{'m': 3, 'n': 5\}: mirage: it differs from float64"):
        examined_elsewhere(result, lambda _: None)


def test_sizes_are_raced_again_where_moving_alone_was_slower() -> None:
    said: list[str] = []
    slow, fast = ({"moving, by a loop": Timing(us, us, 5)} for us in (11.0, 10.0))
    results = iter([[a_race(), a_race(True, **slow)], [a_race(), a_race(True, **fast)], []])
    assert _within_limits(lambda: next(results), said.append)[1].times["moving, by a loop"].min_us == 10.0
    assert len(said) == 1
    always = iter([[a_race(True, **slow)]] * 3)
    assert _within_limits(lambda: next(always), said.append) and next(always, None) is None


def test_a_wrong_result_of_ours_is_an_error(result: Superoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "peers", one_peer(0.0))
    monkeypatch.setattr(Superoptimized, "reference", lambda *_: [np.zeros((6, 40), np.float32)])
    with pytest.raises(VerificationError, match="softmax tiny: reference: it differs from float64"):
        compare("tiny", SIZES, result, lambda: None, seconds=0.05)


def test_a_peer_whose_copy_fails_is_not_raced(result: Superoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()

    def peers(program: Any, inputs: list[np.ndarray], *_: object, **__: object) -> dict[str, Any]:
        found = one_peer(0.0)(program, inputs)
        return found | ({"torch.compile": found["PyTorch"]} if next(calls) == 0 else {})

    monkeypatch.setattr(benchmark, "peers", peers)
    for r in compare("tiny", SIZES, result, lambda: None, seconds=0.05):
        assert "torch.compile" not in r.times


TIMES = {
    "mirage": Timing(10.0, 20.0, 5),
    "mirage out=": Timing(8.0, 16.0, 6),
    "reference": Timing(1.0, 1.0, 5),
    "library": Timing(1.0, 1.0, 5),
    "PyTorch": Timing(30.0, 40.0, 5),
    "JAX": Timing(25.0, 50.0, 5),
}
MIB = 1 << 20


def a_race(cold: bool = False, **times: Timing) -> Race:
    given = frozenset(["mirage out="])
    return Race("softmax", "default", 1, cold, (MIB, 0), "mugraph", 2, TIMES | times, given)


def test_a_row_names_the_best_peer_by_median_and_compares_all_minima() -> None:
    limits = Limits(10.0, 100.0, 1e9, 2)
    found = row(a_race(), limits)
    assert (found.ours_us, found.ours_min_us) == (20.0, 10.0)
    assert (found.best_peer, found.best_peer_us, found.best_peer_min_us, found.ratio) == ("PyTorch", 40.0, 30.0, 2.0)
    assert found.ratio_min == 25 / 10, "the least minimum of a peer is JAX's"
    assert (found.given, found.calls) == (False, 5)
    assert found.limit_us == pytest.approx(MIB / 100e9 * 1e6)
    assert found.limit_share == pytest.approx(found.limit_us / 10)
    assert found.times["PyTorch"] == (30.0, 40.0)
    cold = row(a_race(cold=True), limits)
    assert cold.limit_us == pytest.approx(MIB / 10e9 * 1e6), "memory's, although the caches hold it"


def test_ours_puts_its_result_where_the_best_peer_puts_its_own() -> None:
    limits = Limits(10.0, 100.0, 1e9, 2)
    given = row(replace(a_race(PyTorch=Timing(30.0, 40.0, 9)), given=frozenset(["mirage out=", "PyTorch"])), limits)
    assert (given.ours_us, given.ours_min_us, given.ratio, given.given, given.calls) == (16.0, 8.0, 2.5, True, 6)
    other = row(replace(a_race(), given=frozenset(["mirage out=", "JAX"])), limits)
    assert (other.best_peer, other.ours_us, other.given) == ("PyTorch", 20.0, False)


def test_what_no_cache_holds_is_limited_by_moving_it_in_the_same_race() -> None:
    limits = Limits(10.0, 100.0, 100.0, 2)
    read = {"moving, by one loop": Timing(5.0, 16.0, 5), "moving, by another": Timing(6.0, 7.0, 5)}
    large = replace(a_race(False, **read), cost=(1 << 40, 0))
    for race in (large, a_race(True, **read)):
        found = row(race, limits)
        assert (found.limit_us, found.limit_share) == (5.0, 5 / 10)
        assert (found.best_peer, found.ratio_min) == ("PyTorch", 25 / 10), "moving is no peer"
    assert row(a_race(False, **read), limits).limit_us == pytest.approx(MIB / 100e9 * 1e6), "the caches hold it"
    computing = replace(a_race(True, **read), cost=(MIB, 600_000))
    assert row(computing, limits).limit_us == pytest.approx(6.0), "arithmetic alone takes 6 us"


def test_a_limit_that_was_passed_is_none() -> None:
    limits = Limits(10.0, 100.0, 1e9, 2)
    moving = {"moving, by a loop": Timing(10.4, 11.0, 5)}
    check([row(a_race(True, **moving), limits)])
    with pytest.raises(VerificationError, match=r"limit: softmax default cold \(106%\); measure these again"):
        check([row(a_race(True, **{"moving, by a loop": Timing(10.6, 11.0, 5)}), limits)])


def test_a_row_has_the_names_that_readers_of_its_json_use() -> None:
    read = json.loads(json.dumps(asdict(row(a_race(), Limits(1.0, 1.0, 1.0, 1)))))
    assert {"program", "batch", "cold", "ours_us", "best_peer", "best_peer_us", "ratio", "limit_share"} <= set(read)


def test_the_better_limits_count() -> None:
    assert better(Limits(1, 20, 3, 2), Limits(10, 2, 30, 2)) == Limits(10, 20, 30, 2)


def rows(*ratios: float) -> list[KernelRow]:
    limits = Limits(10.0, 100.0, 1e9, 2)
    made = [
        a_race(cold=bool(i % 2), PyTorch=Timing(1e3, 20.0 * r, 5), JAX=Timing(1e3, 1e3, 5))
        for i, r in enumerate(ratios)
    ]
    return [row(r, limits) for r in made]


def test_summary() -> None:
    text = summary(rows(4.0, 1.0, 1.0, 0.94))
    mean, hot, cold = (math.prod(r) ** (1 / len(r)) for r in ((4.0, 1.0, 1.0, 0.94), (4.0, 1.0), (1.0, 0.94)))
    assert f"over 4 rows: {mean:.2f} (all rows), {hot:.2f} (cache-hot), {cold:.2f} (cache-cold)" in text
    assert text.endswith("Rows below 0.95: 1.")
    assert "nan" not in summary(rows(1.0, 0.95)) and summary(rows(1.0, 0.95)).endswith("Rows below 0.95: 0.")


def test_table() -> None:
    table = kernel_table(rows(2.0, 0.5))
    assert all(len(cells) == len(table.header) for cells in table.rows)
    assert [cells[table.header.index("caches")] for cells in table.rows] == ["hot", "cold"]
    assert [cells[table.header.index("ratio")] for cells in table.rows] == ["2.00", "0.50"]


def test_names_of_no_program_are_refused() -> None:
    with pytest.raises(InputError, match=r"no measured program is named softmin; choose from rmsnorm_linear"):
        measure(["softmax", "softmin"])


def test_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "installed", lambda say: [])
    with pytest.raises(InputError, match="no peer is installed; run pip"):
        measure(["softmax"])


def test_every_program_is_measured_at_both_batches() -> None:
    for name, function in KERNELS.items():
        sets = kernel_sizes(function)
        batches = {batch_of(name, sizes) for sizes in sets.values()}
        assert {1, BATCH} <= batches if name not in ("softmax", "layer_norm", "rms_norm") else batches == {1}
        assert all(set(sizes) == set(function.symbols) for sizes in sets.values())
        assert function.sizes.items() <= sets.items(), "the program's own sets"
    assert batch_of("moe", kernel_sizes(KERNELS["moe"])["batch16"]) == 16
    attention = kernel_sizes(KERNELS["gqa_decode"])
    assert attention["decode batch8"] == {**attention["decode"], "b": 8}


def test_weights_are_inputs() -> None:
    for name, weights in WEIGHTS.items():
        assert set(weights) < set(KERNELS[name].trace().input_names)


def test_limits_of_the_rows_are_this_machine(result: Superoptimized, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole command on one small program, with limits measured at its start and at its end."""
    measured = iter([Limits(10.0, 90.0, 500.0, 2), Limits(9.0, 100.0, 400.0, 2)])
    monkeypatch.setattr(benchmark, "measure_limits", lambda force: next(measured))
    monkeypatch.setattr(benchmark, "peers", one_peer(0.0))
    monkeypatch.setattr(benchmark, "kernel_sizes", lambda _: {"tiny": SIZES})
    monkeypatch.setattr(benchmark, "RACE", 0.05)
    # caches of hundreds of megabytes take seconds to fill
    monkeypatch.setattr(benchmark, "processor", lambda: replace(processor(), l3_bytes=8 << 20))
    monkeypatch.setattr(mi, "superoptimize", lambda *_, **__: result)
    said: list[str] = []
    found, limits = measure(["softmax"], say=said.append)
    assert limits == Limits(10.0, 100.0, 500.0, 2)
    assert [(r.program, r.cold) for r in found] == [("softmax", False), ("softmax", True)]
    assert found[1].limit_us >= found[0].limit_us == pytest.approx(found[0].limit_share * found[0].ours_min_us)
    assert any(line.startswith("softmax tiny cold: ") for line in said)
    assert processor().cache_bytes > 2 * 240 * 4
