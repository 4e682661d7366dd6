"""Products by ATen and ours, in compiled graphs and alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mirage.frontends.aten import products  # noqa: E402
from mirage.frontends.aten.importer import import_graph  # noqa: E402
from mirage.kernels import blas  # noqa: E402
from mirage.runtime.program import CallLibrary  # noqa: E402
from mirage.torch.compiled import CompiledGraph, compiled_graph  # noqa: E402


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("left, right", [((), ()), ((0, 2, 1, 3), (0, 2, 3, 1)), ((), (0, 1, 3, 2))])
@pytest.mark.parametrize("batch", [(2, 3), (0, 3), (1, 1)])
def test_other_products(batch: tuple[int, int], left: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(0)

    def stored(shape: tuple[int, ...], perm: tuple[int, ...]) -> np.ndarray:
        """An array that has this shape where it is read through the permutation."""
        x = rng.standard_normal(shape).astype(dtype)
        return np.ascontiguousarray(x.transpose(np.argsort(perm))) if perm else x

    given = stored((*batch, 5, 7), left), stored((*batch, 7, 4), right), rng.standard_normal(4).astype(dtype)
    for bias, relu in ((False, False), (True, True)):
        found, wanted = (np.full((*batch, 5, 4), np.nan, dtype) for _ in range(2))
        for product, out in ((products.matmul, found), (blas.matmul, wanted)):
            product(given[: 2 + bias], [out], left=left, right=right, bias=bias, relu=relu)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


def test_programs_of_torch_call_no_other_library_of_products() -> None:
    def scores(q: Any, k: Any) -> Any:
        return torch.softmax(q @ k.mT, -1)

    model = torch.nn.Module()
    model.forward = scores
    q, k = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    graph = import_graph(torch.export.export(model, (q, k), strict=False).run_decompositions({}).graph_module)
    found = compiled_graph(graph, (), without=("superoptimize", "fuse"), cache=False)
    calls = [i.function for f in found.executable.program for i in f.code if isinstance(i, CallLibrary)]
    assert calls == ["torch.matmul"]
    torch.testing.assert_close(found([q, k])[0], scores(q, k))


class Layers(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.second(torch.nn.functional.gelu(self.first(x)))


def compiled(model: Any) -> tuple[CompiledGraph, list[Any]]:
    """A model as a compiled graph, and its weights."""
    auto = torch.export.Dim.AUTO
    exported = torch.export.export(model, (torch.randn(3, 5, 8),), dynamic_shapes=({0: auto, 1: auto},), strict=False)
    weights = [exported.state_dict[n] for n in exported.graph_signature.parameters]
    graph = import_graph(exported.run_decompositions({}).graph_module)
    return compiled_graph(graph, range(len(weights)), without=("superoptimize",), cache=False), weights


def test_layers() -> None:
    torch.manual_seed(0)
    model = Layers().eval()
    with torch.no_grad():
        graph, weights = compiled(model)
        calls = [i.function for f in graph.executable.program for i in f.code if isinstance(i, CallLibrary)]
        assert calls == ["blas.matmul", "blas.matmul"]
        bound = graph.bind(dict(enumerate(weights)))
        # the second call of a shape prepares its launches
        for shape in ((3, 5, 8), (1, 1, 8), (1, 1, 8), (1, 1, 8), (2, 80, 8), (2, 80, 8), (2, 7, 8), (2, 7, 8), (2, 7, 8)):
            x = torch.randn(shape)
            torch.testing.assert_close(bound([x])[0], model(x), rtol=0, atol=1e-5)
        # who writes to a weight says so, and binds anew
        model.first.weight.mul_(2)
        graph.executable.forget()
        bound = graph.bind(dict(enumerate(weights)))
        torch.testing.assert_close(bound([x])[0], model(x), rtol=0, atol=1e-5)
