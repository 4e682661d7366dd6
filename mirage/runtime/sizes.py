"""The host tensor of sizes: one int64 slot per dim expression of a function (Relax, section 4.7)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from mirage.errors import DimError, FormatError, GuardError
from mirage.ir.dims import Dim, dim_text, evaluate, symbols_of

#: the slots; an array of Python's, whose items are read several times as fast as those of NumPy's
Slots: TypeAlias = "array[int]"


class SizeTable:
    """The slots of a function's dims.

    `stages` gives each symbol the number of the check, of so many `checks`, that binds it: 0 for those that parameters
    determine. Slots are evaluated as soon as their last symbol is bound.
    """

    def __init__(self, owner: str, stages: Mapping[str, int], checks: int) -> None:
        self.owner = owner
        self.stages = stages
        self.symbols = {name: k for k, name in enumerate(stages)}
        self._slots: dict[Dim, int] = {}
        self._count = len(stages)
        self._constants: list[tuple[int, int]] = []
        self._computed: list[list[tuple[int, Dim]]] = [[] for _ in range(checks + 1)]

    def slot(self, dim: Dim, stage: int) -> int:
        """The slot of a dim that is used after this check; raises FormatError if it is not known by then."""
        known = self.stage([dim])
        if known > stage:
            raise FormatError(f"{self.owner}: dim {dim_text(dim)} is used before its size is known")
        if dim.is_Symbol:
            return self.symbols[dim.name]
        if dim not in self._slots:
            self._slots[dim] = self._count
            if dim.is_Integer:
                if abs(int(dim)) >= 1 << 63:
                    raise FormatError(f"{self.owner}: dim {dim} is larger than a size can be")
                self._constants.append((self._count, int(dim)))
            else:
                self._computed[known].append((self._count, dim))
            self._count += 1
        return self._slots[dim]

    def stage(self, dims: Iterable[Dim]) -> int:
        """The check after which all these dims are known; raises FormatError if there is none."""
        names = {s for d in dims for s in symbols_of(d)}
        if missing := sorted(names - self.stages.keys()):
            raise FormatError(f"{self.owner}: no shape gives the size of {', '.join(missing)}")
        return max((self.stages[s] for s in names), default=0)

    def new(self) -> Slots:
        """Slots in which the constants are filled in."""
        slots = array("q", bytes(8 * self._count))
        for k, value in self._constants:
            slots[k] = value
        return slots

    def evaluate(self, stage: int, sizes: Mapping[str, int], slots: Slots) -> None:
        """Fill in what the symbols bound up to this check determine; raises GuardError for a size that cannot be."""
        for k, dim in self._computed[stage]:
            try:
                slots[k] = evaluate(dim, sizes)
            except DimError as e:
                raise GuardError(f"{self.owner}: {e}") from None
            except OverflowError:
                raise GuardError(f"{self.owner}: dim {dim_text(dim)} is too large ({self.bound(dim, slots)})") from None

    def sizes(self, stage: int, slots: Slots) -> dict[str, int]:
        """The sizes of the symbols that are bound before this check."""
        return {name: slots[k] for name, k in self.symbols.items() if self.stages[name] < stage}

    def bound(self, dim: Dim, slots: Slots) -> str:
        """The sizes of a dim's symbols, as text."""
        return ", ".join(f"{s}={slots[self.symbols[s]]}" for s in sorted(symbols_of(dim))) or "no symbols"
