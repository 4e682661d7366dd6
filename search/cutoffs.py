"""What a choice among graphs and kernels left out, and why: one record, to which everything that cuts adds.

A choice is `COMPLETE` where nothing was left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

COMPLETE = "complete"
#: what is counted, where the number is not one "of" others
_SEVERAL = re.compile(r"^(?!of )(?:\w+ )?(?:graphs|schedules|sizes)\b")


def _one(words: re.Match[str]) -> str:
    return words.group().removesuffix("s")


@dataclass
class Cutoffs:
    """How much was left out, by what it is and why, in words that follow a number: "graphs never estimated"."""

    counts: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, count: int = 1) -> None:
        """Note that so many were left out; nothing where that is none."""
        if count:
            self.counts[what] = self.counts.get(what, 0) + count

    def take(self, other: Mapping[str, int]) -> None:
        """Add what another choice left out."""
        for what, count in other.items():
            self.add(what, count)

    def reason(self, ended: str = "") -> str:
        """Why a choice stopped, in words: what `ended` it, if something did, and what it left out."""
        left = [f"{n:,} {_SEVERAL.sub(_one, what) if n == 1 else what}" for what, n in self.counts.items()]
        return "; ".join([ended, *left] if ended else left) or COMPLETE
