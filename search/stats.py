"""What a search did, and why it stopped."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mirage.errors import FormatError


@dataclass
class SearchStats:
    """Counters of one search.

    `prefixes`: distinct prefixes built (values of a kernel that passed every check). `checks`: operator applications
    tested. `pruned` counts by reason: of checks ("factor counts", "abstract expression", "indices", "expression size"), of
    pairs of values that never exist together ("phase"), and of graphs ("not accepted"). `graphs`: muGraphs assembled,
    before duplicates are dropped.
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

    @staticmethod
    def from_json(obj: Any) -> SearchStats:
        """Raises FormatError for anything but what `to_json` writes."""
        names = {f.name for f in fields(SearchStats)}
        if not isinstance(obj, dict) or set(obj) != names or not isinstance(obj["pruned"], dict):
            raise FormatError(f"search statistics: expected exactly {', '.join(sorted(names))}")
        for name, value in obj.items():
            wanted = type(getattr(SearchStats(), name))
            if not isinstance(value, (int, float) if wanted is float else wanted):
                raise FormatError(f"search statistics: {name} is {value!r}, not of type {wanted.__name__}")
        return SearchStats(**obj)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
