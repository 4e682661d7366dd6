"""Lowerings of operators that read or write at positions which tensors hold, against eager."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mirage.errors import InputError  # noqa: E402
from tests.frontends.aten.graphs import check  # noqa: E402

aten = torch.ops.aten


def numbers(*shape: int) -> Any:
    """Distinct numbers, in no order."""
    return (torch.arange(prod(shape)) * 7919 % 1000003 - 400).to(torch.float32).reshape(shape) / 8


def at(*positions: int) -> Any:
    return torch.tensor(positions, dtype=torch.int64)


def within(size: int, *shape: int) -> Any:
    """Positions in a dim."""
    n = int(torch.tensor(shape).prod())
    return (torch.arange(n) * 31 % max(size, 1)).reshape(shape)


X2 = torch.arange(12.0).reshape(4, 3)
X = numbers(3, 4, 6)
POSITIVE = X > 20
ROWS = POSITIVE[:, :, 0]


@pytest.mark.parametrize(
    "indices",
    [
        [at(0, 2, -1)],
        [None, at(0, 2, -1, 3)],
        [at(0, 2), at(1, 3)],
        [at(0, 2), None, at(1, 3)],
        [None, at(0, 2)[:, None], at(1, 3, 5)],
        [at(0, 2)[:, None, None], at(1, 3, 3)[None, :, None], at(1, 3, 5, 0)],
        [at(0, -1)[:, None], at(1, -2, 3)],
        [at(1, -2, 2), at(0, -1)[:, None]],
        [at(0, 2)[:, None, None], within(4, 3, 2)],
        [None, at(0, 2)[:, None], at(1)],
        [at(1)[0], at(0, 2)],
        [at(1)[0]],
        [at()],
        [at(1, 2).int()],
        [POSITIVE],
        [ROWS],
        [X > 1e9],
        [None, POSITIVE[0]],
        [None, ROWS[0]],
        [at(2), None, POSITIVE[0, 0]],
    ],
)
def test_index(indices: Any) -> None:
    check(aten.index.Tensor, X, indices)


def test_index_at_other_sizes() -> None:
    check(
        aten.index.Tensor,
        X,
        [None, at(0, 2)[:, None], at(1, 3, 5)],
        others=[
            (numbers(2, 3, 9), [None, at(0, 2, 1)[:, None], at(8, 3, 5, 6)]),
            (numbers(0, 1, 1), [None, at()[:, None], at(0)]),
        ],
    )
    check(aten.index.Tensor, X, [ROWS], others=[(X, [X[:, :, 0] > 1e9]), (numbers(1, 1, 1), [torch.ones(1, 1) > 0])])
    check(aten.index.Tensor, numbers(3, 0, 2), [at(1, 1)])


@pytest.mark.parametrize(
    "indices",
    [
        [at(3)],
        [at(0, -4)],
        [None, at(4, 0)],
        [at(0), at(-5)],
        [at(0), None, at(6)],
        [None, at(0)[:, None], at(6, 0)],
    ],
)
def test_an_index_outside_of_its_dim_is_an_error(indices: Any) -> None:
    inside = [i if i is None else torch.zeros_like(i) for i in indices]
    with pytest.raises(InputError, match="is outside of a dim"):
        check(aten.index.Tensor, X, inside, others=[(X, indices)])
    with pytest.raises(InputError, match="is outside of a dim"):
        check(aten.index_put.default, X, inside, torch.zeros(()), others=[(X, indices, torch.zeros(()))])


@pytest.mark.parametrize(
    "op, index, args",
    [
        (aten.embedding.default, at(1, -1), lambda index: (X2, index)),
        (aten.index_select.default, at(1, -1), lambda index: (X2, 0, index)),
        (aten.gather.default, at(1, -1, 0).reshape(1, 3), lambda index: (X2, 0, index)),
        (aten.scatter.value, at(1, -1, 0).reshape(1, 3), lambda index: (X2, 0, index, 1.0)),
    ],
)
def test_an_index_below_0_is_an_error_where_it_is_one_in_torch(op: Any, index: Any, args: Any) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        op(*args(index))
    with pytest.raises(InputError, match="is outside of a dim"):
        check(op, *args(torch.zeros_like(index)), others=[args(index)])


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize(
    ("indices", "values"),
    [
        ([at(0, 2)], numbers(2, 4, 6)),
        ([at(0, 2)], numbers(6)),
        ([at(0, 2)], numbers(1, 1, 6)),
        ([at(0, 2), None, at(1, 3)], numbers(2, 4)),
        ([at(0, 2), None, at(1, 3)], numbers(1, 4)),
        ([None, at(0, 2)[:, None], at(1, 3, 5)], numbers(3, 2, 3)),
        ([POSITIVE], torch.tensor(2.5)),
        ([POSITIVE], numbers(1)),
        ([POSITIVE], numbers(int(POSITIVE.sum()))),
        ([ROWS], numbers(6)),
        ([None, ROWS[0]], numbers(3, int(ROWS[0].sum()), 6)),
        ([at()], numbers(0, 4, 6)),
    ],
)
def test_index_put(indices: Any, values: Any, accumulate: bool) -> None:
    check(aten.index_put.default, X, indices, values, accumulate)


def test_index_put_adds_where_an_index_is_named_twice() -> None:
    check(aten.index_put.default, X, [at(0, 0, -3)], numbers(3, 4, 6), True)
    check(aten.index_put.default, X.long(), [at(0, 0), None, at(1, 1)], torch.ones(2, 4).long(), True)


def test_select_and_take() -> None:
    check(aten.index_select.default, X, 1, at(0, 2), others=[(numbers(1, 3, 0), 1, at(2, 2, 1))])
    check(aten.index_select.default, torch.tensor(3.0), 0, at(0))
    check(aten.index_select.default, X, -1, at(0)[0])
    check(aten.take.default, X, at(0, 70)[:, None])
    check(aten.embedding.default, numbers(5, 2), within(5, 2, 3), others=[(numbers(9, 1), within(9, 0, 4))])


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("shape", [(3, 4, 6), (2, 4, 5), (1, 2, 1), (3, 1, 6), (2, 0, 2)])
def test_gather_and_scatter_with_an_index_smaller_than_the_tensor(dim: int, shape: tuple[int, ...]) -> None:
    size = X.shape[dim]
    index = torch.arange(shape[dim]).reshape([-1 if k == dim % 3 else 1 for k in range(3)]).expand(shape) % size
    check(aten.gather.default, X, dim, index)
    check(aten.scatter.src, X, dim, index, X)
    check(aten.scatter.value, X, dim, index, 3.5)
    check(aten.scatter_add.default, X, dim, within(size, *shape), X)


def test_gather_and_scatter_of_tensors_without_dims() -> None:
    x = torch.tensor(2.0)
    check(aten.gather.default, x, 0, at(0)[0])
    check(aten.gather.default, x, 0, at(0, 0))
    check(aten.gather.default, numbers(3), 0, at(2)[0])
    check(aten.scatter_add.default, x, 0, at(0)[0], x)
    check(aten.scatter.value, numbers(3), 0, at(1)[0], 1)


def test_gather_of_more_than_the_dim_holds() -> None:
    check(aten.gather.default, X, 1, within(4, 2, 9, 5), others=[(numbers(5, 1, 6), 1, within(1, 5, 3, 2))])


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    for x in (X, -X.long(), POSITIVE if reduce != "mean" else X):
        check(aten.scatter_reduce.two, x, 1, within(4, 3, 2, 6), x.flip(0), reduce, include_self=include_self)
    some = torch.where(POSITIVE, X, float("nan"))
    check(aten.scatter_reduce.two, X, 1, within(4, 3, 2, 6), some, reduce, include_self=include_self)
    if reduce != "sum":
        check(aten.index_reduce.default, X, 1, at(2, 0, 2), numbers(3, 3, 6), reduce, include_self=include_self)


def test_booleans_that_are_added() -> None:
    check(aten.scatter_add.default, POSITIVE, 1, within(4, 3, 2, 6), POSITIVE)
    check(aten.index_put.default, POSITIVE, [at(0, 0)], POSITIVE[:2], True)
    check(aten.index_add.default, POSITIVE, 0, at(0, 0), POSITIVE[:2])


def test_scatter_that_adds() -> None:
    check(aten.scatter.reduce, X, 1, within(4, 3, 9, 6), numbers(3, 9, 6), reduce="add")
    check(aten.scatter.value_reduce, X, 1, within(4, 3, 9, 6), 2, reduce="add")


def test_writing_slices_at_positions() -> None:
    check(aten.index_copy.default, X, 1, at(2, 0), numbers(3, 2, 6))
    check(aten.index_copy.default, torch.tensor(1.0), 0, at(0), torch.tensor(2.0))
    check(aten.index_add.default, X, 1, at(2, 2), numbers(3, 2, 6))
    check(aten.index_add.default, X, -1, at(2, 2), numbers(3, 4, 2), alpha=3)
    check(aten.index_fill.int_Scalar, X, 1, at(2, 2), 3)
    check(aten.index_fill.int_Tensor, X, 1, at(2, -1), torch.tensor(1.5))
    check(aten.index_fill.int_Scalar, torch.tensor(1.0), 0, at(0), 3)
    check(aten.put.default, X, at(1, 50)[:, None], numbers(2))
    check(aten.put.default, X, at(1, 1), numbers(2), True)


@pytest.mark.parametrize("mask", [POSITIVE, POSITIVE[0], X > 1e9, POSITIVE[:, :1]])
def test_masks(mask: Any) -> None:
    check(aten.masked_select.default, X, mask)
    check(aten.masked_scatter.default, X, mask, numbers(80), dynamic=False)
    check(aten.masked_scatter.default, POSITIVE, mask, numbers(80) > 0, dynamic=False)


def test_a_masked_scatter_reads_only_where_the_mask_holds() -> None:
    check(aten.masked_scatter.default, X, X > 1e9, numbers(0))
    with pytest.raises(InputError, match="is outside of a dim"):
        check(aten.masked_scatter.default, X, POSITIVE, numbers(80), others=[(X, X > -1e9, numbers(8))])


def test_windows_that_are_written_to() -> None:
    check(aten.slice_scatter.default, X, numbers(3, 2, 6), 1, 1, 3)
    check(aten.slice_scatter.default, X, numbers(3, 2, 6), 1, -3, -1)
    check(aten.slice_scatter.default, X, numbers(3, 2, 6), 1, -2, others=[(numbers(2, 7, 1), numbers(2, 2, 1), 1, -2)])
    check(aten.slice_scatter.default, X, numbers(3, 2, 6), 1, 0, 9, 2)
    check(aten.select_scatter.default, X, numbers(3, 6), 1, -1)
    check(aten.select_scatter.default, X, numbers(3, 6), 1, 0)
    check(aten.diagonal_scatter.default, X, numbers(6, 3))
    check(aten.diagonal_scatter.default, X, numbers(4, 2), -1, 0, 2)


@pytest.mark.parametrize("args", [(), (1, 0, 2), (-2, 1, -1), (-2, 2, 0), (9,)])
def test_diagonals(args: tuple[int, ...]) -> None:
    check(aten.diagonal.default, X, *args)


def test_places_of_elements() -> None:
    check(aten.nonzero.default, X * POSITIVE)
    check(aten.nonzero.default, torch.tensor(1.0))
    check(aten.nonzero_static.default, X * POSITIVE, size=5)
    check(aten.nonzero_static.default, X * POSITIVE, size=100, fill_value=7)


@pytest.mark.parametrize("dynamic", [True, False])
def test_compiled(dynamic: bool) -> None:
    kwargs: Any = {"dynamic": dynamic, "compiled": True}
    check(aten.index.Tensor, X, [at(0, 2), None, at(1, -3)], **kwargs)
    check(aten.index.Tensor, X, [None, POSITIVE[0]], **kwargs)
    check(aten.index_put.default, X, [None, at(0, 2)[:, None], at(1, 3, 5)], numbers(3, 2, 3), True, **kwargs)
    check(aten.gather.default, X, 1, within(4, 2, 9, 5), **kwargs)
    check(aten.scatter_add.default, X, 1, within(4, 2, 9, 5), numbers(2, 9, 6), **kwargs)
    check(aten.slice_scatter.default, X, numbers(3, 2, 6), 1, -3, -1, **kwargs)


# any shapes


@st.composite
def tensors_and_indices(draw: Any) -> tuple[Any, list[Any]]:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    common = draw(st.lists(st.integers(0, 3), max_size=2))
    indices: list[Any] = []
    k = 0
    while k < len(shape):
        kind = draw(st.sampled_from(["none", "index", "mask"]))
        if kind == "mask" and common == []:
            rank = draw(st.integers(1, len(shape) - k))
            n = int(torch.tensor(shape[k : k + rank]).prod())
            indices.append(
                torch.tensor(draw(st.lists(st.booleans(), min_size=n, max_size=n))).reshape(shape[k : k + rank])
            )
            k += rank
            # one mask: two of them are to have equal counts
            break
        if kind == "index":
            own = [draw(st.sampled_from([1, n])) for n in common]
            n = int(torch.tensor(own).prod())
            values = draw(st.lists(st.integers(-shape[k], shape[k] - 1), min_size=n, max_size=n))
            indices.append(torch.tensor(values, dtype=torch.int64).reshape(own))
        else:
            indices.append(None)
        k += 1
    if all(i is None for i in indices):
        indices[0] = torch.zeros(common, dtype=torch.int64)
    return numbers(*shape), indices


@settings(max_examples=30, deadline=None)
@given(tensors_and_indices(), st.booleans())
def test_any_index(case: tuple[Any, list[Any]], dynamic: bool) -> None:
    x, indices = case
    check(aten.index.Tensor, x, indices, dynamic=dynamic)
    values = numbers(*x[tuple(slice(None) if i is None else i for i in indices)].shape)
    # added, because of several values for one element torch writes any
    check(aten.index_put.default, x, indices, values, True, dynamic=dynamic)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_any_gather_and_scatter(data: Any) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))
    part = [data.draw(st.integers(0, 5 if k == dim % len(shape) else n)) for k, n in enumerate(shape)]
    index = within(shape[dim], *part)
    x, dynamic = numbers(*shape), data.draw(st.booleans())
    check(aten.gather.default, x, dim, index, dynamic=dynamic)
    check(aten.scatter_add.default, x, dim, index, numbers(*part), dynamic=dynamic)
