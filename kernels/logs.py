"""Logs of sums of shifted exps: where what was subtracted from the exponents is added again.

An argument of degree d in an exp is kept as v, for v * exp(d * m) with the row's maximum m, so that its log is log(v) + d * m
(see `mirage.mugraph.degree`). In a difference x - log(v) the m goes to x first: both are numbers of one magnitude, whose
difference is exact where it matters, while log(v) + m has lost the digits of log(v) that m has no room for. So it is where
another kernel subtracts the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from mirage.mugraph.degree import Path, RunningMaximum
from mirage.mugraph.graph import Graph, Ref


class Correction(NamedTuple):
    """`times` the maximum of a row of exp `site` to add: to operand `operand` of a node, or to its result where None.

    `argument` is what the log is taken of, where that is in the same graph: the maximum is known after it.
    """

    operand: int | None
    site: int
    times: int
    argument: int | None


def corrections(kernel: Graph, maximum: RunningMaximum) -> dict[Path, list[Correction]]:
    """By the paths of nodes, what to add for the logs of sums of shifted exps; `kernel` is the kernel graph, whose block graphs
    have no thread graphs.
    """
    found: dict[Path, list[Correction]] = {}
    for log, degree in maximum.logs.items():
        argument = _graph(kernel, log).nodes[log[-1]].operands[0].node
        readers = _sums(kernel, log) or {}
        if any(not _knows(kernel, maximum, s, path) for s in degree for path in readers):
            readers = {}
        for site, times in sorted(degree.items()):
            for path, other in readers.items():
                # of x - log the x gets what the log lacks, less
                lacks = -times if _graph(kernel, path).nodes[path[-1]].op == "sub" else times
                here = argument if path[:-1] == log[:-1] else None
                found.setdefault(path, []).append(Correction(other, site, lacks, here))
            if not readers:
                found.setdefault(log, []).append(Correction(None, site, times, argument))
    return found


def _graph(kernel: Graph, path: Path) -> Graph:
    """The graph in which the node at a path is."""
    inner = kernel.nodes[path[0]].graph if len(path) > 1 else kernel
    assert inner is not None
    return inner


def _knows(kernel: Graph, maximum: RunningMaximum, site: int, path: Path) -> bool:
    """Whether the maxima of an exp are there for another node: a library hands on none, out of its run of calls."""
    at = maximum.sites[site].path[0]
    return kernel.nodes[at].graph is not None or all(n.graph is None for n in kernel.nodes[at : path[0] + 1])


def _sums(kernel: Graph, log: Path) -> dict[Path, int] | None:
    """The nodes that add something else to a log, or subtract one from the other, with the operand that is not the log; None
    where it is also read by another node, or returned.
    """
    graph = _graph(kernel, log)
    if len(log) == 1:
        return _readers(kernel, Ref(log[0]), ())
    results = [Ref(log[0], k) for k, r in enumerate(graph.outputs) if r.node == log[1]]
    inside = _readers(Graph(graph.level, graph.nodes, ()), Ref(log[1]), log[:1])
    return _all([inside, *(_readers(kernel, r, ()) for r in results)])


def _readers(graph: Graph, value: Ref, at: Path) -> dict[Path, int] | None:
    """Such nodes of one graph, which is at a path, and of those below it, for any value."""
    found: list[dict[Path, int] | None] = [None] if value in graph.outputs else []
    for j, n in enumerate(graph.nodes):
        where = [k for k, r in enumerate(n.operands) if r == value]
        if where and n.graph is not None:
            inputs = [i for i, x in enumerate(n.graph.nodes) if x.op == "input" and x.attr["index"] in where]
            found += [_readers(n.graph, Ref(i), (*at, j)) for i in inputs]
        elif where:
            found.append({(*at, j): 1 - where[0]} if n.op in ("add", "sub") and len(where) == 1 else None)
    return _all(found)


def _all(found: Iterable[dict[Path, int] | None]) -> dict[Path, int] | None:
    together: dict[Path, int] = {}
    for each in found:
        if each is None:
            return None
        together |= each
    return together
