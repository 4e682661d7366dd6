"""Functions over data in graph functions: matches, lists mapped and folded, functions as values, references."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mirage.errors import MirageError, TraceError
from mirage.frontends.annotate import annotation
from mirage.frontends.control import branches, hint
from mirage.frontends.data import constructor_of
from mirage.frontends.graph import GraphTrace, graph_trace
from mirage.frontends.proxy import caller, fail, located
from mirage.frontends.trace import program_name
from mirage.ir.annotations import Annotation, CallableType, DataType, NeverType, ObjectType, symbols_in, without_symbols
from mirage.ir.data import CONS, LIST, NIL
from mirage.ir.dims import Dim, symbol
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.deduce import located as with_line
from mirage.ir.graph.deduce import pattern_types
from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.fit import join
from mirage.ir.graph.nodes import (
    Atom,
    Block,
    Clause,
    Construct,
    Function,
    FunctionCall,
    Match,
    ReferenceCall,
    Var,
)
from mirage.ir.graph.patterns import Bind, Case, Fields, Pattern, Wildcard, check_clauses


@dataclass(frozen=True)
class PatternSpec:
    """A pattern as users write it: a class, or `tuple`, and what is within."""

    kind: type
    fields: tuple[Any, ...]


#: the pattern of any value, which a clause's function gets, and of any that it does not get
anything, ignored = Bind("value"), Wildcard()


def pattern(kind: type, *fields: Any) -> PatternSpec:
    """The pattern of a value of a class whose fields match: by classes, patterns, `anything` and `ignored`; or of a tuple."""
    return PatternSpec(kind, fields)


def match(value: Any, clauses: Mapping[Any, Callable[..., Any]]) -> Any:
    """What the function of the first clause gives whose pattern matches a value of a data type.

    A pattern is a class, all of whose fields the function gets, in order; `mirage.pattern(Cons, anything, Nil)` of what is
    within; `mirage.anything`, which the function gets, or `mirage.ignored`. Only the function that is chosen runs; they may use
    tensors of the functions around them. Raises TraceError for what is no pattern, ClauseError where a case is left out or never
    reached, GraphError where the results cannot be one value.
    """
    t = graph_trace("match")
    where = caller()
    atom = t.value("match: the value", value)
    if not clauses:
        fail("match: there is no clause; pass {Nil: lambda: ..., Cons: lambda head, tail: ...}")
    patterns, cases = [], []
    for spec, fn in clauses.items():
        with located():
            p = _distinct(_pattern(spec), set())
            types = pattern_types(p, atom.annotation)
        patterns.append(p)
        if (never := next((k for k, a in enumerate(types) if isinstance(a, NeverType)), None)) is not None:
            # there is no such value: nothing can be computed from it
            fn = partial(_argument, never)
        cases.append((hint(fn, "clause"), fn, {f"arg{k}": a for k, a in enumerate(types)}))
    with located():
        check_clauses(patterns)
    parts = branches(t, cases)
    known = [(k, part) for k, part in enumerate(parts) if part is not None]
    captured, dims = t.close([part for _, part in known], [len(cases[k][2]) for k, _ in known])
    found = tuple(Clause(patterns[k], inside.name) for k, (inside, _) in known)
    return t.wrap(t.emit(Match((atom, *captured), found, tuple(symbol(d) for d in dims)), where))


def _argument(number: int, *args: Any) -> Any:
    return args[number]


def _pattern(spec: Any) -> Pattern:
    """The pattern that a user writes."""
    if isinstance(spec, Wildcard | Bind):
        return spec
    kind, inner = (spec.kind, spec.fields) if isinstance(spec, PatternSpec) else (spec, None)
    if kind is tuple and inner is not None:
        return Fields(tuple(_pattern(p) for p in inner))
    found = constructor_of(kind) if isinstance(kind, type) else None
    if found is None:
        raise TraceError(
            f"match: {kind!r} is no pattern; use a class of a data type, mirage.pattern(CLASS, ...), mirage.anything or "
            "mirage.ignored"
        )
    data, index = found
    names = [name for name, _ in data.constructors[index].fields]
    return Case(data, index, tuple(Bind(n) for n in names) if inner is None else tuple(_pattern(p) for p in inner))


def _distinct(pattern: Pattern, taken: set[str]) -> Pattern:
    """The pattern under names of its own."""
    match pattern:
        case Bind(name):
            while name in taken:
                name = f"{name}_"
            taken.add(name)
            return Bind(name)
        case Case(fields=fields) | Fields(fields):
            return replace(pattern, fields=tuple(_distinct(p, taken) for p in fields))
    return pattern


def closure(fn: Callable[..., Any], *types: Any) -> Any:
    """A Python function as a value of the program, for arguments of these types; it may use tensors of functions around it."""
    t = graph_trace("closure")
    given = tuple(annotation("closure: a type", a) for a in types)
    return t.wrap(t.closure("closure", fn, CallableType(given, ObjectType())))


def fold(fn: Callable[..., Any], init: Any, values: Any) -> Any:
    """`state = fn(state, value)` for the values of a list, in order, from the state `init`; returns the last one.

    A state of several values is a tuple; a dim of it that `fn` changes is unknown. `fn` may use tensors of the functions around
    it. Raises TraceError for what is no list.
    """
    return _over_list("fold", fn, values, init)


def scan(fn: Callable[..., Any], init: Any, values: Any) -> Any:
    """As `fold`, but the list of all states behind `init`."""
    return _over_list("scan", fn, values, init)


def map(fn: Callable[..., Any], values: Any) -> Any:
    """The list of `fn(value)` for the values of a list; `fn` may use tensors of the functions around it."""
    return _over_list("map", fn, values, None)


def _over_list(what: str, fn: Callable[..., Any], values: Any, init: Any) -> Any:
    """A call of a function of the module that calls itself for the rest of a list; see `fold`, `scan` and `map`."""
    t = graph_trace(what)
    where = caller()
    if isinstance(values, tuple | list):
        values = t.wrap(t.linked(what, values, DataType(LIST.name, (NeverType(),))))
    listed = t.value(what, values)
    if not isinstance(listed.annotation, DataType) or listed.annotation.name != LIST.name:
        fail(f"{what}: {listed.annotation} is no list; pass a value of type mirage.List(...), or a Python list")
    (item,) = listed.annotation.arguments
    state: tuple[Atom, ...] = () if what == "map" else (t.value(f"{what}: the first state", init),)
    if isinstance(item, NeverType):
        return t.wrap(state[0] if what == "fold" else listed)
    found = [a.annotation for a in state]
    while True:
        restore = t.module.snapshot()
        given = dict(zip(("state", "value") if state else ("value",), [*found, item], strict=True))
        inside, result = t.inner(f"{what}_body", fn, given)
        after = without_symbols(result.annotation, symbols_in(result.annotation) - t.scope)
        if not state:
            break
        try:
            joined = join(found[0], after, f"{what}: what goes into and comes out of {program_name(fn)}")
        except MirageError as e:
            raise with_line(e, where) from None
        if joined == found[0]:
            after = joined
            break
        restore()
        found = [joined]
    captured, dims = t.close([(inside, result)], [len(given)])
    returns = after if what == "fold" else DataType(LIST.name, (after,))
    made = _ListFunctions(t, what, inside.name, tuple(symbol(d) for d in dims), [v.annotation for v in captured])
    name = made.build(listed.annotation, found, returns)
    return t.wrap(t.emit(FunctionCall(name, (listed, *state, *captured), made.dims), where))


class _ListFunctions:
    """The functions of a fold, scan or map over a list: the one that calls itself, and its clauses for no value and for one."""

    def __init__(self, t: GraphTrace, what: str, body: str, dims: tuple[Dim, ...], captured: Sequence[Annotation]) -> None:
        self.t, self.what, self.body, self.dims, self.captured = t, what, body, dims, captured
        self.functions = t.module.builder.functions
        self.name, self.done, self.more = (t.module.reserve(n) for n in (what, f"{what}_done", f"{what}_more"))

    def start(self, name: str, *parameters: tuple[str, Annotation]) -> tuple[FunctionBuilder, list[Var], tuple[Var, ...]]:
        """A function with these parameters, and those for what is captured."""
        b = FunctionBuilder(name, self.functions)
        b.names |= {str(d) for d in self.dims}
        own = [b.fresh_parameter(p, a) for p, a in parameters]
        return b, own, tuple(b.fresh_parameter("captured", a) for a in self.captured)

    def finish(self, b: FunctionBuilder, result: Atom) -> None:
        self.t.module.builder.add(b.finish(result, dims=tuple(str(d) for d in self.dims)))

    def build(self, listed: DataType, found: Sequence[Annotation], returns: Annotation) -> str:
        """Add the functions to the module; returns the name of the one to call."""
        (item,) = listed.arguments
        states = [("state", a) for a in found]
        b, (values, *state), captured = self.start(self.name, ("values", listed), *states)
        pure = () if is_pure_function(self.functions[self.body]) else (Block((), dataflow=False),)
        names = tuple(str(d) for d in self.dims)
        self.t.module.builder.add(Function(self.name, tuple(b.parameters), pure, Var("result", returns), names))
        self._done(states)
        self._more(listed, item, states, returns)
        clauses = (Clause(Case(LIST, NIL), self.done), Clause(Case(LIST, CONS, (Bind("head"), Bind("tail"))), self.more))
        self.finish(b, b.emit(Match((values, *state, *captured), clauses, self.dims), annotation=returns))
        return self.name

    def _done(self, states: Sequence[tuple[str, Annotation]]) -> None:
        b, state, _ = self.start(self.done, *states)
        self.finish(b, state[0] if self.what == "fold" else b.emit(Construct(LIST, NIL)))

    def _more(
        self, listed: DataType, item: Annotation, states: Sequence[tuple[str, Annotation]], returns: Annotation
    ) -> None:
        b, (head, tail, *state), captured = self.start(self.more, ("head", item), ("tail", listed), *states)
        y = b.emit(FunctionCall(self.body, (*state, head, *captured), self.dims))
        handed = (y,) if state else ()
        rest = b.emit(FunctionCall(self.name, (tail, *handed, *captured), self.dims), annotation=returns)
        self.finish(b, rest if self.what == "fold" else b.emit(Construct(LIST, CONS, (y, rest)), annotation=returns))


def ref(value: Any) -> Any:
    """A reference that holds a value, which `write` replaces, and `read` gives: effects, in the order in which they are made."""
    return _reference("new", value)


def read(reference: Any) -> Any:
    """The value that a reference holds."""
    return _reference("read", reference)


def write(reference: Any, value: Any) -> Any:
    """Put a value into a reference, which is returned."""
    return _reference("write", reference, value)


def _reference(kind: str, *values: Any) -> Any:
    t = graph_trace({"new": "ref"}.get(kind, kind))
    atoms = tuple(t.value(f"{kind} of a reference", v) for v in values)
    return t.wrap(t.emit(ReferenceCall(kind, atoms), caller()))
