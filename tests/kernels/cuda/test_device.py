"""CUDA devices: targets, the table, what a device reports, occupancy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mirage.errors import UnknownTarget
from mirage.kernels.cuda import device
from mirage.kernels.cuda.device import DEVICES, CudaDevice, cuda_device, from_attributes, is_cuda, present_device

#: what an H200 reports
H200 = {
    "MultiProcessorCount": 132,
    "MaxSharedMemoryPerMultiprocessor": 233472,
    "MaxSharedMemoryPerBlockOptin": 232448,
    "ReservedSharedMemoryPerBlock": 1024,
    "MaxRegistersPerMultiprocessor": 65536,
    "MaxThreadsPerMultiProcessor": 2048,
    "MaxBlocksPerMultiprocessor": 32,
    "L2CacheSize": 62914560,
    "MemoryClockRate": 3201000,
    "GlobalMemoryBusWidth": 6144,
}

#: without the memory of what it found
_FIND = device.find_cupy.__wrapped__


class Runtime:
    """The part of CuPy that tells about devices."""

    def __init__(self, name: str, attributes: dict[str, int], count: int = 1, capability: str = "90") -> None:
        runtime = SimpleNamespace(
            getDeviceCount=lambda: count, getDevice=lambda: 0, getDeviceProperties=lambda i: {"name": name.encode()}
        )
        found = SimpleNamespace(attributes=attributes, compute_capability=capability)
        self.cuda = SimpleNamespace(runtime=runtime, Device=lambda i: found)


@pytest.fixture
def with_cupy(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Puts another module, or an error, in CuPy's place."""

    def put(cupy: Any) -> None:
        def find(name: str) -> Any:
            if isinstance(cupy, Exception):
                raise cupy
            return cupy

        monkeypatch.setattr(device, "import_module", find)
        monkeypatch.setattr(device, "find_cupy", _FIND)

    return put


@pytest.fixture
def absent(with_cupy: Callable[[Any], None]) -> None:
    with_cupy(ImportError("no CuPy"))


@pytest.mark.parametrize(("target", "name"), [("cuda:sm_80", "A100"), ("cuda:sm_90", "H200"), ("cuda:sm_100", "B200")])
def test_targets_of_the_table(absent: None, target: str, name: str) -> None:
    found = cuda_device(target)
    assert (found.name, found.target, found.present) == (name, target, False)
    assert found.arch in found.note and "table" in found.note


def test_cuda_without_a_device_is_an_entry_of_the_table_and_says_so(absent: None) -> None:
    assert present_device() is None
    assert cuda_device("cuda") is DEVICES["sm_90"]
    assert "no sm_90 device is at hand" in cuda_device().note


@pytest.mark.parametrize(
    "target",
    ["cuda:sm_75", "cuda:90", "cuda:sm_", "cuda:", "cuda:sm_90 ", "CUDA", "cpu", "", "xcuda:sm_90", "cuda:sm_9x"],
)
def test_unknown_targets_name_the_choices(absent: None, target: str) -> None:
    with pytest.raises(UnknownTarget, match="cuda, cuda:sm_80, cuda:sm_90, cuda:sm_100") as caught:
        cuda_device(target)
    assert repr(target) in str(caught.value)


def test_what_is_written_as_a_cuda_target() -> None:
    assert is_cuda("cuda") and is_cuda("cuda:sm_90") and is_cuda("cuda:sm_12")
    assert not is_cuda("cpu") and not is_cuda("cuda:h100") and not is_cuda("my cuda")


def test_the_device_at_hand(with_cupy: Callable[[Any], None]) -> None:
    with_cupy(Runtime("NVIDIA H200", H200))
    found = cuda_device("cuda")
    assert found.present and found.name == "NVIDIA H200" and found.number == 90
    assert (found.block_shared_bytes, found.l2_bytes) == (232448, 60 << 20)
    assert found.bandwidth == pytest.approx(4.917e12, rel=1e-3), "two transfers per clock over 6144 bits"
    assert found.flops == pytest.approx(DEVICES["sm_90"].flops)
    assert cuda_device("cuda:sm_90") == found, "the architecture at hand"
    assert not cuda_device("cuda:sm_80").present, "another one is of the table"


