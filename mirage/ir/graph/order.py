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
    """The names of all functions, each after those that it calls; raises GraphError for recursion."""
    graph = call_graph(module)
    try:
        return list(reversed(list(nx.lexicographical_topological_sort(graph))))
    except nx.NetworkXUnfeasible:
        cycle = " -> ".join(a for a, _ in nx.find_cycle(graph))
        raise GraphError(f"functions {cycle} call each other in a circle; recursion is not supported, use a loop") from None


def reachable(module: Module) -> set[str]:
    """Names of the main function and all that it calls, directly or not."""
    found: set[str] = nx.descendants(call_graph(module), module.main)
    return {module.main} | found
