"""What a search did, and why it stopped."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class SearchStats:
    """Counters of one search.

    `prefixes`: distinct prefixes built (values of a kernel that passed every check). `checks`: operator applications
    tested, by what pruned them in `pruned`. `graphs`: muGraphs assembled, before duplicates are dropped.
    """

    prefixes: int = 0
    checks: int = 0
    pruned: dict[str, int] = field(default_factory=dict)
    plans: int = 0
    plans_total: int = 0
    graphs: int = 0
    duplicates: int = 0
    candidates: int = 0
    operator_limit: int = 0
    seconds: float = 0.0
    stop_reason: str = ""

    def prune(self, why: str, count: int = 1) -> None:
        self.pruned[why] = self.pruned.get(why, 0) + count

    def merge(self, other: SearchStats) -> None:
        """Add the counters of a part of the search."""
        for name in ("prefixes", "checks", "plans", "graphs", "duplicates"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for why, count in other.pruned.items():
            self.prune(why, count)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
