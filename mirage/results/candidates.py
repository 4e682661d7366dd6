"""Verification of what a search found, every graph a unit of work for this process or for workers, and of what was kept."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from mirage.errors import MirageError
from mirage.ir.serial import program_from_json, program_to_json
from mirage.mugraph.degree import analyze
from mirage.mugraph.graph import MuGraph
from mirage.progress import Say, Step
from mirage.results.records import GraphRecord
from mirage.search.generate import plan_by_plan
from mirage.search.jobs import Outcome, Run, run_units
from mirage.search.tune import Candidate
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier
from mirage.verify.proof import prove
from mirage.verify.safety import offered


def verify_candidates(
    verifier: Verifier,
    graphs: Sequence[MuGraph],
    costs: Sequence[float],
    *,
    seconds: float,
    executor: Executor | None,
    say: Say,
) -> tuple[list[Candidate], Run]:
    """The graphs that pass, with their certificates, cheapest first, and which were not verified in so many seconds.

    The cheapest graph of each plan is verified first. Certificates are not checkpointed: what is loaded is verified again,
    so they would save nothing.
    """
    ranked = plan_by_plan(list(zip(graphs, costs, strict=True)))
    units = {f"graph {i + 1}": graph for i, (graph, _) in enumerate(ranked)}
    passed = 0

    def told(unit: str, outcome: Outcome, done: int, total: int) -> None:
        nonlocal passed
        passed += outcome.payload["equal"]
        say(Step("verifying", f"{passed} passed", done, total))

    say(Step("verifying", total=len(units)))
    run = run_units(units, Check(verifier), seconds=seconds, executor=executor, progress=told)
    found = []
    for unit, (graph, cost) in zip(units, ranked, strict=True):
        outcome = run.outcomes.get(unit)
        if outcome is not None and outcome.payload["equal"]:
            certificate = Certificate.from_json(outcome.payload["certificate"])
            found.append(Candidate(graph, certificate, analyze(graph), cost))
    return sorted(found, key=lambda c: c.cost), run


class Check:
    """The work of a unit; its verifier is made once per process."""

    def __init__(self, verifier: Verifier) -> None:
        self.verifier = verifier

    def __reduce__(self) -> tuple[Callable[..., Check], tuple[str, int, float]]:
        v = self.verifier
        return _check, (json.dumps(program_to_json(v.program)), v.seed, v.delta)

    def __call__(self, graph: MuGraph, seconds: float) -> Outcome:
        certificate = self.verifier.check(graph)
        if not certificate.equal:
            return Outcome({"equal": False})
        certificate = certificate.with_proof(prove(self.verifier.axis_program, graph))
        return Outcome({"equal": True, "certificate": certificate.to_json()})


@functools.lru_cache(maxsize=1)
def _check(program: str, seed: int, delta: float) -> Check:
    return Check(Verifier(program_from_json(json.loads(program)), seed, delta))


def recheck(verifier: Verifier, record: GraphRecord) -> Candidate | None:
    """The record's graph with fresh evidence, or None if it does not compute the verifier's program."""
    try:
        certificate = verifier.check(record.graph)
        if not certificate.equal or not offered(verifier.program, record.graph):
            return None
        proof = prove(verifier.axis_program, record.graph)
    except MirageError:
        return None
    return Candidate(record.graph, certificate.with_proof(proof), analyze(record.graph), record.cost)
