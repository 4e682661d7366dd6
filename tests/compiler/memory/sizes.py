"""What tests of memory planning know of sizes: proofs by the signs of coefficients, bounds by monotony."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sympy

from mirage.ir.dims import Dim, symbol, symbols_of


@dataclass(frozen=True)
class Signs:
    """Polynomials in symbols that are 0 or more, and at most `bounds`."""

    bounds: Mapping[str, int] = field(default_factory=dict)

    def equal(self, a: Dim, b: Dim) -> bool:
        return sympy.expand(a - b) == 0

    def at_most(self, a: Dim, b: Dim) -> bool:
        return all(c >= 0 for c in sympy.expand(b - a).as_coefficients_dict().values())

    def upper_bound(self, dim: Dim) -> int | None:
        if not symbols_of(dim) <= self.bounds.keys():
            return None
        return int(dim.subs({symbol(s): n for s, n in self.bounds.items()}))
