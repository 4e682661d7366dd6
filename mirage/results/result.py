"""What results have in common, whatever their target: the program, its verified graphs, what the search did, their file."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from mirage.drawing.show import Displayed
from mirage.errors import BudgetError, FormatError, VerificationError
from mirage.folders import save_file
from mirage.ir.codec import RESULT, at_least, within
from mirage.ir.dims import sizes_text
from mirage.ir.program import Program
from mirage.kernels.decision import Sizes
from mirage.kernels.target import get_target
from mirage.results.records import Baselines, DecisionRecord, check_sizes, known
from mirage.search.candidates import Candidate, Known, admitted
from mirage.search.decision import Version
from mirage.search.jobs import INTERRUPTED
from mirage.search.stats import SearchStats
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier

if TYPE_CHECKING:
    from rich.table import Table

#: why tuning stopped where there was none
FROM_CACHE, FROM_FILE = "from the cache", "from a file"
#: what is said of a result that another process found while this one waited
WAITED = "waiting for the search of"


def checked_budget(budget: object) -> float:
    """The seconds of a budget; raises BudgetError for anything else."""
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < 1e9:
        raise BudgetError(f"budget={budget!r} must be a positive number of seconds")
    return float(budget)


@dataclass(kw_only=True, repr=False)
class Result(Displayed, ABC, drawn_by="mirage.results.draw"):
    """A program with verified graphs, and what was done to find them.

    `anchors` are the sizes (dim symbol -> elements) that were given, `seconds` those of each phase, `candidates` so many graphs
    before verification, `compiled` so many kernels. `rejected` says what was left out, and why. `constants` are inputs whose
    contents must not change between calls. `begun_with` is the machine whose choice was tried first, "" where there was none.
    """

    program: Program
    verifier: Verifier
    anchors: list[dict[str, int]]
    graphs: Sequence[Candidate]
    stats: SearchStats
    seconds: dict[str, float]
    cache_hit: bool = False
    candidates: int = 0
    compiled: int = 0
    rejected: list[str] = field(default_factory=list)
    tune_stop: str = ""
    constants: tuple[str, ...] = ()
    begun_with: str = ""

    @property
    @abstractmethod
    def _target_name(self) -> str:
        """Such as "cpu" or "cuda:sm_90"."""

    @property
    def sizes(self) -> dict[str, int]:
        """The first sizes that the result was made for."""
        return self.anchors[0]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the search, the verification, the compilation or the tuning, so that this is what was found by
        then.
        """
        return INTERRUPTED in self.stats.stop_reason or INTERRUPTED in self.tune_stop

    def _confirmed(self, c: Candidate, known: dict[int, Certificate]) -> Candidate:
        """The candidate with both checks; once per graph, whose schedules share it.

        Raises VerificationError where they disagree.
        """
        if id(c.graph) not in known:
            known[id(c.graph)] = self.verifier.confirm(c.graph, c.certificate)
        return replace(c, certificate=known[id(c.graph)])

    @property
    def title(self) -> str:
        """The program, the first sizes that the result was made for, and the target."""
        sizes = sizes_text(self.sizes) or "fixed sizes"
        return f"{self.program.name} at {sizes} on {self._target_name}"

    @property
    @abstractmethod
    def best(self) -> Version:
        """What a call at the first given sizes runs."""

    @property
    @abstractmethod
    def certificate(self) -> Certificate:
        """The evidence for it."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.title}: {self.best})"

    def report(self) -> Table:
        """A table of what was done, and modelled or measured; print it with `rich.print`."""
        # most results are called, never printed
        from rich.table import Table

        table = Table(title=self.title, title_justify="left")
        table.add_column("what")
        table.add_column("figure", justify="right")
        for row in self.report_rows():
            table.add_row(*row)
        return table

    @abstractmethod
    def report_rows(self) -> list[tuple[str, str]]:
        """The rows of the report: what, and its figure."""

    def _search_rows(self, made: tuple[str, str], *cut: tuple[str, str]) -> list[tuple[str, str]]:
        """Rows of the search and the verification; `made` is the row of the phase after them, `cut` are rows of what was not
        searched.
        """
        proved = sum(c.certificate.proof == "proved" for c in self.graphs)
        return [
            ("search", "from the cache" if self.cache_hit else f"{self.seconds.get('search', 0):.2f} s"),
            ("verify", f"{self.seconds.get('verify', 0):.2f} s"),
            made,
            ("prefixes / checks", f"{self.stats.prefixes:,} / {self.stats.checks:,}"),
            *cut,
            ("candidates / verified / proved", f"{self.candidates} / {len(self.graphs)} / {proved}"),
            ("search stopped", self.stats.stop_reason),
            *([("rules", self.stats.rules)] if self.stats.rules else []),
        ]

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return RESULT.to_json(self.stored())

    @abstractmethod
    def stored(self) -> StoredResult:
        """What is stored of it."""

    def _common(self) -> dict[str, Any]:
        """What is stored of every result."""
        return {
            "program": self.program, "sizes": tuple(self.anchors), "target": self._target_name,
            "graphs": tuple(known(c) for c in self.graphs), "stats": self.stats, "candidates": self.candidates,
            "constants": tuple(self.constants),
        }  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON; `mirage.load` reads it. The file is complete or absent, never partial.

        Raises InputError if the file cannot be written.
        """
        save_file(path, json.dumps(self.to_json(), indent=1))


@dataclass(frozen=True, kw_only=True)
class StoredResult:
    """A result as it is stored."""

    program: Program
    sizes: tuple[Sizes, ...]
    target: str
    graphs: tuple[Known, ...]
    stats: SearchStats
    candidates: Annotated[int, at_least(0)]
    decision: DecisionRecord
    constants: tuple[str, ...] = ()
    #: of measured versions: with how many threads, and what competed
    threads: Annotated[int, within(1, 2**31 - 1)] = 1
    baselines: Baselines = field(default_factory=dict)

    def check_stored(self) -> None:
        """Raises FormatError, ScheduleError and UnknownTarget where its parts are not of one program and one target; its graphs
        are verified later.
        """
        symbols = self.program.symbols()
        for sizes in (*self.sizes, *(c.sizes for c in self.graphs if c.schedule)):
            check_sizes(sizes, symbols)
        if not self.sizes:
            raise FormatError("sizes: there are none")
        if not set(self.constants) <= set(self.program.input_names):
            raise FormatError(f"constants {self.constants!r} are no inputs of {self.program.name}"[:200])
        self.decision.check(self.graphs, symbols, get_target(self.target))

    @property
    def anchors(self) -> list[dict[str, int]]:
        """The sizes that it was made for."""
        return [dict(s) for s in self.sizes]

    def rechecked(self, verifier: Verifier, where: str) -> list[Candidate]:
        """The graphs with fresh evidence. `where` says in errors where they come from.

        Raises VerificationError for one that does not compute the program.
        """
        found = []
        for r in self.graphs:
            c = admitted(verifier, r, recalled=True)
            if c is None:
                raise VerificationError(
                    f"{where}: graph {r.graph.origin!r} does not compute {self.program.name}; the file was altered"
                )
            found.append(c)
        return found
