"""Which calls of a program that recurs may be independent of each other, and what they share.

Calls that run one after the other, such as the steps of a fold, gain nothing where they are recorded to run together; subtrees
and the values of a list do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeAlias

import networkx as nx

from mirage.ir.graph import nodes
from mirage.ir.graph.effects import callees
from mirage.ir.graph.nodes import Atom, Binding, Constant, Function, Module, Var
from mirage.ir.graph.order import call_graph, recursive
from mirage.ir.graph.traverse import variables

#: where a value comes from that is the same in all calls: a parameter of the main function or a constant; None: it varies
_Source: TypeAlias = "tuple[str, int] | None"


def independent_callees(module: Module, stacked: Collection[str]) -> set[str]:
    """The functions of tensors of which several calls may be ready at once; none where a function on the stack has effects."""
    functions = [module.functions[name] for name in stacked]
    if any(isinstance(b.value, nodes.PackedCall | nodes.ShapeCall) for f in functions for b in f.bindings):
        return set()
    graph, groups = call_graph(module), recursive(module)
    found: set[str] = set()
    for name, group in groups.items():
        inside = {n for n, g in groups.items() if g == group}
        if name in stacked and _branches(module.functions[name], inside, module, stacked):
            found |= inside
    reached = found.union(*(nx.descendants(graph, n) for n in found)) & set(stacked)
    return {c for n in reached for b in module.functions[n].bindings for c in callees(b.value)} - set(stacked)


def _branches(f: Function, group: Collection[str], module: Module, stacked: Collection[str]) -> bool:
    """Whether a function calls its group more than once, or calls another function whose result its group does not wait for."""
    sites = [b for b in f.bindings if not set(callees(b.value)).isdisjoint(group)]
    if len(sites) != 1:
        return len(sites) > 1
    made = {b.var: b for b in f.bindings}
    needed: set[Var] = set()
    left = list(variables(sites[0].value))
    while left:
        v = left.pop()
        if v in made and v not in needed:
            needed.add(v)
            left += variables(made[v].value)
    return any(b.var not in needed and b is not sites[0] and _computes(b, module, stacked) for b in f.bindings)


def _computes(b: Binding, module: Module, stacked: Collection[str]) -> bool:
    """Whether a binding calls a function of tensors, directly or not."""
    graph = call_graph(module)
    names = set(callees(b.value))
    return not names.union(*(nx.descendants(graph, n) for n in names)) <= set(stacked)


def shared_parameters(module: Module) -> Mapping[str, frozenset[int]]:
    """The parameters of each function, by place, that are the same value in all its calls within a call of the main function."""
    sources: dict[tuple[str, int], _Source] = {}
    work: list[str] = []

    def join(name: str, k: int, source: _Source) -> None:
        key = name, k
        new = source if key not in sources or sources[key] == source else None
        if key not in sources or sources[key] != new:
            sources[key] = new
            work.append(name)

    for k in range(len(module.functions[module.main].parameters)):
        join(module.main, k, ("parameter", k))
    while work:
        f = module.functions[work.pop()]
        places = {p: k for k, p in enumerate(f.parameters)}

        def source(a: Atom, f: Function = f, places: Mapping[Var, int] = places) -> _Source:
            if isinstance(a, Constant):
                return "constant", id(a.array)
            return sources.get((f.name, places[a])) if isinstance(a, Var) and a in places else None

        for b in f.bindings:
            for name in callees(b.value):
                count = len(module.functions[name].parameters)
                given = [source(a) for a in _handed_on(b.value)]
                for k, s in enumerate([*[None] * (count - len(given)), *given]):
                    join(name, k, s)
    found: dict[str, set[int]] = {name: set() for name in module.functions}
    for (name, k), s in sources.items():
        if s is not None:
            found[name].add(k)
    return {name: frozenset(places) for name, places in found.items()}


def _handed_on(expr: nodes.Expr) -> tuple[Atom, ...]:
    """The last arguments that an expression gives the functions that it calls; those before are others in each call."""
    match expr:
        case nodes.FunctionCall(args=args) | nodes.Closure(args=args):
            return args
        case nodes.If(args=args) | nodes.Match(args=args):
            return args[1:]
        case nodes.Loop(args=args, carried=carried, count=count):
            return args[(count is None) + carried :]
    return ()
