"""Plans: how one kernel divides the reduction axes of a program, before any operator is chosen.

What the paper enumerates as grid sizes, loop ranges and maps per tensor (section 4.1) is one role per axis here; only
reduction axes give a choice, because a parallel axis may always be tiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from mirage.ir.axes import AxisProgram


@dataclass(frozen=True)
class KernelPlan:
    """The axes that a kernel loops over, and the one of them that is also split over the grid."""

    loops: tuple[str, ...] = ()
    split: str | None = None

    def __str__(self) -> str:
        found = [f"{a} split over the grid" if a == self.split else a for a in self.loops]
        return f"loop {', '.join(found)}" if found else "no loop"


def dividable(program: AxisProgram) -> tuple[str, ...]:
    """Axes that a kernel may loop over: those that are summed, and not joined by a concat or reduced by a maximum."""
    whole = {a for n in program.nodes if n.joined for a in (n.joined[0], *n.joined[1])}
    whole.update(a for n in program.nodes if n.op == "max" for a in n.reduce)
    return tuple(a for a in program.reduction_axes() if a not in whole)


def axis_parts(program: AxisProgram) -> Mapping[str, tuple[str, ...]]:
    """The parts of every axis that some kernel may divide: grid before loop before tile."""
    return {a: (f"{a}.grid", f"{a}.loop", f"{a}.tile") for a in dividable(program)}


def kernel_plans(program: AxisProgram, max_loops: int) -> list[KernelPlan]:
    """All plans of one kernel with up to `max_loops` loop axes, fewest first.

    Several axes are looped over together only where one operator reduces them together; at most one axis is split.
    """
    axes = dividable(program)
    together = [set(n.reduce) for n in program.nodes if n.reduce]
    found = [KernelPlan()]
    for count in range(1, max_loops + 1):
        for loops in itertools.combinations(axes, count):
            if count == 1 or any(set(loops) <= reduced for reduced in together):
                found.append(KernelPlan(loops))
                found.extend(KernelPlan(loops, a) for a in loops)
    return found
