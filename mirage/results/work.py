"""What is known of a program while it is superoptimized, whatever the target."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirage.search.candidates import Candidates
from mirage.search.checkpoint import Checkpoint
from mirage.search.stats import SearchStats
from mirage.verify.equivalence import Verifier


@dataclass
class Work:
    """A program with the stream of its verified graphs.

    `anchors` are the given sizes (dim symbol -> elements), `constants` inputs whose contents never change: packed copies of
    them compete. `checkpoint` is that of the search. `recalled` are the statistics of a search that was complete, whose graphs
    were kept. `spent` are the seconds that earlier calls took, `begun` is when this one began (a `perf_counter`).
    """

    verifier: Verifier
    anchors: Sequence[Mapping[str, int]]
    candidates: Candidates
    constants: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    recalled: SearchStats | None = None
    spent: float = 0.0
    begun: float = field(default_factory=time.perf_counter)

    @property
    def stats(self) -> SearchStats:
        """What the search did so far, with the reason why it stops here."""
        search = self.candidates.search
        return search.stats if search is not None else self.recalled or SearchStats()

    @property
    def complete(self) -> bool:
        """Whether there are no more graphs."""
        return self.candidates.complete

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of the search and of the verification, in this call."""
        return {name: s for name, s in self.candidates.seconds.items() if name != "search" or self.candidates.search}

    def save(self) -> None:
        """Keep what the search has finished, for whoever goes on with it; nothing where its graphs were kept as complete."""
        for search in (self.candidates.search, self.candidates.pieces):
            if search is not None:
                search.save()
        if self.complete and self.checkpoint is not None:
            self.checkpoint.discard()

    def elapsed(self) -> float:
        """Seconds since this call began, with those of earlier ones."""
        return self.spent + time.perf_counter() - self.begun
