"""Results that no clock has chosen: the same on every machine, however busy it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from mirage.ir.program import Program
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.model.limits import program_cost
from mirage.kernels.cpu.processor import processor
from mirage.kernels.cpu.schedules.scheduler import default_schedule
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.results.cpu.result import Superoptimized
from mirage.search.accuracy import accuracy_trials
from mirage.search.candidates import Candidate
from mirage.search.decision import Decision, Point, Version
from mirage.search.generate import generate
from mirage.search.inputs import random_inputs
from mirage.search.options import SearchOptions
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from mirage.verify.safety import offered
from tests.programs import UNLIMITED


def modelled(
    program: Program, sizes: Mapping[str, int], *, kernels: int = 1, constants: Collection[str] = (), **options: Any
) -> Superoptimized:
    """As `superoptimize` would have it: so many kernels are compiled, in schedules that the cost model prefers, and the first is
    the version for all sizes. They are of the cheapest graph of one kernel, of two and so on, then of the second ones, among
    those with the fewest exponents that may overflow. `options` are those of the search, which is complete.
    """
    verifier, target, timing = Verifier(program, 0), processor(), Timing(1.0, 1.0, 1)
    _, flops = program_cost(verifier.axis_program, sizes)
    inputs = random_inputs(program, sizes, 0)
    trials = accuracy_trials(program, inputs, sizes, flops, LibraryProgram(verifier.axis_program), 0)
    limits = SearchOptions(**{"budget": UNLIMITED, **options})
    found = generate(verifier.axis_program, sizes, limits, accept=partial(offered, program))

    def candidate(graph: MuGraph, cost: float) -> Candidate:
        certificate = verifier.check(graph).with_proof(prove(verifier.axis_program, graph))
        maximum = analyze(graph)
        schedule = default_schedule(graph, sizes, target.l2_bytes, target.cores)
        executable = CpuExecutable(graph, schedule, maximum, sizes, constants)
        accuracy = tuple(t.measure(executable)[0] for t in trials if t.in_float64)
        made = Candidate(graph, certificate, maximum, cost, schedule, dict(sizes), timing=timing, accuracy=accuracy)
        return made.with_kernels(executable)

    plain = [len(analyze(g).plain) for g in found.graphs]
    same: Counter[int] = Counter()
    ranked: list[tuple[int, float, MuGraph]] = []
    for graph, cost, exponents in zip(found.graphs, found.costs, plain, strict=True):
        if exponents == min(plain):
            same[len(graph.kernels)] += 1
            ranked.append((same[len(graph.kernels)], cost, graph))
    ranked.sort(key=lambda r: r[:2])
    graphs = [candidate(graph, cost) for _, cost, graph in ranked[:kernels]]
    first = Version("mugraph", timing, graphs[0])
    return Superoptimized(
        program=program, verifier=verifier, anchors=[dict(sizes)], graphs=graphs, stats=found.stats, seconds={}, target=target,
        threads=target.cores, baselines={"library": timing}, decision=Decision((first,), 0, (Point(dict(sizes), (1.0,)),)),
        candidates=len(found.graphs), compiled=len(graphs), constants=tuple(constants),
    )  # fmt: skip
