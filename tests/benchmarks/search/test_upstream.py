"""Stored graphs next to ours: what counts as the same, and as better."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.search.upstream import PROGRAMS, Bounds, Row, bounds, main, rows, summary
from mirage.frontends.spec import TensorFunction
from mirage.ir.axes import to_axes
from mirage.mugraph.graph import MuGraph
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.settings import upstream_mugraphs
from tests.frontends import upstream as up
from tests.mugraph.graphs import flash_attention, flash_decoding, library
from tests.programs import block

NORM = PROGRAMS["rmsnorm_bs1"]


def sized(program: TensorFunction, **sizes: int) -> TensorFunction:
    """The program, tuned at small sizes."""
    return TensorFunction(program.name, program.fn, program.specs, {"small": sizes})


def test_candidates_that_the_search_finds_too(tmp_path: Path) -> None:
    path = up.write(tmp_path / "rmsnorm_bs1.json", up.norm(), up.norm(loop=1))
    found = list(rows(path, sized(NORM, b=2, k=16, n=24), 20.0))
    assert [(r.file, r.candidate, r.verdict, r.found) for r in found] == [
        ("rmsnorm_bs1", 0, "proved equal", "same"),
        ("rmsnorm_bs1", 1, "proved equal", "same"),
    ]
    assert all(r.theirs == r.ours for r in found)


def test_candidates_that_move_more_than_ours(tmp_path: Path) -> None:
    program = sized(up_attention(), h=2, s=8, d=4, t=4, e=4)
    path = up.write(tmp_path / "gqa.json", up.attention("red_ld_sum"), up.attention("nored"))
    same, better = rows(path, program, 20.0)
    assert (same.found, better.found) == ("same", "better")
    assert better.theirs is not None and better.ours is not None
    assert better.ours.within(better.theirs) and not better.theirs.within(better.ours)
    assert better.ours.moved < better.theirs.moved


def up_attention() -> TensorFunction:
    """Attention with keys in multiples of 8, as the handwritten candidates have them."""
    import mirage as mi

    f = PROGRAMS["gqa_bs1"]
    specs = dict(q=mi.tensor("h", "s", "d"), k=mi.tensor("h", "d", "8*t"), v=mi.tensor("h", "8*t", "e"))
    return TensorFunction(f.name, f.fn, specs, f.sizes)


def test_candidates_that_are_wrong_or_malformed(tmp_path: Path) -> None:
    texts = [json.dumps(up.norm()).replace("tb_div_op", op) for op in ("tb_mul_op", "tb_log_op")]
    path = up.write(tmp_path / "rmsnorm_bs1.json", *map(json.loads, texts))
    wrong, malformed = rows(path, sized(NORM, b=2, k=16, n=24), 20.0)
    assert wrong.verdict == "different"
    assert (malformed.verdict, malformed.kernels, malformed.found, malformed.theirs) == (
        "malformed",
        0,
        "neither",
        None,
    )


def test_bounds() -> None:
    """A matmul of 3 by 5 by 7 twice, silu and mul: by predefined kernels."""
    case = library()
    found = bounds(case.graph, case.sizes, {})
    m, k, n = (case.sizes[s] for s in "mkn")
    matmuls = 2 * (m * k + k * n + m * n)
    assert found == Bounds(4, 4, matmuls + 2 * m * n + 3 * m * n, 4 * m * k * n + m * n * (25 + 1), m * n)


@pytest.mark.parametrize(("graph", "blocks"), [(flash_attention().graph, 1), (flash_decoding().graph, 3)])
def test_splits_are_what_blocks_gain(graph: MuGraph, blocks: int) -> None:
    sizes = {"b": 2, "h": 2, "s": 3, "t": 12}
    found = bounds(graph, sizes, {"t": 3})
    assert found.blocks == blocks * 2 * 2 * 8 * 3
    assert found.kernels == (2 if blocks > 1 else 1)


def test_each_product_of_a_concat_matmul_counts_by_itself() -> None:
    """[x, x @ a] @ [w, b]: the product of x sums k, the other one r."""
    sizes = {"m": 2, "k": 5, "n": 7, "r": 3}
    found = generate(to_axes(PROGRAMS["lora"].trace()), sizes, SearchOptions(max_kernels=1)).graphs
    (graph,) = (g for g in found if {n.op for n in block(g).nodes} == {"input", "matmul", "concat_matmul"})
    assert bounds(graph, sizes, {}).arithmetic == 2 * 2 * 5 * 3 + 2 * 2 * 7 * (5 + 3)


def test_rows_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    up.write(tmp_path / "lora.json", up.lora(sizes=(16, 256, 4096, 16)))
    main(tmp_path, ["lora"], as_json=True, budget=20.0)
    (row,) = json.loads(capsys.readouterr().out)
    # the products are added as one concat_matmul
    assert (row["file"], row["verdict"], row["found"]) == ("lora", "proved equal", "better")


def test_the_table_counts_candidates_by_file() -> None:
    cost = Bounds(1, 2, 3.0, 4.0, 5.0)
    words = [("a", "same"), ("b", "better"), ("a", "neither"), ("a", "same")]
    found = [Row(file, i, 1, "different" if i == 2 else "proved equal", word, cost, cost) for i, (file, word) in enumerate(words)]
    assert summary(found).rows == [["a", "3", "2", "2", "0", "1"], ["b", "1", "1", "0", "1", "0"]]


@pytest.mark.skipif(upstream_mugraphs() is None, reason="MIRAGE_UPSTREAM_MUGRAPHS names no folder")
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_stored_graph_is_found_or_bettered(name: str) -> None:
    folder = upstream_mugraphs()
    assert folder is not None
    found = list(rows(folder / f"{name}.json", PROGRAMS[name], 30.0))
    assert found
    assert {r.verdict for r in found} == {"proved equal"}
    assert {r.found for r in found} <= {"same", "better"}
