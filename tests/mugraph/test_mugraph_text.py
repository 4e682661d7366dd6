"""MuGraphs as text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mirage.mugraph.graph import Graph
from mirage.mugraph.text import map_text, operator_text, print_mugraph
from tests.mugraph.graphs import CASES, flash_decoding, gated, joined, library


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"mugraph_{name}.txt", print_mugraph(CASES[name]().graph))


def test_str_is_the_text() -> None:
    graph = library().graph
    assert str(graph) == print_mugraph(graph)


def test_users_names_cannot_end_a_comment_or_a_line() -> None:
    graph = library().graph
    inputs = tuple(replace(x, name=f"{x.name}*/\n#define {k}") for k, x in enumerate(graph.inputs))
    text = print_mugraph(replace(graph, name="a*/b", inputs=inputs))
    assert "*/" not in text
    assert len(text.splitlines()) == len(print_mugraph(graph).splitlines())
    assert "x____define_0: float32[m, k]" in text


def test_values_are_named_apart_from_inputs() -> None:
    graph = library().graph
    named = replace(graph, inputs=(replace(graph.inputs[0], name="v3"), *graph.inputs[1:]))
    assert "vv3: [m, n] = matmul(v3, w, over=[k])" in print_mugraph(named)


def test_operators_and_maps() -> None:
    def block(graph: Graph, k: int) -> Graph:
        found = graph.nodes[k].graph
        assert found is not None
        return found

    body = block(joined().graph.kernel, 2)
    assert operator_text(body.nodes[3]) == "accumulate along k"
    assert operator_text(body.nodes[4]) == "concat along n + k = knx"
    assert operator_text(body.nodes[5]) == "sum over knx"
    assert map_text(body.imap(0)) == "{m: 0}" and map_text(body.fmap(0)) == "{k: phi}"
    split = block(flash_decoding().graph.kernel, 3)
    assert operator_text(split.nodes[4]) == "constant(value=1/8)"
    assert operator_text(split.nodes[8]) == "accumulate over t"
    assert "with threads(w4, w6, grid=[m, n]) as w7:" in print_mugraph(gated().graph)
