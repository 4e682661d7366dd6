"""The host tensor of sizes: one int64 slot per dim expression of a function (Relax, section 4.7).

Expressions become closures over the slots when a program is loaded: calls do integer arithmetic only.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from operator import itemgetter
from typing import TypeAlias

import sympy

from mirage.errors import DimError, FormatError, GuardError
from mirage.ir.dims import Dim, FloorDiv, Maximum, Minimum, Modulo, dim_text, symbols_of

#: the slots; an array of Python's, whose items are read several times as fast as those of NumPy's
Slots: TypeAlias = "array[int]"
Evaluator: TypeAlias = Callable[[Sequence[int]], int]


def compile_dim(dim: Dim, slots: Mapping[str, int]) -> Evaluator:
    """What computes a dim from the slots that hold its symbols; raises DimError for what is no integer expression."""
    if dim.is_Integer:
        value = int(dim)
        return lambda _: value
    if dim.is_Symbol:
        return itemgetter(slots[dim.name])
    args = [compile_dim(a, slots) for a in dim.args]
    if len(args) == 2:
        a, b = args
        if dim.is_Add:
            return lambda s: a(s) + b(s)
        if dim.is_Mul:
            return lambda s: a(s) * b(s)
        if isinstance(dim, FloorDiv):
            return lambda s: a(s) // b(s)
        if isinstance(dim, Modulo):
            return lambda s: a(s) % b(s)
        if dim.is_Pow and dim.exp.is_Integer and dim.exp > 0:
            power = int(dim.exp)
            return lambda s: int(a(s) ** power)
    for kind, combine in ((sympy.Add, sum), (sympy.Mul, prod), (Minimum, min), (Maximum, max)):
        if isinstance(dim, kind):
            return lambda s, combine=combine: combine([a(s) for a in args])  # type: ignore[misc]
    raise DimError(
        f"dim {dim} is not an integer expression; use +, -, *, **, //, %, min and max of dim names and integers"
    )


class SizeTable:
    """The slots of a function's dims.

    `stages` gives each symbol the number of the check that binds it: 0 for those that parameters determine. Slots are
    evaluated as soon as their last symbol is bound.
    """

    def __init__(self, owner: str, stages: Mapping[str, int]) -> None:
        self.owner = owner
        self.stages = stages
        self.symbols = {name: k for k, name in enumerate(stages)}
        self._slots: dict[Dim, int] = {}
        self._count = len(stages)
        self._constants: list[tuple[int, int]] = []
        self._computed: list[list[tuple[int, Evaluator, Dim]]] = [
            [] for _ in range(max(stages.values(), default=0) + 1)
        ]

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
                self._constants.append((self._count, int(dim)))
            else:
                self._computed[known].append((self._count, compile_dim(dim, self.symbols), dim))
            self._count += 1
        return self._slots[dim]

    def stage(self, dims: Iterable[Dim]) -> int:
        """The check after which all these dims are known; raises FormatError if there is none."""
        names = {s for d in dims for s in symbols_of(d)}
        if missing := sorted(names - self.stages.keys()):
            raise FormatError(f"{self.owner}: no shape gives the size of {', '.join(missing)}")
        return max((self.stages[s] for s in names), default=0)

    def slot_of(self, name: str, stage: int) -> int:
        """The slot of a symbol; raises FormatError if it is not bound by this check."""
        return self.slot(symbol(name), stage)

    def new(self) -> Slots:
        """Slots in which the constants are filled in."""
        slots = array("q", bytes(8 * self._count))
        for k, value in self._constants:
            slots[k] = value
        return slots

    def evaluate(self, stage: int, slots: Slots) -> None:
        """Fill in what the symbols bound up to this check determine; raises GuardError for a size that cannot be."""
        for k, evaluate, dim in self._computed[stage]:
            try:
                size = evaluate(slots)
                slots[k] = size
            except ZeroDivisionError:
                raise GuardError(f"{self.owner}: dim {dim_text(dim)} divides by 0 ({self.bound(dim, slots)})") from None
            except OverflowError:
                raise GuardError(f"{self.owner}: dim {dim_text(dim)} is too large ({self.bound(dim, slots)})") from None
            if size < 0:
                raise GuardError(
                    f"{self.owner}: dim {dim_text(dim)} is {size} ({self.bound(dim, slots)}); sizes are 0 or more"
                )

    def bound(self, dim: Dim, slots: Slots) -> str:
        """The sizes of a dim's symbols, as text."""
        return ", ".join(f"{s}={slots[self.symbols[s]]}" for s in sorted(symbols_of(dim))) or "no symbols"
