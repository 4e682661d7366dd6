"""Fills the stores of constraints, one per function: what all passes may assume of dims (BladeDISC, section 3.1).

A fact is assumed everywhere in its function, so only two kinds are collected:

- what is checked before the function starts: the user's bounds, and what operators, casts, reshapes and calls need of the
  dims of the signature. These are the guards of the function's boundary: whoever compiles a function has to check
  `Constraints.guards()` over its signature symbols there;
- what is always true: bounds of dims that depend on data (a mask keeps at most all elements), and of the dims of functions
  that only the module calls.

A check of a dim that is first known in the middle of a function proves nothing about what ran before it, so it is not
collected; neither is what a call in a branch needs, for the branch may not run.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from mirage.compiler.constraints import Constraints, Fact, Relation
from mirage.compiler.context import Context
from mirage.compiler.passes.signatures import call_fits, calls_by_callee, fit
from mirage.errors import MirageError
from mirage.ir.annotations import Annotation, PartialShape, PartialTensor, ShapeType, TupleType
from mirage.ir.dims import Dim, symbol, symbols_of
from mirage.ir.graph.deduce import located
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Expr,
    Function,
    FunctionCall,
    If,
    Loop,
    MatchCast,
    Module,
    OpCall,
    TupleItem,
)
from mirage.ir.graph.order import callees_first
from mirage.ir.graph.traverse import signature_symbols
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType

Call = FunctionCall | If | Loop


def _add(fact: Fact, store: Constraints) -> None:
    match fact.relation:
        case Relation.EQUAL:
            store.add_equal(fact.dim, fact.value, fact.reason)
        case Relation.AT_LEAST:
            store.add_range(fact.dim, int(fact.value), None, fact.reason)
        case Relation.AT_MOST:
            store.add_range(fact.dim, None, int(fact.value), fact.reason)
        case Relation.DIVISIBLE:
            store.add_divisible(fact.dim, int(fact.value), fact.reason)


def run(module: Module, context: Context) -> Module:
    """Fills `context.constraints`; the module is unchanged. Raises ConstraintError where facts contradict each other."""
    calls = calls_by_callee(module)
    for name in reversed(callees_first(module)):
        function = module.functions[name]
        store = context.bounds.copy() if name == module.main else Constraints()
        # passes hide operators in kernels: what these needed is still to be checked
        for fact in context.of(name).guards():
            _add(fact, store)
        if name != module.main:
            _from_calls(function, calls[name], module.functions, context, store)
        collect(function, module.functions, store)
        context.constraints[name] = store
    return module


def collect(function: Function, functions: Mapping[str, Function], store: Constraints) -> None:
    """Adds the facts of a function's own bindings to a store."""
    signature = signature_symbols(function)
    definitions: dict[Atom, Expr] = {}
    known = set(signature)
    for b in function.bindings:
        facts = _Facts(store, signature, f"{b.where}: {b.var.name}" if b.where else f"{function.name}: {b.var.name}")
        try:
            match b.value:
                case OpCall():
                    _from_operator(b, b.value, facts)
                case MatchCast((x,), annotation):
                    _from_cast(definitions, x, annotation, known, facts)
                case FunctionCall():
                    for callee, found in call_fits(b.value, functions):
                        for p, wanted, a in zip(callee.parameters, found.wanted, b.value.args, strict=True):
                            facts.same(wanted, a.annotation, f"argument {p.name} of {callee.name}")
        except MirageError as e:
            raise located(e, b.where) from None
        definitions[b.var] = b.value


class _Facts:
    """Adds what one binding says, if it is about dims of the signature only."""

    def __init__(self, store: Constraints, signature: set[str], binding: str) -> None:
        self.store, self.signature, self.binding = store, signature, binding

    def about_signature(self, *dims: Dim) -> bool:
        return all(symbols_of(d) <= self.signature for d in dims)

    def same(self, a: Annotation, b: Annotation, what: str) -> None:
        """Two annotations of one value: dims at the same places are equal."""
        match a, b:
            case ((TensorType() | PartialTensor()), (TensorType() | PartialTensor())):
                self._same_shape(a.shape, b.shape, what)
            case ShapeType(x), ShapeType(y):
                self._same_shape(x, y, what)
            case TupleType(x), TupleType(y) if len(x) == len(y):
                for p, q in zip(x, y, strict=True):
                    self.same(p, q, what)

    def _same_shape(self, x: PartialShape | None, y: PartialShape | None, what: str) -> None:
        if x is None or y is None or len(x) != len(y):
            return
        for p, q in zip(x, y, strict=True):
            if p is not None and q is not None and p != q and self.about_signature(p, q):
                self.store.add_equal(p, q, f"{self.binding}, {what}")


