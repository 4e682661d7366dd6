"""Every block graph of small closures, written out by a plain recursion and priced operator by operator."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from mirage.mugraph.graph import partial_axis
from mirage.search.closure import Closure, Derivation, Value
from mirage.search.cost import Cost, CostModel, Place

#: a block graph: the derivation of every computed value
Chosen = dict[Value, Derivation]


def every_graph(goals: Sequence[Value], limit: int, parallel: Sequence[str]) -> Iterator[Chosen]:
    """All ways to give each needed value one derivation that reduces no parallel axis, with at most `limit` operators."""

    def extend(chosen: Chosen, todo: tuple[Value, ...]) -> Iterator[Chosen]:
        todo = tuple(v for v in todo if v.source is None and v not in chosen)
        if len(chosen) + len(set(todo)) > limit:
            return
        if not todo:
            yield chosen
            return
        for d in todo[0].derivations:
            if not set(d.reduce) & set(parallel):
                yield from extend({**chosen, todo[0]: d}, (*todo[1:], *d.operands))

    return extend({}, tuple(goals))


def leaves_of(chosen: Chosen) -> set[Value]:
    """What a block graph reads."""
    return {u for d in chosen.values() for u in d.operands if u.source is not None}


def grids(closure: Closure, goals: Sequence[Value]) -> Iterator[tuple[str, ...]]:
    """The sets of axes that a grid may have: of those that all results have, any that are not reduced."""
    derivations = [d for v in closure.values for d in v.derivations]
    joined = {a for d in derivations if d.joined for a in (d.joined[0], *d.joined[1])}
    reduced = {a for d in derivations for a in d.reduce}
    shared = [a for a in goals[0].axes if all(a in g.axes for g in goals) and a not in closure.plan.loops]
    some = [a for a in shared if a in reduced]
    for count in range(len(some) + 1):
        for whole in itertools.combinations(some, count):
            yield tuple(a for a in shared if a not in joined and a not in whole)


def cost_of(model: CostModel, goals: Sequence[Value], chosen: Chosen, place: Place) -> Cost:
    """The sum of what a block graph does."""
    split = (partial_axis(place.split),) if place.split else ()
    total = model.launch()
    for g in goals:
        total = total + model.transfer((*split, *g.axes), place, held=False)
    for v in leaves_of(chosen):
        total = total + model.transfer(v.axes, place, held=True)
    for v, d in chosen.items():
        varying = any(u.varying for u in d.operands)
        operands = [u.axes for u in d.operands]
        total = total + model.operator(d.op, operands, v.axes, place, varying=varying, whole=v.after)
    return total
