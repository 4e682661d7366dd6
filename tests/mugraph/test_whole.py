"""The program of a muGraph, and muGraphs in files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mirage.errors import GraphError, InputError
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import to_axes
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.files import load_mugraph, save_mugraph
from mirage.mugraph.graph import Role
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.schedule import Schedule
from mirage.mugraph.whole import whole_program
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from tests.mugraph.graphs import CASES, flash_decoding


@pytest.mark.parametrize("name", CASES)
def test_a_graphs_program_is_the_one_that_it_was_made_for(name: str) -> None:
    case = CASES[name]()
    program = whole_program(case.graph)
    assert prove(program, case.graph) == "proved"
    assert prove(to_axes(case.program), reference_graph(program)) == "proved"
    assert Verifier(program).check(case.graph).equal


@pytest.mark.parametrize("name", CASES)
def test_a_graphs_program_computes_what_the_graph_does(name: str) -> None:
    case = CASES[name]()
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(t.bind(case.sizes)) for t in case.program.input_types]
    graph = run_mugraph(case.graph, case.schedule, xs, FloatArithmetic(case.sizes))
    whole = reference_graph(whole_program(case.graph))
    for a, b in zip(graph, run_mugraph(whole, Schedule(()), xs, FloatArithmetic(case.sizes)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_a_graph_that_breaks_a_rule_has_no_program() -> None:
    graph = flash_decoding().graph
    nodes = list(graph.kernel.nodes)
    first = nodes[3].graph
    assert first is not None
    nodes[3] = replace(nodes[3], graph=replace(first, roles=tuple((a, Role.PARALLEL) for a, _ in first.roles)))
    with pytest.raises(GraphError, match="which is parallel"):
        whole_program(replace(graph, kernel=replace(graph.kernel, nodes=tuple(nodes))))


@pytest.mark.parametrize("name", CASES)
def test_files_hold_graphs(name: str, tmp_path: Path) -> None:
    graph = CASES[name]().graph
    save_mugraph(graph, tmp_path / "graph.txt")
    assert structure_key(load_mugraph(tmp_path / "graph.txt")) == structure_key(graph)


def test_an_altered_file_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "graph.txt"
    save_mugraph(flash_decoding().graph, path)
    path.write_text(path.read_text().replace("over=[t.grid]", "over=[b]"))
    with pytest.raises(GraphError, match=r"graph\.txt: muGraph flash_decoding, kernel 4"):
        load_mugraph(path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt"):
        load_mugraph(tmp_path / "none.txt")
    with pytest.raises(InputError, match="cannot be written"):
        save_mugraph(flash_decoding().graph, tmp_path / "none" / "graph.txt")
