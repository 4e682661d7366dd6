"""What applications of operators need of dims: a window within its dim, say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from mirage.ir.dims import Dim, dim_text, is_polynomial, symbols_of, to_dim, value_at


@dataclass(frozen=True)
class AtMost:
    """`small <= large` at every size of a run; `what` says why, such as "the stop is within the dim"."""

    small: Dim
    large: Dim
    what: str

    def __str__(self) -> str:
        return f"{dim_text(self.small)} <= {dim_text(self.large)} ({self.what})"

    def symbols(self) -> frozenset[str]:
        return symbols_of(self.small) | symbols_of(self.large)

    def problem(self, sizes: Mapping[str, int]) -> str | None:
        """What is wrong at these sizes, if anything."""
        small, large = value_at(self.small, sizes), value_at(self.large, sizes)
        if small <= large:
            return None
        used = ", ".join(f"{s}={sizes[s]}" for s in sorted(self.symbols()))
        return f"needs {self}, but {small} > {large}{f' at {used}' if used else ''}; use other sizes"


def at_most(small: Dim | int, large: Dim | int, what: str) -> AtMost:
    """A requirement of two dims, which are integers where a run is checked."""
    return AtMost(_dim(small), _dim(large), what)


def _dim(value: Dim | int) -> Dim:
    return sympy.Integer(value) if isinstance(value, int) else value


def _coefficients(need: AtMost) -> list[tuple[Dim, int]] | None:
    """The terms of `large - small` with their coefficients; None where it is no polynomial."""
    difference = to_dim(need.large - need.small)
    if not is_polynomial(difference):
        return None
    return [(term, int(c)) for term, c in difference.as_coefficients_dict().items()]


def always(need: AtMost) -> bool:
    """Whether it holds at all sizes, 0 included, because no term of the difference is negative."""
    terms = _coefficients(need)
    return terms is not None and all(c >= 0 for _, c in terms)


def never(need: AtMost) -> bool:
    """Whether it holds at no size, because the difference is a negative number less other terms."""
    terms = _coefficients(need)
    return terms is not None and all(c <= 0 for _, c in terms) and any(t == 1 and c < 0 for t, c in terms)


def needs(*given: AtMost) -> tuple[AtMost, ...]:
    """Those that do not hold by themselves."""
    return tuple(n for n in given if not always(n))
