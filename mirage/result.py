"""The answer of a superoptimization: a callable for every size, with its evidence."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from mirage.errors import InputError
from mirage.ir.interpret import run_reference
from mirage.ir.program import Program
from mirage.ir.serial import program_to_json
from mirage.kernels.cpu.limits import limit_us, measure_limits, program_cost
from mirage.kernels.library import LibraryProgram
from mirage.kernels.profile import Timing
from mirage.kernels.target import Target
from mirage.mugraph.graph import MuGraph
from mirage.mugraph.reference import reference_graph
from mirage.mugraph.thread import with_threads
from mirage.records import SCHEMA, baselines_to_json, candidates_to_json
from mirage.runtime.arrays import check_inputs, detached, like
from mirage.runtime.binding import SizeBinder
from mirage.search.accuracy import Accuracy, Runner, accuracy_trials, random_inputs
from mirage.search.jobs import INTERRUPTED
from mirage.search.stats import SearchStats
from mirage.search.tune import Candidate
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier


@dataclass(frozen=True)
class Best:
    """What a call runs: "mugraph", "library" or "reference", with its latency at the measured sizes."""

    kind: str
    timing: Timing
    candidate: Candidate | None = None

    @property
    def graph(self) -> MuGraph | None:
        """The muGraph down to its thread graphs; None where a library version is best."""
        return with_threads(self.candidate.graph, self.candidate.maximum) if self.candidate else None

    def _repr_svg_(self) -> str | None:
        return self.graph._repr_svg_() if self.graph else None


@dataclass
class Superoptimized:
    """A program with the fastest verified way to run it.

    Call it with arrays of any sizes of the symbolic dims; the result is of the same kind as the first argument.
    `graphs` are all verified graphs, ranked: the measured ones by latency, then the others by modelled cost. Those with an
    executable, whose kernels may be called, have passed the second check of `Verifier.confirm`; making a result raises
    VerificationError where one does not.
    """

    program: Program
    verifier: Verifier
    sizes: dict[str, int]
    target: Target
    graphs: list[Candidate]
    baselines: dict[str, Timing]
    stats: SearchStats
    seconds: dict[str, float]
    cache_hit: bool = False
    candidates: int = 0
    compiled: int = 0
    rejected: list[str] = field(default_factory=list)
    tune_stop: str = ""

    def __post_init__(self) -> None:
        self._binder = SizeBinder(self.program)
        self._library = LibraryProgram(self.verifier.axis_program)
        start = time.perf_counter()
        self.graphs = [c if c.executable is None else self._confirmed(c) for c in self.graphs]
        self.seconds["verify"] = self.seconds.get("verify", 0.0) + time.perf_counter() - start
        timed = [(c.timing.median_us, c) for c in self.graphs if c.timing is not None and c.executable is not None]
        fastest = min(timed, key=lambda t: t[0], default=None)
        name = min(self.baselines, key=lambda n: self.baselines[n].median_us)
        if fastest is not None and fastest[0] <= self.baselines[name].median_us and fastest[1].timing is not None:
            self.best = Best("mugraph", fastest[1].timing, fastest[1])
        else:
            self.best = Best(name, self.baselines[name])
        self._run: Runner = self._runner()

    def _confirmed(self, c: Candidate) -> Candidate:
        return replace(c, certificate=self.verifier.confirm(c.graph, c.certificate))

    def _runner(self) -> Runner:
        if self.best.candidate is not None:
            executable = self.best.candidate.executable
            assert executable is not None
            return executable
        return self._library if self.best.kind == "library" else self.reference

    def reference(self, inputs: Sequence[np.ndarray], sizes: Mapping[str, int]) -> list[np.ndarray]:
        """The program itself, operator by operator with NumPy."""
        return run_reference(self.program, inputs, sizes)

    def __call__(self, *arrays: Any) -> Any:
        """The program's result (a tuple of results if it has several).

        Raises InputError if the arrays do not fit the program, naming the input and the dim.
        """
        inputs = check_inputs(self.program, arrays)
        sizes = self._binder.bind([a.shape for a in inputs])
        # no kernel runs on nothing: an empty dim is NumPy's case
        empty = any(a.size == 0 for a in inputs)
        found = self.reference(inputs, sizes) if empty else self._run(inputs, sizes)
        if self.best.candidate is None or empty:
            # NumPy may answer with views
            found = detached(found, inputs)
        results = [like(r, arrays[0]) for r in found]
        return results[0] if len(results) == 1 else tuple(results)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search, the verification or the tuning, so that this is what was found by then."""
        return INTERRUPTED in self.stats.stop_reason or INTERRUPTED in self.tune_stop

    @property
    def certificate(self) -> Certificate:
        """The evidence for what a call runs."""
        if self.best.candidate is not None:
            return self.best.candidate.certificate
        graph = reference_graph(self.verifier.axis_program)
        return self.verifier.confirm(graph, self.verifier.check(graph)).with_proof("proved")

    @cached_property
    def accuracy(self) -> tuple[Accuracy, ...]:
        """Largest errors of what a call runs, and of the program itself, against float64: one entry per trial.

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
        ratio = self.baselines["reference"].median_us / t.median_us
        rows.append(("reference / best", f"{ratio:.2f}"))
        rows.append(("share of the physical limit", f"{self.limit_us / t.min_us:.0%} of {self.limit_us:,.1f} us"))
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
            "sizes": self.sizes,
            "target": self.target.name,
            "graphs": candidates_to_json(self.graphs),
            "baselines": baselines_to_json(self.baselines),
            "stats": self.stats.to_json(),
            "candidates": self.candidates,
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON; `mirage.load` reads it. The file is complete or absent, never partial.

        Raises InputError if the file cannot be written.
        """
        path = Path(path)
        try:
            fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
            try:
                with os.fdopen(fd, "w") as f:
                    json.dump(self.to_json(), f, indent=1)
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as e:
            raise InputError(f"{path}: cannot be written ({e.strerror}); choose a folder that you can write") from e

    def _repr_svg_(self) -> str | None:
        return self.best._repr_svg_()
