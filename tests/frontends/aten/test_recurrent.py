"""Recurrent networks of PyTorch: one loop over time for each layer and direction, beside eager mode."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mirage.errors import UnsupportedNode  # noqa: E402
from mirage.frontends.aten.importer import import_graph  # noqa: E402
from mirage.ir.graph.nodes import Loop  # noqa: E402
from tests.frontends.aten.graphs import check, graph_of  # noqa: E402

OPERATORS = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn_tanh", "relu": "rnn_relu"}


def arguments(
    kind: str, layers: int, both: bool, biases: bool, first: bool, *, batch: int = 2, steps: int = 5, hidden: int = 3, **more: Any
) -> tuple[Any, ...]:
    """Those of ATen's operator for a network of PyTorch's with random weights."""
    torch.manual_seed(hidden)
    net: Any = torch.nn.RNN if kind == "relu" else getattr(torch.nn, kind)
    made = net(4, hidden, layers, bias=biases, bidirectional=both, batch_first=first, **more)
    weights = [w.detach() for w in made._flat_weights]
    x = torch.randn((batch, steps, 4) if first else (steps, batch, 4))
    h = torch.randn(layers * (1 + both), batch, hidden)
    state = [h, torch.randn(layers * (1 + both), batch, more.get("proj_size", 0) or hidden)] if kind == "LSTM" else h
    return x, state, weights, biases, layers, 0.0, False, both, first


def operator(kind: str) -> Any:
    return getattr(torch.ops.aten, OPERATORS[kind]).input


@pytest.mark.parametrize(("layers", "both"), [(1, False), (2, True)])
@pytest.mark.parametrize(("biases", "first"), [(True, True), (False, False)])
@pytest.mark.parametrize("kind", OPERATORS)
def test_against_eager(kind: str, layers: int, both: bool, biases: bool, first: bool) -> None:
    imported = check(operator(kind), *arguments(kind, layers, both, biases, first), dynamic=False)
    main = imported.module.functions[imported.module.main]
    assert sum(isinstance(b.value, Loop) for b in main.bindings) == layers * (1 + both)


def test_all_rounds_run_in_c(rounds_in_c: list[int]) -> None:
    given = arguments("LSTM", 1, True, True, True, hidden=7)
    check(operator("LSTM"), *given, dynamic=False, compiled=True)
    assert rounds_in_c == [5], "both directions are one loop"


def test_any_batch() -> None:
    given = arguments("GRU", 1, False, True, False)
    # torch itself has the number of steps as a number
    check(operator("GRU"), *given, others=[arguments("GRU", 1, False, True, False, batch=n) for n in (3, 7)], dynamic=(0, 1))


def test_what_is_left_to_aten() -> None:
    dropping = list(arguments("LSTM", 2, False, True, True))
    dropping[5:7] = 0.5, True
    projecting = list(arguments("LSTM", 1, False, True, True, hidden=6))
    projecting[2] = [*projecting[2], torch.randn(3, 6)]
    projecting[1] = [torch.randn(1, 2, 3), projecting[1][1]]
    projecting[2][1] = torch.randn(24, 3)
    for given in (dropping, projecting):
        graph = graph_of(operator("LSTM"), given, {}, False)
        with pytest.raises(UnsupportedNode, match="projects its state, or drops"):
            import_graph(graph, only_native=True)
