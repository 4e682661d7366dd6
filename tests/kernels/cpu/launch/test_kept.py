"""What follows from constants alone: found as kernels of its own, computed by the first call, kept, and dropped."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import mirage as mi
from mirage.ir.axes import to_axes
from mirage.ir.dims import evaluate
from mirage.kernels.cpu.emit.stages import computed_once
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.schedules.scheduler import default_schedule
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
    key, given, views = exe._constants(exe._shape(SIZES), [x, a, b], [x, a, b])
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
