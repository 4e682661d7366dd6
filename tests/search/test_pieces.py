"""Programs cut into pieces anywhere, and joined again, compute the same."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import AxisProgram, read_arguments, to_axes
from mirage.ir.dims import evaluate
from mirage.ir.interpret import run_reference
from mirage.ir.moves import moved
from mirage.ir.program import Program
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.interpret import run_mugraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.validate import validate
from mirage.search.cuts import Atoms, Cuts, computed
from mirage.search.generate import generate
from mirage.search.pieces import join, piece_of
from mirage.verify.proof import prove
from mirage.verify.sizes import draw_schedule
from tests.programs import axes, sizes
from tests.random_programs import random_program, random_sizes


def cuts_of(ap: AxisProgram, sizes: dict[str, int]) -> Cuts:
    return Cuts(ap, {a: evaluate(d, sizes) for a, d in ap.axes.items()})


def random_partition(rng: Random, cuts: Cuts) -> list[Atoms]:
    """Pieces in order, of atoms that are ready one after another."""
    pieces = [0]
    done = 0
    while done != cuts.all:
        ready = [k for k, reads in enumerate(cuts.reads) if not done >> k & 1 and not reads & ~done]
        atom = 1 << rng.choice(ready)
        done |= atom
        if pieces[-1] and rng.random() < 0.5:
            pieces.append(0)
        pieces[-1] |= atom
    return [p for p in pieces if p]


def check(p: Program, ap: AxisProgram, graph: MuGraph, sizes: dict[str, int], rng: Random) -> None:
    """The graph is valid, proved, and right in float64 whatever its tiles."""
    validate(graph)
    assert prove(ap, graph) == "proved", f"{p}\n{graph}"
    normal = np.random.default_rng(rng.randrange(2**32))
    inputs = [normal.standard_normal(t.bind(sizes)) for t in p.input_types]
    read = read_arguments(graph.name, graph.inputs, inputs, lambda moves, x: moved(moves, x, sizes))
    schedule, _ = draw_schedule(graph, {a: evaluate(d, sizes) for a, d in ap.axes.items()}, rng)
    got = run_mugraph(graph, schedule, read, FloatArithmetic(sizes))
    for a, b in zip(got, run_reference(p, inputs, sizes, "float64"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_windows_are_read_by_pieces_that_do_not_read_the_tensor() -> None:
    def gated(x: Any, w: Any, v: Any) -> Any:
        return mi.relu(mi.convolution(x, w, padding=1)) * mi.convolution(x, v, padding=1) + x

    p = mi.trace(gated, x=mi.tensor("b", 2, "h", 5), w=mi.tensor(2, 2, 3, 3), v=mi.tensor(2, 2, 3, 3))
    ap = to_axes(p)
    nodes = computed(ap)
    parts = [piece_of(ap, nodes[k : k + 1]) for k in range(len(nodes))]
    for part in parts:
        validate(reference_graph(part.program))
    graph = join(ap, [(part, reference_graph(part.program)) for part in parts])
    check(p, ap, graph, {"b": 2, "h": 4}, Random(0))


@pytest.mark.parametrize("ten", range(8))
def test_random_programs_cut_anywhere(ten: int) -> None:
    for seed in range(10 * ten, 10 * ten + 10):
        rng = Random(seed)
        p = random_program(rng, 3 + seed % 14)
        ap = to_axes(p)
        sizes = random_sizes(rng, p)
        cuts = cuts_of(ap, sizes)
        pieces = [piece_of(ap, cuts.nodes(atoms)) for atoms in random_partition(rng, cuts)]
        check(p, ap, join(ap, [(piece, reference_graph(piece.program)) for piece in pieces]), sizes, rng)


@pytest.mark.parametrize("name", ["rmsnorm_linear", "lora", "moe", "norm_transformer", "layer_norm"])
def test_searched_pieces(name: str) -> None:
    """Every graph of every atom, as it comes, joined."""
    ap = axes(name)
    cuts = cuts_of(ap, sizes(name))
    pieces = [piece_of(ap, cuts.nodes(1 << k)) for k in range(len(cuts.atoms))]
    found = [generate(piece.program, sizes(name)).graphs for piece in pieces]
    for k in range(max(map(len, found))):
        graph = join(ap, [(piece, graphs[k % len(graphs)]) for piece, graphs in zip(pieces, found, strict=True)])
        assert prove(ap, graph) == "proved" or twice_split(graph)


def twice_split(graph: MuGraph) -> bool:
    split = [a for n in graph.kernels if n.graph is not None for a in n.graph.grid if a in n.graph.loop]
    return len(set(split)) < len(split)


def test_a_piece_reads_and_yields_what_crosses() -> None:
    ap = axes("rmsnorm_linear")
    cuts = cuts_of(ap, sizes("rmsnorm_linear"))
    (product,) = (i for i, n in enumerate(ap.nodes) if n.op == "matmul")
    (normed, weight) = ap.nodes[product].operands
    piece = piece_of(ap, [product])
    assert set(piece.reads) == {normed, weight} and piece.yields == (product,)
    assert weight in piece.reads and ap.nodes[weight].op == "input"
    before = piece_of(ap, [i for i in cuts.nodes(cuts.all) if i != product])
    assert before.yields == (normed,)
    crossing = next(x for x, i in zip(piece.program.inputs, piece.reads, strict=True) if i == normed)
    assert crossing.dims == before.program.outputs[0].dims


def test_a_crossing_value_has_a_name_that_no_input_has() -> None:
    ap = axes("rmsnorm_linear")
    (product,) = (i for i, n in enumerate(ap.nodes) if n.op == "matmul")
    names = [x.name for x in piece_of(ap, [product]).program.inputs]
    assert len(set(names)) == 2 and set(names) & {x.name for x in ap.inputs} == {"w"}
