"""Logs of sums of shifted exps: where what was subtracted from the exponents is added again.

An argument of degree d in an exp is kept as v, for v * exp(d * m) with the row's maximum m, so that its log is log(v) + d * m
(see `mirage.mugraph.degree`). In a difference x - log(v) the m goes to x first: both are numbers of one magnitude, whose
difference is exact where it matters, while log(v) + m has lost the digits of log(v) that m has no room for.
"""

from __future__ import annotations

from typing import NamedTuple

from mirage.mugraph.degree import Path, RunningMaximum
from mirage.mugraph.graph import Graph, Ref


class Correction(NamedTuple):
    """`times` the maximum of a row of exp `site` to add: to operand `operand` of a node, or to its result where None; `log` is
    the node that takes the log.
    """

    operand: int | None
    site: int
    times: int
    log: int


def corrections(graph: Graph, at: Path, maximum: RunningMaximum) -> dict[int, list[Correction]]:
    """Per node of a graph, which is at this path of the muGraph, what to add for the logs of sums of shifted exps."""
    found: dict[int, list[Correction]] = {}
    for i in range(len(graph.nodes)):
        degree = maximum.logs.get((*at, i), {})
        readers = _sums(graph, i) if degree else {}
        for site, times in sorted(degree.items()):
            for reader, other in readers.items():
                # of x - log the x gets what the log lacks, less
                lacks = -times if graph.nodes[reader].op == "sub" else times
                found.setdefault(reader, []).append(Correction(other, site, lacks, i))
            if not readers:
                found.setdefault(i, []).append(Correction(None, site, times, i))
    return found


def _sums(graph: Graph, log: int) -> dict[int, int]:
    """The nodes that add something else to a log or subtract one from the other, with the operand that is not the log; none where
    another node reads it, too.
    """
    found: dict[int, int] = {}
    for j, n in enumerate(graph.nodes):
        where = [k for k, r in enumerate(n.operands) if r.node == log]
        if where and (n.op not in ("add", "sub") or len(where) > 1):
            return {}
        if where:
            found[j] = 1 - where[0]
    return found if Ref(log) not in graph.outputs else {}