def _from_operator(b: Binding, call: OpCall, facts: _Facts) -> None:
    types = [a.annotation for a in call.args if isinstance(a.annotation, TensorType)]
    if len(types) < sum(not isinstance(a.annotation, ShapeType) for a in call.args):
        return
    for need in get_operator(call.op).requirements(types, dict(call.attrs)):
        if facts.about_signature(need.small, need.large):
            facts.store.add_range(need.large - need.small, 0, None, f"{facts.binding} = {call.op}, {need.what}")
    if call.op in ("reshape", "reshape_to") and isinstance(b.var.annotation, TensorType):
        old, new = types[0].shape, b.var.annotation.shape
        # dims of a shape multiply to those of the other: collapse equality
        if sympy.expand(sympy.prod(old) - sympy.prod(new)) != 0 and facts.about_signature(*old, *new):
            facts.store.add_collapse(old, new, f"{facts.binding} = {call.op}")


def _from_cast(
    definitions: Mapping[Atom, Expr], x: Atom, annotation: Annotation, known: set[str], facts: _Facts
) -> None:
    facts.same(annotation, x.annotation, "match_cast")
    if not isinstance(annotation, TensorType | PartialTensor) or not annotation.shape:
        return
    dim = annotation.shape[0]
    most = _most_elements(definitions, x)
    if isinstance(dim, sympy.Symbol) and dim.name not in known and most is not None:
        known.add(dim.name)
        facts.store.add_range(most - dim, 0, None, f"{facts.binding}, at most all elements are kept")


def _most_elements(definitions: Mapping[Atom, Expr], value: Atom) -> Dim | None:
    """The most that the first dim of a value can be, where its operator makes that depend on data."""
    made = definitions.get(value)
    if isinstance(made, TupleItem):
        made = definitions.get(made.args[0])
    if not isinstance(made, OpCall) or made.op not in _KEEPS:
        return None
    read = made.args[_KEEPS[made.op]].annotation
    return sympy.expand(sympy.prod(read.shape)) if isinstance(read, TensorType) else None


#: operators whose result has at most one slice per element of an operand: which operand
_KEEPS = {"unique": 0, "nonzero": 0, "boolean_mask": 1}


def _from_calls(
    function: Function,
    calls: list[tuple[Function, Call]],
    functions: Mapping[str, Function],
    context: Context,
    store: Constraints,
) -> None:
    """What all calls of a function say of its dims: ranges, and which of them are equal."""
    sites = [(_values(function, call, functions), context.of(caller.name)) for caller, call in calls]
    if not sites:
        return
    names = sorted(set(sites[0][0]).intersection(*(values for values, _ in sites)))
    reason = f"calls of {function.name}"
    for name in names:
        lows = [known.lower_bound(values[name]) for values, known in sites]
        highs = [known.upper_bound(values[name]) for values, known in sites]
        low = min(n for n in lows if n is not None) if None not in lows else None
        high = max(n for n in highs if n is not None) if None not in highs else None
        if low or high is not None:
            store.add_range(symbol(name), low, high, reason)
    for i, a in enumerate(names):
        first = next((b for b in names[:i] if all(k.equal(v[a], v[b]) for v, k in sites)), None)
        if first is not None:
            store.add_equal(symbol(first), symbol(a), reason)


def _values(callee: Function, call: Call, functions: Mapping[str, Function]) -> Mapping[str, Dim]:
    """The dims that a call gives to the symbols of a callee, in every round where it is a loop."""
    if not isinstance(call, Loop):
        return next(found.values for f, found in call_fits(call, functions) if f.name == callee.name)
    # what is carried may change its shape
    invariant = callee.parameters[1 + call.carried :]
    given = call.args[len(call.args) - len(invariant) :]
    rest = Function(callee.name, invariant, (), callee.result, callee.dims)
    return fit(rest, [a.annotation for a in given], call.dims).values
