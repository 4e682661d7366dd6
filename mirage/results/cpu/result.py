"""The answer of a superoptimization for the processor: a callable for every size, with its evidence."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from mirage.errors import DegradedWarning, MirageError
from mirage.ir.dims import check_complete, sizes_text
from mirage.ir.interpret import Runner, run_reference
from mirage.kernels.cpu.launch.choose import compile_tree
from mirage.kernels.cpu.launch.executable import CpuExecutable
from mirage.kernels.cpu.library import CpuLibraryProgram
from mirage.kernels.cpu.model.limits import limit_us, measure_limits, program_cost
from mirage.kernels.cpu.processor import Processor
from mirage.kernels.decision import leaves
from mirage.kernels.profile import Timing
from mirage.mugraph.reference import reference_graph
from mirage.progress import Say
from mirage.results.lazy import LazySequence
from mirage.results.records import decision_record
from mirage.results.result import FROM_CACHE, FROM_FILE, WAITED, Result, StoredResult, checked_budget
from mirage.runtime.calls import Caller
from mirage.search.accuracy import Accuracy, accuracy_trials
from mirage.search.candidates import Candidate
from mirage.search.cost import compared_sizes
from mirage.search.decision import MAX_VERSIONS, Decision, Version
from mirage.search.inputs import random_inputs
from mirage.verify.certificate import Certificate


@dataclass(kw_only=True, repr=False)
class Superoptimized(Result):
    """A program with the fastest verified ways to run it.

    Call it with arrays of any sizes of the symbolic dims; the result is of the same kind as the first argument. `decision`
    says which of `versions` runs at which sizes; it was learnt from measurements, with `threads` threads, at and around
    `anchors`, the sizes (dim symbol -> elements) that were given. It never changes: with as many threads, equal arguments give
    equal bits, in this process and in every one that loads the result.

    `graphs` are the verified graphs, ranked: the measured ones by latency, then the others by modelled cost; of a result that was
    recalled, those that it runs. Those of `versions` have passed both checks of `Verifier.confirm`, and making a result raises
    VerificationError where one does not; others that were measured pass them when their kernels are first asked for. Graphs of
    a recalled result are proved anew, and checked where they cannot be. `constants` are inputs whose contents must not change
    between calls.
    """

    target: Processor
    threads: int
    baselines: dict[str, Timing]
    decision: Decision
    library: CpuLibraryProgram | None = field(default=None, repr=False)
    go_on: Callable[[float, Say], Superoptimized] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        start = time.perf_counter()
        confirmed: dict[int, Certificate] = {}
        versions, graphs = self.decision.versions, self.graphs

        def version(i: int) -> Version:
            v = versions[i]
            return replace(v, candidate=self._evident(v.candidate, confirmed)) if v.candidate else v

        def graph(i: int) -> Candidate:
            c = graphs[i]
            return replace(c, certificate=confirmed[id(c.graph)]) if id(c.graph) in confirmed else self._confirmed_first(c)

        evident, ranked = LazySequence(len(versions), version), LazySequence(len(graphs), graph)
        # what was measured here is evident; what was kept may be many versions, of which a call runs one
        lazy = isinstance(versions, LazySequence)
        self.decision = replace(self.decision, versions=evident if lazy else tuple(evident))
        self.graphs = ranked if lazy else list(ranked)
        self.seconds["verify"] = self.seconds.get("verify", 0.0) + time.perf_counter() - start
        self._choose = compile_tree(self.program.name, self.decision.tree, list(self.anchors[0]))
        self._runners = [None if self.recalled else self._run_of(self.decision.versions[i]) for i in range(len(versions))]
        self._caller = Caller(self.program, self._runner)

    def _evident(self, c: Candidate, confirmed: dict[int, Certificate]) -> Candidate:
        """The candidate with the evidence that its kernels need: both checks, or, of what was recalled, a fresh proof."""
        return c if self.recalled and c.certificate.proof == "proved" else self._confirmed(c, confirmed)

    def _confirmed_first(self, c: Candidate) -> Candidate:
        """The candidate, which no call runs, with kernels whose graph passes both checks when they are first asked for."""
        make = c.make
        if make is None:
            return c

        def kernels() -> Any:
            self.verifier.confirm(c.graph, c.certificate)
            return make()

        return replace(c, make=kernels)

    @property
    def recalled(self) -> bool:
        """Whether nothing was measured for this result: it was kept, or saved."""
        return self.tune_stop in (FROM_CACHE, FROM_FILE) or WAITED in self.tune_stop

    def improve(self, budget: float = 30.0, progress: Say | None = None) -> Superoptimized:
        """The result after so many seconds more, in which search and tuning go on where they were. It is never a slower one, as
        what runs now competes. What was found is kept in the results store, if there is one; this result stays as it is.

        `progress` gets lines of text. Raises BudgetError, and what `superoptimize` raises.
        """
        assert self.go_on is not None
        return self.go_on(checked_budget(budget), progress or (lambda _: None))

    def _runner(self, sizes: Mapping[str, int]) -> Runner:
        """What runs at these sizes; of a recalled result, made when it is first needed."""
        number = self._choose(sizes)
        found = self._runners[number]
        if found is None:
            version = f"version {number}"
            try:
                version = str(self.decision.versions[number])
                found = self._run_of(self.decision.versions[number])
            except MirageError as e:
                if not self.recalled:
                    raise
                warnings.warn(f"{self.program.name}: {version} cannot be made, NumPy runs: {e}", DegradedWarning, stacklevel=2)
                found = self._library
            self._runners[number] = found
        return found

    def _run_of(self, version: Version) -> Runner:
        if version.candidate is not None:
            executable: Runner = version.executable
            return executable
        return self._library if version.kind == "library" else self.reference

    @cached_property
    def _library(self) -> CpuLibraryProgram:
        return self.library or CpuLibraryProgram(self.verifier.axis_program, self.constants)

    @property
    def _target_name(self) -> str:
        return self.target.name

    @property
    def versions(self) -> Sequence[Version]:
        """The ways to run the program that `decision` decides among. One of a recalled result is read and verified when it is
        first asked for, at the latest when a call runs it; raises FormatError, for all but the first, where its record was
        altered.
        """
        return self.decision.versions

    def choice(self, sizes: Mapping[str, int]) -> Version:
        """What a call at these sizes (dim symbol -> elements) runs.

        Raises DimError where a dim has no size.
        """
        check_complete(self.program.name, self.sizes, sizes)
        return self.versions[self._choose(sizes)]

    @cached_property
    def best(self) -> Version:
        """What a call at the first tuned sizes runs."""
        return self.choice(self.sizes)

    def _run(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        """What a call runs at these sizes."""
        return self._runner(sizes)(inputs, sizes)

    def reference(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        """The program itself, operator by operator with NumPy."""
        return run_reference(self.program, inputs, sizes)

    def forget(self) -> None:
        """Drop the packed copies of constants. The next call makes them again: needed where somebody wrote to a constant."""
        for run in self._runners:
            if isinstance(run, CpuExecutable | CpuLibraryProgram):
                run.forget()

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """The program's result (a tuple of results if it has several), of the kind of the first array.

        With `out`, an array (or a tuple of arrays, one per result) of NumPy, torch or anything whose memory can be written
        in place, results are written there, and `out` is returned. It may have any strides, and may overlap the arguments:
        the results are those for the arguments as they were.

        Raises InputError if the arrays do not fit the program, naming the input and the dim, or if `out` does not fit.
        """
        return self._caller(arrays, out)

    @cached_property
    def certificate(self) -> Certificate:
        """The evidence for what a call at the first tuned sizes runs, with both checks; that of other versions is
        `candidate.certificate`.
        """
        if self.best.candidate is not None:
            return self._confirmed(self.best.candidate, {}).certificate
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
        return str(self.program if self.best.candidate is None else self.best.executable.source)

    @property
    def limit_us(self) -> float:
        """The least time (us) that this machine's bandwidth and arithmetic allow at the measured sizes."""
        moved, flops = program_cost(self.verifier.axis_program, self.sizes)
        return limit_us(moved, flops, measure_limits(), self.target)

    def report_rows(self) -> list[tuple[str, str]]:
        rows = self._search_rows(
            ("tune", f"{self.seconds.get('tune', 0):.2f} s, {self.compiled} kernels compiled"),
            ("pruned", ", ".join(f"{why} {n:,}" for why, n in sorted(self.stats.pruned.items())) or "nothing"),
            ("limits", ", ".join(f"{n} {what}" for what, n in self.stats.limits.items())),
            ("costs compared at", self._compared()),
        )
        rows.append(("tuning stopped", self.tune_stop))
        if self.begun_with:
            rows.append(("begun with the choice of", f"{self.begun_with}; measured here"))
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
        return rows

    def _compared(self) -> str:
        """The sizes at which the search compared graphs: one that is dearer than another at all of them is dropped."""
        given = sizes_text(self.sizes)
        others = ", or ".join(map(str, compared_sizes(self.verifier.axis_program)))
        return f"{given}, and all of these {others}" if given else "the program's own sizes"

    def stored(self) -> StoredResult:
        decision = decision_record(self.decision, self.graphs)
        return StoredResult(decision=decision, threads=self.threads, baselines=self.baselines, **self._common())

