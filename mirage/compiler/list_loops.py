"""Folds and scans over lists as loops: where the items of a list turn out to be alike, all rounds run in C.

A fold over a list is a function that matches the list, computes the next state from the head, and calls itself with the tail. The
loop has the same steps, and reads item after item where it lies. What a step computes of its item alone, with a product in it, is
computed of all items before. Lists whose items differ in shape go on to be matched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from mirage.compiler.batched import batched
from mirage.ir.annotations import Annotation, DataType, ShapeType, TupleType, symbols_in
from mirage.ir.data import CONS, LIST, NIL
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Clause,
    Construct,
    Function,
    FunctionCall,
    MakeTuple,
    Match,
    MatchCast,
    OpCall,
    TupleItem,
    Var,
)
from mirage.ir.graph.patterns import Bind, Case
from mirage.ir.graph.traverse import determined, symbols_used, variables
from mirage.ir.types import TensorType


@dataclass(frozen=True)
class ListLoop:
    """A function over a list as a loop, see `mirage.runtime.program.OverList`: the function of a `round`, whether states are
    listed, the function that computes `ahead`, and what it is `given`. `called` are the functions that these call.
    """

    round: Function
    scan: bool
    ahead: Function | None
    given: tuple[int, ...]
    called: tuple[Function, ...]


def list_loop(f: Function, functions: Mapping[str, Function], stacked: Collection[str]) -> ListLoop | None:
    """The function as a loop; None for one that does not fold or scan a list by a pure function of tensors, none of `stacked`."""
    found = _steps(f, functions)
    if found is None:
        return None
    step, call, scan, more = found
    (item,) = f.parameters[0].annotation.arguments  # type: ignore[union-attr]
    state, *fixed = f.parameters[1:]
    items, states = _leaves(item), _leaves(state.annotation)
    plain = all(isinstance(p.annotation, TensorType | ShapeType) for p in fixed)
    if step.name in stacked or not items or not states or not plain or step.returns != state.annotation or step.dims or f.dims:
        return None
    given = [*(p.annotation for p in fixed), state.annotation, item]
    if not set().union(*map(symbols_in, given)) <= determined(given):
        return None
    return _Maker(f, step, call, more, functions).make(scan)


def _steps(f: Function, functions: Mapping[str, Function]) -> tuple[Function, FunctionCall, bool, Function] | None:
    """The function of a step and the call of it, whether the states are listed, and the clause of an item."""
    if len(f.parameters) < 2 or len(f.bindings) != 1 or f.result is not f.bindings[0].var:
        return None
    match f.bindings[0].value:
        case Match(args, (Clause(Case(matched, first), done), Clause(Case(_, second, (Bind(), Bind())), more)), ()):
            if matched != LIST or (first, second) != (NIL, CONS) or args != f.parameters:
                return None
        case _:
            return None
    if not isinstance(f.parameters[0].annotation, DataType):
        return None
    ends, goes_on = functions[done], functions[more]
    head, tail, *rest = goes_on.parameters
    bindings = goes_on.bindings
    scan = len(bindings) == 3
    if len(bindings) not in (2, 3) or goes_on.result is not bindings[-1].var:
        return None
    (y, call), (z, again) = ((b.var, b.value) for b in bindings[:2])
    if not isinstance(call, FunctionCall) or again != FunctionCall(f.name, (tail, y, *rest[1:])) or tail in call.args:
        return None
    if not set(call.args) <= {head, *rest}:
        return None
    if scan:
        listed = ends.bindings[0].value if len(ends.bindings) == 1 else None
        if bindings[2].value != Construct(LIST, CONS, (y, z)) or listed != Construct(LIST, NIL):
            return None
    elif ends.bindings or ends.result is not ends.parameters[0]:
        return None
    step = functions[call.function]
    tensors = all(isinstance(a, TensorType | TupleType | ShapeType) for a in (p.annotation for p in step.parameters))
    return (step, call, scan, goes_on) if tensors and is_pure_function(step) and not call.dims else None


def _leaves(annotation: Annotation) -> list[TensorType]:
    """The tensors in a value; none where there is anything else."""
    match annotation:
        case TensorType():
            return [annotation]
        case TupleType(fields):
            found = [_leaves(f) for f in fields]
            return [leaf for part in found for leaf in part] if all(found) else []
    return []


@dataclass(frozen=True)
class _Ahead:
    """What is computed of all items before the loop: of one by `first`, of all by `many`; a step is then `rest`, which takes the
    results of `first` behind all else. `places` has for each parameter of `first` its place among those beside list and state, -1
    for the item.
    """

    first: Function
    many: Function
    rest: Function
    places: list[int]


class _Maker:
    """Makes the loop of a function, and its body."""

    def __init__(
        self, f: Function, step: Function, call: FunctionCall, more: Function, functions: Mapping[str, Function]
    ) -> None:
        self.f, self.step, self.call, self.more = f, step, call, more
        self.functions = dict(functions)
        taken = set().union(*(symbols_in(p.annotation) for p in (*f.parameters, *step.parameters)))
        self.taken = taken.union(*(symbols_used(b.value) for b in step.bindings))

    def builder(self, name: str) -> FunctionBuilder:
        while name in self.functions:
            name += "_"
        b = FunctionBuilder(name, self.functions)
        b.names |= self.taken
        return b

    def make(self, scan: bool) -> ListLoop:
        ahead = self.ahead()
        round = self.round(ahead)
        if ahead is None:
            return ListLoop(round, scan, None, (), ())
        return ListLoop(round, scan, ahead.many, tuple(ahead.places), (ahead.rest,))

    def ahead(self) -> _Ahead | None:
        """What a step computes of its item without the state, with a product in it, for all items at once; None for nothing."""
        head, _, state, *fixed = self.more.parameters
        step, args = self.step, self.call.args
        given = [p for p, a in zip(step.parameters, args, strict=True) if a is not state]
        known = determined(p.annotation for p in given)
        late = {p for p, a in zip(step.parameters, args, strict=True) if a is state}
        of_item = {p for p, a in zip(step.parameters, args, strict=True) if a is head}
        early: list[Binding] = []
        product = False
        for b in step.bindings:
            read = set(variables(b.value))
            if isinstance(b.value, MatchCast):
                return None
            if read & late or not symbols_used(b.value) | symbols_in(b.var.annotation) <= known:
                late.add(b.var)
                continue
            early.append(b)
            if read & of_item:
                of_item.add(b.var)
                product |= isinstance(b.value, OpCall) and b.value.op == "matmul"
        read_late: set[Atom] = {v for b in step.bindings if b.var in late for v in variables(b.value)} | {step.result}
        exports = [b.var for b in early if b.var in of_item and b.var in read_late]
        if not product or not exports or not all(isinstance(v.annotation, TensorType) for v in exports):
            return None
        of_one = self.builder(f"{self.f.name}_ahead")
        of_one.parameters.extend(given)
        of_one.bind_all(early)
        first = of_one.finish(of_one.emit(MakeTuple(tuple(exports))))
        shared = [k for k, p in enumerate(given) if p not in of_item]
        found = batched(first, self.functions, shared)
        if found is None:
            return None
        self.functions[found[0].name] = found[0]
        behind = self.builder(f"{self.f.name}_rest")
        behind.parameters.extend([*step.parameters, *exports])
        behind.bind_all(x for x in step.bindings if x.var not in exports)
        rest = behind.finish(step.result)
        self.functions[rest.name] = rest
        places: dict[Atom, int] = {head: -1, **{p: k for k, p in enumerate(fixed)}}
        return _Ahead(first, found[0], rest, [places[a] for a in args if a is not state])

    def round(self, ahead: _Ahead | None) -> Function:
        b = self.builder(f"{self.f.name}_round")
        head, _, state, *fixed = self.more.parameters
        b.fresh_parameter("at", TensorType((), "int64"))
        of_state = [b.fresh_parameter("state", t) for t in _leaves(state.annotation)]
        of_item = [b.fresh_parameter("item", t) for t in _leaves(head.annotation)]
        early = [] if ahead is None else [b.fresh_parameter("early", t) for t in _leaves(ahead.first.returns)]
        values: dict[Atom, Atom] = {
            head: self.nested(b, head.annotation, iter(of_item)), state: self.nested(b, state.annotation, iter(of_state))
        }  # fmt: skip
        values |= {p: b.fresh_parameter(p.name, p.annotation) for p in fixed}
        step = self.step if ahead is None else ahead.rest
        found = b.emit(FunctionCall(step.name, (*(values[a] for a in self.call.args), *early)))
        after = self.flat(b, found, self.step.returns)
        return b.finish(after[0] if len(after) == 1 else b.emit(MakeTuple(tuple(after))))

    def nested(self, b: FunctionBuilder, annotation: Annotation, leaves: Iterable[Var]) -> Var:
        """A value of an annotation, of its tensors."""
        if isinstance(annotation, TupleType):
            found = iter(leaves)
            return b.emit(MakeTuple(tuple(self.nested(b, f, found) for f in annotation.fields)))
        return next(iter(leaves))

    def flat(self, b: FunctionBuilder, value: Var, annotation: Annotation) -> list[Var]:
        """The tensors in a value."""
        if isinstance(annotation, TupleType):
            fields = [b.emit(TupleItem((value,), k)) for k in range(len(annotation.fields))]
            return [leaf for v, f in zip(fields, annotation.fields, strict=True) for leaf in self.flat(b, v, f)]
        return [value]


