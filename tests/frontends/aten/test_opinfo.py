"""Samples of OpInfo against eager torch: a few of each kind, and all of them (slow)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="OpInfo is one of torch's own tests, which need it")

from tests.frontends.aten import opinfo  # noqa: E402

#: entries of which some samples are refused, which is an error for whoever compiles
REFUSED = {
    # the operator reads the memory around a view, which an array does not have
    "as_strided.partial_views",
    # the start of a window is data, and may be negative: torch's graph computes with sizes that are no dims
    "narrow",
}
#: the least share of samples without any call of ATen's: of some, where each entry counts once, and of all
SOME = 0.7
NATIVE = {torch.float32: 0.86, torch.int64: 0.92, torch.bool: 0.86}


@pytest.fixture(autouse=True)
def traced() -> Iterator[None]:
    with opinfo.tracing():
        yield


def compare(limit: Callable[[int], int | None], dtype: Any) -> opinfo.Counts:
    """Compare, of entry number k, the first `limit(k)` samples, or all."""
    counts = opinfo.Counts()
    for k, op in enumerate(opinfo.entries()):
        opinfo.check(islice(opinfo.samples(op, dtype), limit(k)), counts)
    assert counts.wrong == []
    refused = [p for p in counts.problems if ": refused: " in p]
    assert {p.split()[0] for p in refused} <= REFUSED, refused
    return counts


@pytest.mark.parametrize("place", range(3))
def test_some_samples(place: int, record_property: Callable[[str, object], None]) -> None:
    """The first sample of every tenth entry, of another element type in the next ones."""
    dtype = opinfo.DTYPES[place]
    counts = compare(lambda k: 1 if k % 10 == place else 0, dtype)
    record_property("samples", f"OpInfo, some, {str(dtype)[6:]}: {counts}")
    assert counts.share >= SOME


@pytest.mark.slow
@pytest.mark.parametrize("dtype", opinfo.DTYPES, ids=lambda d: str(d)[6:])
def test_all_samples(dtype: Any, record_property: Callable[[str, object], None]) -> None:
    counts = compare(lambda k: None, dtype)
    record_property("samples", f"OpInfo, all, {str(dtype)[6:]}: {counts}")
    assert counts.share >= NATIVE[dtype]
