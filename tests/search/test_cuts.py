"""Atoms, prefixes and pieces: where programs may be cut."""

from __future__ import annotations

from random import Random

import pytest

from benchmarks.large import LARGE
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.dims import evaluate
from mirage.mugraph.degree import analyze
from mirage.mugraph.reference import reference_graph
from mirage.search import cuts as cuts_module
from mirage.search.computed import SOURCES
from mirage.search.cuts import MAX_OPERATORS, Cuts, members
from mirage.search.pieces import piece_of
from tests.programs import axes
from tests.random_programs import random_program, random_sizes


def large(name: str) -> AxisProgram:
    return to_axes(LARGE[name].trace())


def cuts_of(ap: AxisProgram, sizes: dict[str, int]) -> Cuts:
    return Cuts(ap, {a: evaluate(d, sizes) for a, d in ap.axes.items()})


def random_cuts(seed: int) -> Cuts:
    rng = Random(seed)
    p = random_program(rng, 3 + seed % 14)
    return cuts_of(to_axes(p), random_sizes(rng, p))


def needed(ap: AxisProgram) -> set[int]:
    """The computed values that outputs need."""
    found: set[int] = set()
    stack = [o.value for o in ap.outputs]
    while stack:
        i = stack.pop()
        if i not in found:
            found.add(i)
            stack += ap.nodes[i].operands
    return {i for i in found if ap.nodes[i].op not in SOURCES}


def operators(names: AxisProgram, atom: tuple[int, ...]) -> list[str]:
    return [names.nodes[i].op for i in atom]


@pytest.mark.parametrize("seed", range(60))
def test_atoms_have_every_computed_value_once_in_topological_order(seed: int) -> None:
    cuts = random_cuts(seed)
    nodes = [i for atom in cuts.atoms for i in atom]
    assert sorted(nodes) == sorted(needed(cuts.program)) == list(cuts.nodes(cuts.all))
    for k, reads in enumerate(cuts.reads):
        assert all(j < k for j in members(reads))


@pytest.mark.parametrize("seed", range(60))
def test_no_value_leaves_a_piece_and_comes_back(seed: int) -> None:
    cuts = random_cuts(seed)
    assert {1 << k for k in range(len(cuts.atoms))} <= set(cuts.pieces)
    for piece in cuts.pieces:
        below, above = 0, 0
        for k in range(len(cuts.atoms)):
            if cuts.reads[k] & (piece | above) and not piece >> k & 1:
                above |= 1 << k
        for k in reversed(range(len(cuts.atoms))):
            if (piece | below) >> k & 1:
                below |= cuts.reads[k] & ~piece
        assert not above & below


@pytest.mark.parametrize("seed", range(30))
def test_prefixes_have_all_that_they_read(seed: int) -> None:
    cuts = random_cuts(seed)
    assert cuts.prefixes[0] == 0 and cuts.prefixes[-1] == cuts.all
    for prefix in cuts.prefixes:
        assert all(not cuts.reads[k] & ~prefix for k in members(prefix))
        for piece in cuts.after(prefix):
            assert not prefix & piece and prefix | piece in cuts.prefixes


def test_of_too_many_prefixes_one_order_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    ap = large("attention_block")
    monkeypatch.setattr(cuts_module, "MAX_PREFIXES", 20)
    cuts = cuts_of(ap, {"b": 1, "s": 128})
    assert cuts.prefixes == tuple((1 << k) - 1 for k in range(len(cuts.atoms) + 1))
    assert all(1 << k in cuts.after((1 << k) - 1) for k in range(len(cuts.atoms)))


def test_the_cuts_of_a_gated_mlp() -> None:
    """Statistics of the norm, the norm, the two products, and their product, which is stored rather than both, before the
    last one.
    """
    ap = large("mlp_block")
    found = [operators(ap, atom) for atom in cuts_of(ap, {"b": 1, "s": 128}).atoms]
    assert found == [
        ["square", "sum", "div", "add", "rsqrt"],
        ["mul", "mul"],
        ["matmul", "silu"],
        ["matmul", "mul"],
        ["matmul", "add"],
    ]


@pytest.mark.parametrize("name", ["attention_block", "decoder_layer", "gqa_decode", "softmax", "qknorm_attention"])
def test_no_cut_parts_an_exp_from_what_makes_it_safe(name: str) -> None:
    ap = large(name) if name in LARGE else axes(name)
    cuts = cuts_of(ap, dict.fromkeys(("b", "h", "s", "t", "m", "n"), 64))
    degree = analyze(reference_graph(ap)).degree
    assert any(degree[(i,), 0] for i in needed(ap))
    for piece in cuts.pieces:
        part = piece_of(ap, cuts.nodes(piece))
        assert not any(degree[(i,), 0] for i in part.yields)
        assert analyze(reference_graph(part.program)).safe


def test_a_piece_has_few_operators_or_is_an_atom() -> None:
    cuts = cuts_of(large("decoder_layer"), {"b": 1, "s": 128})
    assert max(len(cuts.nodes(p)) for p in cuts.pieces) == MAX_OPERATORS
    assert len(cuts.pieces) > len(cuts.atoms)


def test_what_shares_nothing_is_no_piece() -> None:
    """The norms of queries and of keys: nothing flows between them."""
    ap = axes("qknorm_attention")
    cuts = cuts_of(ap, {"b": 1, "h": 8, "s": 1, "t": 64})
    first = [k for k, atom in enumerate(cuts.atoms) if operators(ap, atom)[0] == "square"]
    assert len(first) == 2
    assert sum(1 << k for k in first) not in cuts.pieces
