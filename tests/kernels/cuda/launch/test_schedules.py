"""Tensor descriptors and packed constants on a fake device: which kernels run, scratch memory, lives of copies."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu.interpret.interpreter import Interpreter
from mirage.errors import ScheduleError
from mirage.kernels import copies
from mirage.kernels.cuda.arguments import contiguous, shapes
from mirage.kernels.cuda.arguments import described as is_described
from mirage.kernels.cuda.device import DEVICES, cuda_device
from mirage.kernels.cuda.emit.mugraph import emit, with_descriptors
from mirage.kernels.cuda.launch.executable import CudaExecutable
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule, CudaSchedule
from tests.kernels.cuda.fake_cupy import FakeArray
from tests.kernels.cuda.interpreted import Interpreted
from tests.kernels.cuda.lab import Lab, from_gpu, on_gpu
from tests.mugraph.graphs import gated

SIZES = {"m": 20, "n": 40, "k": 24}
SCHEDULE = CudaSchedule((CudaKernelSchedule((("m", 16), ("n", 32), ("k", 16))),))
GRAPH = replace(gated().graph, dtype="float16")


@pytest.fixture
def place(lab: Lab, interpreter: Interpreter) -> Lab:
    lab.cupy.runner = Interpreted(lab.cupy, interpreter)
    return lab


def made(schedule: CudaSchedule, constants: tuple[str, ...] = ()) -> CudaExecutable:
    return CudaExecutable(GRAPH, emit(GRAPH, schedule), DEVICES["sm_90"], SIZES, constants)


def given(lab: Lab, sizes: dict[str, int] = SIZES) -> list[Any]:
    m, n, k = (sizes[s] for s in "mnk")
    return [lab.random(*shape, dtype="float16", seed=i) for i, shape in enumerate(((m, k), (k, n), (k, n)))]


def check(run: CudaExecutable, arrays: list[Any], sizes: dict[str, int] = SIZES) -> None:
    (found,) = run(arrays, sizes)
    x, w, u = (a.astype(np.float64) for a in arrays)
    y = x @ w
    np.testing.assert_allclose(found.astype(np.float64), y / (1 + np.exp(-y)) * (x @ u), rtol=2e-2, atol=2e-2)


# tensor descriptors


def used(lab: Lab) -> bool:
    """Whether the last kernel has descriptors."""
    _, request = lab.cupy.compiled[lab.cupy.launches[-1].kernel.folder]
    return "make_tensor_descriptor" in request.source


def described(lab: Lab) -> CudaExecutable:
    run = made(with_descriptors(GRAPH, SCHEDULE))
    # kernels without descriptors have folders of other names
    assert "make_tensor_descriptor" in run.source
    return run


def test_arrays_that_descriptors_describe(place: Lab) -> None:
    run = described(place)
    check(run, given(place))
    assert used(place)
    wide = place.random(20, 32, dtype="float16")
    check(run, [wide[:, :24], *given(place)[1:]])
    assert used(place), "rows may be apart, by whole 16 bytes"


def test_scratch_memory_for_every_block_and_descriptor(place: Lab) -> None:
    place.metadata = {"global_scratch_size": 4 * 128, "global_scratch_align": 128}
    check(described(place), given(place))
    (launched,) = place.cupy.launches
    assert launched.grid == (4, 1, 1)
    address, none = launched.scratch
    assert address % 128 == 0 and none == 0
    (start, size) = next((s, n) for s, n in place.cupy.memory if s <= address < s + n)
    assert address + 4 * 4 * 128 <= start + size


def odd_rows(lab: Lab) -> list[Any]:
    return [lab.random(20, 25, dtype="float16")[:, :24], *given(lab)[1:]]


def odd_address(lab: Lab) -> list[Any]:
    return [lab.random(20 * 24 + 1, dtype="float16")[1:].reshape(20, 24), *given(lab)[1:]]


def one_row(lab: Lab) -> list[Any]:
    return [np.broadcast_to(lab.random(1, 24, dtype="float16"), (20, 24)).view(FakeArray), *given(lab)[1:]]


@pytest.mark.parametrize("arrays", (odd_rows, odd_address, one_row))
def test_other_arrays_get_pointers(place: Lab, arrays: Any) -> None:
    run = described(place)
    check(run, arrays(place))
    assert not used(place)
    check(run, given(place))
    assert used(place)


def test_results_at_odd_addresses_get_pointers(place: Lab) -> None:
    run = described(place)
    out = place.cupy.empty((20 * 40 + 1,), np.float16)[1:].reshape(20, 40)
    run(given(place), SIZES, [out])
    assert not used(place)


def test_sizes_that_descriptors_do_not_describe(place: Lab) -> None:
    run = described(place)
    sizes = {**SIZES, "k": 37}
    check(run, given(place, sizes), sizes)
    assert not used(place)
    emitted = run.emitted
    for n, expected in ((24, True), (37, False), (0, False)):
        at = {**SIZES, "k": n}
        strides = [contiguous(s) for s in shapes(emitted, at)]
        assert is_described(emitted, at, strides, range(4)) is expected
        assert not is_described(emitted, at, strides, (0, 1, 2)), "the result's address is odd"


# packed constants

PACKED = CudaSchedule((replace(SCHEDULE.kernels[0], packed=((1, "k"), (2, "n"))),))


def count(run: CudaExecutable) -> int:
    return sum(map(len, run._copies))


def test_constants_are_packed_once(place: Lab) -> None:
    run = made(with_descriptors(GRAPH, PACKED), ("w", "u"))
    sizes = {"m": 20, "n": 37, "k": 21}
    x, w, u = given(place, sizes)
    check(run, [x, w, u], sizes)
    first = place.cupy.launches[-1].values
    assert first["p1_n"] == 24 and first["p2_k"] == 40, "rows of whole 16 bytes"
    assert not used(place), "rows of x are not"
    check(run, [place.random(20, 21, dtype="float16", seed=5), w, u], sizes)
    second = place.cupy.launches[-1].values
    assert (second["p1"], second["p2"]) == (first["p1"], first["p2"]) and second["p0"] != first["p0"]
    check(run, [x, w[:, :], u], sizes)
    assert place.cupy.launches[-1].values["p1"] == first["p1"], "a view of the same memory"
    assert count(run) == 2


@pytest.mark.parametrize("sizes", [SIZES, {"m": 3, "n": 5, "k": 7}, {"m": 16, "n": 41, "k": 24}])
def test_what_a_call_launches_can_be_compiled_before(place: Lab, sizes: dict[str, int]) -> None:
    run = made(CudaSchedule((replace(SCHEDULE.kernels[0], descriptors=(0, 1, 2)),)))
    before = len(place.requests)
    wanted = run.requests(sizes)
    run(given(place, sizes), sizes)
    assert place.requests[before:] == wanted
    assert ("make_tensor_descriptor" in wanted[0].source) is (sizes is SIZES)


def test_any_layout_of_constants_is_packed_without_another_copy(place: Lab) -> None:
    run = made(PACKED, ("w", "u"))
    x, w, u = given(place)
    turned = place.cupy.empty((40, 24), np.float16)
    turned[...] = w.T
    before = len(place.cupy.allocated)
    check(run, [x, turned.T, u])
    assert len(place.cupy.allocated) == before, "no kernel reads the array itself"


def test_copies_live_as_long_as_arrays(place: Lab) -> None:
    run = made(PACKED, ("w", "u"))
    x, w, u = given(place)
    layers = [place.random(24, 40, dtype="float16", seed=s) for s in range(3)]
    for layer in layers:
        check(run, [x, layer, u])
    check(run, [x, w[:, :], u])
    assert count(run) == 5
    del layer, layers
    gc.collect()
    assert count(run) == 2
    run.forget()
    assert count(run) == 0
    w[...] = 0
    (found,) = run([x, w, u], SIZES)
    assert not found.any(), "packed again, as somebody wrote to it"


def test_copies_on_devices_are_bounded(place: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LIMIT", 2)
    run = made(PACKED, ("w", "u"))
    x, _, u = given(place)
    layers = [place.random(24, 40, dtype="float16", seed=s) for s in range(4)]
    for layer in layers:
        check(run, [x, layer, u])
    assert count(run) == 3


def test_bound_calls_keep_their_copies(place: Lab) -> None:
    run = made(PACKED, ("w", "u"))
    x, w, u = given(place)
    call = run.bind([x, w, u], SIZES)
    run.forget()
    gc.collect()
    call.launch()
    want = run([x, w, u], SIZES)[0]
    np.testing.assert_array_equal(call.results[0], want)


def test_only_constants_are_packed(place: Lab) -> None:
    with pytest.raises(ScheduleError, match="the schedule packs w, which is not constant"):
        made(PACKED, ("u",))


# on a device

TILED = CudaSchedule((CudaKernelSchedule((("m", 64), ("n", 64), ("k", 64))),))
NAMED: dict[str, dict[str, Any]] = {
    "pointers": {},
    "grouped": {"group": 4, "order": ("n", "m")},
    "swapped": {"swap": True},
    "described": {"descriptors": (0, 1, 2, 3)},
    "described, grouped": {"descriptors": (0, 1, 2, 3), "group": 8},
    "described, swapped": {"descriptors": (0, 1, 2, 3), "swap": True},
    "packed": {"packed": ((1, "k"), (2, "n")), "descriptors": (1, 2)},
}


@pytest.mark.parametrize("name", NAMED)
def test_choices_on_what_stands_for_a_device(place: Lab, name: str) -> None:
    run = made(CudaSchedule((replace(TILED.kernels[0], **NAMED[name]),)), ("w", "u"))
    for sizes in ({"m": 200, "n": 136, "k": 72}, {"m": 77, "n": 67, "k": 93}):
        check(run, given(place, sizes), sizes)
        assert used(place) is (bool(NAMED[name].get("descriptors")) and (name == "packed" or sizes["n"] == 136))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize(
    "sizes", [{"m": 256, "n": 512, "k": 384}, {"m": 200, "n": 328, "k": 136}, {"m": 77, "n": 331, "k": 93}]
)
def test_choices_on_a_device(cupy: Any, name: str, sizes: dict[str, int]) -> None:
    """Each choice computes the same; with odd rows, the kernels without descriptors."""
    device = cuda_device("cuda")
    choice = NAMED[name]
    schedule = CudaSchedule((replace(TILED.kernels[0], **choice),))
    run = CudaExecutable(GRAPH, emit(GRAPH, schedule), device, sizes, ("w", "u"))
    m, n, k = (sizes[s] for s in "mnk")
    arrays = [on_gpu(cupy, *s, dtype="float16", seed=i) for i, s in enumerate(((m, k), (k, n), (k, n)))]
    x, w, u = (from_gpu(a) for a in arrays)
    y = x @ w
    wanted = y / (1 + np.exp(-y)) * (x @ u)
    for _ in range(3):
        (found,) = run(arrays, sizes)
        np.testing.assert_allclose(from_gpu(found), wanted, rtol=1e-2, atol=1e-2 * np.abs(wanted).max())
