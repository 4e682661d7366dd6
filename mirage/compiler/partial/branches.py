"""What an unknown value decides: conditions, matches, loops and functions as values that are left, each for what is known.

A branch is written once for each known part of what it is handed on, so that recursion over unknown data ends. Where a known part
grows from call to call, or a branch has many forms already, what differs between them is taken as unknown.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from mirage.compiler.partial.program import Program, Request
from mirage.compiler.partial.residual import Residual
from mirage.compiler.partial.values import Closed, Structures, Value, close, operands
from mirage.ir.annotations import Annotation, CallableType, NeverType, TupleType, symbols_in
from mirage.ir.dims import Dim, symbol, symbols_of
from mirage.ir.graph.deduce import deduce, pattern_types, signature_result
from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.nodes import Atom, Binding, Block, Closure, Function, If, Loop, Match, Var
from mirage.ir.graph.traverse import value_dims
from mirage.ir.types import TensorType

#: functions that are written of one branch before what differs between them is taken as unknown
VARIANTS = 8


@dataclass(frozen=True)
class Handed:
    """How branches are called: their new names, the arguments that they are handed, the shape arguments."""

    names: tuple[str, ...]
    args: tuple[Atom, ...]
    dims: tuple[Dim, ...]


class Branches:
    """The branches that are left of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.structures = Structures()
        self.made: dict[object, tuple[str, ...]] = {}
        self.count: Counter[tuple[str, ...]] = Counter()
        self.seen: defaultdict[tuple[str, ...], list[list[tuple[int, set[int]]]]] = defaultdict(list)
        self.varying: defaultdict[tuple[str, ...], set[int]] = defaultdict(set)

    def condition(self, r: Residual, expr: If, args: Sequence[Value], b: Binding) -> Value:
        """A condition that only the run knows."""
        handed = self.handed(r, (expr.then, expr.orelse), ((), ()), args[1:], expr.dims)
        then, orelse = handed.names
        return r.emit(If((r.atom(args[0]), *handed.args), then, orelse, handed.dims), b.var.name, b.where)

    def match(self, r: Residual, expr: Match, args: Sequence[Value], b: Binding) -> Value:
        """A match of a value of which the constructor is not known."""
        value = r.atom(args[0])
        names = tuple(c.function for c in expr.clauses)
        bound = tuple(tuple(pattern_types(c.pattern, value.annotation)) for c in expr.clauses)
        handed = self.handed(r, names, bound, args[1:], expr.dims)
        clauses = tuple(replace(c, function=n) for c, n in zip(expr.clauses, handed.names, strict=True))
        return r.emit(Match((value, *handed.args), clauses, handed.dims), b.var.name, b.where)

    def loop(self, r: Residual, expr: Loop, args: Sequence[Value], b: Binding) -> Value:
        """A loop whose rounds are not written out."""
        first = (expr.count is None) + expr.carried
        lead = tuple(map(r.atom, args[:first]))
        whole = deduce(replace(expr, args=(*lead, *operands(args[first:]))), self.program.module.functions)
        carried = whole.fields if isinstance(whole, TupleType) and expr.carried != 1 else (whole,)
        bound = (TensorType((), "int64"), *carried)
        handed = self.handed(r, (expr.body,), (bound,), args[first:], expr.dims)
        made = replace(expr, body=handed.names[0], args=(*lead, *handed.args), dims=handed.dims)
        return r.emit(made, b.var.name, b.where)

    def closure(self, r: Residual, value: Value) -> Closure:
        """A known function as a value that something unknown gets, of its own for what is known of what it captures."""
        form, annotation = value.form, value.annotation
        assert isinstance(form, Closure) and isinstance(annotation, CallableType) and annotation.parameters is not None
        handed = self.handed(r, (form.function,), (annotation.parameters,), value.parts, form.dims)
        return Closure(handed.names[0], handed.args, handed.dims)

    def handed(
        self,
        r: Residual,
        names: tuple[str, ...],
        bound: tuple[tuple[Annotation, ...], ...],
        values: Sequence[Value],
        dims: tuple[Dim, ...],
    ) -> Handed:
        """Functions that take `bound`, each its own, and what is unknown in `values`, which all of them are handed."""
        program = self.program
        given = self.generalized(r, names, values)
        if program.budget.is_spent or all(v.form is None and v.array is None for v in given):
            return self.unknown(r, names, values, dims)
        closed = close(given, arrays=not any(n in program.groups for n in names))
        extra = self.extra_dims(r, closed, bound, dims)
        key = names, bound, closed.key, dims, extra
        if key not in self.made:
            if self.count[names] >= 2 * VARIANTS:
                return self.unknown(r, names, values, dims)
            self.count[names] += 1
            self.made[key] = tuple(self.request(n, own, closed, dims, extra) for n, own in zip(names, bound, strict=True))
        return Handed(self.made[key], tuple(map(r.atom, closed.leaves)), tuple(map(symbol, extra)))

    def unknown(
        self, r: Residual, names: tuple[str, ...], values: Sequence[Value], dims: tuple[Dim, ...]
    ) -> Handed:
        """The branches as they are where nothing is known of what they are handed."""
        return Handed(tuple(self.program.general(n) for n in names), tuple(map(r.atom, values)), dims)

    def generalized(self, r: Residual, names: tuple[str, ...], values: Sequence[Value]) -> list[Value]:
        """The values, unknown where they would be known in ever more ways."""
        found = [self.structures.numbers(v) for v in values]
        seen, varying = self.seen[names], self.varying[names]
        for before in seen:
            varying |= {k for k, (n, _) in enumerate(before) if n and n in found[k][1]}
        if len(seen) >= VARIANTS:
            varying |= {k for k, (n, _) in enumerate(found) if n != seen[0][k][0]}
        found = [(0, set()) if k in varying else f for k, f in enumerate(found)]
        if not any([n for n, _ in f] == [n for n, _ in found] for f in seen):
            seen.append(found)
        return [Value(v.annotation, r.atom(v), name=v.name) if k in varying else v for k, v in enumerate(values)]

    def extra_dims(
        self, r: Residual, closed: Closed, bound: Sequence[Sequence[Annotation]], dims: Sequence[Dim]
    ) -> tuple[str, ...]:
        """The dim symbols that branches need and the arguments that all of them are handed do not tell."""
        needed = set().union(*(symbols_of(d) for d in dims), *(symbols_in(v.annotation) for v in closed.order))
        needed |= {s for own in bound for a in own for s in symbols_in(a)}
        for v in closed.order:
            needed |= {s for d in getattr(v.form, "dims", ()) for s in symbols_of(d)}
        told = {d.name for v in closed.leaves for d in value_dims(v.annotation) if isinstance(d, sympy.Symbol)}
        return tuple(sorted(needed & r.known - told))

    def request(
        self, name: str, bound: tuple[Annotation, ...], handed: Closed, dims: tuple[Dim, ...], extra: tuple[str, ...]
    ) -> str:
        """The name of a new function, whose signature is there at once."""
        program = self.program
        original = program.module.functions[name]
        new = program.fresh(name)
        given = [*bound, *(v.annotation for v in handed.values)]
        parameters = (*operands(Value(a) for a in bound), *operands(handed.leaves))
        never = next((p for p in parameters[: len(bound)] if isinstance(p.annotation, NeverType)), None)
        # there is no such value, and so no such call
        result = never or Var("result", signature_result(original, given, dims))
        blocks = () if never or is_pure_function(original) else (Block((), dataflow=False),)
        program.functions[new] = Function(new, parameters, blocks, result, extra)
        program.waiting.append(Request(new, name, bound, handed, dims))
        return new
