"""MuGraphs read from text: what is printed is read, and what contradicts itself is refused with its line."""

from __future__ import annotations

from random import Random

import pytest

from mirage.api import verify
from mirage.errors import AttributeValueError, DTypeError, GraphError, MirageError, ParseError
from mirage.ir.axes import to_axes
from mirage.mugraph.canonical import structure_key
from mirage.mugraph.graph import Role
from mirage.mugraph.parse import is_mugraph, parse_mugraph
from mirage.mugraph.reference import reference_graph
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.verify.proof import prove
from tests.mugraph.graphs import CASES, gated_program
from tests.mugraph.loops import CASES as LOOPS
from tests.random_programs import random_program, random_sizes

#: written as a person would: names of its own, and no maps
BY_HAND = """
def gated(x: float32[m, k], w: float32[k, n], u: float32[k, n], *, m=m, k=k, n=n) -> [m, n]:
    # one loop for both products
    with kernel(x, w, u, grid=[m, n]) as out:
        for k in loop:
            rows: [m.tile, k.tile] = load(x)
            left: [k.tile, n.tile] = load(w)
            right: [k.tile, n.tile] = load(u)
            a: [m.tile, n.tile] = matmul(rows, left, over=[k])
            b: [m.tile, n.tile] = matmul(rows, right, over=[k])
            gate: [m.tile, n.tile] = accumulate(a)
            up: [m.tile, n.tile] = accumulate(b, over=[k])
        act: [m.tile, n.tile] = silu(gate)
        y: [m.tile, n.tile] = mul(act, up)
        store(y, to=[m, n])
    return out
"""


@pytest.mark.parametrize("name", [*CASES, *LOOPS])
def test_what_is_printed_is_read(name: str) -> None:
    graph = CASES[name]().graph if name in CASES else LOOPS[name].graph
    found = parse_mugraph(str(graph))
    assert structure_key(found) == structure_key(graph)
    assert str(parse_mugraph(str(found))) == str(found)
    assert is_mugraph(str(graph))


@pytest.mark.parametrize("seed", range(4))
def test_graphs_of_searches_are_read(seed: int) -> None:
    rng = Random(seed)
    program = random_program(rng, 5)
    found = generate(to_axes(program), random_sizes(rng, program), SearchOptions(steps=200)).graphs
    for graph in [reference_graph(to_axes(program)), *found[:8]]:
        assert structure_key(parse_mugraph(str(graph))) == structure_key(graph)


def test_a_graph_written_by_hand_is_verified() -> None:
    graph = parse_mugraph(BY_HAND)
    body = graph.kernels[0].graph
    assert body is not None
    assert body.grid == ("m", "n") and body.loop == ("k",) and body.role == dict(m=Role.PARALLEL, n=Role.PARALLEL, k=Role.LOOP)
    assert prove(to_axes(gated_program()), graph) == "proved"
    wrong = parse_mugraph(BY_HAND.replace("silu(gate)", "silu(up)"))
    assert verify(gated_program(), wrong).verdict == "different"


@pytest.mark.parametrize("text", ["def f(x: float32[n]) -> float32[n]:\n    return x", "x = 1", "{}", "def f(", ""])
def test_other_texts_are_no_mugraphs(text: str) -> None:
    assert not is_mugraph(text)
    with pytest.raises(MirageError):
        parse_mugraph(text)


