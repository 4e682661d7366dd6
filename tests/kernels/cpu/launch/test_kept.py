"""What follows from constants alone: found as kernels of its own, computed by the first call, kept, and dropped."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

import mirage as mi
from mirage.errors import ScheduleError
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.kernels.cpu.emit.stages import computed_once
from mirage.kernels.cpu.launch.direct import DirectCalls
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.launch.packing import packed_variants
from mirage.kernels.cpu.model.cost import CostModel, Machine
from mirage.kernels.cpu.schedules.scheduler import Scheduler, default_schedule
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.search.generate import generate
from mirage.search.options import SearchOptions
from mirage.verify.proof import prove

T = mi.tensor
PROGRAM = to_axes(
    mi.trace(lambda x, a, b: x @ a + x @ b, x=T("m", 16), a=T(16, "n"), b=T(16, "n"))
)
SIZES = {"m": 4, "n": 32}
CONSTANTS = ("a", "b")


def graphs(constants: tuple[str, ...] = CONSTANTS) -> list[MuGraph]:
    return generate(PROGRAM, SIZES, SearchOptions(constants=constants, budget=600)).graphs


def once(graph: MuGraph, constants: tuple[str, ...] = CONSTANTS) -> frozenset[int]:
    return computed_once(graph, constants, analyze(graph))


@pytest.fixture(scope="module")
def graph() -> MuGraph:
    """The one that adds the weights first."""
    return next(g for g in graphs() if once(g) and all(n.graph is not None for n in g.kernels))


def executable(graph: MuGraph, constants: tuple[str, ...] = CONSTANTS) -> CpuExecutable:
    return CpuExecutable(graph, default_schedule(graph, SIZES, 1 << 20), analyze(graph), SIZES, constants)


def arrays(seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(s).astype(np.float32) for s in ((4, 16), (16, 32), (16, 32))]


def expected(x: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    found: np.ndarray = x @ (a + b)
    return found


def close(found: list[np.ndarray], wanted: np.ndarray) -> bool:
    return bool(np.allclose(found[0], wanted, atol=1e-4))


def test_constants_have_kernels_of_their_own_that_cost_nothing(graph: MuGraph) -> None:
    assert prove(PROGRAM, graph) == "proved"
    assert not any(once(g, ()) for g in graphs())
    # without constants nothing is worth a kernel that adds weights
    assert not any(once(g) for g in graphs(()))


def test_a_result_is_never_kept() -> None:
    program = to_axes(mi.trace(lambda a, b: mi.exp(a + b), a=T("n"), b=T("n")))
    for g in generate(program, {"n": 8}, SearchOptions(constants=CONSTANTS, budget=600)).graphs:
        assert not once(g)


def test_constants_are_computed_by_the_first_call_only(graph: MuGraph) -> None:
    exe = executable(graph)
    x, a, b = arrays(0)
    wanted = expected(x, a, b)
    assert exe.packed() == [] and close(exe([x, a, b], SIZES), wanted)
    (kept,) = exe.packed()
    assert np.allclose(kept, a + b, atol=1e-5) or np.allclose(kept, (a + b).T, atol=1e-5)
    b *= 2
    # nobody says that they are written to
    assert close(exe([x, a, b], SIZES), wanted)
    exe.forget()
    assert exe.packed() == [] and close(exe([x, a, b], SIZES), expected(x, a, b))


def test_other_constants_and_other_sizes_have_their_own(graph: MuGraph) -> None:
    exe = executable(graph)
    x, a, b = arrays(1)
    other = arrays(2)[2]
    for pair in ((a, b), (a, other), (other, b), (a, b), (b, a)):
        assert close(exe([x, *pair], SIZES), expected(x, *pair))
    more = np.concatenate([x, x])
    assert close(exe([more, a, b], {"m": 8, "n": 32}), expected(more, a, b))
    assert close(exe([x, a[:, ::2], b[:, ::2]], {"m": 4, "n": 16}), expected(x, a[:, ::2], b[:, ::2]))


def test_what_is_kept_goes_with_any_of_its_constants(graph: MuGraph) -> None:
    exe = executable(graph)
    x, a, b = arrays(3)
    exe([x, a, b], SIZES)
    kept = exe._kept
    assert kept is not None
    key, given, views = exe._constants(exe._shape(SIZES), SIZES, [x, a, b], [x, a, b])
    assert kept.find(key, given) is not None
    del b, given, views
    gc.collect()
    # the second constant has ended, though the first has not: one at its address is another
    assert kept.find(key, [a, arrays(4)[2]]) is None


def test_without_constants_every_call_computes_everything(graph: MuGraph) -> None:
    exe = executable(graph, ())
    x, a, b = arrays(5)
    assert close(exe([x, a, b], SIZES), expected(x, a, b))
    b *= 2
    assert close(exe([x, a, b], SIZES), expected(x, a, b)) and exe.packed() == []


def test_a_call_in_given_memory_reads_what_is_kept(graph: MuGraph) -> None:
    exe = executable(graph)
    x, a, b = arrays(6)
    elements = evaluate(exe.workspace(), SIZES)
    for _ in range(3):
        memory = np.full(elements, np.nan, np.float32)
        assert close(exe([x, a, b], SIZES, workspace=memory), expected(x, a, b))
        assert close(exe([x, a, b], SIZES), expected(x, a, b))


def bound(exe: CpuExecutable, x: np.ndarray, a: np.ndarray, b: np.ndarray) -> DirectCalls:
    """The direct calls for arrays like these."""
    given = (x, a, b)
    sizes = {"m": x.shape[0], "n": a.shape[1]}
    result = (sizes["m"], sizes["n"])
    call = exe.bind(sizes, [*(array.strides for array in given), np.empty(result, np.float32).strides])
    assert call is not None
    found = DirectCalls([np.dtype(np.float32)] * 3, [np.dtype(np.float32)])
    assert found.add(call, [n for array in given for n in (array.shape, array.strides)], [result])
    return found


def test_direct_calls_read_what_is_kept(graph: MuGraph) -> None:
    exe = executable(graph)
    x, a, b = arrays(7)
    wanted = expected(x, a, b)
    direct = bound(exe, x, a, b)
    assert exe.packed() == [] and close([direct.call((x, a, b), None)], wanted)
    # one copy, whichever way a call takes
    (kept,) = exe.packed()
    b *= 2
    for found in (direct.call((x, a, b), None), *exe([x, a, b], SIZES), direct.call((x, a, b), None)):
        assert close([found], wanted)
    assert exe.packed()[0] is kept
    exe.forget()
    assert close([direct.call((x, a, b), None)], expected(x, a, b))
    other = arrays(8)[2]
    for pair in ((a, other), (other, b), (b, a), (a, b)):
        assert close([direct.call((x, *pair), None)], expected(x, *pair))


@pytest.mark.parametrize("which", [1, 2])
def test_direct_calls_forget_what_is_kept_with_any_of_its_constants(graph: MuGraph, which: int) -> None:
    exe = executable(graph)
    given = arrays(9)
    direct = bound(exe, *given)
    direct.call(tuple(given), None)
    assert len(exe.packed()) == 1
    given[which] = given[which].copy()
    gc.collect()
    assert exe.packed() == []
    assert close([direct.call(tuple(given), None)], expected(*given))


def test_what_is_kept_may_be_packed(graph: MuGraph) -> None:
    plain = default_schedule(graph, SIZES, 1 << 20)
    variants = packed_variants(graph, plain, CONSTANTS, SIZES, once(graph))
    assert variants
    for schedule in variants:
        # only for the kernel that runs in every call
        assert [bool(k.packed) for k in schedule.kernels] == [False, True]
        exe = CpuExecutable(graph, schedule, analyze(graph), SIZES, CONSTANTS)
        for seed, n in ((10, 32), (11, 32), (12, 30), (13, 0)):
            x, a, b = (array[:, :n] if k else array for k, array in enumerate(arrays(seed)))
            sizes = {"m": 4, "n": n}
            assert close(exe([x, a, b], sizes), expected(x, a, b))
            assert close(exe([x, a, b], sizes), expected(x, a, b))
        x, a, b = arrays(14)
        direct = bound(exe, x, a, b)
        assert close([direct.call((x, a, b), None)], expected(x, a, b))
        exe.forget()
        exe([x, a, b], SIZES)
        # the packed form alone is kept
        (kept,) = exe.packed()
        assert kept.ndim == 3
    with pytest.raises(ScheduleError, match="packs the result of graph, which every call computes"):
        CpuExecutable(graph, variants[0], analyze(graph), SIZES, ("a",))


def test_what_is_kept_needs_no_memory_in_a_call(graph: MuGraph) -> None:
    assert evaluate(executable(graph).workspace(), SIZES) == 0
    assert evaluate(executable(graph, ()).workspace(), SIZES) >= 16 * 32


def test_what_runs_once_costs_nothing_and_is_not_varied(graph: MuGraph) -> None:
    model = CostModel(Machine(2, 32 << 10, 1 << 20, 32 << 20))
    each, first = Scheduler(graph, SIZES, model), Scheduler(graph, SIZES, model, constants=CONSTANTS)
    schedule = each.first()
    before, after = each.counts(schedule), first.counts(schedule)
    assert (after <= before).all() and (after < before).any()
    other = schedule.with_kernel(0, replace(schedule.kernels[0], tiles=tuple((a, 1) for a, _ in schedule.kernels[0].tiles)))
    assert (first.counts(other) == after).all() and first.ns(schedule) < each.ns(schedule)
    near = list(first.neighbours(schedule))
    assert near and all(s.kernels[0].tiles == schedule.kernels[0].tiles for s in near)
    assert any(s.kernels[0].tiles != schedule.kernels[0].tiles for s in each.neighbours(schedule))
