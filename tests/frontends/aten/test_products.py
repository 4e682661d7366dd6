"""Products by oneDNN and ATen, in compiled graphs and alone."""

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

FUNCTIONS = {
    "": lambda x: x,
    "gelu": torch.nn.functional.gelu,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("right", [(), (1, 0)])
@pytest.mark.parametrize("lead", [(), (0,), (1,), (1, 1), (2,), (5,), (3, 0), (2, 3, 4), (5, 13), (5, 27)])
def test_every_form(lead: tuple[int, ...], right: tuple[int, ...], activation: str) -> None:
    rng = np.random.default_rng(0)
    x, w, c = (rng.standard_normal(s, np.float32) for s in ((*lead, 7), (7, 20), (20,)))
    stored = np.ascontiguousarray(w.T) if right else w
    stored.flags.writeable = False
    packed = products.pack(stored, right=right)
    product = x.astype(np.float64) @ w
    for bias in (False, True):
        wanted = FUNCTIONS[activation](torch.from_numpy(product + (c if bias else 0))).numpy()
        for form in ((), (packed,)):
            out = np.full((*lead, 20), np.nan, np.float32)
            given = (x, stored, *form, *([c] if bias else []))
            products.linear(given, [out], right=right, packed=bool(form), bias=bias, activation=activation)
            np.testing.assert_allclose(out, wanted, rtol=0, atol=1e-5)


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


def test_large_results_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that the number of parts does not divide, and more parts than rows."""
    monkeypatch.setattr(products, "FEWER", 0)
    for rows, most in ((7, 200), (2, 8)):
        monkeypatch.setattr(products, "AT_ONCE", most)
        rng = np.random.default_rng(2)
        x, w = rng.standard_normal((rows, 4), np.float32), rng.standard_normal((4, 10), np.float32)
        out = np.full((rows, 10), np.nan, np.float32)
        products.linear((x, w, products.pack(w)), [out], packed=True)
        np.testing.assert_allclose(out, x @ w, rtol=0, atol=1e-5)


def test_no_depth() -> None:
    x, w, c = np.ones((3, 0), np.float32), np.ones((0, 2), np.float32), np.array([1, 2], np.float32)
    out = np.full((3, 2), np.nan, np.float32)
    products.linear((x, w, products.pack(w), c), [out], packed=True, bias=True)
    np.testing.assert_array_equal(out, np.broadcast_to(c, (3, 2)))


def test_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_is_available", lambda: False)
    test_every_form((3,), (1, 0), "gelu")
    test_every_form((130,), (1, 0), "gelu")
    test_no_depth()


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
        assert calls == ["onednn.linear", "onednn.linear"]
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
