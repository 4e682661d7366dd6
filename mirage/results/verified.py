"""What a search leaves to the last step of a superoptimization, whatever the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage.search.jobs import INTERRUPTED
from mirage.search.stats import SearchStats
from mirage.search.tune import Candidate
from mirage.verify.equivalence import Verifier


@dataclass(frozen=True)
class Verified:
    """Verified `graphs` of the program of `verifier`, out of `found`, or, with `cache_hit`, those that were kept of a search.

    `anchors` are the given sizes (dim symbol -> elements), `constants` inputs whose contents never change: packed copies of
    them compete. `stats` are those of the search; `seconds` those of its phases, to which others add theirs.
    """

    verifier: Verifier
    anchors: Sequence[Mapping[str, int]]
    graphs: list[Candidate]
    stats: SearchStats
    seconds: dict[str, float]
    found: int
    cache_hit: bool = False
    constants: tuple[str, ...] = ()

    @property
    def interrupted(self) -> bool:
        """Whether the search or the verification was; what was kept of a search never is."""
        return INTERRUPTED in self.stats.stop_reason

    @property
    def preferred(self) -> list[Candidate]:
        """The graphs that may run: those with the fewest exponents that may overflow."""
        least = min((len(c.maximum.plain) for c in self.graphs), default=0)
        return [c for c in self.graphs if len(c.maximum.plain) == least]
