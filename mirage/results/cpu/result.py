"""The answer of a superoptimization: a callable for every size, with its evidence."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from rich.table import Table

from mirage.errors import DimError
from mirage.folders import save_file
from mirage.ir.interpret import Runner, run_reference
from mirage.ir.program import Program
from mirage.ir.serial import program_to_json
from mirage.kernels.cpu.choose import compile_tree
from mirage.kernels.cpu.limits import limit_us, measure_limits, program_cost
from mirage.kernels.decision import leaves
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing
from mirage.kernels.target import Target
from mirage.mugraph.reference import reference_graph
from mirage.results.records import SCHEMA, baselines_to_json, candidates_to_json, decision_to_json
from mirage.runtime.calls import Caller
from mirage.search.accuracy import Accuracy, accuracy_trials, random_inputs
from mirage.search.jobs import INTERRUPTED
from mirage.search.stats import SearchStats
from mirage.search.tune import Candidate
from mirage.search.versions import MAX_VERSIONS, Decision, Version
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier


@dataclass
class Superoptimized:
    """A program with the fastest verified ways to run it.

    Call it with arrays of any sizes of the symbolic dims; the result is of the same kind as the first argument. `decision`
    says which of `versions` runs at which sizes; it was learnt from measurements, with `threads` threads, at and around
    `anchors`, the sizes (dim symbol -> elements) that were given. It never changes: with as many threads, equal arguments give
    equal bits, in this process and in every one that loads the result.

    `graphs` are all verified graphs, ranked: the measured ones by latency, then the others by modelled cost. Those with an
    executable, whose kernels may be called, have passed the second check of `Verifier.confirm`; making a result raises
    VerificationError where one does not. `constants` are inputs whose contents must not change between calls.
    """

    program: Program
    verifier: Verifier
    anchors: list[dict[str, int]]
    target: Target
    threads: int
    graphs: list[Candidate]
    baselines: dict[str, Timing]
    decision: Decision
    stats: SearchStats
    seconds: dict[str, float]
    cache_hit: bool = False
    candidates: int = 0
    compiled: int = 0
    rejected: list[str] = field(default_factory=list)
    tune_stop: str = ""
    library: LibraryProgram | None = field(default=None, repr=False)
    constants: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        start = time.perf_counter()
        confirmed: dict[int, Certificate] = {}
        self.graphs = [c if c.executable is None else self._confirmed(c, confirmed) for c in self.graphs]
        versions = [
            replace(v, candidate=self._confirmed(v.candidate, confirmed)) if v.candidate else v
            for v in self.decision.versions
        ]
        self.decision = replace(self.decision, versions=tuple(versions))
        self.seconds["verify"] = self.seconds.get("verify", 0.0) + time.perf_counter() - start
        self._choose = compile_tree(self.program.name, self.decision.tree, list(self.anchors[0]))
        self._runners: list[Runner] = [self._runner(v) for v in self.decision.versions]
        self._caller = Caller(self.program, lambda sizes: self._runners[self._choose(sizes)])

    def _confirmed(self, c: Candidate, confirmed: dict[int, Certificate]) -> Candidate:
        """The candidate with the second check; once per graph, whose schedules share it."""
        if id(c.graph) not in confirmed:
            confirmed[id(c.graph)] = self.verifier.confirm(c.graph, c.certificate)
        return replace(c, certificate=confirmed[id(c.graph)])

    def _runner(self, version: Version) -> Runner:
        if version.candidate is not None:
            executable = version.candidate.executable
            assert executable is not None
            return executable
        return self._library if version.kind == "library" else self.reference

    @cached_property
    def _library(self) -> LibraryProgram:
        return self.library or LibraryProgram(self.verifier.axis_program)

    @property
    def sizes(self) -> dict[str, int]:
        """The first sizes that the result was tuned at."""
        return self.anchors[0]

    @property
    def versions(self) -> tuple[Version, ...]:
        """The ways to run the program that `decision` decides among."""
        return self.decision.versions

    def choice(self, sizes: Mapping[str, int]) -> Version:
        """What a call at these sizes (dim symbol -> elements) runs.

        Raises DimError where a dim has no size.
        """
        if missing := [s for s in self.sizes if s not in sizes]:
            raise DimError(f"{self.program.name}: no size for {', '.join(missing)}; give one for every dim")
        return self.versions[self._choose(sizes)]

    @cached_property
    def best(self) -> Version:
        """What a call at the first tuned sizes runs."""
        return self.choice(self.sizes)

    def _run(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        """What a call runs at these sizes."""
        return self._runners[self._choose(sizes)](inputs, sizes)

    def reference(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        """The program itself, operator by operator with NumPy."""
        return run_reference(self.program, inputs, sizes)

    def forget(self) -> None:
        """Drop the packed copies of constants. The next call makes them again: needed where somebody wrote to a constant."""
        for c in [*self.graphs, *(v.candidate for v in self.versions)]:
            if c is not None and c.executable is not None:
                c.executable.forget()

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """The program's result (a tuple of results if it has several), of the kind of the first array.

        With `out`, an array (or a tuple of arrays, one per result) of NumPy, torch or anything whose memory can be written
        in place, results are written there, and `out` is returned. It may have any strides, and may overlap the arguments:
        the results are those for the arguments as they were.

        Raises InputError if the arrays do not fit the program, naming the input and the dim, or if `out` does not fit.
        """
        return self._caller(arrays, out)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search, the verification or the tuning, so that this is what was found by then."""
        return INTERRUPTED in self.stats.stop_reason or INTERRUPTED in self.tune_stop

    @property
    def certificate(self) -> Certificate:
        """The evidence for what a call at the first tuned sizes runs; that of other versions is `candidate.certificate`."""
        if self.best.candidate is not None:
            return self.best.candidate.certificate
        graph = reference_graph(self.verifier.axis_program)
        return self.verifier.confirm(graph, self.verifier.check(graph)).with_proof("proved")

    @cached_property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """Largest errors of what a call at the first tuned sizes runs, and of the program itself, against float64, per trial.

        Trials are the tuned sizes, where float64 is affordable there, and small sizes, once with inputs around 1000.
        """
        if self.best.candidate is not None:
            return self.best.candidate.accuracy
        inputs = random_inputs(self.program, self.sizes, self.verifier.seed)
        _, flops = program_cost(self.verifier.axis_program, self.sizes)
        trials = accuracy_trials(self.program, inputs, self.sizes, flops, self._library, self.verifier.seed)
        return tuple(t.measure(self._run)[0] for t in trials if t.in_float64)

    @property
    def source(self) -> str:
        """The C of the best graph, or the program's text where a library version is best."""
        if self.best.candidate is not None and self.best.candidate.executable is not None:
            return self.best.candidate.executable.source
        return str(self.program)

    @property
    def limit_us(self) -> float:
        """The least time (us) that this machine's bandwidth and arithmetic allow at the measured sizes."""
        moved, flops = program_cost(self.verifier.axis_program, self.sizes)
        return limit_us(moved, flops, measure_limits(), self.target)

    def report(self) -> Table:
        """A table of what was done and measured; print it with `rich.print`."""
        sizes = ", ".join(f"{k}={v}" for k, v in self.sizes.items()) or "fixed sizes"
        table = Table(title=f"{self.program.name} at {sizes} on {self.target.name}", title_justify="left")
        table.add_column("what")
        table.add_column("figure", justify="right")
        proved = sum(c.certificate.proof == "proved" for c in self.graphs)
        rows: list[tuple[str, str]] = [
            ("search", "from the cache" if self.cache_hit else f"{self.seconds.get('search', 0):.2f} s"),
            ("verify", f"{self.seconds.get('verify', 0):.2f} s"),
            ("tune", f"{self.seconds.get('tune', 0):.2f} s, {self.compiled} kernels compiled"),
            ("prefixes / checks", f"{self.stats.prefixes:,} / {self.stats.checks:,}"),
            ("pruned", ", ".join(f"{why} {n:,}" for why, n in sorted(self.stats.pruned.items())) or "nothing"),
            ("limits", ", ".join(f"{n} {what}" for what, n in self.stats.limits.items())),
            ("candidates / verified / proved", f"{self.candidates} / {len(self.graphs)} / {proved}"),
            ("search stopped", self.stats.stop_reason),
            ("tuning stopped", self.tune_stop),
        ]
        for name, t in self.baselines.items():
            rows.append((f"{name} (NumPy)", f"{t.min_us:,.1f} us min, {t.median_us:,.1f} us median"))
        t = self.best.timing
        rows.append((f"best: {self.best.kind}", f"{t.min_us:,.1f} us min, {t.median_us:,.1f} us median"))
        if (reference := self.baselines.get("reference")) is not None:
            rows.append(("reference / best", f"{reference.median_us / t.median_us:.2f}"))
        rows.append(("share of the physical limit", f"{self.limit_us / t.min_us:.0%} of {self.limit_us:,.1f} us"))
        compiled = sum(v.candidate is not None for v in self.versions)
        rows.append(("compiled versions", f"{compiled} of at most {MAX_VERSIONS}, tuned with {self.threads} threads"))
        for where, number in leaves(self.decision.tree):
            rows.append((f"at {where}", f"version {number}: {self.versions[number]}"))
        for a in self.accuracy:
            rows.append((f"error to float64, {a.trial}", f"{a.kernel:.1e}, program {a.program:.1e}"))
        for row in rows:
            table.add_row(*row)
        return table

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {
            "format": "mirage result",
            "schema": SCHEMA,
            "program": program_to_json(self.program),
            "sizes": self.anchors,
            "target": self.target.name,
            "threads": self.threads,
            "graphs": candidates_to_json(self.graphs),
            "decision": decision_to_json(self.decision, self.graphs),
            "baselines": baselines_to_json(self.baselines),
            "stats": self.stats.to_json(),
            "candidates": self.candidates,
            "constants": list(self.constants),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON; `mirage.load` reads it. The file is complete or absent, never partial.

        Raises InputError if the file cannot be written.
        """
        save_file(path, json.dumps(self.to_json(), indent=1))

    def _repr_svg_(self) -> str | None:
        return self.best._repr_svg_()
