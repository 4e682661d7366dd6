"""What a search did, and why it stopped."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage.drawing.show import Displayed

#: why values were pruned (the keys of `SearchStats.pruned`), in words that follow "pruned as"
RULES = {
    "abstract expression": "the abstract expression is no subexpression of an output's",
    "placements": "operands have no place beside each other in an output's abstract expression",
    "indices": "an index is summed that factors of an output still need, or a function or divisor that no output has",
    "cancelled axes": "the value no longer depends on an axis of its tensor, as in x / x",
    "expression size": "the normal form has too many terms to be kept",
    "loop": "an operator on nothing but joined tiles, which the loop can apply to each tile",
    "vocabulary": "an outer product, which the program does not take, before the sum of a matmul",
    "phase": "operands that do not exist at the same time, such as one inside the loop and one after it",
}


@dataclass
class SearchStats(Displayed, drawn_by="mirage.search.draw"):
    """Counters of one search.

    `prefixes`: distinct prefixes built (values of a kernel that passed every check). `checks`: operator applications
    tested. `pruned` counts them by reason ("placements", "abstract expression", "indices", "expression size", "cancelled
    axes", "loop": the loop can do it, "vocabulary": an outer product that the program does not take), and pairs of values that
    never exist together ("phase"). `tensors`: results that
    kernels may hand to one another. `candidates`: muGraphs found. `limits`: see `Limits`. `first_seconds` and
    `best_seconds`: when the first graph and the one of least modelled cost were found; 0 without any.
    `rules`: what equality saturation came to, and how far the searches of its targets are, in words.
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
    rules: str = ""

    def prune(self, why: str, count: int = 1) -> None:
        self.pruned[why] = self.pruned.get(why, 0) + count

    def restart(self) -> None:
        """Count anew what closures count."""
        self.prefixes = self.checks = 0
        self.pruned = {}
