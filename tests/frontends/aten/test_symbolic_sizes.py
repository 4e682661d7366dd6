"""Small functions whose starts, sizes and indices are sizes of other tensors, from one graph at several sizes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from mirage.frontends.aten.decompose import decompositions  # noqa: E402
from mirage.frontends.aten.importer import import_graph  # noqa: E402
from mirage.frontends.imported import Imported  # noqa: E402
from tests.frontends.aten.graphs import interpreted  # noqa: E402
from tests.frontends.aten.test_indexing import numbers  # noqa: E402

#: a size that is literal in graphs: that of features
FEATURES = 3


def exported(fn: Any, *examples: Any) -> Imported:
    """The graph of a function of tensors, whose dims are symbols as far as the function allows."""
    model = torch.nn.Module()
    model.forward = lambda *xs: fn(*xs)
    dims = tuple({i: torch.export.Dim.AUTO for i in range(x.ndim) if x.shape[i] != FEATURES} for x in examples)
    program = torch.export.export(model, examples, dynamic_shapes=(dims,), strict=False)
    return import_graph(program.run_decompositions(decompositions()).graph_module, only_native=True)


def positions(n: int, size: int) -> Any:
    return torch.arange(n) * 5 % max(size, 1)


def windowed(x: Any, w: int) -> Any:
    """Rows in windows, as a Swin transformer has them."""
    b, h, c = x.shape
    x = F.pad(x, (0, 0, 0, (w - h % w) % w))
    return x.view(b, x.shape[1] // w, w, c).permute(1, 0, 2, 3).reshape(-1, w, c)


def halves_turned(x: Any) -> Any:
    """As rotary embeddings have them."""
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


def cached(x: Any, y: Any) -> Any:
    """New rows in a cache of fixed size."""
    return x.index_copy(1, torch.arange(y.shape[1]), y)


Case = tuple[Callable[..., Any], Callable[[int, int], tuple[Any, ...]]]
CASES: dict[str, Case] = {
    "from a size on": (lambda x, y: x[:, y.shape[0] :], lambda n, m: (numbers(2, n + m, 3), numbers(n, 1))),
    "the last ones": (lambda x, y: x[:, -y.shape[0] :], lambda n, m: (numbers(2, n + m, 3), numbers(n + 1, 1))),
    "up to a size": (lambda x, y: x[:, : y.shape[0]] + y, lambda n, m: (numbers(2, n + m), numbers(n))),
    "less a size": (lambda x, y: x[: x.shape[0] - y.shape[0]], lambda n, m: (numbers(n + m, 2), numbers(n))),
    "at a size": (lambda x, y: x[y.shape[0] - 1], lambda n, m: (numbers(n + m + 1, 2), numbers(n + 1))),
    "the last": (lambda x: x[:, -1] * 2, lambda n, m: (numbers(m, n + 1, 2),)),
    "every second": (lambda x: x[:, 1::2] * 2, lambda n, m: (numbers(m, n),)),
    "halves": (halves_turned, lambda n, m: (numbers(m, 2 * n),)),
    "chunks": (lambda x: torch.mul(*x.split(1, 1)[:2]), lambda n, m: (numbers(n, 3, m),)),
    "heads": (lambda x: x.view(x.shape[0], x.shape[1], -1, 2).transpose(1, 2).flatten(2), lambda n, m: (numbers(m, n, 6),)),
    "windows": (lambda x: windowed(x, 3), lambda n, m: (numbers(m + 1, n + 1, 2),)),
    "rolled": (lambda x: x.roll(-1, 1).roll((2, 1), (0, 1)), lambda n, m: (numbers(n, m),)),
    "padded": (lambda x, y: F.pad(x, (y.shape[0], 1)), lambda n, m: (numbers(m, 2), numbers(n))),
    "repeated": (lambda x, y: x.repeat(y.shape[0], 2), lambda n, m: (numbers(m, 3), numbers(n))),
    "interleaved": (lambda x: x.repeat_interleave(3, 1), lambda n, m: (numbers(m, n),)),
    "expanded": (lambda x, y: x[None].expand(y.shape[0], -1, -1) * y[:, None, None], lambda n, m: (numbers(m, 2), numbers(n))),
    "taken": (lambda x, i: x[:, i], lambda n, m: (numbers(2, n + 1, 3), positions(m, n + 1))),
    "taken in pairs": (lambda x, i: x[torch.arange(x.shape[0]), i], lambda n, m: (numbers(n, m + 1, 3), positions(n, m + 1))),
    "gathered": (lambda x, i: x.gather(1, i[:, None]).squeeze(1), lambda n, m: (numbers(n, m + 1), positions(n, m + 1))),
    "one hot": (
        lambda x, i: torch.zeros_like(x).scatter(1, i[:, None], 1.0),
        lambda n, m: (numbers(n, m + 1), positions(n, m + 1)),
    ),
    "cached": (cached, lambda n, m: (numbers(2, n + m, 3), numbers(2, m, 3))),
    "written": (lambda x, y: x.slice_scatter(y, 0, 1, y.shape[0] + 1), lambda n, m: (numbers(n + m + 1, 2), numbers(n, 2))),
    "below the diagonal": (lambda x: x.masked_fill(torch.ones_like(x).tril() == 0, -1.0), lambda n, m: (numbers(n, m),)),
    "diagonal": (lambda x: x.diagonal(1), lambda n, m: (numbers(n, n + 1),)),
    "masked": (lambda x: x[x > 1].sum(), lambda n, m: (numbers(n, m),)),
    "nonzero": (lambda x: (x > 1).nonzero() + 1, lambda n, m: (numbers(n, m),)),
    "sorted": (lambda x: x.sort(1)[0].cumsum(1), lambda n, m: (numbers(n, m),)),
    "largest": (lambda x: x.gather(1, x.topk(2, 1)[1]), lambda n, m: (numbers(n, m + 2),)),
    "scores": (lambda x, y: torch.einsum("bid,bjd->bij", x, y), lambda n, m: (numbers(2, n, 3), numbers(2, m, 3))),
    "bilinear": (lambda x, y: F.bilinear(x, x, y), lambda n, m: (numbers(n, 3) / 99, numbers(2, 3, 3) / 99)),
    "attention": (
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        lambda n, m: (numbers(2, 2, n, 4) / 999, numbers(2, 2, n + m, 4) / 999),
    ),
    "convolved": (lambda x: F.conv1d(x, numbers(2, 3, 3) / 99, padding=1, stride=2), lambda n, m: (numbers(n, 3, m + 1) / 99,)),
    "patches": (lambda x: F.conv2d(x, numbers(2, 3, 2, 2) / 99, stride=2), lambda n, m: (numbers(m, 3, 2 * n + 3, 4) / 99,)),
    "twice as large": (lambda x: F.interpolate(x, scale_factor=2.0), lambda n, m: (numbers(2, 3, n, m + 1),)),
    "half as large": (
        lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"), lambda n, m: (numbers(2, 3, 2 * n, m + 3) / 99,)
    ),
    "between elements": (
        lambda x: F.interpolate(x, scale_factor=1.25, mode="bilinear"), lambda n, m: (numbers(2, 3, n + 2, m + 2) / 999,)
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def results() -> dict[tuple[int, int], list[Any]]:
    """What the one graph of all cases gives at several sizes, in the order of the cases."""
    counts = [len(made(2, 2)) for _, made in CASES.values()]

    def everything(*xs: Any) -> list[Any]:
        rest = iter(xs)
        return [fn(*islice(rest, k)) for (fn, _), k in zip(CASES.values(), counts, strict=True)]

    def inputs(n: int, m: int) -> list[Any]:
        return [x for _, made in CASES.values() for x in made(n, m)]

    found = exported(everything, *inputs(4, 7))
    return {size: interpreted(found, inputs(*size)) for size in ((3, 5), (7, 4), (2, 2), (6, 9))}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_at_several_sizes(name: str, results: dict[tuple[int, int], list[Any]]) -> None:
    fn, made = CASES[name]
    for size, found in results.items():
        torch.testing.assert_close(found[list(CASES).index(name)], fn(*made(*size)))
