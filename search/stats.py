"""What a search did, and why it stopped."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from mirage.errors import FormatError


@dataclass
class SearchStats:
    """Counters of one search.

    `prefixes`: distinct prefixes built (values of a kernel that passed every check). `checks`: operator applications
    tested. `pruned` counts them by reason ("placements", "abstract expression", "indices", "expression size", "cancelled
    axes", "loop": the loop can do it), and pairs of values that never exist together ("phase"). `tensors`: results that
    kernels may hand to one another. `candidates`: muGraphs found. `limits`: see `Limits`. `first_seconds` and
    `best_seconds`: when the first graph and the one of least modelled cost were found; 0 without any.
    """

    prefixes: int = 0
    checks: int = 0
    pruned: dict[str, int] = field(default_factory=dict)
    tensors: int = 0
    candidates: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    first_seconds: float = 0.0
    best_seconds: float = 0.0
    seconds: float = 0.0
    stop_reason: str = ""

    def prune(self, why: str, count: int = 1) -> None:
        self.pruned[why] = self.pruned.get(why, 0) + count

    def restart(self) -> None:
        """Count anew what closures count."""
        self.prefixes = self.checks = 0
        self.pruned = {}

    @staticmethod
    def from_json(obj: Any) -> SearchStats:
        """Raises FormatError for anything but what `to_json` writes."""
        names = {f.name for f in fields(SearchStats)}
        if not isinstance(obj, dict) or set(obj) != names:
            raise FormatError(f"search statistics: expected exactly {', '.join(sorted(names))}")
        for name, value in obj.items():
            wanted = type(getattr(SearchStats(), name))
            if not isinstance(value, (int, float) if wanted is float else wanted):
                raise FormatError(f"search statistics: {name} is {value!r}, not of type {wanted.__name__}")
        return SearchStats(**obj)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
