"""Which values of a function may be written to by effects: these must not be shared, replaced or moved.

Results of operators are values of their own, whatever is written to their operands later.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from mirage.ir.annotations import TupleType
from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.nodes import (
    Atom,
    Function,
    FunctionCall,
    If,
    Loop,
    MakeTuple,
    MatchCast,
    OpCall,
    PackedCall,
    TupleItem,
    Var,
)
from mirage.ir.graph.traverse import atoms, variables


def written_variables(function: Function, functions: Mapping[str, Function]) -> frozenset[Var]:
    """The variables whose value an effect may change in place, by whatever name it is reached.

    Tuples, their items, casts and results of calls are taken to share memory with their operands; results of operators are
    values of their own. In a module with such effects, callers may write to what a function returns.
    """
    if not _has_effects(functions):
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


def _has_effects(functions: Mapping[str, Function]) -> bool:
    return any(isinstance(b.value, PackedCall) and b.value.in_place for f in functions.values() for b in f.bindings)


def written_parameters(function: Function, functions: Mapping[str, Function]) -> frozenset[Var]:
    """The parameters whose memory an effect of the function, or of one that it calls, writes to."""
    if not _has_effects(functions):
        return frozenset()
    return frozenset(_last_writes(function, functions, _memory(function)).keys() & set(function.parameters))


def reshapes_to_copy(function: Function, functions: Mapping[str, Function], *, called: bool) -> frozenset[Var]:
    """The reshaped tensors that need memory of their own: an effect may write later to the memory that they are a view of.

    What a function that is `called` returns, its callers may write to; and they may give it one tensor twice.
    """
    if not _has_effects(functions):
        return frozenset()
    memory = _memory(function)
    last = _last_writes(function, functions, memory)
    parameters = set(function.parameters)
    if called:
        latest = max((last[p] for p in parameters & last.keys()), default=-1)
        last.update(dict.fromkeys(parameters, latest))
    returned = memory.get(function.result, frozenset()) if called else frozenset()
    found: set[Var] = set()
    for at, b in enumerate(function.bindings):
        if isinstance(b.value, OpCall) and b.value.op == "reshape":
            shared = memory[b.var] & returned
            seen_twice = bool(shared & parameters) or (bool(shared) and isinstance(function.returns, TupleType))
            if seen_twice or any(last.get(v, -1) > at for v in memory[b.var]):
                found.add(b.var)
    return frozenset(found)


def _memory(function: Function) -> dict[Atom, frozenset[Var]]:
    """The values in whose memory each variable may be, itself where it has its own; reshapes are views of their operands."""
    found: dict[Atom, frozenset[Var]] = {p: frozenset({p}) for p in function.parameters}
    fields: dict[Atom, tuple[Atom, ...]] = {}
    for b in function.bindings:
        operands = atoms(b.value)
        own = frozenset({b.var})
        match b.value:
            case MakeTuple():
                fields[b.var] = operands
                own = frozenset()
            case TupleItem((whole,), index):
                operands, own = (fields[whole][index],) if whole in fields else operands, frozenset()
            case Var() | MatchCast() | OpCall("reshape"):
                own = frozenset()
            case PackedCall(args=args, in_place=positions):
                operands = tuple(args[i] for i in positions)
            case FunctionCall() | If() | Loop():
                pass
            case _:
                operands = ()
        found[b.var] = own.union(*(found.get(a, frozenset()) for a in operands))
    return found


def _last_writes(
    function: Function, functions: Mapping[str, Function], memory: Mapping[Atom, frozenset[Var]]
) -> dict[Var, int]:
    """The position of the last binding that writes to the memory of a value."""
    last: dict[Var, int] = {}
    for at, b in enumerate(function.bindings):
        written: set[Var] = set()
        match b.value:
            case PackedCall(args=args, in_place=positions):
                written = {a for i in positions if isinstance(a := args[i], Var)}
            case FunctionCall() | If() | Loop():
                written = _written_by_call(b.value, functions)
        for v in written:
            last.update(dict.fromkeys(memory[v], at))
    return last


def _written_by_call(call: FunctionCall | If | Loop, functions: Mapping[str, Function]) -> set[Var]:
    """The arguments that a call writes to."""
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
        written = () if is_pure_function(callee) else written_parameters(callee, functions)
        for p, a in zip(callee.parameters, (*lead, *args), strict=True):
            if p in written and isinstance(a, Var):
                found.add(a)
    return found
