"""The further sizes that a program is tuned at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage as mi
from mirage.errors import DimError
from mirage.search import buckets
from mirage.search.buckets import MAX_POINTS, RATIO, bytes_needed, is_empty, sample_points


@pytest.fixture(scope="module", autouse=True)
def all_points(few_points: int) -> Iterator[None]:
    """As many sizes as where no test runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "MAX_POINTS", few_points)
        yield


def every(_: Any) -> bool:
    return True


def test_a_batch_of_one_grows() -> None:
    assert sample_points([{"b": 1}], every) == [{"b": 8}, {"b": 64}, {"b": 512}]


def test_a_large_batch_shrinks_too() -> None:
    assert sample_points([{"b": 512}], every) == [{"b": n} for n in (4096, 64, 1, 8, 32768, 262144)]


def test_a_star_and_the_small_corner() -> None:
    anchor = {"b": 8, "t": 4096}
    found = sample_points([anchor], every)
    assert len(found) == MAX_POINTS
    assert {"b": 1, "t": 1} in found
    for dim, n in anchor.items():
        assert {**anchor, dim: n * RATIO} in found[:4]
        assert {**anchor, dim: n // RATIO} in found[:4]
    for p in found:
        assert sum(p[d] != anchor[d] for d in anchor) == 1 or set(p.values()) == {1}


def test_given_sizes_are_not_sampled_again() -> None:
    anchors = [{"b": 1, "t": 512}, {"b": 8, "t": 512}, {"b": 1, "t": 1}]
    found = sample_points(anchors, every)
    assert all(p not in anchors for p in found)


def test_a_program_without_dims_has_no_further_points() -> None:
    assert sample_points([{}], every) == []


def test_where_the_next_size_is_too_large_a_nearer_one_is_tried() -> None:
    found = sample_points([{"t": 4096}], lambda p: p["t"] <= 10000)
    assert {"t": 8192} in found
    assert max(p["t"] for p in found) == 8192
    assert sample_points([{"t": 1}], lambda _: False) == []


@given(st.lists(st.integers(1, 1 << 40), min_size=1, max_size=12))
def test_points_are_few_distinct_and_positive(values: list[int]) -> None:
    anchor = {f"d{i}": n for i, n in enumerate(values)}
    found = sample_points([anchor], every)
    assert len(found) <= MAX_POINTS
    assert len({tuple(p.values()) for p in found} | {tuple(values)}) == len(found) + 1
    assert all(list(p) == list(anchor) and min(p.values()) >= 1 for p in found)


def test_bytes_and_empty_tensors() -> None:
    program = mi.trace(lambda x, w: mi.sum(x @ w, axis=1), x=mi.tensor("m", 4), w=mi.tensor(4, "n - 2"))
    # x, w and the sum, and the product of the two
    assert bytes_needed(program, {"m": 3, "n": 7}) == 8 * (12 + 20 + 3 + 20)
    assert not is_empty(program, {"m": 3, "n": 7})
    assert is_empty(program, {"m": 3, "n": 2})
    assert is_empty(program, {"m": 3, "n": 1})
    with pytest.raises(DimError):
        bytes_needed(program, {"m": 3, "n": 1})
