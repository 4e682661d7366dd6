"""Lowerings of distinct elements against eager."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage.errors import UnsupportedNode  # noqa: E402
from mirage.frontends.aten.decompose import decompositions  # noqa: E402
from tests.frontends.aten.graphs import check  # noqa: E402
from tests.frontends.aten.test_indexing import at, numbers  # noqa: E402

aten = torch.ops.aten
NAN = torch.tensor([1.0, float("nan"), 0.0, -0.0, float("nan"), 1.0, 1.0])
ROWS = torch.tensor([[1, 2, 2], [0, 5, 5], [1, 2, 2], [1, 2, 1], [1, 2, 1]])
FLAGS = [(False, False), (False, True), (True, False), (True, True)]


@pytest.mark.parametrize("flags", FLAGS)
def test_distinct_elements(flags: tuple[bool, bool]) -> None:
    for x in (at(3, 1, 3), ROWS, ROWS > 1, NAN, torch.tensor(2.0)):
        check(aten._unique2.default, x, True, *flags)
        check(aten.unique_consecutive.default, x, *flags)
    check(aten._unique2.default, at(3, 1), True, *flags, others=[(at(2), True, *flags), (at(5, 5, 5), True, *flags)])


@pytest.mark.parametrize("dim", [0, 1])
def test_distinct_slices(dim: int) -> None:
    check(aten.unique_dim.default, ROWS, dim, dynamic=False)
    check(aten.unique_dim.default, ROWS > 1, dim, dynamic=False)
    check(aten.unique_dim.default, torch.stack([ROWS, ROWS], 2), dim, dynamic=False)
    check(aten.unique_dim.default, NAN[2:4].reshape(2, 1), 0, dynamic=False)
    check(aten.unique_consecutive.default, ROWS, dim=dim, others=[(ROWS[:2, :1],)])
    check(aten.unique_consecutive.default, numbers(2, 3, 2), dim=dim)


def test_nothing() -> None:
    for op in (aten._unique2.default, aten.unique_consecutive.default):
        check(op, numbers(0), dynamic=False)
    check(aten.unique_dim.default, numbers(0, 2), 0, dynamic=False)


def test_large_slices_are_left_to_aten() -> None:
    with pytest.raises(UnsupportedNode, match="its slices have 33 elements"):
        check(aten.unique_dim.default, numbers(2, 33), 0, dynamic=False)


def test_a_dim_from_the_end_is_counted_from_the_front() -> None:
    split: Any = decompositions()[aten.unique_consecutive.default]
    for found, wanted in zip(split(ROWS, dim=-1), aten.unique_consecutive(ROWS, dim=1), strict=True):
        assert torch.equal(found, wanted)
    assert split(ROWS, dim=1) is NotImplemented
    with pytest.raises(UnsupportedNode, match="its dim is negative"):
        check(aten.unique_consecutive.default, ROWS, dim=-1, dynamic=False)
