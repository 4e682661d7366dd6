"""From the shapes of arguments to the sizes of the dim symbols."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from mirage.errors import DimError, InputError
from mirage.ir.program import Program
from mirage.remember import remember
from mirage.runtime.guards import Pattern
from mirage.runtime.sizes import SizeTable


class SizeBinder:
    """Binds the dim symbols of a program; remembers the shapes it has seen."""

    LIMIT = 1024

    def __init__(self, program: Program) -> None:
        self.program = program
        self._seen: dict[tuple[tuple[int, ...], ...], dict[str, int]] = {}
        symbols = sorted(set().union(*(t.symbols() for t in program.input_types)))
        self._table = SizeTable(program.name, dict.fromkeys(symbols, 0), 0)

    @cached_property
    def _pattern(self) -> Pattern:
        values = [(f"input {n!r}", t) for n, t in zip(self.program.input_names, self.program.input_types, strict=True)]
        try:
            return Pattern(self.program.name, values, self._table, 0, set())
        except DimError as e:
            raise InputError(str(e)) from None

    def bind(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Sizes for shapes of the right ranks; raises InputError naming the input, the dim, and both sizes."""
        key = tuple(shapes)
        found = self._seen.get(key)
        if found is None:
            found = {}
            self._pattern.bind(key, found, self._table.new())
            for need in self.program.needs:
                if problem := need.problem(found):
                    raise InputError(f"{self.program.name}: {problem}")
            remember(self._seen, key, found, self.LIMIT)
        return found
