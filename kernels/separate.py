"""Exps that are normalized along different axes: each gets a maximum of its own.

A program over named axes computes equal exps once. Where softmaxes along different axes share one exp (dual softmax),
the maximum that can be subtracted for both is that of all elements, and rows far below it vanish: 0 / 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sympy.utilities.iterables import connected_components

from mirage.ir.axes import AxisNode, AxisProgram
from mirage.mugraph.degree import RunningMaximum, analyze, operator_degrees
from mirage.mugraph.reference import reference_graph


def with_separate_exps(program: AxisProgram) -> AxisProgram:
    """The program with one copy of an exp for each set of axes that its readers sum over.

    The program itself where one is enough, or where no maximum may be subtracted anyhow.
    """
    maximum = operator_degrees(reference_graph(program))
    copies: dict[int, dict[int, frozenset[str]]] = {}
    for site, found in enumerate(maximum.sites):
        summed = _summed(program, maximum, site)
        if len(set(summed.values())) > 1:
            copies[found.path[0]] = summed
    if not copies:
        return program
    separate = _copied(program, copies)
    before, after = (len(analyze(reference_graph(p)).plain) for p in (program, separate))
    return separate if after < before else program


def _summed(program: AxisProgram, maximum: RunningMaximum, site: int) -> dict[int, frozenset[str]]:
    """Reader of the site's exp -> axes that are summed before the scale of what it reads cancels."""
    (exp,) = maximum.sites[site].path
    scaled = {path[0] for (path, _), degree in maximum.degree.items() if degree.get(site)} - {exp}
    readers = [i for i, n in enumerate(program.nodes) if exp in n.operands]
    read = [(i, j) for i, n in enumerate(program.nodes) for j in n.operands if j in scaled]
    found: dict[int, frozenset[str]] = {}
    for group in connected_components((sorted({*scaled, *readers, *(i for i, _ in read)}), read)):
        axes = frozenset(a for i in group for a in _removed(program.nodes[i]) if a in program.nodes[exp].axes)
        found.update({i: axes for i in readers if i in group})
    return found


def _removed(n: AxisNode) -> tuple[str, ...]:
    return n.joined[1] if n.joined is not None else n.reduce


def _copied(program: AxisProgram, copies: Mapping[int, Mapping[int, frozenset[str]]]) -> AxisProgram:
    """The program with a copy of each of these exps per set of axes, for the readers of that set."""
    nodes: list[AxisNode] = []
    new: dict[int, int] = {}
    own: dict[tuple[int, frozenset[str]], int] = {}
    for i, n in enumerate(program.nodes):
        operands = tuple(own[j, copies[j][i]] if j in copies else new[j] for j in n.operands)
        for axes in sorted(set(copies[i].values()), key=sorted) if i in copies else ():
            own[i, axes] = len(nodes)
            nodes.append(replace(n, operands=operands))
        if i not in copies:
            new[i] = len(nodes)
            nodes.append(replace(n, operands=operands))
    outputs = tuple(replace(o, value=new[o.value]) for o in program.outputs)
    return replace(program, nodes=tuple(nodes), outputs=outputs)
