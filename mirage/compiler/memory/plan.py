"""The memory plan of a function: an arena for what is bounded, storages for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from mirage.compiler.memory.buffers import Buffer, Place, Plan, Sizes
from mirage.compiler.memory.static import most_live, plan_static
from mirage.compiler.memory.symbolic import plan_symbolic


def plan(buffers: Sequence[Buffer], sizes: Sizes, introduced: Mapping[str, int] | None = None) -> Plan:
    """Places of tensors and workspaces (Relax, sections 4.3 and 4.4).

    Buffers whose sizes have an upper bound are at fixed offsets of one arena, planned for the bounds; the others in storages
    with symbolic sizes. `introduced`: see `plan_symbolic`.
    """
    bounds = {b.id: bound for b in buffers if (bound := sizes.upper_bound(b.bytes)) is not None}
    bounded = [b for b in buffers if b.id in bounds]
    arena, offsets = plan_static(bounded, bounds)
    storages, places = plan_symbolic([b for b in buffers if b.id not in bounds], sizes, introduced)
    for b in bounded:
        places[b.id] = Place(None, offsets[b.id], sympy.Integer(bounds[b.id]))
    return Plan(arena, most_live(bounded, bounds), storages, places)
