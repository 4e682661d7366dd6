"""Candidates of the upstream project's files: what they become, what they compute, and what is refused.

The files of the project itself are read where `MIRAGE_UPSTREAM_MUGRAPHS` names their folder.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import mirage as mi
from mirage.errors import FormatError, GraphError, InputError
from mirage.frontends.upstream import Imported, UpstreamFile, execute
from mirage.ir.arithmetic import FloatArithmetic
from mirage.ir.axes import to_axes
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import Graph, Role
from mirage.mugraph.interpret import run_mugraph
from mirage.results.evidence import verdicts
from mirage.settings import upstream_mugraphs
from mirage.verify.proof import prove
from tests.frontends import upstream as up
from tests.frontends.upstream_literal import Malformed, repaired, run
from tests.frontends.upstream_mutants import CHANGES, mutants
from tests.sampled import thinned

Json = dict[str, Any]

CANDIDATES: dict[str, tuple[Callable[..., Program], list[Json]]] = {
    "norm": (up.norm_program, up.norm()),
    "norm, no loop": (up.norm_program, up.norm(loop=1)),
    "lora": (up.lora_program, up.lora()),
    "lora, concats": (up.lora_program, up.lora(concat=True)),
    **{
        f"attention, {sums}, loop {loop}": (up.attention_program, up.attention(sums, loop))
        for sums in ("red_ld_sum", "nored", "redtox_ld_sum")
        for loop in (1, 2)
    },
}


def load(folder: Path, candidate: list[Json], program: Program) -> Imported:
    return UpstreamFile(up.write(folder / "file.json", candidate)).load(0, program)


def arrays(program: Program, sizes: dict[str, int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(t.bind(sizes)) / 2 for t in program.input_types]


def block(found: Imported, k: int = 0) -> Graph:
    graph = found.graph.kernels[k].graph
    assert graph is not None
    return graph


# What a candidate becomes.


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_are_proved_for_programs_of_fixed_and_of_all_sizes(
    name: str, symbolic: bool, tmp_path: Path
) -> None:
    program, candidate = CANDIDATES[name]
    found = load(tmp_path, candidate, program(symbolic))
    assert prove(to_axes(found.program), found.graph) == "proved"
    assert set(found.sizes) == set(program(symbolic).symbols())
    assert found.graph.origin == "upstream candidate 0"


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_graph_computes_what_its_file_says_and_the_program_at_the_files_sizes(name: str, tmp_path: Path) -> None:
    program, candidate = CANDIDATES[name]
    found = load(tmp_path, candidate, program(True))
    xs = arrays(program(True), found.sizes)
    literal = run(copy.deepcopy(candidate), xs)
    graph = run_mugraph(found.graph, found.schedule, xs, FloatArithmetic(found.sizes))
    wanted = run_reference(program(True), xs, found.sizes, "float64")
    for a, b, c in zip(literal, graph, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(b, c, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["norm", "lora", "attention, nored, loop 2", "attention, redtox_ld_sum, loop 1"])
def test_a_candidate_is_compiled_with_the_sizes_of_its_file(name: str, tmp_path: Path) -> None:
    program, candidate = CANDIDATES[name]
    found = load(tmp_path, candidate, program())
    kernel = CpuExecutable(found.graph, found.schedule, analyze(found.graph), found.sizes)
    xs = [x.astype(np.float32) for x in arrays(program(), found.sizes)]
    for a, b in zip(kernel(xs, found.sizes), run_reference(program(), xs, found.sizes, "float64"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_grids_and_loops_become_roles_and_a_schedule(tmp_path: Path) -> None:
    found = load(tmp_path, up.norm(grid=4, loop=2), up.norm_program(symbolic=True))
    assert block(found).role == {"b": Role.WHOLE, "k": Role.LOOP, "n": Role.PARALLEL}
    assert found.schedule.kernels[0].tile == {"k": 8, "n": 6}
    assert found.sizes == {"b": 2, "k": 16, "n": 24}
    assert not found.cuts
    assert [n.op for n in block(found).nodes].count("accumulator") == 2


def test_a_loop_of_one_iteration_is_none(tmp_path: Path) -> None:
    found = load(tmp_path, up.norm(loop=1), up.norm_program())
    assert not block(found).loop
    assert "accumulator" not in [n.op for n in block(found).nodes]


def test_a_grid_that_divides_a_sum_splits_its_axis(tmp_path: Path) -> None:
    found = load(tmp_path, up.attention("red_ld_sum", second_loop=2), up.attention_program(symbolic=True))
    first, second = block(found, 0), block(found, 1)
    assert first.role["tx"] is Role.SPLIT
    assert second.role["tx.grid"] is Role.LOOP
    assert found.schedule.kernels[0].split == {"tx": 2}
    assert found.schedule.kernels[1].tile["tx.grid"] == 1
    # the results of blocks side by side along the last dim, as the output maps say
    assert [d[-1] for d in found.graph.kernels[0].dims] == [("tx.grid",), ("tx.grid", "e")]


@pytest.mark.parametrize(
    ("sums", "cut"),
    [("nored", "axis tx = 8*t seen as t * 8"), ("redtox_ld_sum", "axis tx = 8*t seen as 2*t * 4")],
)
def test_an_accumulator_that_keeps_part_of_an_axis_makes_two_of_it(sums: str, cut: str, tmp_path: Path) -> None:
    program = up.attention_program(symbolic=True)
    found = load(tmp_path, up.attention(sums), program)
    assert found.cuts == (cut,)
    assert found.program != program
    assert found.program.input_types == program.input_types
    assert mi.verify(program, found.program).equal  # type: ignore[operator]


def test_newer_files_spell_accumulators_otherwise(tmp_path: Path) -> None:
    old = load(tmp_path, up.norm(), up.norm_program())
    new = load(tmp_path, up.norm(accumulators="tb_forloop_accum_"), up.norm_program())
    assert old.graph == new.graph


def test_files_may_leave_out_the_side_of_the_loop(tmp_path: Path) -> None:
    text = json.dumps(up.norm()).replace('"after_accum": true, ', "").replace('"after_accum": false, ', "")
    assert "after_accum" not in text
    assert (
        load(tmp_path, json.loads(text), up.norm_program()).graph == load(tmp_path, up.norm(), up.norm_program()).graph
    )


@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.5])
def test_the_constant_of_a_norm_is_the_programs(eps: float, tmp_path: Path) -> None:
    program = up.norm_program(eps=eps)
    found = load(tmp_path, up.norm(), program)
    assert prove(to_axes(found.program), found.graph) == "proved"
    assert [float(n.attr["value"]) for n in block(found).nodes if n.op == "constant"] == ([eps] if eps else [])


def one_block(build: Callable[[up.Block, list[Json]], Json], *shapes: Sequence[int], rank: int = 2) -> list[Json]:
    """A candidate of one block that reads whole inputs and stores what `build` makes of them."""
    g = up.Kernels()
    xs = [g.input(*s) for s in shapes]
    b = g.block((1, 1, 1))
    read = [b.read(x, (-1, -1, -1), -1, s) for x, s in zip(xs, shapes, strict=True)]
    x = build(b, read)
    out = b.store(x, (-1, -1, -1), x["dim"][:rank])
    g.operators.append(b.kernel())
    return g.finish(out)


def stored(b: up.Block, x: Json) -> Json:
    return b.accumulate("nored", x, x["dim"][: x["num_dims"]])


@pytest.mark.parametrize(
    ("fn", "types", "candidate"),
    [
        pytest.param(
            lambda x: mi.clamp(x, -1, 2), [(2, 3)],
            one_block(lambda b, xs: stored(b, b.op("clamp", xs[0], shape=(2, 3))), (2, 3)), id="clamp",
        ),
        pytest.param(
            lambda x: x * 3, [(2, 3)],
            one_block(lambda b, xs: stored(b, b.op("mul_scalar", xs[0], shape=(2, 3))), (2, 3)), id="factor",
        ),
        pytest.param(
            lambda x: x / 4, [(2, 3)],
            one_block(lambda b, xs: stored(b, b.op("mul_scalar", xs[0], shape=(2, 3))), (2, 3)), id="divisor",
        ),
        pytest.param(
            lambda x: mi.mean(x, axis=-1, keepdims=True), [(2, 3)],
            one_block(lambda b, xs: b.accumulate("red_ld_mean", xs[0], (2, 1)), (2, 3)), id="mean",
        ),
        pytest.param(
            lambda x: mi.rms_norm(x, eps=0.25), [(2, 3)],
            one_block(lambda b, xs: stored(b, b.op("rms_norm", xs[0], shape=(2, 3))), (2, 3)), id="norm",
        ),
        pytest.param(
            lambda x: mi.sum(x, axis=0, keepdims=True), [(2, 3)],
            one_block(lambda b, xs: stored(b, b.op("reduction_0", xs[0], shape=(1, 3))), (2, 3)), id="sum",
        ),
        pytest.param(
            lambda x: mi.sum(mi.reshape(x, 2, 3, 64), axis=1), [(2, 192)],
            one_block(
                lambda b, xs: stored(b, b.op("reduction_1_to_dimx", xs[0], shape=(2, 64))), (2, 192)
            ), id="part of a sum",
        ),
        pytest.param(
            lambda x, y: mi.exp(mi.concat([x, y], axis=1)), [(2, 3), (2, 5)],
            one_block(
                lambda b, xs: stored(b, b.op("exp", b.op("concat_1", *xs, shape=(2, 8)), shape=(2, 8))), (2, 3), (2, 5)
            ), id="concat",
        ),
        pytest.param(
            lambda x, y: mi.silu(x) - mi.sigmoid(y), [(2, 3), (2, 3)],
            one_block(
                lambda b, xs: stored(
                    b,
                    b.op("sub", b.op("silu", xs[0], shape=(2, 3)), b.op("sigmoid", xs[1], shape=(2, 3)), shape=(2, 3)),
                ), (2, 3), (2, 3),
            ), id="elementwise",
        ),
    ],
)  # fmt: skip
def test_every_operator(fn: Any, types: list[tuple[int, ...]], candidate: list[Json], tmp_path: Path) -> None:
    program = mi.trace(fn, "f", **{n: mi.tensor(*t) for n, t in zip("xy", types, strict=False)})
    found = load(tmp_path, candidate, program)
    assert prove(to_axes(found.program), found.graph) == "proved"


def test_predefined_kernels(tmp_path: Path) -> None:
    g = up.Kernels()
    q, k, v = g.input(2, 8, 4), g.input(2, 4, 32), g.input(2, 32, 4)
    p = g.op("exp", g.op("matmul", q, k, shape=(2, 8, 32)), shape=(2, 8, 32))
    w = g.op("div", p, g.op("reduction_2", p, shape=(2, 8, 1)), shape=(2, 8, 32))
    found = load(tmp_path, g.finish(g.op("matmul", w, v, shape=(2, 8, 4))), up.attention_program())
    assert not found.graph.kernels
    assert found.schedule.kernels == ()
    assert prove(to_axes(found.program), found.graph) == "proved"


# What is refused.


def changed(candidate: list[Json], change: Callable[[list[Json]], Any]) -> list[Json]:
    found: list[Json] = json.loads(json.dumps(candidate))  # no object in two places
    change(found)
    return found


def graph_of(candidate: list[Json], k: int = 0) -> Json:
    found: Json = [o for o in candidate if "bgraph" in o][k]["bgraph"]
    return found


MALFORMED: dict[str, tuple[Callable[[list[Json]], Any], str]] = {
    "no operator type": (lambda c: c[0].pop("op_type"), r"operator 0, op_type: is missing"),
    "a number for a text": (lambda c: c[0].update(op_type=3), r"op_type: expected a JSON string, found 3"),
    "an unknown kernel": (lambda c: c[2].update(op_type="kn_allreduce_op"), r"operator 2 .*'kn_allreduce_op'"),
    "an unknown operator": (
        lambda c: graph_of(c)["operators"][3].update(op_type="tb_log_op"),
        r"operator 2 \(kn_customized_op\), operator 3 \(tb_log_op\): operator 'tb_log_op' is not one that is read",
    ),
    "no graph": (lambda c: c[2].pop("bgraph"), r"bgraph: is missing"),
    "a grid of no blocks": (lambda c: graph_of(c)["grid_dim"].update(x=0), r"grid_dim.x: 0 is not a size"),
    "a true loop": (lambda c: graph_of(c).update(forloop_range=True), r"forloop_range: expected a JSON integer"),
    "a map beyond the dims": (
        lambda c: graph_of(c)["operators"][0]["input_map"].update(x=2), r"input_map.x: 2 is no dim of a tensor of rank 2"
    ),
    "a loop beyond the dims": (lambda c: graph_of(c)["operators"][0].update(forloop_dim=2), r"forloop_dim: 2 is no dim"),
    "more dims than entries": (lambda c: c[0]["output_tensors"][0].update(num_dims=5), r"num_dims: 5, with 4 entries"),
    "a negative dim": (
        lambda c: c[0]["output_tensors"][0].update(dim=[2, -1, 0, 0]), r"output_tensors\[0\], dim\[1\]: -1 is not a size"
    ),
    "a shape that is not the program's": (
        lambda c: c[0]["output_tensors"][0].update(dim=[3, 16, 0, 0]), r"its inputs are not those of the program.*dim 0 is 3"
    ),
    "another rank": (lambda c: c[0]["output_tensors"][0].update(num_dims=1), r"input x of program norm has rank 2"),
    "an input too few": (lambda c: c.pop(0), r"1 inputs, but program norm has 2"),
    "no result": (lambda c: c.pop(), r"marks 0 results"),
    "an unknown tensor": (
        lambda c: graph_of(c)["operators"][3]["input_tensors"][0].update(guid=7), r"uses tensor 7, which no operator before"
    ),
    "an unknown kernel tensor": (
        lambda c: graph_of(c)["operators"][0]["dtensor"].update(guid=7), r"reads tensor 7, which no operator before"
    ),
    "a tensor that is no operand": (lambda c: c[2]["input_tensors"].pop(0), r"is no input of the kernel"),
    "a tensor made twice": (
        lambda c: graph_of(c)["operators"][3]["output_tensors"][0].update(
            guid=graph_of(c)["operators"][0]["output_tensors"][0]["guid"]
        ),
        r"a second time",
    ),
    "a wrong shape": (
        lambda c: graph_of(c)["operators"][3]["output_tensors"][0].update(dim=[2, 7, 0, 0]),
        r"has shape \[2, 7\], but its operator makes \[2, 6\]",
    ),
    "a tile that does not fit": (lambda c: graph_of(c).update(forloop_range=5), r"do not follow its axes|5 parts"),
    "the wrong side of the loop": (
        lambda c: graph_of(c)["operators"][3]["output_tensors"][0].update(after_accum=True), r"is made inside the loop"
    ),
    "both sides of the loop": (
        lambda c: graph_of(c)["operators"][5]["input_tensors"].__setitem__(
            0, graph_of(c)["operators"][3]["output_tensors"][0]
        ),
        r"combines tensors from before and after",
    ),
    "a tensor stored from inside the loop": (
        lambda c: graph_of(c)["operators"][6]["input_tensors"].__setitem__(
            0, graph_of(c)["operators"][3]["output_tensors"][0]
        ),
        r"stores a tensor from inside the loop; accumulate it first",
    ),
    "nothing stored": (lambda c: graph_of(c)["operators"].pop(), r"stores nothing"),
    "too few operands": (lambda c: graph_of(c)["operators"][3]["input_tensors"].pop(), r"1 inputs; it takes 2"),
    "an output that the kernel lacks": (
        lambda c: c[2]["output_tensors"].append(copy.deepcopy(c[0]["output_tensors"][0])), r"its output tensors are not those"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_candidates_are_errors_that_name_candidate_and_operator(name: str, tmp_path: Path) -> None:
    change, message = MALFORMED[name]
    with pytest.raises((FormatError, GraphError), match=message) as e:
        load(tmp_path, changed(up.norm(), change), up.norm_program())
    assert "file.json: candidate 0" in str(e.value)
    if name != "a tile that does not fit":
        assert isinstance(e.value, FormatError)


INEXPRESSIBLE: dict[str, tuple[Callable[[list[Json]], Any], str]] = {
    "a loop that divides nothing": (
        lambda c: [o.update(forloop_dim=-1) for o in graph_of(c)["operators"][:2]], "loop of 2 iterations divides no input"
    ),
    "a grid that divides nothing": (
        lambda c: graph_of(c)["operators"][1]["input_map"].update(x=-1), "grid dim x divides no input"
    ),
    "one loop over two axes": (
        lambda c: graph_of(c)["operators"][1].update(forloop_dim=1), r"the loop divides d24 by 2, but d16 by 2 in another"
    ),
    "blocks that store the same": (
        lambda c: graph_of(c)["operators"][-1]["output_map"].update(x=-1), "all blocks along x store the same elements"
    ),
    "blocks side by side along another dim": (
        lambda c: graph_of(c)["operators"][-1]["output_map"].update(x=0), "put side by side along dim 0, which is d2"
    ),
    "two grid dims on one dim": (
        lambda c: (graph_of(c)["grid_dim"].update(y=2), graph_of(c)["operators"][1]["input_map"].update(y=1)),
        "two grid dims divide one dim",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_no_graph_expresses_is_an_error_of_its_own(name: str, tmp_path: Path) -> None:
    change, message = INEXPRESSIBLE[name]
    with pytest.raises(GraphError, match=message):
        load(tmp_path, changed(up.norm(), change), up.norm_program())


@pytest.mark.parametrize(("sums", "multiple"), [("red_ld_sum", 0), ("nored", 8), ("redtox_ld_sum", 4)])
def test_a_symbolic_axis_of_which_a_sum_keeps_part_is_seen_as_a_product(sums: str, multiple: int, tmp_path: Path) -> None:
    def attention(q: Any, k: Any, v: Any) -> Any:
        p = mi.exp(q @ k)
        return (p / mi.sum(p, axis=-1, keepdims=True)) @ v

    program = mi.trace(attention, q=mi.tensor(2, "s", 4), k=mi.tensor(2, 4, "t"), v=mi.tensor(2, "t", 4))
    found = load(tmp_path, up.attention(sums), program)
    assert found.sizes == {"s": 8, "t": 32 // max(multiple, 1)}
    assert found.condition == (f"t is a multiple of {multiple}" if multiple else "")
    (verdict,) = verdicts(program, UpstreamFile(up.write(tmp_path / "f.json", up.attention(sums))), 0)
    assert verdict.verdict == "proved equal" and verdict.equal is not bool(multiple)
    assert verdict.explanation == (f"equal only where {found.condition}" if multiple else "")


# Candidates that no graph expresses are executed as they are written.


def two_sums(combined: str = "add") -> list[Json]:
    """The sums of the rows of x and y, in a loop that moves along the columns of both, which are two axes."""
    g = up.Kernels()
    x, y = g.input(2, 4), g.input(2, 6)
    b = g.block((2, 1, 1), 2)
    rows = [b.read(t, (0, -1, -1), 1, (1, n)) for t, n in ((x, 2), (y, 3))]
    sums = [b.op("reduction_1", r, shape=(1, 1)) for r in rows]
    total = b.accumulate("nored", b.op(combined, *sums, shape=(1, 1)), (1, 1))
    out = b.store(total, (0, -1, -1), (2, 1))
    g.operators.append(b.kernel())
    return g.finish(out)


def two_sums_program(*sizes: Any) -> Program:
    b, m, n = sizes or (2, 4, 6)

    def sums(x: Any, y: Any) -> Any:
        return mi.sum(x, axis=1, keepdims=True) + mi.sum(y, axis=1, keepdims=True)

    return mi.trace(sums, x=mi.tensor(b, m), y=mi.tensor(b, n))


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_loop_along_two_axes_at_once_is_executed(symbolic: bool, tmp_path: Path) -> None:
    program = two_sums_program(*("b", "m", "n") if symbolic else ())
    with pytest.raises(GraphError, match="one index cannot move along both"):
        load(tmp_path, two_sums(), program)
    right, wrong = verdicts(program, UpstreamFile(up.write(tmp_path / "f.json", two_sums(), two_sums("mul"))), 3)
    assert right.executed and right.kernels == 1 and right.verdict == "equal at these sizes"
    # it says nothing of other sizes
    assert right.equal is not symbolic
    assert right.explanation == ("equal only where b = 2, m = 4, n = 6" if symbolic else "")
    assert right.certificate is not None and len(right.certificate.checks) == 2 and right.certificate.error_bound is None
    assert all(c.tests == 8 and c.draws[0].sizes == program_sizes(symbolic) for c in right.certificate.checks)
    assert any("executed as it is written" in n and "move along both" in n for n in right.certificate.notes)
    assert wrong.executed and wrong.verdict == "different" and not wrong.equal
    assert re.match(r"output 0\[\d, 0\] is .* for the program and .* for the candidate in float64", wrong.explanation)


def program_sizes(symbolic: bool) -> dict[str, int]:
    return {"b": 2, "m": 4, "n": 6} if symbolic else {}


def test_what_depends_on_an_order_that_is_not_stored_is_no_graph(tmp_path: Path) -> None:
    for name in ("blocks that store the same", "two grid dims on one dim"):
        change, message = INEXPRESSIBLE[name]
        (verdict,) = verdicts(
            up.norm_program(), UpstreamFile(up.write(tmp_path / "f.json", changed(up.norm(), change))), 0
        )
        assert verdict.verdict == "no graph" and not verdict.executed and re.search(message, verdict.explanation)


def test_candidates_that_are_too_large_are_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = UpstreamFile(up.write(tmp_path / "f.json", two_sums()))
    # two blocks, two iterations, seven operators
    for steps, fits in ((28, True), (27, False)):
        monkeypatch.setattr(execute, "MAX_STEPS", steps)
        (verdict,) = verdicts(two_sums_program(), file, 0)
        assert verdict.verdict == ("equal at these sizes" if fits else "no graph")


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_compute_the_same_as_they_are_written(name: str, tmp_path: Path) -> None:
    program_of, candidate = CANDIDATES[name]
    program = program_of()
    execution = UpstreamFile(up.write(tmp_path / "f.json", candidate)).execution(0, program)
    xs = arrays(program, {})
    for a, b in zip(execution.run(xs, FloatArithmetic({})), run(copy.deepcopy(candidate), xs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_constants_that_the_program_leaves_open_are_errors(tmp_path: Path) -> None:
    candidate = one_block(lambda b, xs: stored(b, b.op("clamp", xs[0], shape=(2, 3))), (2, 3))
    x = mi.tensor(2, 3)
    with pytest.raises(FormatError, match=r"\(tb_clamp_op\): the file does not store .* has no clamp"):
        load(tmp_path, candidate, mi.trace(lambda x: mi.relu(x), "f", x=x))
    with pytest.raises(FormatError, match="has several clamps"):
        load(tmp_path, candidate, mi.trace(lambda x: mi.clamp(x, 0, 1) + mi.clamp(x, 0, 2), "f", x=x))


def test_a_program_that_reads_an_argument_twice_is_refused(tmp_path: Path) -> None:
    g = up.Kernels()
    x = g.input(2, 3)
    candidate = g.finish(g.op("exp", x, shape=(2, 3)))
    with pytest.raises(GraphError, match="pass the second use as an argument of its own"):
        load(tmp_path, candidate, mi.trace(lambda x: x @ x.mT, "f", x=mi.tensor("m", "n")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "expected a JSON array"),
        ("[]", "0 candidates"),
        ("[[]]", "candidate 0: 0 operators"),
        ("[3]", "candidate 0: expected a JSON array, found 3"),
        ("[[3]]", "candidate 0, operator 0: expected a JSON object"),
    ],
)
def test_files_that_hold_no_candidates(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        UpstreamFile(path).load(0, up.norm_program())


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        _ = UpstreamFile(tmp_path / "none.json").indices


def test_a_candidate_that_the_file_lacks(tmp_path: Path) -> None:
    path = up.write(tmp_path / "file.json", up.norm(), up.norm(loop=1))
    assert UpstreamFile(path).indices == [0, 1]
    assert UpstreamFile(path, 1).indices == [1]
    with pytest.raises(FormatError, match="no candidate 2; it has 0 to 1"):
        _ = UpstreamFile(path, 2).indices


VALUES: list[Any] = [
    None, -1, 0, 1, 2, 7, 64, 10**30, True, "", "tb_exp_op", "kn_exp_op", "kn_reduction_1_op", "kn_concat_1_op",
    "tb_concat_2_op", "tb_rms_norm_op", "tb_reduction_2_to_dimx_op", "tb_accum_red_ld_mean_op", [], {}, 1.5, [1, 2],
]  # fmt: skip


def places(obj: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    keys = list(obj) if isinstance(obj, dict) else list(range(len(obj))) if isinstance(obj, list) else []
    return [(obj, k) for k in keys] + [p for k in keys for p in places(obj[k])]


@pytest.mark.parametrize("name", thinned(CANDIDATES))
def test_damaged_candidates_are_errors(name: str, tmp_path: Path) -> None:
    """Fields lost, doubled or replaced: an error of the two kinds, or a candidate."""
    program, candidate = CANDIDATES[name]
    rng = Random(len(name))
    found: Counter[str] = Counter()
    for _ in range(40):
        damaged = json.loads(json.dumps(candidate))
        where, key = rng.choice(places(damaged))
        change = rng.randrange(8)
        if change == 0:
            del where[key]
        elif change == 1 and isinstance(where, list):
            where.insert(key, json.loads(json.dumps(where[key])))
        else:
            where[key] = rng.choice(VALUES)
        try:
            load(tmp_path, damaged, program())
        except (FormatError, GraphError) as e:
            found[type(e).__name__] += 1
            assert "file.json: candidate 0" in str(e)
        else:
            found["read"] += 1
    assert found["FormatError"] > 10 and found["read"]


# Changed candidates are never taken for right ones.


def check_mutants(program: Program, candidate: list[Json], path: Path, seed: int, count: int) -> Counter[str]:
    """Verify changed candidates, as they are and with their shapes made consistent; the verdicts by number.

    A graph computes what its candidate computes when it is executed as written, and an equal one the program.
    """
    xs = arrays(program, {}, seed)
    wanted = run_reference(program, xs, {}, "float64")
    found: Counter[str] = Counter()
    for kind, mutant in mutants(candidate, Random(seed), count):
        try:
            consistent, literal = repaired(mutant, xs)
        except Malformed:
            consistent, literal = None, None
        same = literal is not None and all(
            a.shape == b.shape and np.allclose(a, b, rtol=1e-9, atol=1e-9) for a, b in zip(literal, wanted, strict=True)
        )
        for c in (mutant, consistent):
            if c is None:
                continue
            file = UpstreamFile(up.write(path, c))
            (verdict,) = verdicts(program, file, seed)
            found[verdict.verdict] += 1
            assert same or not verdict.equal, f"{kind}: {verdict.verdict}, but it computes something else"
            assert verdict.verdict != "different" or (not same and verdict.explanation), f"{kind}: {verdict.explanation}"
            if verdict.executed:
                assert literal is not None, f"{kind}: {verdict.verdict}, but it cannot be executed"
                ours = file.execution(0, program).run(xs, FloatArithmetic({}))
                for a, b in zip(ours, literal, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=kind)
            elif verdict.certificate is not None:
                assert literal is not None, f"{kind}: {verdict.verdict}, but it cannot be executed"
                graph = file.load(0, program)
                results = run_mugraph(graph.graph, graph.schedule, xs, FloatArithmetic(graph.sizes))
                for a, b in zip(results, literal, strict=True):
                    np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=kind)
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", thinned(CANDIDATES))
def test_changed_candidates_are_wrong_or_refused(name: str, tmp_path: Path) -> None:
    program, candidate = CANDIDATES[name]
    found = check_mutants(program(), candidate, tmp_path / "file.json", seed=len(name), count=len(CHANGES))
    assert found["malformed"] and found["different"] + found["no graph"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", CANDIDATES)
def test_many_changed_candidates_are_wrong_or_refused(name: str, seed: int, tmp_path: Path) -> None:
    program, candidate = CANDIDATES[name]
    check_mutants(program(), candidate, tmp_path / "file.json", seed=1000 + seed, count=10 * len(CHANGES))


# The files of the upstream project.

FILES: dict[str, tuple[Callable[..., Program], Sequence[int], Sequence[str], int, int]] = {
    "rmsnorm_bs1": (up.norm_program, (2, 4096, 6144), ("b", "k", "n"), 18, 1),
    "gqa_bs1": (up.attention_program, (2, 256, 64, 4096, 64), ("h", "s", "d", "t", "e"), 28, 2),
    "lora": (up.lora_program, (16, 256, 4096, 16), ("m", "k", "n", "r"), 4, 1),
}


@pytest.fixture
def stored_results() -> Path:
    folder = upstream_mugraphs()
    if folder is None:
        pytest.skip("MIRAGE_UPSTREAM_MUGRAPHS does not name a folder")
    return folder


@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("name", FILES)
def test_all_stored_results_are_proved(name: str, symbolic: bool, stored_results: Path) -> None:
    program_of, sizes, symbols, count, kernels = FILES[name]
    program = program_of(sizes=symbols if symbolic else sizes)
    found = list(verdicts(program, UpstreamFile(stored_results / f"{name}.json"), 0))
    assert [v.verdict for v in found] == ["proved equal"] * count
    for v in found:
        assert v.certificate is not None
        assert v.kernels == kernels
        assert v.certificate.safe_maximum
        assert v.certificate.error_bound is not None and v.certificate.error_bound <= 2.0**-40


@pytest.mark.parametrize(("name", "index"), [("lora", 2), ("gqa_bs1", 1), ("gqa_bs1", 13), ("gqa_bs1", 23)])
def test_stored_results_compute_what_they_say(name: str, index: int, stored_results: Path) -> None:
    program = FILES[name][0](sizes=FILES[name][1])
    file = UpstreamFile(stored_results / f"{name}.json")
    found = file.load(index, program)
    xs = arrays(program, {})
    graph = run_mugraph(found.graph, found.schedule, xs, FloatArithmetic({}))
    for a, b in zip(graph, run(copy.deepcopy(file.raw[index]), xs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "index"), [("lora", 0), ("gqa_bs1", 0), ("gqa_bs1", 13), ("gqa_bs1", 23)])
def test_changed_stored_results_are_wrong_or_refused(
    name: str, index: int, stored_results: Path, tmp_path: Path
) -> None:
    program_of, sizes, *_ = FILES[name]
    candidate = UpstreamFile(stored_results / f"{name}.json").raw[index]
    check_mutants(program_of(sizes=sizes), candidate, tmp_path / "file.json", seed=index, count=3 * len(CHANGES))
