"""Lowerings of segments and bags against eager."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage.errors import UnsupportedNode  # noqa: E402
from mirage.frontends.aten.importer import import_graph  # noqa: E402
from tests.frontends.aten.graphs import check, graph_of, interpreted  # noqa: E402
from tests.frontends.aten.test_indexing import at, numbers  # noqa: E402

aten = torch.ops.aten
X = numbers(9, 2)
NAN = X.clone()
NAN[3, 0] = float("nan")
WEIGHT = numbers(6, 3)
WEIGHT[1, 1] = float("nan")


@pytest.mark.parametrize("initial", [None, 2.0])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments(reduce: str, initial: float | None) -> None:
    for lengths in (at(0, 4, 0, 5), at(1, 8, 0, 0)):
        check(aten.segment_reduce.default, NAN, reduce, lengths=lengths, initial=initial, dynamic=False)
    check(aten.segment_reduce.default, NAN, reduce, offsets=at(0, 3, 9), initial=initial, dynamic=False)
    rows = X.reshape(3, 3, 2)
    check(aten.segment_reduce.default, rows, reduce, lengths=at(1, 2, 3)[:, None], axis=1, unsafe=True, dynamic=False)


def test_segments_that_eager_refuses_are_nan() -> None:
    imported = import_graph(graph_of(aten.segment_reduce.default, (X, "sum"), {"lengths": at(4, 5)}, False))
    (found,) = interpreted(imported, [X, at(4, 4)])
    assert found.isnan().all()


def bags(*args: Any, **kwargs: Any) -> Any:
    """The bags: what only gradients need is left out."""
    return aten._embedding_bag_forward_only(*args, **kwargs)[0]


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags_of_embeddings(mode: int, padding: int) -> None:
    ids = at(3, 1, 4, 1, 2, 2, 5)
    for offsets, ends in ((at(0, 2, 2, 5), False), (at(0, 3, 7), True), (at(0, 4, 6), False)):
        args = (WEIGHT, ids, offsets, False, mode, False, None, ends, padding)
        graph = graph_of(aten._embedding_bag_forward_only.default, args, {}, False)
        if mode == 2 and padding >= 0:
            with pytest.raises(UnsupportedNode, match="which of its elements are the first"):
                import_graph(graph, only_native=True)
            continue
        found = interpreted(import_graph(graph, only_native=True), [WEIGHT, ids, offsets])
        torch.testing.assert_close(found[0], bags(*args), equal_nan=True)


def test_weights_of_samples() -> None:
    ids, offsets, weights = at(3, 0, 4, 4), at(0, 3), numbers(4)
    args = (WEIGHT, ids, offsets, False, 0, False, weights)
    graph = graph_of(aten._embedding_bag_forward_only.default, args, {}, False)
    found = interpreted(import_graph(graph, only_native=True), [WEIGHT, ids, offsets, weights])
    torch.testing.assert_close(found[0], bags(*args))


@pytest.mark.parametrize("order", [1.0, 2.0, float("inf")])
def test_rows_are_made_shorter(order: float) -> None:
    check(aten.embedding_renorm.default, X, at(3, 0, 3), 4.0, order, others=[(numbers(5, 1), at(4), 4.0, order)])
