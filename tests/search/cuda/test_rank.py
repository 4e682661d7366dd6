"""What is compiled of the graphs of a program for a CUDA device, with a stand-in for the compiler."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import mirage as mi
from mirage.errors import MirageError, ScheduleError
from mirage.ir.axes import to_axes
from mirage.kernels.cuda.compile.kernels import CompiledKernel
from mirage.kernels.cuda.device import DEVICES
from mirage.kernels.cuda.emit.mugraph import emit
from mirage.kernels.cuda.launch.executable import CudaExecutable
from mirage.kernels.cuda.schedules.schedule import CudaKernelSchedule
from mirage.kernels.cuda.target import CudaTarget
from mirage.kernels.target import Made, Scheduled
from mirage.mugraph.degree import analyze
from mirage.search import rank
from mirage.search.candidates import Candidate
from mirage.search.generate import generate
from mirage.search.jobs import OUT_OF_TIME
from mirage.search.options import SearchOptions
from mirage.search.rank import Ranker
from mirage.verify.equivalence import verify_graph

H200 = DEVICES["sm_90"]
PROGRAM = mi.trace(
    lambda x, w: mi.softmax(x @ w), x=mi.tensor("b", 64, dtype="float16"), w=mi.tensor(64, "n", dtype="float16")
)
FEW, MANY = {"b": 1, "n": 512}, {"b": 512, "n": 512}
Spills = Callable[[CudaKernelSchedule, Mapping[str, int]], bool]


@cache
def candidates() -> tuple[Candidate, ...]:
    graphs = generate(to_axes(PROGRAM), FEW, SearchOptions(budget=10.0)).graphs
    return tuple(Candidate(g, verify_graph(PROGRAM, g), analyze(g), float(i)) for i, g in enumerate(graphs))


class Compiler(CudaTarget):
    """Emits what it is asked for; kernels with these schedules, at these sizes, spill."""

    def __init__(self, spills: Spills = lambda s, sizes: False) -> None:
        super().__init__(H200)
        self.spills = spills
        self.asked: list[Scheduled] = []

    def made(self, work: Sequence[Scheduled], constants: Collection[str]) -> list[Made | MirageError]:
        self.asked += work
        return [self.one(w) for w in work]

    def one(self, w: Scheduled) -> Made | MirageError:
        emitted = emit(w.graph, w.schedule, w.maximum)
        kernel = CompiledKernel(Path("nowhere"), "kernel", 1 << 10, 4, 1, 0, 1, 0, 1, 64, 0)
        kernels = tuple(replace(kernel, spill_bytes=8 * self.spills(s, w.sizes)) for s in w.schedule.kernels)
        run = CudaExecutable(w.graph, emitted, self.device, w.sizes, (), kernels)
        return Made(lambda: run, emitted.limits)


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[rank.Ranked, Compiler]]:
    def run(compiler: Compiler, late: bool = False) -> tuple[rank.Ranked, Compiler]:
        monkeypatch.setattr(rank, "sample_points", lambda *_: [])
        ranker = Ranker(PROGRAM, [FEW, MANY], compiler, budget=600.0)
        if late:
            ranker.deadline = time.perf_counter()
        return ranker.run(candidates()), compiler

    return run


def test_no_version_spills(ranked: Any) -> None:
    """Half of the schedules do; what is chosen at every point does not."""
    found, compiler = ranked(Compiler(lambda s, _: s.num_warps == 4))
    assert any(s.num_warps == 4 for w in compiler.asked for s in w.schedule.kernels)
    for v in found.decision.versions:
        assert all(s.num_warps != 4 for s in v.schedule.kernels)
        assert not any(k.spill_bytes for k in v.executable.kernels)
    assert any("registers spill" in why for why in found.rejected)


def test_a_kernel_that_spills_is_not_met_again_in_another_graph(ranked: Any) -> None:
    _, compiler = ranked(Compiler(lambda s, _: s.num_warps == 4))
    seen: list[tuple[object, CudaKernelSchedule]] = []
    batches = 0
    for w in compiler.asked:
        for node, s in zip(w.graph.kernels, w.schedule.kernels, strict=True):
            if s.num_warps == 4:
                batches += (node, s) in seen
                seen.append((node, s))
    # those of one batch are asked for together
    assert batches < rank.BATCH


def test_the_best_of_every_given_size_comes_first(ranked: Any) -> None:
    _, compiler = ranked(Compiler())
    assert [dict(w.sizes) for w in compiler.asked[:2]] == [FEW, MANY]


def test_the_best_of_every_given_size_is_compiled_when_time_is_over(ranked: Any) -> None:
    """Not that of one alone: the first for many rows spills, and others for few rows have to wait."""
    refused: list[CudaKernelSchedule] = []

    def spills(s: CudaKernelSchedule, sizes: Mapping[str, int]) -> bool:
        if sizes == MANY and not refused:
            refused.append(s)
        return s in refused

    found, compiler = ranked(Compiler(spills), late=True)
    # beside what it left out
    assert found.stop_reason.startswith(f"{OUT_OF_TIME}; ") and "modelled schedules not compiled" in found.stop_reason
    asked = [dict(w.sizes) for w in compiler.asked]
    assert asked[:2] == [FEW, MANY] and asked[2:] and all(sizes == MANY for sizes in asked[2:])
    assert {tuple(v.sizes.items()) for v in found.decision.versions} == {tuple(s.items()) for s in (FEW, MANY)}


def test_when_all_spill(ranked: Any) -> None:
    with pytest.raises(MirageError, match="no kernel compiles for cuda:sm_90: "):
        ranked(Compiler(lambda s, _: True))


def test_what_is_refused_has_its_reason(ranked: Any) -> None:
    class Refuses(Compiler):
        def one(self, w: Scheduled) -> Made | MirageError:
            return ScheduleError("too large") if len(self.asked) <= 2 else super().one(w)

    found, _ = ranked(Refuses())
    assert any("too large" in why for why in found.rejected)
    assert found.decision.versions
