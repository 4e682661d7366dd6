"""`mirage verify` and `api.verify` over programs, saved results, muGraphs and files of candidates."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import mirage as mi
from mirage import api
from mirage.errors import FormatError, GraphError, InputError
from mirage.frontends.upstream import UpstreamFile
from mirage.ir.axes import to_axes
from mirage.mugraph.files import save_mugraph
from mirage.mugraph.graph import MuGraph, Node
from mirage.results.evidence import seen_as
from tests.api.small import Run
from tests.frontends import upstream as up
from tests.mugraph.graphs import CASES, flash_attention, flash_decoding, gated

SOURCE = """
import mirage as mi

@mi.program(x=mi.tensor("b", "k"), w=mi.tensor("k", "n"))
def norm(x, w):
    return (x / mi.sqrt(mi.mean(mi.square(x), axis=-1, keepdims=True))) @ w

@mi.program(x=mi.tensor("b", "k"), w=mi.tensor("k", "n"))
def plain(x, w):
    return x @ w
"""


@pytest.fixture
def run(command: Run, tmp_path: Path) -> Run:
    """`mirage verify` in a folder with files."""
    (tmp_path / "user.py").write_text(SOURCE)
    wrong = json.loads(json.dumps(up.norm()).replace("tb_div_op", "tb_mul_op"))
    broken = json.loads(json.dumps(up.norm()).replace("tb_div_op", "tb_log_op"))
    looped = json.loads(json.dumps(up.norm()))
    looped[2]["bgraph"]["operators"][-1]["output_map"]["x"] = -1
    up.write(tmp_path / "good.json", up.norm(), up.norm(loop=1))
    up.write(tmp_path / "mixed.json", up.norm(), wrong, broken, looped)
    save_mugraph(flash_attention().graph, tmp_path / "flash.txt")
    save_mugraph(flash_decoding().graph, tmp_path / "decoding.txt")
    save_mugraph(gated().graph, tmp_path / "gated.txt")
    (tmp_path / "attention.txt").write_text(str(flash_attention().program))
    return partial(command, "verify")


# The command line.


@pytest.mark.parametrize("sides", [("user.py:norm", "good.json"), ("good.json", "user.py:norm")])
def test_all_candidates_of_a_file(sides: tuple[str, str], run: Run) -> None:
    code, out, err = run(*sides)
    assert (code, err) == (0, "")
    assert out.count("proved") == 2
    assert "good.json" in out and "error bound" in out and "running maxima" in out


def test_one_candidate_of_a_file(run: Run) -> None:
    code, out, _ = run("user.py:norm", "good.json#1", "--json")
    assert code == 0
    (row,) = json.loads(out)
    assert (row["candidate"], row["kernels"], row["verdict"], row["equal"]) == (1, 1, "proved equal", True)
    assert row["certificate"]["proof"] == "proved"
    assert row["certificate"]["error_bound"] <= 2**-40
    assert row["explanation"] == ""


def test_candidates_that_are_wrong_or_malformed(run: Run) -> None:
    code, out, err = run("user.py:norm", "mixed.json")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert any("candidate 1, different: output 0" in line and "seed 0" in line for line in lines)
    assert any("candidate 2, malformed: " in line and "'tb_log_op'" in line for line in lines)
    assert any("candidate 3, no graph: " in line and "store the same elements" in line for line in lines)
    code, out, _ = run("user.py:norm", "mixed.json", "--json", "--seed", "3")
    assert code == 1
    rows = json.loads(out)
    assert [r["verdict"] for r in rows] == ["proved equal", "different", "malformed", "no graph"]
    assert [r["equal"] for r in rows] == [True, False, False, False]
    assert [r["certificate"] is None for r in rows] == [False, False, True, True]
    assert rows[1]["certificate"]["checks"][0]["seed"] == 3
    assert all(r["explanation"] for r in rows[1:])


def test_another_program_makes_them_wrong(run: Run) -> None:
    code, out, _ = run("user.py:plain", "good.json")
    assert code == 1
    assert out.count("different") == 4  # in the table, and with the counterexample


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (("user.py:norm", "good.json#2"), "no candidate 2; it has 0 to 1"),
        (("user.py:norm", "none.json#0"), "none.json#0: no such file"),
        (("user.py:norm", "good.json#x"), "good.json#x: no such file"),
        (("good.json", "good.json"), "need their program"),
        (("good.json", "flash.txt"), "need their program"),
        (("attention.txt", "gated.txt"), "has other inputs, axes or results than program"),
        (("flash.txt", "gated.txt"), "has other inputs, axes or results than program"),
    ],
)
def test_sides_that_do_not_go_together(sides: tuple[str, str], message: str, run: Run) -> None:
    code, out, err = run(*sides)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_file_whose_name_has_a_number_sign(run: Run, tmp_path: Path) -> None:
    up.write(tmp_path / "odd#1.json", up.norm())
    assert run("user.py:norm", "odd#1.json")[0] == 0
    assert run("user.py:norm", "odd#1.json#0")[0] == 0


def test_graphs_and_programs(run: Run) -> None:
    for sides in (("attention.txt", "flash.txt"), ("decoding.txt", "attention.txt"), ("flash.txt", "decoding.txt")):
        code, out, _ = run(*sides)
        assert code == 0
        assert "proof for all sizes: proved" in out


def test_a_wrong_graph(run: Run, tmp_path: Path) -> None:
    save_mugraph(_changed(flash_decoding().graph), tmp_path / "wrong.txt")
    for a in ("attention.txt", "flash.txt"):
        code, out, _ = run(a, "wrong.txt")
        assert code == 1
        assert out.startswith("different: output 0")


def _changed(graph: MuGraph) -> MuGraph:
    """The graph with a sum of values instead of their quotient."""

    def node(n: Node) -> Node:
        if n.graph is not None:
            return replace(n, graph=replace(n.graph, nodes=tuple(map(node, n.graph.nodes))))
        return replace(n, op="mul") if n.op == "div" else n

    return replace(graph, kernel=replace(graph.kernel, nodes=tuple(map(node, graph.kernel.nodes))))


# The library.


@pytest.mark.parametrize("a", CASES)
@pytest.mark.parametrize("b", CASES)
def test_two_graphs_without_a_program(a: str, b: str) -> None:
    families = [{"flash_attention", "flash_decoding"}, {"gated", "library"}, {"joined"}, {"pooled"}]
    x, y = CASES[a]().graph, CASES[b]().graph
    if any({a, b} <= f for f in families):
        certificate = api.verify(x, y)
        assert certificate.equal and certificate.proof == "proved"
        assert len(certificate.checks) == 2
    else:
        with pytest.raises(GraphError, match="has other inputs, axes or results than program"):
            api.verify(x, y)


def test_a_graph_with_finer_axes_is_compared_with_the_program_seen_so(tmp_path: Path) -> None:
    program = up.attention_program()
    found = UpstreamFile(up.write(tmp_path / "file.json", up.attention("nored"))).load(0, program)
    assert dict(found.graph.axes) != to_axes(program).axes
    certificate = api.verify(program, found.graph)
    assert certificate.equal and certificate.proof == "proved"
    assert not api.verify(program, _changed(found.graph)).equal
    assert seen_as(program, flash_attention().graph) == program


def test_a_graph_that_breaks_a_rule_is_an_error_of_its_own() -> None:
    case = flash_attention()
    inputs = (replace(case.graph.inputs[0], dims=(("nowhere",),)), *case.graph.inputs[1:])
    with pytest.raises(GraphError, match="unknown axis nowhere"):
        api.verify(case.program, replace(case.graph, inputs=inputs))


def test_verify_file_takes_programs_functions_and_results(tmp_path: Path) -> None:
    file = UpstreamFile(up.write(tmp_path / "file.json", up.norm(), up.norm(loop=1)))

    @mi.program(x=mi.tensor("b", "k"), w=mi.tensor("k", "n"))
    def norm(x, w):  # type: ignore[no-untyped-def]
        return (x / mi.sqrt(mi.mean(mi.square(x), axis=-1, keepdims=True))) @ w

    for source in (norm, norm.trace()):
        assert [v.verdict for v in api.verify_file(source, file)] == ["proved equal", "proved equal"]
    verdict = next(iter(api.verify_file(norm, file)))
    assert verdict.certificate is not None
    assert len(verdict.certificate.checks) == 2


def test_what_is_said_of_finer_axes(tmp_path: Path) -> None:
    file = UpstreamFile(up.write(tmp_path / "file.json", up.attention("nored")))
    (verdict,) = api.verify_file(up.attention_program(symbolic=True), file)
    assert verdict.certificate is not None
    assert "axis tx = 8*t seen as t * 8" in verdict.certificate.notes


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "file.json").write_text("{}")
    with pytest.raises(FormatError, match="expected a JSON array"):
        list(api.verify_file(up.norm_program(), UpstreamFile(tmp_path / "file.json")))
    with pytest.raises(InputError, match="cannot be read"):
        list(api.verify_file(up.norm_program(), UpstreamFile(tmp_path / "none.json")))
