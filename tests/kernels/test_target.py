"""The target: what Linux says about the processor, fallbacks, unknown names."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from mirage.errors import UnknownTarget
from mirage.kernels.cpu.processor import processor
from mirage.kernels.cpu.target import CpuTarget
from mirage.kernels.cuda.target import CudaTarget
from mirage.kernels.target import get_target

KIB, MIB = 1 << 10, 1 << 20
X86 = (
    "processor\t: 0\nmodel name\t: Some CPU @ 3 GHz: fast\nflags\t\t: fpu sse2 {}\n\n"
    "processor\t: 1\nmodel name\t: Other\n"
)
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"


def write_caches(cpus: Path, cpu: int, caches: list[tuple[str, str, str]], sharers: str = "0") -> None:
    """Cache folders of a processor: (level, type, size)."""
    for i, (level, kind, size) in enumerate(caches):
        folder = cpus / f"cpu{cpu}" / "cache" / f"index{i}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", sharers)):
            (folder / name).write_text(f"{text}\n")


CACHES = [("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2M"), ("3", "Unified", "36864K")]


@pytest.mark.parametrize(("flags", "vector"), [("avx avx2 avx512f", 64), ("avx avx2", 32), ("sse4_2", 16)])
def test_linux_on_x86(tmp_path: Path, flags: str, vector: int) -> None:
    write_caches(tmp_path, 0, CACHES)
    (tmp_path / "cpuinfo").write_text(X86.format(flags))
    t = processor(tmp_path, tmp_path / "cpuinfo")
    assert (t.name, t.cpu) == ("cpu", "Some CPU @ 3 GHz: fast")
    assert (t.l1_bytes, t.l2_bytes, t.l3_bytes) == (48 * KIB, 2 * MIB, 36 * MIB)
    assert t.vector_bytes == vector
    assert t.cache_bytes == 36 * MIB


def test_arm_without_a_third_level(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_NUM_THREADS", "4")
    write_caches(tmp_path, 0, CACHES[:3])
    (tmp_path / "cpuinfo").write_text(ARM)
    t = processor(tmp_path, tmp_path / "cpuinfo")
    assert (t.l3_bytes, t.vector_bytes, t.cores) == (0, 16, 4)
    assert t.cpu, "named by Python where Linux does not"
    assert t.cache_bytes == 4 * 2 * MIB


def test_several_third_level_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All those of the usable processors count; processor 6 is not usable, 5 shares with 4."""
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 4, 5}, raising=False)
    for cpu, sharers in ((0, "0-3"), (4, "4-5"), (5, "4-5"), (6, "6-7")):
        write_caches(tmp_path, cpu, CACHES, sharers)
    assert processor(tmp_path, tmp_path / "none").l3_bytes == 2 * 36 * MIB


def test_other_systems(tmp_path: Path) -> None:
    t = processor(tmp_path / "none", tmp_path / "none")
    assert (t.l1_bytes, t.l2_bytes, t.l3_bytes, t.vector_bytes) == (32 * KIB, 512 * KIB, 8 * MIB, 16)
    assert t.cpu


@pytest.mark.parametrize("size", ["", "K", "many", "0K"])
def test_a_cache_of_unreadable_size(tmp_path: Path, size: str) -> None:
    write_caches(tmp_path, 0, [("1", "Data", size), *CACHES[2:]])
    (tmp_path / "cpuinfo").write_bytes(b"\xff no colon\n")
    t = processor(tmp_path, tmp_path / "cpuinfo")
    assert (t.l1_bytes, t.l2_bytes, t.l3_bytes) == (32 * KIB, 512 * KIB, 8 * MIB)


def test_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_NUM_THREADS", "3")
    t = processor()
    assert t == processor()
    assert (t.name, t.cores) == ("cpu", 3)
    assert 4 * KIB <= t.l1_bytes <= t.l2_bytes
    assert t.vector_bytes in (16, 32, 64)
    with pytest.raises(FrozenInstanceError):
        t.cores = 1  # type: ignore[misc]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_cuda_needs_no_device(arch: str) -> None:
    target = get_target(f"cuda:{arch}")
    assert isinstance(target, CudaTarget)
    assert (target.device.arch, target.name) == (arch, f"cuda:{arch}")
    assert isinstance(get_target("cuda"), CudaTarget)
    assert isinstance(get_target("cpu"), CpuTarget) and get_target("cpu").name == "cpu"


@pytest.mark.parametrize("name", ["tpu", "CPU", "cpu:0", "", "cuda:", "cuda:sm_90 ", "cuda:sm_7", "cuda:90", "cuda:0", None, 5])
def test_unknown_targets(name: str) -> None:
    with pytest.raises(UnknownTarget, match=r"does not exist; choose one of (cpu, )?cuda, cuda:sm_80"):
        get_target(name)
