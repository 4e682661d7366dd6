"""Which values of a function may be written to by effects: these must not be shared, replaced or moved.

Results of operators are values of their own, whatever is written to their operands later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mirage.compiler.views import is_view
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
from mirage.ir.graph.traverse import atoms


def written_variables(function: Function, functions: Mapping[str, Function]) -> frozenset[Var]:
    """The variables whose value an effect may change in place, by whatever name it is reached.

    Results of calls are taken to be in the memory of what their callee may hand on; results of operators are values of their own.
    In a module with such effects, callers may write to what a function returns.
    """
    if not _has_effects(functions):
        return frozenset()
    memory = _memory(function, functions, views=False)
    hit: set[Atom] = {function.result}
    for b in function.bindings:
        hit |= _written_by(b.value, functions)
    written = frozenset[Var]().union(*(memory.get(a, frozenset()) for a in hit))
    return frozenset(a for a, places in memory.items() if isinstance(a, Var) and places & written)


def _has_effects(functions: Mapping[str, Function]) -> bool:
    return any(isinstance(b.value, PackedCall) and b.value.in_place for f in functions.values() for b in f.bindings)


def written_parameters(function: Function, functions: Mapping[str, Function]) -> frozenset[Var]:
    """The parameters whose memory an effect of the function, or of one that it calls, writes to."""
    if not _has_effects(functions):
        return frozenset()
    return frozenset(_last_writes(function, functions, _memory(function, functions)).keys() & set(function.parameters))


def views_to_copy(function: Function, functions: Mapping[str, Function], *, called: bool) -> frozenset[Var]:
    """The views of tensors that need memory of their own: an effect may write later to the memory that they are a view of.

    What a function that is `called` returns, its callers may write to; and they may give it one tensor twice.
    """
    if not _has_effects(functions):
        return frozenset()
    memory = _memory(function, functions)
    last = _last_writes(function, functions, memory)
    parameters = set(function.parameters)
    if called:
        latest = max((last[p] for p in parameters & last.keys()), default=-1)
        last.update(dict.fromkeys(parameters, latest))
    returned = memory.get(function.result, frozenset()) if called else frozenset()
    found: set[Var] = set()
    for at, b in enumerate(function.bindings):
        if is_view(b.value, b.var.annotation):
            shared = memory[b.var] & returned
            seen_twice = bool(shared & parameters) or (bool(shared) and isinstance(function.returns, TupleType))
            if seen_twice or any(last.get(v, -1) > at for v in memory[b.var]):
                found.add(b.var)
    return frozenset(found)


def _memory(function: Function, functions: Mapping[str, Function], *, views: bool = True) -> dict[Atom, frozenset[Var]]:
    """The values in whose memory each variable may be, itself where it has its own; of `views`, those of their operands."""
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
            case Var() | MatchCast():
                own = frozenset()
            case OpCall() if views and is_view(b.value, b.var.annotation):
                own = frozenset()
            case PackedCall(args=args, in_place=positions):
                operands = tuple(args[i] for i in positions)
            case FunctionCall() | If() | Loop():
                operands = tuple(_handed_on(b.value, functions))
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
        for v in _written_by(b.value, functions):
            last.update(dict.fromkeys(memory[v], at))
    return last


def _written_by(value: object, functions: Mapping[str, Function]) -> set[Var]:
    """The operands of a binding that it writes to."""
    match value:
        case PackedCall(args=args, in_place=positions):
            return {a for i in positions if isinstance(a := args[i], Var)}
        case FunctionCall() | If() | Loop():
            found: set[Var] = set()
            for callee, given in _calls(value, functions):
                written = set() if is_pure_function(callee) else set(written_parameters(callee, functions))
                if isinstance(value, Loop) and not written.isdisjoint(callee.parameters[1 : 1 + value.carried]):
                    # what a round hands on, a later one may write to under another name
                    written |= _in_result(callee, functions)
                found.update(a for p, a in given.items() if p in written and isinstance(a, Var))
            return found
    return set()


def _handed_on(call: FunctionCall | If | Loop, functions: Mapping[str, Function]) -> Iterator[Atom]:
    """The arguments in whose memory the result of a call may be."""
    if isinstance(call, Loop):
        # as they went in, where there is no round
        begin = call.count is None
        yield from call.args[begin : begin + call.carried]
    for callee, given in _calls(call, functions):
        yield from (given[p] for p in _in_result(callee, functions) if p in given)


def _in_result(callee: Function, functions: Mapping[str, Function]) -> frozenset[Var]:
    """The parameters in whose memory the result of a function may be."""
    return _memory(callee, functions).get(callee.result, frozenset()) & set(callee.parameters)


def _calls(
    call: FunctionCall | If | Loop, functions: Mapping[str, Function]
) -> Iterator[tuple[Function, dict[Var, Atom]]]:
    """The functions that may be called, with their parameters' arguments; the index of a loop has none."""
    names: tuple[str, ...]
    args: tuple[Atom, ...] = call.args
    lead = 0
    match call:
        case FunctionCall(function=name):
            names = (name,)
        case If(then=then, orelse=orelse):
            names, args = (then, orelse), args[1:]
        case Loop(body=name, count=count):
            names, lead, args = (name,), 1, args if count is not None else args[1:]
    for name in names:
        callee = functions[name]
        yield callee, dict(zip(callee.parameters[lead:], args, strict=True))
