"""What is known of a program while it is superoptimized, whatever the target."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirage.search.candidates import Candidate, Candidates
from mirage.search.jobs import INTERRUPTED, OUT_OF_TIME
from mirage.search.stats import SearchStats
from mirage.verify.equivalence import Verifier


@dataclass
class Work:
    """A program with the stream of its verified graphs.

    `anchors` are the given sizes (dim symbol -> elements), `constants` inputs whose contents never change: packed copies of
    them compete. `recalled` are the statistics of a search that was complete, whose graphs were kept. `spent` are the seconds
    that earlier calls took, `begun` is when this one began (a `perf_counter`).
    """

    verifier: Verifier
    anchors: Sequence[Mapping[str, int]]
    candidates: Candidates
    constants: tuple[str, ...] = ()
    recalled: SearchStats | None = None
    spent: float = 0.0
    begun: float = field(default_factory=time.perf_counter)

    @property
    def graphs(self) -> list[Candidate]:
        """The verified graphs so far."""
        return self.candidates.found

    @property
    def stats(self) -> SearchStats:
        """What the search did so far, with the reason why it stops here."""
        search = self.candidates.search
        if search is None:
            return self.recalled or SearchStats()
        if self.candidates.stopped:
            search.stats.stop_reason = INTERRUPTED
        return search.stats

    @property
    def complete(self) -> bool:
        """Whether there are no more graphs."""
        return self.candidates.done and not self.candidates.stopped and OUT_OF_TIME not in self.stats.stop_reason

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the search and of the verification, in this call."""
        return {name: s for name, s in self.candidates.seconds.items() if name != "search" or self.candidates.search}

    def elapsed(self) -> float:
        """Seconds since this call began, with those of earlier ones."""
        return self.spent + time.perf_counter() - self.begun
