"""Lowerings of operators that move elements, against eager."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage.errors import MirageError  # noqa: E402
from mirage.frontends.aten.importer import import_graph  # noqa: E402
from tests.frontends.aten.graphs import check, graph_of, interpreted  # noqa: E402
from tests.frontends.aten.test_indexing import numbers  # noqa: E402

aten = torch.ops.aten
X = numbers(3, 4, 6)


@pytest.mark.parametrize(
    "args",
    [
        (1, 1, 3), (1, -3, -1), (2, 1, 9, 2), (2, -2), (2, 9), (2, 0, -2, 3), (2, 3, 1), (0, None, -1), (-1, 2, 2**63 - 1),
    ],
)  # fmt: skip
def test_slices(args: Any) -> None:
    check(aten.slice.Tensor, X, *args)
    check(aten.slice.Tensor, X, *args, dynamic=False)


def test_a_slice_at_other_sizes() -> None:
    check(aten.slice.Tensor, X, 1, -2, others=[(numbers(1, 2, 0), 1, -2), (numbers(2, 9, 1), 1, -2)])
    check(aten.slice.Tensor, X, 2, 1, 5, 2, others=[(numbers(1, 2, 5), 2, 1, 5, 2)])


def test_a_window_outside_of_the_tensor_is_an_error() -> None:
    found = import_graph(graph_of(aten.slice.Tensor, (X, 1, 1, 4), {}), only_native=True)
    with pytest.raises(MirageError, match="within the dim"):
        interpreted(found, [numbers(3, 2, 6)])


def test_parts() -> None:
    check(aten.select.int, X, 1, -1, others=[(numbers(2, 1, 3), 1, -1)])
    check(aten.split.Tensor, X, 2, -1)
    check(aten.split_with_sizes.default, X, [1, 2, 3], -1)
    check(aten.unbind.int, X, 0, dynamic=False)
    check(aten.chunk.default, X, 4, 2)
    check(aten.unfold.default, X, 1, 2, 1)
    check(aten.unfold.default, X, 2, 3, 2)
    check(aten.as_strided.default, X, [2, 3], [5, 2], 1)
    check(aten.as_strided.default, X, [2, 3], [0, 1])
    check(aten.as_strided_scatter.default, X, numbers(2, 3), [2, 3], [9, 2], 1)


def test_joining() -> None:
    check(aten.cat.default, [X, torch.empty(0), X], 1)
    check(aten.cat.default, [torch.empty(0), torch.empty(0)])
    check(aten.cat.default, [X] * 20, -1)
    check(aten.cat.default, [X, X.long()], -1)
    check(aten.cat.default, [numbers(3, 0, 6), X], 1)


def test_copies() -> None:
    check(aten.repeat.default, X, [2, 1, 3])
    check(aten.repeat.default, X, [2, 2, 1, 3], others=[(numbers(1, 0, 2), [2, 2, 1, 3])])
    check(aten.repeat.default, torch.tensor(1.5), [3, 2])
    check(aten.repeat.default, X, [0, 1, 1])
    check(aten.expand.default, numbers(3, 1, 6), [-1, 4, -1], others=[(numbers(2, 1, 1), [-1, 4, -1])])
    check(aten.expand.default, torch.tensor(1.5), [2, 3])


@pytest.mark.parametrize("value", [0, 2.5, float("-inf"), float("inf"), float("nan")])
def test_padding(value: float) -> None:
    check(aten.constant_pad_nd.default, X, [1, 2, 0, 3], value, others=[(numbers(1, 0, 1), [1, 2, 0, 3], value)])
    check(aten.constant_pad_nd.default, X, [1, -2, -1, 3], value, dynamic=False)


def test_padding_of_other_types() -> None:
    check(aten.constant_pad_nd.default, X > 20, [1, 2], True)
    check(aten.constant_pad_nd.default, X.long(), [1, 2], 3.0)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("args", [([1], [2]), ([-9, 2], [1, 0]), ([5],), ([0], [0])])
def test_rolls(args: Any, dynamic: bool) -> None:
    check(aten.roll.default, X, *args, dynamic=dynamic)


def test_triangles() -> None:
    check(aten.tril.default, X, 1)
    check(aten.triu.default, X, -1)
    check(aten.tril.default, X > 20)
    check(aten.tril_indices.default, 4, 3, 0)
    check(aten.triu_indices.default, 4, 3, 1)


@pytest.mark.parametrize("dynamic", [True, False])
def test_compiled(dynamic: bool) -> None:
    kwargs: Any = {"dynamic": dynamic, "compiled": True}
    check(aten.roll.default, X, [5], **kwargs)
    check(aten.constant_pad_nd.default, X, [1, 2, 0, 3], float("-inf"), **kwargs)
    check(aten.unfold.default, X, 2, 3, 2, **kwargs)
    check(aten.slice.Tensor, X, 2, 0, -2, 3, **kwargs)


def test_differences() -> None:
    check(aten.diff.default, X, others=[(numbers(2, 1, 1),), (numbers(1, 3, 2),)])
    check(aten.diff.default, X, 2, 1)
    check(aten.diff.default, X.long(), 1, 0, numbers(1, 4, 6).long(), numbers(2, 4, 6).long())


def test_operators_that_leave_elements_as_they_are() -> None:
    check(aten.contiguous.default, X)
    check(aten.unflatten.int, X, 2, [2, 3], dynamic=False)
    check(aten.dropout.default, X, 0.5, False)
    check(aten.to.dtype, X, torch.int64)
    check(aten.to.dtype, X, torch.float32)
    with pytest.raises(MirageError, match="it draws random numbers"):
        import_graph(graph_of(aten.dropout.default, (X, 0.5, True), {}), only_native=True)


def test_bits_by_their_python_names() -> None:
    for name in ("__and__", "__or__", "__xor__"):
        check(getattr(aten, name).Tensor, X > 0, X < 1)
        check(getattr(aten, name).Scalar, X.long(), 3)
