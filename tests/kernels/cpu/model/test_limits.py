"""The machine's measured limits, their file, and the limit of a program."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.kernels.cpu.model import limits as module
from mirage.kernels.cpu.model.limits import Limits, limit_us, measure_limits, memory_movers, program_cost
from mirage.kernels.cpu.processor import Processor
from tests.frontends.test_spec import PROGRAMS

MIB = 1 << 20
TARGET = Processor("cpu", "some", 2, 32 << 10, MIB, 32 * MIB, 64)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def measured(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[Limits]:
    """The measurements made, which are counted instead of timed."""
    made: list[Limits] = []

    class Loops:
        def __init__(self, target: Processor, threads: int, size: int) -> None:
            self.threads = threads

        def measure(self) -> Limits:
            made.append(Limits(30.0 + len(made), 200.0, 100.0, self.threads))
            return made[-1]

    monkeypatch.setattr(module, "_Loops", Loops)
    return made


def files(cache: Path) -> list[Path]:
    return list(cache.iterdir())


# ---- measurement ----


def test_measured_limits_are_those_of_a_computer(cache: Path) -> None:
    limits = measure_limits()
    assert 0 < limits.dram_gbs <= limits.cache_gbs < math.inf
    assert 0 < limits.gflops < math.inf
    assert limits == measure_limits(), "kept"


@pytest.mark.parametrize("size", [8 * MIB, 64 * MIB])
@pytest.mark.parametrize("writes", [False, True])
def test_movers_go_through_all_of_their_memory_once(size: int, writes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, ...]] = []
    monkeypatch.setattr(module._Loops, "_move", lambda *arguments: calls.append(arguments[1:]))
    movers: Any = memory_movers(size, writes)
    for move in movers.values():
        move()
    assert len(movers) == len(set(calls)) == (6 if writes else 4)
    data = movers["1 stream, 1 per thread"].args[2]
    for _, _, address, _, cells, n, stride, repeats, threads in calls:
        assert (address, stride, repeats) == (data, n, 1) and cells % threads == 0
        assert cells * n * 4 == pytest.approx(size, rel=0.01)
    assert data % (2 * MIB) == 0, "the first byte of a huge page"


def test_movers_keep_their_memory() -> None:
    for move in memory_movers(MIB, True).values():
        assert move() is None


def test_one_thread_is_measured_too(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_NUM_THREADS", "1")
    assert measure_limits().threads == 1


# ---- the file ----


def test_measured_once_and_again_by_force(cache: Path, measured: list[Limits]) -> None:
    first = measure_limits()
    assert measure_limits() == first and len(measured) == 1
    assert measure_limits(force=True) == measured[1] != first
    assert measure_limits() == measured[1]
    assert len(files(cache)) == 1
    if os.name == "posix":
        assert cache.stat().st_mode & 0o777 == 0o700


def test_the_key_is_the_machine_and_its_threads(
    cache: Path, measured: list[Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRAGE_NUM_THREADS", "1")
    measure_limits()
    monkeypatch.setenv("MIRAGE_NUM_THREADS", "2")
    assert measure_limits().threads == 2
    monkeypatch.setattr(module, "processor", lambda: TARGET)
    measure_limits()
    assert len(measured) == len(files(cache)) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-3],
        lambda text: "[1, 2]",
        lambda text: "[" * 100_000,
        lambda text: text.replace("30.0", "-1"),
        lambda text: text.replace("30.0", "NaN"),
        lambda text: text.replace("30.0", "null"),
        lambda text: text.replace("dram_gbs", "other"),
        lambda text: text.replace("Processor(", "Machine("),
        lambda text: "\0\xff",
    ],
)
def test_a_damaged_file_is_measured_again(cache: Path, measured: list[Limits], damage: Any) -> None:
    measure_limits()
    (file,) = files(cache)
    text = file.read_text(encoding="utf-8")
    assert damage(text) != text
    file.write_text(damage(text), encoding="latin-1")
    assert measure_limits() == measured[1]
    assert json.loads(file.read_text(encoding="utf-8"))["limits"]["dram_gbs"] == 31.0
    assert measure_limits() == measured[1] and len(measured) == 2


def test_a_write_that_fails_leaves_nothing(
    cache: Path, measured: list[Limits], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = measure_limits()

    def fail(*args: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            measure_limits(force=True)
    assert len(files(cache)) == 1
    assert measure_limits() == before


# ---- the limit of a program ----


def test_limit() -> None:
    limits = Limits(dram_gbs=10.0, cache_gbs=100.0, gflops=50.0, threads=2)
    assert limit_us(64 * MIB, 0, limits, TARGET) == pytest.approx(64 * MIB / 10e9 * 1e6)
    assert limit_us(32 * MIB, 0, limits, TARGET) == pytest.approx(32 * MIB / 100e9 * 1e6), "fits the cache"
    assert limit_us(32 * MIB, 0, limits, TARGET, cold=True) == pytest.approx(32 * MIB / 10e9 * 1e6), "is not in it"
    assert limit_us(1000, 10**6, limits, TARGET) == pytest.approx(20), "arithmetic"
    assert limit_us(0, 0, limits, TARGET) == 0


def cost(fn: Any, sizes: Mapping[str, int], **specs: Any) -> tuple[int, int]:
    return program_cost(to_axes(mi.trace(fn, "f", **specs)), sizes)


def test_cost_of_a_matmul() -> None:
    x, y = mi.tensor("m", "k"), mi.tensor("k", "n")
    sizes = {"m": 3, "k": 5, "n": 7}
    assert cost(lambda x, y: x @ y, sizes, x=x, y=y) == (4 * (15 + 35 + 21), 2 * 3 * 5 * 7)
    assert cost(lambda x, y: x @ y, sizes | {"k": 0}, x=x, y=y) == (4 * 21, 0)


def test_cost_of_elementwise_operators_and_sums() -> None:
    x = mi.tensor("m", "n", dtype="float64")
    sizes = {"m": 3, "n": 5}
    assert cost(lambda x: x + x, sizes, x=x) == (8 * 30, 15)
    assert cost(lambda x: mi.exp(x), sizes, x=x) == (8 * 30, 15 * 16)
    assert cost(lambda x: mi.sum(x, axis=1), sizes, x=x) == (8 * 18, 15)
    assert cost(lambda x: mi.concat([x, x], axis=1), sizes, x=x) == (8 * 45, 0)


def test_bytes_are_those_that_must_move() -> None:
    """A repeated operand is read once, an unused one never; every result is written in full."""
    sizes = {"m": 3, "n": 5}
    x, y = mi.tensor(1, "n"), mi.tensor("m", "n")
    assert cost(lambda x, y: mi.repeat(x, "m", axis=0) * 1, sizes, x=x, y=y) == (4 * (5 + 15), 5)
    assert cost(lambda x, y: (y, y), sizes, x=x, y=y) == (4 * 45, 0)


def test_cost_of_attention() -> None:
    """Keys and values dominate the bytes of decoding; the repeat adds nothing."""
    program = to_axes(PROGRAMS["gqa_decode"].trace())
    moved, flops = program_cost(program, {"b": 1, "h": 8, "s": 1, "t": 4096})
    assert moved == 4 * 128 * (2 * 64 + 2 * 8 * 4096)
    logits = 64 * 4096
    assert flops == logits * (4 * 128 + 4 + 16 + 1 + 4)
