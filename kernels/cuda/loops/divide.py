"""Reductions of many columns to few rows, in two kernels: programs reduce parts of the columns, others combine these."""

from __future__ import annotations

from dataclasses import replace

import sympy

from mirage.ir.loops.program import fresh
from mirage.ir.loops.scalars import Loop, Read
from mirage.kernels.cuda.loops.structure import PART, Division, Kernel, Member


def _parts(kernel: Kernel, division: Division) -> int:
    return division.parts(kernel) if kernel.reduces else 1


def can_divide(kernel: Kernel, division: Division) -> bool:
    """Whether the columns of a kernel are not divided, or can be: it reduces in one phase, and then has no columns."""
    if _parts(kernel, division) == 1:
        return True
    reducing = [p for p in kernel.phases if any(m.combiner for m in p)]
    return len(reducing) == 1 and all(m.combiner or m.space < 0 for m in kernel.members)


def divided(kernel: Kernel, division: Division, taken: set[str]) -> tuple[Kernel, ...]:
    """The kernel, or two of them where its columns are divided; `taken` are the names of tensors so far."""
    parts = _parts(kernel, division)
    if parts == 1:
        return (kernel,)
    (phase,) = (p for p in kernel.phases if any(m.combiner for m in p))
    first, second = [], {}
    for m in phase:
        partial, combined = _halves(m, parts, taken)
        first.append(partial)
        second[m.name] = combined
    columns = ((("c0_0", sympy.Integer(parts)),),)
    phases = tuple(tuple(second.get(m.name, m) for m in p) for p in kernel.phases)
    loops = kernel.spaces[phase[0].space]
    # rows are all that members without columns know
    return (
        Kernel(kernel.rows, (loops,), (tuple(replace(m, space=0) for m in first),), parts),
        Kernel(kernel.rows, columns, phases),
    )


def _halves(m: Member, parts: int, taken: set[str]) -> tuple[Member, Member]:
    """The member that reduces a part of the columns, and the one that combines the parts."""
    name = fresh(f"{m.name}_parts", taken)
    places = fresh(f"{m.name}_places", taken) if m.place is not None else ""
    shape, index = (*m.shape, sympy.Integer(parts)), (*m.index, Loop(PART))
    partial = replace(m, name=name, dtype=m.body.dtype, shape=shape, index=index, stored=True, places=places)
    at = (*m.index, Loop("c0_0"))
    place = Read(places, at, "int64") if places else None
    return partial, replace(m, body=Read(name, at, m.body.dtype), space=0, place=place)
