"""Plans: how the axes of a program are divided among the kernels of a graph, before any operator is chosen.

What the paper enumerates as grid sizes, loop ranges and maps per tensor (section 4.1) is one role per axis here; only
reduction axes give a choice, because a parallel axis may always be tiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mirage.ir.axes import AxisProgram


@dataclass(frozen=True)
class KernelPlan:
    """One kernel: its loop axis, whether that is also split over the grid, and the split axis it receives partials of."""

    loop: str | None = None
    split: bool = False
    partial: str | None = None


@dataclass(frozen=True)
class Plan:
    """The kernels of a graph, in order."""

    kernels: tuple[KernelPlan, ...]

    def parts(self) -> dict[str, tuple[str, ...]]:
        """The parts of every divided axis: grid before loop before tile."""
        found: dict[str, tuple[str, ...]] = {}
        for k in self.kernels:
            if k.loop is not None:
                found[k.loop] = (f"{k.loop}.loop", f"{k.loop}.tile")
        for k in self.kernels:
            if k.loop is not None and k.split:
                found[k.loop] = (f"{k.loop}.grid", f"{k.loop}.loop", f"{k.loop}.tile")
        return found

    def __str__(self) -> str:
        def one(k: KernelPlan) -> str:
            loop = f"loop {k.loop}" + (" split over the grid" if k.split else "") if k.loop else "no loop"
            return loop + (f", sums {k.partial}.grid" if k.partial else "")

        return "; ".join(one(k) for k in self.kernels)


def plans(program: AxisProgram, max_kernels: int) -> Iterator[Plan]:
    """All plans of up to `max_kernels` (1 or 2) graph-defined kernels, fewest kernels first.

    An axis that is reduced and also survives to the output is never looped over or split in the kernel that writes it,
    because a block needs all of it.
    """
    joined = {a for n in program.nodes if n.joined for a in (n.joined[0], *n.joined[1])}
    reduced = [a for a in program.reduction_axes() if a not in joined]
    last = [None, *(a for a in reduced if a not in program.output_axes())]
    for loop in last:
        yield Plan((KernelPlan(loop),))
    if max_kernels < 2 or not reduced:
        return
    for first in (None, *reduced):
        for split in (False, True) if first else (False,):
            partial = first if split else None
            for loop in last:
                if not (split and loop == first):
                    yield Plan((KernelPlan(first, split), KernelPlan(loop, partial=partial)))
