"""Which values of a function may be written to by effects: these must not be shared, replaced or moved."""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.nodes import (
    Function,
    FunctionCall,
    If,
    Loop,
    MakeTuple,
    MatchCast,
    PackedCall,
    TupleItem,
    Var,
)
from mirage.ir.graph.traverse import variables


def written_variables(function: Function, functions: Mapping[str, Function]) -> frozenset[Var]:
    """The variables whose value an effect may change in place, by whatever name it is reached.

    Tuples, their items, casts and results of calls are taken to share memory with their operands; results of operators are
    values of their own. In a module with such effects, callers may write to what a function returns.
    """
    if not any(isinstance(b.value, PackedCall) and b.value.in_place for f in functions.values() for b in f.bindings):
        return frozenset()
    shared: nx.Graph[Var] = nx.Graph()
    written = {function.result} if isinstance(function.result, Var) else set()
    for b in function.bindings:
        read = list(variables(b.value))
        match b.value:
            case PackedCall(args=args, in_place=positions):
                hit = [args[i] for i in positions]
                written.update(a for a in hit if isinstance(a, Var))
                shared.add_edges_from((b.var, a) for a in hit if isinstance(a, Var))
            case FunctionCall() | If() | Loop():
                written |= _written_by_call(b.value, functions)
                shared.add_edges_from((b.var, a) for a in read)
            case Var() | MakeTuple() | TupleItem() | MatchCast():
                shared.add_edges_from((b.var, a) for a in read)
    found = set(written)
    for group in nx.connected_components(shared):
        if group & written:
            found |= group
    return frozenset(found)


def _written_by_call(call: FunctionCall | If | Loop, functions: Mapping[str, Function]) -> set[Var]:
    args: tuple[object, ...] = call.args
    lead: tuple[object, ...] = ()
    match call:
        case FunctionCall(function=name):
            names = [name]
        case If(then=then, orelse=orelse):
            names, args = [then, orelse], args[1:]
        case Loop(body=name, count=count):
            # the index comes first
            names, lead, args = [name], (None,), args if count is not None else args[1:]
    found: set[Var] = set()
    for name in names:
        callee = functions[name]
        written = () if is_pure_function(callee) else written_variables(callee, functions)
        for p, a in zip(callee.parameters, (*lead, *args), strict=True):
            if p in written and isinstance(a, Var):
                found.add(a)
    return found
