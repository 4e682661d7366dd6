"""What results have in common, whatever their target: the program, its verified graphs, what the search did, their file."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mirage.errors import BudgetError, VerificationError
from mirage.folders import save_file
from mirage.ir.program import Program
from mirage.ir.serial import program_from_json, program_to_json
from mirage.kernels.target import Target, get_target
from mirage.results.records import SCHEMA, candidates_from_json, sizes_from_json
from mirage.search.candidates import Candidate, Known, admitted
from mirage.search.jobs import INTERRUPTED
from mirage.search.stats import SearchStats
from mirage.verify.certificate import Certificate
from mirage.verify.equivalence import Verifier

if TYPE_CHECKING:
    from rich.table import Table

#: why tuning stopped where there was none
FROM_CACHE, FROM_FILE = "from the cache", "from a file"


def checked_budget(budget: object) -> float:
    """The seconds of a budget; raises BudgetError for anything else."""
    if isinstance(budget, bool) or not isinstance(budget, int | float) or not 0 < budget < 1e9:
        raise BudgetError(f"budget={budget!r} must be a positive number of seconds")
    return float(budget)


@dataclass(kw_only=True)
class Result(ABC):
    """A program with verified graphs, and what was done to find them.

    `anchors` are the sizes (dim symbol -> elements) that were given, `seconds` those of each phase, `candidates` so many graphs
    before verification, `compiled` so many kernels. `rejected` says what was left out, and why. `constants` are inputs whose
    contents must not change between calls.
    """

    program: Program
    verifier: Verifier
    anchors: list[dict[str, int]]
    graphs: list[Candidate]
    stats: SearchStats
    seconds: dict[str, float]
    cache_hit: bool = False
    candidates: int = 0
    compiled: int = 0
    rejected: list[str] = field(default_factory=list)
    tune_stop: str = ""
    constants: tuple[str, ...] = ()

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

    def report(self) -> Table:
        """A table of what was done, and modelled or measured; print it with `rich.print`."""
        # most results are called, never printed
        from rich.table import Table

        sizes = ", ".join(f"{k}={v}" for k, v in self.sizes.items()) or "fixed sizes"
        table = Table(title=f"{self.program.name} at {sizes} on {self._target_name}", title_justify="left")
        table.add_column("what")
        table.add_column("figure", justify="right")
        for row in self._report_rows():
            table.add_row(*row)
        return table

    @abstractmethod
    def _report_rows(self) -> list[tuple[str, str]]:
        """The rows of the report."""

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
        ]

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON object."""
        return {
            "format": "mirage result",
            "schema": SCHEMA,
            "program": program_to_json(self.program),
            "sizes": self.anchors,
            "target": self._target_name,
            **self._choice_to_json(),
            "stats": self.stats.to_json(),
            "candidates": self.candidates,
            "constants": list(self.constants),
        }

    @abstractmethod
    def _choice_to_json(self) -> dict[str, Any]:
        """The graphs, the decision, and what else is of the target."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON; `mirage.load` reads it. The file is complete or absent, never partial.

        Raises InputError if the file cannot be written.
        """
        save_file(path, json.dumps(self.to_json(), indent=1))


@dataclass(frozen=True)
class SavedResult:
    """What `Result.to_json` wrote of every target, as it was read: nothing in it has been checked against the program yet."""

    program: Program
    anchors: list[dict[str, int]]
    target: Target
    graphs: list[Known]
    stats: SearchStats
    candidates: int
    constants: tuple[str, ...]

    def rechecked(self, verifier: Verifier, where: str) -> list[Candidate]:
        """The graphs with fresh evidence. `where` says in errors where they come from.

        Raises VerificationError for one that does not compute the program.
        """
        found = []
        for r in self.graphs:
            c = admitted(verifier, r)
            if c is None:
                raise VerificationError(
                    f"{where}: graph {r.graph.origin!r} does not compute {self.program.name}; the file was altered"
                )
            found.append(c)
        return found


def saved_from_json(obj: Mapping[str, Any]) -> SavedResult:
    """Raises FormatError, UnknownTarget, KeyError, TypeError or ValueError for anything but what `Result.to_json` writes."""
    program = program_from_json(obj["program"])
    symbols = program.symbols()
    target = get_target(str(obj["target"]))
    records = candidates_from_json(obj["graphs"], symbols, target)
    anchors = [sizes_from_json(s, symbols) for s in obj["sizes"]]
    if not anchors:
        raise ValueError("sizes: none")
    # files of before there were packed constants have none
    constants = obj.get("constants", [])
    if not isinstance(constants, list) or not all(name in program.input_names for name in constants):
        raise ValueError(f"constants {constants!r}"[:200])
    stats = SearchStats.from_json(obj["stats"])
    return SavedResult(program, anchors, target, records, stats, int(obj["candidates"]), tuple(constants))
