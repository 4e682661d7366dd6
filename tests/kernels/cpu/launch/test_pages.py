"""Large pages: arrays of any size lie apart from each other, and memory goes back with the last of them."""

from __future__ import annotations

import gc
import mmap
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage.kernels.cpu.launch.memory import LINE, address
from mirage.kernels.cpu.launch.pages import PAGE, in_large_pages

FLOAT = np.dtype(np.float32)


def apart(arrays: list[np.ndarray]) -> bool:
    spans = sorted((address(a), address(a) + a.nbytes) for a in arrays if a.nbytes)
    return all(end <= start for (_, end), (start, _) in pairwise(spans))


@given(st.lists(st.integers(0, PAGE // 4 + 1), max_size=12))
def test_arrays_lie_apart_and_keep_what_is_written(counts: list[int]) -> None:
    arrays = [in_large_pages(n, FLOAT) for n in counts]
    assert [a.shape for a in arrays] == [(n,) for n in counts]
    assert all(address(a) % LINE == 0 for a in arrays) and apart(arrays)
    for i, a in enumerate(arrays):
        a[:] = i
    assert all((a == i).all() for i, a in enumerate(arrays))


def test_several_threads_get_memory_of_their_own() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert apart(list(pool.map(lambda _: in_large_pages(3001, FLOAT), range(400))))


def test_large_arrays_begin_at_a_page() -> None:
    a, b = (in_large_pages(n, FLOAT) for n in (PAGE // 4, 3 * PAGE // 4 + 1))
    assert address(a) % PAGE == address(b) % PAGE == 0 and apart([a, b])


def test_a_shared_page_goes_back_with_its_last_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.kernels.cpu.launch.pages._shared", None)
    first, second = in_large_pages(100, FLOAT), in_large_pages(100, FLOAT)
    assert address(second) - address(first) == 448
    page = weakref.ref(first.base)
    assert page() is second.base
    del first
    gc.collect()
    assert page() is not None
    del second
    gc.collect()
    assert page() is None
    assert (address(in_large_pages(1, FLOAT)) % PAGE == 0) == hasattr(mmap, "MADV_HUGEPAGE")


@pytest.mark.parametrize("system", ["without large pages", "that refuses"])
@pytest.mark.parametrize("count", [10, PAGE])
def test_other_systems(system: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mirage.kernels.cpu.launch.pages._shared", None)
    if system == "that refuses":
        monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999, raising=False)
    else:
        monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    a = in_large_pages(count, FLOAT)
    a[:] = 1
    assert address(a) % LINE == 0 and a.sum() == count
