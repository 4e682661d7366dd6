"""Calls of whole programs that are recorded as CUDA graphs and replayed, on a device that is not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mirage as mi
from benchmarks.graphs.programs import SMALL
from mirage.errors import InputError
from tests.api.cuda_programs import QUICK, SCALED, compiled, executable, interpreter, numbers, scaled, softmax
from tests.kernels.cuda.strict_lab import StrictLab, strict

__all__ = ["executable", "interpreter", "strict"]

pytest.importorskip("triton", reason="CUDA kernels are compiled by Triton; pip install triton")


def test_the_second_equal_call_is_recorded_and_the_third_replayed(strict: StrictLab, executable: mi.Executable) -> None:
    assert "the second call with equal sizes and addresses is recorded" in executable.explain()
    x, w = numbers(strict, 5, 8), numbers(strict, 8, 8, seed=1)
    streams = []
    for call in range(5):
        x[...] = call / 4
        before = len(strict.cupy.launches)
        y, _ = executable(x, w)
        streams.append([launch.stream for launch in strict.cupy.launches[before:]])
        np.testing.assert_allclose(y.get(), softmax(x.get(), w.get()), 1e-5)
    once = len(streams[0])
    assert [len(s) for s in streams] == [once, 2 * once, once, once, once]
    # 1000 is the stream of recordings, which runs everything once before
    assert streams[1] == [1000] * once + [0] * once


def test_results_belong_to_the_caller(strict: StrictLab, executable: mi.Executable) -> None:
    x, w = numbers(strict, 5, 8), numbers(strict, 8, 8, seed=1)
    results = []
    for call in range(4):
        x[...] = call / 4
        results.append((executable(x, w), softmax(x.get(), w.get()), x.get()))
    for (y, same), wanted, given in results:
        np.testing.assert_allclose(y.get(), wanted, 1e-5)
        np.testing.assert_array_equal(same.get(), given, "not the argument itself, which has changed since")


def test_other_sizes_and_addresses_replay_graphs_of_their_own(strict: StrictLab, executable: mi.Executable) -> None:
    w = numbers(strict, 8, 8, seed=1)
    arrays = [numbers(strict, n, 8, seed=n) for n in (5, 7, 5, 16, 1)]
    for _ in range(4):
        for x in arrays:
            np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)
    # through its strides, at the address of another one
    turned = arrays[0].T[:, :1].T
    assert turned.data.ptr == arrays[0].data.ptr
    np.testing.assert_allclose(executable(turned, w)[0].get(), softmax(turned.get(), w.get()), 1e-5)


def test_few_graphs_are_kept(strict: StrictLab, executable: mi.Executable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.runtime.replay.KEPT", 2)
    w, arrays = numbers(strict, 8, 8, seed=1), [numbers(strict, n, 8, seed=n) for n in range(1, 6)]
    for _ in range(3):
        for x in arrays:
            np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)
    assert executable._device is not None
    (on,) = executable._device._streams.values()
    assert on.replays is not None and len(on.replays._graphs) == 2
    executable.release()
    np.testing.assert_allclose(executable(arrays[0], w)[0].get(), softmax(arrays[0].get(), w.get()), 1e-5)


def test_calls_that_a_device_cannot_record_run_one_by_one(strict: StrictLab, executable: mi.Executable) -> None:
    strict.cupy.fails = None
    x, w = numbers(strict, 5, 8), numbers(strict, 8, 8, seed=1)
    executable(x, w)
    strict.cupy.fails = RuntimeError("cudaErrorStreamCaptureInvalidated")
    for _ in range(3):
        np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)
    assert executable._device is not None
    (on,) = executable._device._streams.values()
    assert on.replays is not None and "cudaErrorStreamCaptureInvalidated" in on.replays.refused


def test_streams_have_memory_of_their_own(strict: StrictLab, executable: mi.Executable) -> None:
    x, w = numbers(strict, 5, 8), numbers(strict, 8, 8, seed=1)
    for _ in range(3):
        executable(x, w)
        with strict.cupy._stream(12):
            before = len(strict.cupy.launches)
            np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)
            assert strict.cupy.launches[-1].stream == 12
    assert executable._device is not None
    assert {handle for _, handle in executable._device._streams} == {0, 12}
    assert len(strict.cupy.launches) > before


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("select_rows", "boolean_mask is no kernel"),
        ("refinement", "how often step runs is in the data"),
        ("cache_update", "update_slice_ is a Python function"),
    ],
)
def test_explaining_says_why_there_is_no_graph(name: str, why: str) -> None:
    executable = compiled(SMALL[name])
    assert "CUDA graphs: none" in executable.explain()
    assert why in executable.explain() and why in executable.to_json()["graphs"]


def test_sizes_without_bounds_are_launched_one_by_one(strict: StrictLab) -> None:
    executable = mi.compile(scaled, SCALED, **QUICK)
    assert "sizes without bounds take memory that grows" in executable.explain()
    w = numbers(strict, 8, 8, seed=1)
    for n in (3, 40, 5, 40):
        x = numbers(strict, n, 8, seed=n)
        np.testing.assert_allclose(executable(x, w)[0].get(), softmax(x.get(), w.get()), 1e-5)


def test_an_index_out_of_range_is_reported_also_by_a_replayed_call(strict: StrictLab) -> None:
    specs = {"table": mi.tensor("n", 8), "ids": mi.tensor("m", dtype="int64")}
    executable = mi.compile(lambda table, ids: mi.take(table, ids, axis=0) * 2, specs, bounds={"n": 9, "m": 9}, **QUICK)
    table, ids = numbers(strict, 5, 8), strict.cupy.asarray(np.array([0, 4, -5]))
    for _ in range(3):
        np.testing.assert_array_equal(executable(table, ids).get(), table.get()[ids.get()] * 2)
    ids[1] = 5
    for _ in range(2):
        with pytest.raises(InputError, match=r"index 5 is out of range for a dim of 5 elements"):
            executable(table, ids)
    ids[1] = 1
    np.testing.assert_array_equal(executable(table, ids).get(), table.get()[ids.get()] * 2)


def test_constants_are_prepared_again_when_they_are_forgotten(strict: StrictLab) -> None:
    specs = {"x": mi.tensor("n", 8), "w": mi.tensor(8, 4), "g": mi.tensor(4)}
    executable = mi.compile(lambda x, w, g: mi.exp(x @ (w * g)), specs, bounds={"n": 512}, constants=("w", "g"), **QUICK)
    assert executable.parameters == ("x", "w", "g") and "prepare" in executable.explain()
    x, w, g = (strict.cupy.asarray(np.ones(s, np.float32)) for s in ((2, 8), (8, 4), (4,)))
    for _ in range(3):
        np.testing.assert_allclose(executable(x, w, g).get(), np.exp(8), 1e-5)
    w[...] = 0
    executable.forget()
    np.testing.assert_array_equal(executable(x, w, g).get(), 1)


def test_constants_of_a_program_are_copied_once(strict: StrictLab, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.arange(40, dtype=np.float32).reshape(5, 8)
    executable = mi.compile(lambda x: mi.exp(x @ table.T) @ table, {"x": mi.tensor("n", 8)}, bounds={"n": 8}, **QUICK)
    x = numbers(strict, 3, 8) / 40
    wanted = np.exp(x.get().astype(np.float64) @ table.T) @ table
    copied: list[int] = []
    asarray = strict.cupy.asarray

    def noted(a: Any, *more: Any) -> Any:
        copied.append(a.size)
        return asarray(a, *more)

    monkeypatch.setattr(strict.cupy, "asarray", noted)
    for stream in (0, 12, 0, 12, 0):
        with strict.cupy._stream(stream):
            np.testing.assert_allclose(executable(x).get(), wanted, 1e-5)
    assert copied.count(40) == len(executable.program.constants) > 0