@pytest.mark.parametrize(
    ("written", "changed", "error", "message"),
    [
        ("w: float32", "x: float32", ParseError, "line 2: expected an input of its own name"),
        ("w: float32", "w: float64", ParseError, "line 2: expected the element type float32 or an earlier input"),
        ("x: float32", "x: float33", DTypeError, "line 2: "),
        ("m=m,", "m,", ParseError, "line 2: expected an axis with its size, such as m=m; found 'm'"),
        ("-> [m, n]", "-> [m, n.tile*2]", ParseError, "line 2: expected an axis"),
        ("-> [m, n]", "-> ([m, n], [m, n])", ParseError, "line 16: expected 2 results, as many as shapes behind ->"),
        ("grid=[m, n]", "grid=[m, m]", ParseError, "line 4: expected axes of which none is named twice"),
        ("grid=[m, n]", "grid=[m, n], loop=[k]", ParseError, "line 4: expected kernel(x, ..., grid=[AXES])"),
        ("with kernel(x", "with threads(x", ParseError, "line 4: expected kernel(x, ..., grid=[AXES])"),
        ("for k in loop", "for k in range(4)", ParseError, "line 5: expected NAME: [AXES] = OPERATOR(...)"),
        ("load(w)", "load(v)", ParseError, "line 7: expected load(NAME) of one that is passed and not loaded yet: w, u"),
        ("load(w)", "load(x)", ParseError, "line 7: expected load(NAME)"),
        ("matmul(rows, left", "matmul(row, left", ParseError, "line 9: expected a tensor that is defined above: rows, left"),
        ("matmul(rows, left", "mathmul(rows, left", MirageError, "line 9: operator 'mathmul' is not registered"),
        ("left, over=[k]", "left, over=k", ParseError, "line 9: expected a list of axes, such as [m, n]; found 'k'"),
        ("left, over=[k]", "left, axis=1", ParseError, "line 9: expected matmul without axis"),
        ("over=[k])\n        act", "over=[n])\n        act", ParseError, "line 12: expected over=[k], the axes of the loop"),
        ("silu(gate)", "silu(gate, scale=2)", ParseError, "line 13: expected silu without scale; it takes no attributes"),
        ("silu(gate)", "silu(*gate)", ParseError, "line 13: expected a tensor that is defined above"),
        ("silu(gate)", "maximum(gate)", AttributeValueError, "line 13: maximum: attribute 'value' is missing"),
        ("act:", "up:", ParseError, "line 13: 'up' is defined twice; give each tensor its own name"),
        ("y: [m.tile, n.tile]", "y: [m, n.tile]", ParseError, "line 14: expected [m.tile, n.tile], which follows from the grid"),
        ("y: [m.tile, n.tile]", "y: [m.tile]", GraphError, "its operands make ['m', 'n']"),
        ("load(x)", "load(x, imap={m: 1, n: phi})", ParseError, "line 6: expected imap={m: 0, n: phi}, which follows from"),
        ("to=[m, n]", "to=[m.tile, n]", ParseError, "line 15: expected to=[m, n], which follows from"),
        ("to=[m, n])", "to=[m, n], omap={m: 1, n: 0})", ParseError, "line 15: expected omap={m: 0, n: 1}, which follows"),
        ("store(y, to=[m, n])", "store(y)", ParseError, "line 15: expected store(NAME, to=[AXES])"),
        (") as out:", ") as (out, other):", ParseError, "line 4: expected 1 names, one per store"),
        ("return out", "return y", ParseError, "line 16: expected a tensor that is defined above: x, w, u, out"),
        ("    return out", "", ParseError, "expected return NAME as the last line"),
        ("return out", "return out\n\ndef g(x: float32[m]) -> [m]: return x", ParseError, "line 1: expected one muGraph"),
        ("        act: [m.tile, n.tile] = silu(gate)", "            act: [m.tile, n.tile] = silu(gate)", ParseError,
         "line 13: expected what is computed from accumulated values after the loop, not in it"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_refused(written: str, changed: str, error: type[MirageError], message: str) -> None:
    assert written in BY_HAND
    with pytest.raises(error) as caught:
        parse_mugraph(BY_HAND.replace(written, changed, 1))
    assert message in str(caught.value)


def test_maps_may_be_in_any_order() -> None:
    assert parse_mugraph(BY_HAND.replace("load(x)", "load(x, fmap={k: 1}, imap={n: phi, m: 0})")) == parse_mugraph(BY_HAND)
