"""Calls whose arrays no cache holds."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from mirage.kernels.cpu.launch import cold
from mirage.kernels.cpu.launch.cold import ColdCall, can_flush, flush
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.profile import wall_ns
from tests.kernels.cpu.launch.test_packing import executable, make
from tests.kernels.kernels import in_threads, random_inputs

flushes = pytest.mark.skipif(not can_flush(), reason="the caches of this processor cannot be flushed")
SIZES = {"b": 4, "n": 512, "k": 512}


@pytest.fixture(scope="module")
def product() -> CpuExecutable:
    """A product with packed weights of 1 MiB."""
    return executable(make("plain")[1], 64)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 63, 1000, 1 << 18])
def test_what_is_flushed_keeps_its_contents(dtype: Any, count: int) -> None:
    whole = np.arange(count + 3).astype(dtype)
    for array in (whole, whole[3:], whole[1:-1]):
        array += 1
        want = array.copy()
        flush(array)
        np.testing.assert_array_equal(array, want)


@flushes
def test_a_flushed_array_is_read_from_memory() -> None:
    # not the second-level cache's: it may be that of another core, after the thread was moved
    array = np.ones(1 << 18, np.float32)
    warm = cold_ns = 1 << 62
    for _ in range(50):
        array.max()
        warm = min(warm, wall_ns(array.max))
        flush(array)
        cold_ns = min(cold_ns, wall_ns(array.max))
    assert cold_ns > 1.2 * warm


@flushes
def test_all_that_a_call_reads_and_writes_is_flushed(product: CpuExecutable, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = random_inputs(make("plain")[0], SIZES)
    flushed: list[tuple[int, ...]] = []
    monkeypatch.setattr(cold, "flush", lambda a: flushed.append(a.shape))
    call = ColdCall(product, inputs, SIZES)
    want = product(inputs, SIZES)[0]
    np.testing.assert_array_equal(np.asarray(call()).reshape(want.shape), want)
    assert call.nanoseconds() > 0
    (packed,) = product.packed()
    assert flushed == [*(a.shape for a in inputs), packed.shape, want.shape]
    product.forget()
    assert not product.packed()


def test_nothing_is_held_when_it_is_over(product: CpuExecutable) -> None:
    inputs = random_inputs(make("plain")[0], SIZES)
    call = ColdCall(product, inputs, SIZES)
    call.nanoseconds()
    packed = [weakref.ref(a) for a in product.packed()]
    product.forget()
    gc.collect()
    assert packed and all(a() is None for a in packed)


def test_from_several_threads(product: CpuExecutable) -> None:
    """One has the pool; the others do not wait for it."""

    def work(seed: int) -> None:
        call = ColdCall(product, random_inputs(make("plain")[0], SIZES, seed), SIZES)
        for _ in range(20):
            assert call.nanoseconds() > 0

    in_threads(work)