def test_an_architecture_that_the_table_lacks(with_cupy: Callable[[Any], None]) -> None:
    with_cupy(Runtime("L4", {**H200, "MultiProcessorCount": 54}, capability="89"))
    found = cuda_device("cuda:sm_89")
    assert found == cuda_device("cuda") and found.arch == "sm_89"
    assert found.flops["float16"] == pytest.approx(156e12), "half of an A100's, for half the multiprocessors"


def test_a_device_that_hides_its_clocks() -> None:
    hidden = {k: v for k, v in H200.items() if k != "MemoryClockRate"}
    assert from_attributes("H200", (9, 0), {**hidden, "MultiProcessorCount": 66}).bandwidth == pytest.approx(2.4e12)
    assert from_attributes("H200", (9, 0), {**H200, "MemoryClockRate": 0}).bandwidth == pytest.approx(4.8e12)


def test_a_device_that_is_too_old(with_cupy: Callable[[Any], None]) -> None:
    with_cupy(Runtime("V100", H200, capability="70"))
    with pytest.raises(UnknownTarget, match=r"V100 has compute capability 7\.0.*8\.0 or newer.*target='cpu'"):
        cuda_device("cuda")
    assert cuda_device("cuda:sm_90") is DEVICES["sm_90"], "for which one can compile"


@pytest.mark.parametrize("error", [ImportError("libcudart"), RuntimeError("no driver"), OSError("libcuda")])
def test_a_broken_driver_is_no_device(with_cupy: Callable[[Any], None], error: Exception) -> None:
    def fail() -> int:
        raise error

    broken = Runtime("", {})
    broken.cuda.runtime.getDeviceCount = fail
    with_cupy(broken)
    assert present_device() is None
    with_cupy(Runtime("", {}, count=0))
    assert present_device() is None


@pytest.mark.parametrize("entry", DEVICES.values(), ids=lambda d: d.name)
def test_the_table_is_consistent(entry: CudaDevice) -> None:
    assert entry.block_shared_bytes + entry.reserved_shared_bytes == entry.shared_bytes
    assert entry.flops["float16"] == entry.flops["bfloat16"] > entry.flops["tf32"] > entry.flops["float32"]
    assert entry.bandwidth < entry.l2_bandwidth
    assert 0 < entry.sustained_bandwidth < entry.bandwidth
    assert 0 < entry.sustained_flops("tf32") < entry.flops["tf32"]


def test_the_sustained_figures_are_those_measured() -> None:
    h200 = DEVICES["sm_90"]
    assert h200.sustained_bandwidth == pytest.approx(4.3e12, rel=0.02)
    assert h200.sustained_flops("bfloat16") == pytest.approx(790e12, rel=0.02)


@pytest.mark.parametrize(
    ("warps", "shared", "registers", "blocks"),
    [
        (4, 0, 32, 16),  # threads: 2048 / 128, registers too: 65536 / 4096
        (1, 0, 32, 32),  # blocks
        (4, 0, 128, 4),  # registers: 65536 / (128 * 128)
        (4, 0, 129, 3),  # given in units of 256 per warp
        (4, 100 << 10, 32, 2),  # shared memory: 228 / 101
        (4, 227 << 10, 32, 1),
        (4, (227 << 10) + 1, 32, 0),
        (8, 0, 255, 1),
        (16, 0, 255, 0),  # more registers than there are
    ],
)
def test_resident_blocks(warps: int, shared: int, registers: int, blocks: int) -> None:
    assert DEVICES["sm_90"].resident_blocks(warps, shared, registers) == blocks


@pytest.mark.gpu
def test_the_real_device() -> None:
    if device.find_cupy() is None:
        pytest.skip("no CUDA device, or CuPy is not installed")
    found = cuda_device("cuda")
    assert found.present and found.sms > 0 and found.number >= 80
    assert found.bandwidth > 1e11 and found.l2_bytes >= 1 << 20
