"""Lowerings of sorts, of elements by their rank, and of places between bounds, against eager."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage.errors import UnsupportedNode  # noqa: E402
from tests.frontends.aten.graphs import check  # noqa: E402
from tests.frontends.aten.test_indexing import numbers  # noqa: E402

aten = torch.ops.aten
X = numbers(3, 4, 6)
#: with equal elements
TIES = torch.arange(72).reshape(3, 4, 6) * 5 % 7
NAN = torch.tensor([[0.5, float("nan"), -1.0], [2.0, 9.0, -3.0]])
BOUNDS = torch.tensor([-1.0, 0.0, 0.5, 2.0])


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("x", [X, TIES, TIES > 3, NAN, numbers(3, 0), torch.tensor(2.0)])
def test_sort(x: Any, descending: bool) -> None:
    check(aten.sort.stable, x, stable=True, dim=-1, descending=descending)


def test_sort_of_distinct_elements() -> None:
    check(aten.sort.default, X, others=[(numbers(0, 1, 3),)])
    check(aten.sort.default, X.long(), 0, True)


def test_the_largest_and_the_kth() -> None:
    check(aten.topk.default, X, 2, others=[(numbers(1, 1, 2), 2)])
    check(aten.topk.default, X, 2, 1, False)
    check(aten.topk.default, torch.tensor(2.0), 1)
    check(aten.kthvalue.default, X, 2)
    check(aten.kthvalue.default, X, 3, 1, True)
    check(aten.kthvalue.default, torch.tensor(2.0), 1)


@pytest.mark.parametrize("right", [False, True])
def test_places_between_bounds(right: bool) -> None:
    check(aten.bucketize.Tensor, NAN, BOUNDS, right=right, dynamic=(0,))
    check(aten.bucketize.Tensor, TIES[0, 0], BOUNDS, right=right, dynamic=False)
    check(aten.bucketize.Tensor, TIES[0, 0, 0], BOUNDS, right=right, dynamic=False)
    check(aten.searchsorted.Tensor, BOUNDS, NAN, right=right, dynamic=(1,))
    check(aten.searchsorted.Tensor, BOUNDS, NAN[0], right=right, out_int32=True, dynamic=False)
    for number in (0.5, 1, float("nan")):
        check(aten.searchsorted.Scalar, BOUNDS, number, right=right, dynamic=False)
        check(aten.searchsorted.Scalar, BOUNDS.long(), number, right=right, dynamic=False)
    rows = X[0].sort()[0]
    check(aten.searchsorted.Tensor, rows, X[1, :, :2], right=right, dynamic=False)


def test_the_middle() -> None:
    check(aten.median.default, X, others=[(numbers(1, 2, 1),)])
    check(aten.median.default, TIES)
    for op in (aten.median.dim, aten.nanmedian.dim):
        check(op, X, 1, True, others=[(numbers(2, 1, 3), 1, True)])
        # with a NaN, with nothing else, and without
        check(op, torch.cat([NAN, NAN[:1] * float("nan"), NAN[1:]]), -1)
        check(op, torch.tensor(2.0), 0)
    check(aten.nanmedian.default, NAN)
    check(aten.median.default, NAN)
    with pytest.raises(UnsupportedNode, match="many of its elements may be equal"):
        check(aten.median.dim, TIES, 1)
