"""Which functions of a module make data, call themselves or are values: their calls need a stack of the machine's own."""

from __future__ import annotations

import networkx as nx

from mirage.ir.annotations import Annotation, PartialTensor, ShapeType, TupleType, parts
from mirage.ir.graph.effects import callees
from mirage.ir.graph.nodes import CallValue, Closure, Construct, If, Loop, Match, Module, ReferenceCall
from mirage.ir.graph.order import call_graph, recursive
from mirage.ir.types import TensorType

FUNCTIONAL = (Construct, Match, Closure, CallValue, ReferenceCall)


def functional(module: Module) -> frozenset[str]:
    """The functions of a module whose calls need a stack; none in most modules."""
    own = set(recursive(module))
    for f in module:
        if any(isinstance(b.value, FUNCTIONAL) for b in f.bindings) or not all(plain(p.annotation) for p in f.parameters):
            own.add(f.name)
        for b in f.bindings:
            if isinstance(b.value, Closure | Match):
                own |= set(callees(b.value))
    graph = call_graph(module)
    while True:
        found = own.union(*(nx.ancestors(graph, n) for n in own))
        for name in found & module.functions.keys():
            for b in module.functions[name].bindings:
                # both branches are called in the same way
                if isinstance(b.value, If | Loop) and not found.isdisjoint(callees(b.value)):
                    found |= set(callees(b.value))
        if found == own:
            return frozenset(own)
        own = found


def plain(annotation: Annotation) -> bool:
    """Whether values are tensors, shapes, or tuples of these."""
    return all(isinstance(a, TensorType | PartialTensor | ShapeType | TupleType) for a in parts(annotation))
