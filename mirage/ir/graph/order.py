"""The call graph of a module."""

from __future__ import annotations

import networkx as nx

from mirage.errors import GraphError
from mirage.ir.graph.effects import callees
from mirage.ir.graph.nodes import Module


def call_graph(module: Module) -> nx.DiGraph[str]:
    """Edges from functions to the functions that they call."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(module.functions)
    for f in module:
        graph.add_edges_from((f.name, g) for b in f.bindings for g in callees(b.value))
    return graph


def callees_first(module: Module) -> list[str]:
    """The names of all functions, each after those that it calls; raises GraphError for recursion, which has no such order."""
    graph = call_graph(module)
    try:
        return list(reversed(list(nx.lexicographical_topological_sort(graph))))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(a for a, _ in nx.find_cycle(graph))
        raise GraphError(f"functions {cycle} call each other in a circle; recursion is not supported here, use a loop") from None


def components(graph: nx.DiGraph[str]) -> list[list[str]]:
    """The functions of a call graph in groups, each after those that it calls; those of a group call each other in a circle."""
    position = {name: k for k, name in enumerate(graph)}
    merged = nx.condensation(graph)
    order = nx.lexicographical_topological_sort(merged, key=lambda c: min(position[n] for n in merged.nodes[c]["members"]))
    return [sorted(merged.nodes[c]["members"], key=position.__getitem__) for c in reversed(list(order))]


def recursive(module: Module) -> dict[str, int]:
    """The functions that call themselves, directly or not, with the number of the group in which they call each other."""
    graph = call_graph(module)
    groups = enumerate(components(graph))
    return {n: k for k, names in groups for n in names if len(names) > 1 or graph.has_edge(n, n)}


def reachable(module: Module) -> set[str]:
    """Names of the main function and all that it calls, directly or not."""
    found: set[str] = nx.descendants(call_graph(module), module.main)
    return {module.main} | found
