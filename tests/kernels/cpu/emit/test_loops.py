"""Concatenating accumulators and loops over two axes in C: awkward sizes, growing maxima, split axes."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest

from mirage.ir.interpret import run_reference
from mirage.ir.program import ProgramBuilder
from mirage.ir.types import tensor
from mirage.kernels.cpu.emit.mugraph import emit
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import default_schedule, schedules
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import Role
from mirage.mugraph.schedule import KernelSchedule, Schedule
from tests.kernels.cpu.check import check
from tests.kernels.kernels import error, random_inputs, tiles
from tests.mugraph.graphs import Case
from tests.mugraph.loops import CASES, SOFTMAXES, split_rows
from tests.sampled import crossed, thinned

TWO_LOOPS = [n for n, c in CASES.items() if any(len(k.graph.loop) > 1 for k in c.graph.kernels if k.graph)]


def compiled(case: Case, schedule: Schedule) -> CpuExecutable:
    return CpuExecutable(case.graph, schedule, analyze(case.graph), case.sizes)


@pytest.mark.parametrize("name", thinned(CASES))
def test_sizes_around_the_tiles(name: str) -> None:
    """1, a prime, one less and one more than the tile, along every axis and with the other axes at any of them."""
    case = CASES[name]
    exe = compiled(case, case.schedule)
    tile = dict(case.schedule.kernels[0].tiles)
    near = {a: sorted({1, max(tile.get(a, 2) - 1, 1), tile.get(a, 2) + 1, 13}) for a in case.sizes}
    every = [dict(zip(near, row, strict=True)) for row in product(*near.values())]
    for sizes in every[:: max(1, len(every) // 40)]:
        inputs = random_inputs(case.program, sizes)
        found = error(exe(inputs, sizes), run_reference(case.program, inputs, sizes, "float64"))
        assert found < 2e-5, (sizes, found)


@pytest.mark.parametrize(("name", "tile"), crossed(CASES, [1, 16], step=2))
def test_tiles_of_one_and_of_a_vector(name: str, tile: int) -> None:
    case = CASES[name]
    exe = compiled(case, tiles(case.graph, tile, 2))
    for size in (1, 15, 17, 33):
        sizes = {a: min(size + k, 19) if len(case.sizes) > 3 else size + k for k, a in enumerate(case.sizes)}
        inputs = random_inputs(case.program, sizes)
        assert error(exe(inputs, sizes), run_reference(case.program, inputs, sizes, "float64")) < 2e-5, sizes


def growing(case: Case, sizes: dict[str, int]) -> list[np.ndarray]:
    """Inputs whose exponents grow along every axis that is looped over, by far more than float32 can represent."""
    first, *rest = random_inputs(case.program, sizes)
    graph = case.graph.kernels[0].graph
    assert graph is not None
    ramp = np.zeros([1] * first.ndim)
    for d, dim in enumerate(case.graph.inputs[0].dims):
        if set(dim) & set(graph.loop):
            ramp = ramp + np.linspace(0, 300, first.shape[d]).reshape([-1 if k == d else 1 for k in range(first.ndim)])
    return [(first + ramp).astype(np.float32), *rest]


@pytest.mark.parametrize("name", [n for n in SOFTMAXES if not n.startswith("scores")])
def test_earlier_tiles_are_rescaled_when_the_maximum_grows(name: str) -> None:
    case = CASES[name]
    exe = compiled(case, case.schedule)
    sizes = {a: 11 for a in case.sizes}
    for inputs in (
        growing(case, sizes),
        [x[:, ::-1].copy() for x in growing(case, sizes)[:1]] + growing(case, sizes)[1:],
    ):
        with np.errstate(over="ignore"):
            assert np.isinf(np.exp(inputs[0])).any()
        (wanted,) = run_reference(case.program, inputs, sizes, "float64")
        (found,) = exe(inputs, sizes)
        assert np.isfinite(wanted).all() and error([found], [wanted]) < 1e-4
        # small results too: those of the first tiles, from before the maximum grew
        visible = wanted > 1e-30
        np.testing.assert_allclose(found[visible], wanted[visible], rtol=2e-4)


def test_scores_of_a_matmul_grow() -> None:
    for name in ("scores", "scores_turned"):
        case = CASES[name]
        sizes = {"m": 5, "k": 9, "n": 23}
        inputs = random_inputs(case.program, sizes)
        inputs[1] = (inputs[1] * np.linspace(1, 60, 23)).astype(np.float32)
        exe = compiled(case, case.schedule)
        (wanted,) = run_reference(case.program, inputs, sizes, "float64")
        assert error(exe(inputs, sizes), [wanted]) < 1e-4


def test_exponents_of_a_split_axis_have_no_maximum_and_are_right_without() -> None:
    b = ProgramBuilder("softmax")
    program = b.finish([b.op("softmax", b.input("x", tensor("m", "t")))])
    graph = split_rows(program, "exp")
    assert not analyze(graph).safe
    schedule = Schedule((KernelSchedule((("m", 2), ("t", 3)), (("t", 2),)), KernelSchedule((("m", 2), ("t", 4)))))
    for t in (1, 2, 4, 13):
        exe = check(program, graph, schedule, {"m": 3, "t": t})
    assert "running_maximum(" not in exe.source


def test_tiles_are_appended_in_place() -> None:
    case = CASES["softmax"]
    text = emit(case.graph, case.schedule, analyze(case.graph), {"m": 64, "t": 1000})
    # one buffer for all exponents; the tiles have none
    assert re.findall(r"count \+= .* /\* (m\d+) \*/", text) == ["m4", "m3"]
    assert "m4 + done_t" in text and "v4 relative to the new maxima" in text
    # only what earlier iterations wrote
    assert "for (long c_t = 0; c_t < done_t; c_t++)" in text
    both = CASES["marginals"]
    assert "c_u < done_u" not in emit(both.graph, both.schedule, analyze(both.graph), {"m": 64, "t": 100, "u": 100})


def test_what_varies_with_the_outer_loop_is_computed_there() -> None:
    lines = [line.strip() for line in _source("gates").splitlines()]
    start = lines.index("/* the for-loop */")
    order = [x for x in lines[start:] if x.startswith(("for (long done_", "/* v"))]
    assert order[0].startswith("for (long done_t") and order[1].startswith("/* v3[m, t] = sigmoid")
    assert order[2].startswith("for (long done_u") and order[3].startswith("/* v4[t, n] = matmul")
    lines = [line.strip() for line in _source("gates_turned").splitlines()]
    order = [x for x in lines[lines.index("/* the for-loop */") :] if x.startswith(("for (long done_", "/* v"))]
    assert order[0].startswith("for (long done_u") and order[1].startswith("for (long done_t")


def _source(name: str) -> str:
    case = CASES[name]
    return emit(case.graph, case.schedule, analyze(case.graph), case.sizes)


@pytest.mark.parametrize("name", thinned(TWO_LOOPS))
def test_schedules_choose_a_tile_per_loop(name: str) -> None:
    case = CASES[name]
    hints = {"m": 16, "n": 64, "t": 300, "u": 40, "k": 300}
    found = schedules(case.graph, hints, 1 << 20, 2)
    assert found and len(set(found)) == len(found)
    for s in found:
        s.check(case.graph)
    check(case.program, case.graph, default_schedule(case.graph, hints, 1 << 20), case.sizes)


def test_loop_tiles_are_independent_and_one_axis_is_split_over_the_threads() -> None:
    case = CASES["split_attention_2d"]
    hints = {"m": 1, "n": 16, "t": 64, "u": 100_000}
    best = default_schedule(case.graph, hints, 1 << 20, threads=8).kernels[0]
    graph = case.graph.kernels[0].graph
    assert graph is not None and graph.role["u"] is Role.SPLIT
    assert best.split["u"] >= 8
    every = schedules(case.graph, {**hints, "m": 64}, 1 << 18, 2, count=40)
    assert len({s.kernels[0].tile["t"] for s in every}) > 1 and len({s.kernels[0].tile["u"] for s in every}) > 1
    assert any(s.kernels[0].tile["t"] > s.kernels[0].tile["u"] for s in every)


def test_empty_axes() -> None:
    for name, sizes in {
        "softmax": {"m": 3, "t": 0},
        "scores": {"m": 3, "n": 5, "k": 0},
        "gates": {"m": 3, "t": 0, "u": 4, "n": 2},
        "gates_turned": {"m": 3, "t": 4, "u": 0, "n": 2},
        "lora": {"m": 3, "n": 4, "k": 0, "r": 2},
        "shares": {"m": 3, "t": 0},
    }.items():
        case = CASES[name]
        inputs = random_inputs(case.program, sizes)
        wanted = run_reference(case.program, inputs, sizes, "float64")
        for found, want in zip(compiled(case, case.schedule)(inputs, sizes), wanted, strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-6)
