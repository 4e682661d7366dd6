"""CUDA graphs and timing on a fake device, and on the real one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mirage.errors import BudgetError, DeviceError, InputError
from mirage.kernels import profile as timing
from mirage.kernels.cuda.device import DEVICES, cuda_device
from mirage.kernels.cuda.launch import graphs, profile
from mirage.kernels.cuda.launch.graphs import CudaGraph
from mirage.kernels.cuda.launch.profile import Repeated, cold_copies, interleave, rotation
from tests.kernels.cuda import examples
from tests.kernels.cuda.lab import Lab, from_gpu, on_gpu, real

SIZES = {"m": 3, "n": 20}


def test_a_graph_runs_its_calls_in_order(lab: Lab) -> None:
    scale, total = lab.executable(examples.scale()), lab.executable(examples.total(), n=60)
    x, w = lab.random(3, 20), lab.random(20)
    first = scale.bind([x, w], SIZES)
    second = total.bind([first.results[0].reshape(-1)], {"n": 60})
    graph = CudaGraph([first, second])
    lab.cupy.launches.clear()
    x[...] = np.random.default_rng(7).standard_normal(x.shape)
    graph.launch()
    assert [one.kernel.name for one in lab.cupy.launches] == ["scale", "partial_sums", "add_up"]
    ((y,), (s,)) = graph.results
    np.testing.assert_array_equal(y, x * w)
    assert float(s) == pytest.approx(np.sum(x * w, dtype=np.float64), abs=1e-4)


def test_recording(lab: Lab) -> None:
    """It waits for the caller's stream, loads everything first, and takes memory of its own."""
    bound = lab.executable(examples.scale()).bind([lab.random(3, 20), lab.random(20)], SIZES)
    CudaGraph([bound])
    assert lab.cupy.order == ["own memory", "wait", "synchronize", "shared memory"]
    assert [one.stream for one in lab.cupy.launches] == [1000], "run once, and recorded on the same stream"


class Handle:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 44


def test_streams_of_a_graph(lab: Lab) -> None:
    bound = lab.executable(examples.scale()).bind([lab.random(3, 20), lab.random(20)], SIZES)
    graph = CudaGraph([bound])
    lab.cupy.launches.clear()
    with lab.cupy._stream(3):
        graph.launch()
    graph.launch(Handle())
    assert [one.stream for one in lab.cupy.launches] == [3, 44]
    with pytest.raises(InputError, match="no CUDA stream"):
        graph.launch("default")


def test_no_graphs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="graph of 0 calls"):
        CudaGraph([])
    bound = lab.executable(examples.scale()).bind([lab.random(3, 20), lab.random(20)], SIZES)
    other = lab.executable(examples.scale()).bind([lab.random(3, 20), lab.random(20)], SIZES)
    other.device = 1
    with pytest.raises(InputError, match="2 calls on 2 devices"):
        CudaGraph([bound, other])
    lab.cupy.fails = RuntimeError("cudaErrorStreamCaptureInvalidated")
    with pytest.raises(DeviceError, match=r"cudaErrorStreamCaptureInvalidated.*one by one"):
        CudaGraph([bound])
    monkeypatch.setattr(graphs, "find_cupy", lambda: None)
    with pytest.raises(DeviceError, match="none is at hand"):
        CudaGraph([bound])


def test_an_error_while_recording_ends_the_recording(lab: Lab) -> None:
    bound = lab.executable(examples.scale()).bind([lab.random(3, 20), lab.random(20)], SIZES)
    calls = iter([None, ZeroDivisionError])

    def fails() -> None:
        if error := next(calls):
            raise error

    bound.launch = fails  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        CudaGraph([bound])
    assert lab.cupy.recording is None


@pytest.fixture
def clock(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes by while the device works: 2 us for a launch."""
    lab.cupy.milliseconds = 0.002
    monkeypatch.setattr(timing, "perf_counter_ns", lambda: round(1e6 * lab.cupy.clock))


@pytest.mark.usefixtures("clock")
def test_timing_is_of_the_device(lab: Lab) -> None:
    bound = lab.executable(examples.scale()).bind([lab.random(3, 20), lab.random(20)], SIZES)
    slow = CudaGraph([bound] * 3)
    times = interleave({"one": bound.launch, "three": slow.launch}, seconds=0.001)
    assert times["one"].min_us == times["one"].median_us == pytest.approx(2)
    assert times["three"].median_us == pytest.approx(6) and times["three"].runs >= 5


@pytest.mark.usefixtures("clock")
def test_a_rotation_has_the_time_of_one_call(lab: Lab) -> None:
    run = lab.executable(examples.scale())
    copies = [run.bind([lab.random(3, 20, seed=i), lab.random(20)], SIZES) for i in range(3)]
    turning = rotation(copies)
    assert turning.calls == 21
    lab.cupy.launches.clear()
    turning()
    order = [one.values["x"] for one in lab.cupy.launches]
    assert len(order) == 21 and order[:3] == order[3:6] and len(set(order)) == 3
    assert interleave({"cold": turning}, seconds=0.001)["cold"].median_us == pytest.approx(2)
    assert interleave({"own": Repeated(turning.launch, 7)}, seconds=0.001)["own"].median_us == pytest.approx(6)


def test_copies_beyond_the_cache() -> None:
    h200 = DEVICES["sm_90"]
    assert cold_copies(60 << 20, h200) == 3
    assert cold_copies(1 << 20, h200) == 180
    assert cold_copies(1, h200) == cold_copies(0, h200) == profile.MAX_COPIES
    assert cold_copies(1 << 40, h200) == 1


def test_no_timing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BudgetError, match="positive number of seconds"):
        interleave({}, seconds=0)
    monkeypatch.setattr(profile, "find_cupy", lambda: None)
    with pytest.raises(DeviceError, match="CuPy finds none"):
        interleave({}, seconds=1)


@pytest.mark.gpu
def test_graphs_and_timing_on_the_device(cupy: Any) -> None:
    n = 1 << 24
    run = real(examples.scale(block=1024), "float32", m=1, n=n)
    sizes = {"m": 1, "n": n}
    copies = [[on_gpu(cupy, 1, n, seed=i), on_gpu(cupy, n, seed=i)] for i in range(3)]
    bound = [run.bind(c, sizes) for c in copies]
    graph = CudaGraph(bound)
    for c in copies:
        c[0] *= 2
    graph.launch()
    for c, (y,) in zip(copies, graph.results, strict=True):
        np.testing.assert_allclose(from_gpu(y), from_gpu(c[0]) * from_gpu(c[1]), rtol=1e-6)
    times = interleave({"cold": rotation(bound), "eager": bound[0].launch}, seconds=1.0)
    floor_us = 12 * n / cuda_device("cuda").bandwidth * 1e6
    assert floor_us < times["cold"].median_us < 4 * floor_us


@pytest.mark.gpu
def test_a_graph_with_tensors_between_kernels_on_the_device(cupy: Any) -> None:
    run = real(examples.total(), "float32", n=1 << 20)
    x = on_gpu(cupy, 1 << 20)
    graph = CudaGraph([run.bind([x], {"n": 1 << 20})])
    for _ in range(3):
        x += 1
        graph.launch()
        assert float(graph.results[0][0]) == pytest.approx(from_gpu(x).sum(), rel=1e-4)
