"""Names of parameters and dims: those of a model, as identifiers."""

from __future__ import annotations

import keyword
import re

import sympy

from mirage.ir.dims import symbol


class Names:
    """Makes identifiers of a model's names, each of its own."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._dims: dict[str, sympy.Symbol] = {}

    def parameter(self, name: str) -> str:
        """The parameter of a value."""
        return self._own(name, "x")

    def dim(self, name: str) -> sympy.Symbol:
        """The dim of that name."""
        if name not in self._dims:
            self._dims[name] = symbol(self._own(name, "n"))
        return self._dims[name]

    def _own(self, name: str, otherwise: str) -> str:
        found = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_") or otherwise
        if not found.isidentifier() or keyword.iskeyword(found):
            found = f"{otherwise}_{found}"
        plain, k = found, 0
        while found in self._taken:
            found, k = f"{plain}_{k}", k + 1
        self._taken.add(found)
        return found
