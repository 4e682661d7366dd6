"""Lowerings of histograms against eager."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage.errors import UnsupportedNode  # noqa: E402
from mirage.frontends.aten.importer import import_graph  # noqa: E402
from tests.frontends.aten.graphs import check, graph_of, interpreted  # noqa: E402
from tests.frontends.aten.test_indexing import numbers  # noqa: E402

aten = torch.ops.aten
X = numbers(3, 4, 6)
#: on the edges of bins, between them, and outside
EDGES = torch.tensor([0.0, 1.0, 2.0, 3.0, 3.0, 9.0, float("nan"), -0.5])


def test_counts_of_bins_of_one_size() -> None:
    check(aten.histc.default, EDGES, 4, 0, 3, others=[(EDGES[:0], 4, 0, 3), (EDGES[-1:], 4, 0, 3)])
    check(aten.histc.default, X, 10, -50, 20)
    check(aten.histc.default, X, 200, -50, 20)


def test_bounds_from_the_data() -> None:
    check(aten.histc.default, X, 7, others=[(numbers(0, 1, 2), 7), (torch.full((1, 2, 1), 3.0), 7)])
    for x in (X, numbers(0), torch.tensor(3.0)):
        check(aten.histogram.bin_ct, x, 7, dynamic=False)
    imported = import_graph(graph_of(aten.histc.default, (X, 4), {}), only_native=True)
    # eager refuses it
    (found,) = interpreted(imported, [torch.full((1, 2, 3), float("nan"))])
    assert found.isnan().all()


@pytest.mark.parametrize("density", [False, True])
def test_sums_of_weights(density: bool) -> None:
    given: Any = {"weight": numbers(3, 4, 6).abs(), "density": density}
    check(aten.histogram.bins_tensor, X, torch.tensor([-9.0, -1.0, 0.0, 2.0, 40.0]), dynamic=False, **given)
    check(aten.histogram.bin_ct, X, 7, range=[-3.0, 5.0], dynamic=False, **given)
    check(aten.histogram.bins_tensor, EDGES, EDGES[:5] + torch.arange(5), density=density, dynamic=False)


def test_histograms_along_several_dims() -> None:
    points, weight = numbers(4, 6, 2), numbers(4, 6).abs()
    check(aten._histogramdd_bin_edges.default, points, [3, 2], range=[-5.0, 5.0, 0.0, 9.0], dynamic=False)
    check(aten._histogramdd_from_bin_cts.default, points, [3, 2], weight=weight, density=True, dynamic=False)
    edges = [torch.tensor([-9.0, 0.0, 9.0]), torch.tensor([-5.0, -1.0, 3.0, 5.0])]
    check(aten._histogramdd_from_bin_tensors.default, points, edges, dynamic=False)


def test_many_edges_are_left_to_aten() -> None:
    with pytest.raises(UnsupportedNode, match="so many edges"):
        check(aten.histogram.bin_ct, X, 20, dynamic=False)
