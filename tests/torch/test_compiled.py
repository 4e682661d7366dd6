"""Compiled graphs: inputs that never change are bound, outputs are what the graph's are."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage.frontends.aten.importer import import_graph  # noqa: E402
from mirage.torch.compiled import CompiledGraph, as_array, compiled_graph  # noqa: E402


class Two(torch.nn.Module):  # type: ignore[misc, name-defined]
    def forward(self, x: Any, w: Any, b: Any) -> Any:
        return torch.relu(x @ w + b), x, w, x.shape[0] * 2, None


@pytest.fixture(scope="module")
def graph() -> CompiledGraph:
    dynamic = ({0: torch.export.Dim.AUTO}, None, None)
    exported = torch.export.export(
        Two(), (torch.randn(3, 4), torch.randn(4, 4), torch.randn(4)), dynamic_shapes=dynamic
    )
    return compiled_graph(import_graph(exported.graph_module), (1, 2), without=("superoptimize",))


@pytest.mark.parametrize("bound", [(), (1,), (1, 2), (2,)])
def test_a_bound_graph_takes_the_other_inputs(graph: CompiledGraph, bound: tuple[int, ...]) -> None:
    x, w, b = torch.randn(5, 4), torch.randn(4, 4), torch.randn(4)
    values = dict(enumerate((x, w, b)))
    run = graph.bind({k: values[k] for k in bound})
    found = run([v for k, v in values.items() if k not in bound])
    torch.testing.assert_close(found[0], torch.relu(x @ w + b))
    assert found[1] is x and found[2] is w
    assert found[3:] == [10, None]


def test_without_binding_a_weight_may_be_another_one(graph: CompiledGraph) -> None:
    for _ in range(2):
        x, w, b = torch.randn(2, 4), torch.randn(4, 4), torch.randn(4)
        torch.testing.assert_close(graph([x, w, b])[0], torch.relu(x @ w + b))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_tensors_are_read_in_place(dtype: Any) -> None:
    x = torch.ones(3, dtype=dtype)
    array = as_array(x)
    array[1] = 0
    assert x.tolist() == [1, 0, 1]


def test_what_no_array_can_be_stays_a_tensor() -> None:
    x = torch.ones(3, dtype=torch.complex64).conj().imag
    assert as_array(x) is x
