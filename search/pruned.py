"""A record of what each rule of a search prunes: the first applications of every operator."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirage.search.closure import Value

#: examples of a rule at most
MOST = 12
#: characters of an expression that are kept
_LONGEST = 160
_FRACTION = re.compile(r"\((\d{6,})/(\d{6,})\)")


@dataclass(frozen=True)
class Pruned:
    """An application of an operator that a rule pruned, in the kernels of one plan; `operands` are abstract expressions."""

    plan: str
    operator: str
    operands: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.operator} of {' and '.join(self.operands)}"


class Examples:
    """By rule, at most `MOST` examples: the first of each operator on operands that themselves take so many operators."""

    def __init__(self) -> None:
        self.found: dict[str, list[Pruned]] = {}
        self._seen: set[tuple[str, str, int]] = set()

    def note(self, rule: str, plan: object, operator: str, operands: Sequence[Value], over: Sequence[str] = ()) -> None:
        """An application was pruned."""
        key = rule, f"{operator} over {', '.join(over)}" if over else operator, sum(v.operators for v in operands)
        if key in self._seen or len(self.found.get(rule, ())) >= MOST:
            return
        self._seen.add(key)
        example = Pruned(str(plan), key[1], tuple(_short(v.poly.text()) for v in operands))
        # operands in another phase may read the same
        if all(str(e) != str(example) for e in self.found.setdefault(rule, [])):
            self.found[rule].append(example)


def _short(text: str) -> str:
    """The text of an expression, cut, with fractions that stand for floating-point numbers as these."""
    text = _FRACTION.sub(lambda m: f"{int(m[1]) / int(m[2]):.6g}", text)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
