"""The partial evaluator: an interpreter whose values are known in part, and which writes what it cannot compute.

Calls are written out where something known may decide what they do; matches of known constructors, conditions that are known,
calls of known functions and short loops of known counts vanish. What an unknown value decides becomes functions of their own, one
for each known part of what they get (`branches.py`). Source: Relay, section 4.3; Thiemann and Dussart, "Partial evaluation for
higher-order languages with state", 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mirage.compiler.constant_results import constant_results, scalar_value
from mirage.compiler.partial.branches import Branches
from mirage.compiler.partial.budget import Spent
from mirage.compiler.partial.frame import Frame, cast, enter
from mirage.compiler.partial.program import Program
from mirage.compiler.partial.residual import Residual
from mirage.compiler.partial.trampoline import Task
from mirage.compiler.partial.values import Value, known_form, operands
from mirage.errors import GraphError
from mirage.ir.annotations import NeverType, TupleType, symbols_in
from mirage.ir.dims import Dim
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.effects import callees, with_callees
from mirage.ir.graph.nodes import (
    Binding,
    CallValue,
    Closure,
    Constant,
    Construct,
    Expr,
    FunctionCall,
    If,
    Loop,
    MakeTuple,
    Match,
    MatchCast,
    OpCall,
    PackedCall,
    ReferenceCall,
    ShapeOf,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.graph.patterns import Bind, Case, Fields, Pattern
from mirage.ir.types import TensorType

#: bindings of a function that is written out wherever it is called
FEW = 8
#: rounds of a loop that is written out though nothing that decides goes from one to the next, and bindings of all of these
ROUNDS, UNROLLED = 16, 128


class Evaluator:
    """Evaluates the functions of a program, as far as they are known, and writes what is not."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.module = program.module
        self.budget = program.budget
        self.branches = Branches(program)

    def residual(self, name: str, dims: tuple[str, ...] = ()) -> Residual:
        """A function that begins to be written."""
        return Residual(name, self.program.functions, self.branches.closure, self.budget, dims)

    def body(self, r: Residual, frame: Frame) -> Task[Value]:
        """The result of a call, of which is written what is not known."""
        for b in frame.function.bindings:
            self.budget.step()
            if self.budget.is_spent and r.catching:
                raise Spent
            done = self.binding(r, frame, b)
            value = done if isinstance(done, Value) else (yield done)
            frame.bind(b, value, r)
        return frame.value(frame.function.result)

    def binding(self, r: Residual, frame: Frame, b: Binding) -> Value | Task[Value]:
        """The value of a binding, or what gives it once the calls in it are done."""
        if isinstance(b.value, Var | Constant | ShapeValue):
            if isinstance(b.value, Constant) and self.program.is_own(frame.function, b.var):
                return r.emit(b.value, b.var.name, b.where)
            return frame.value(b.value)
        if isinstance(b.value, MatchCast):
            return cast(r, frame, b.value, frame.value(b.value.args[0]), b)
        args = [frame.value(a) for a in b.value.args]
        expr = frame.expression(b.value)
        match expr:
            case OpCall("constant"):
                return r.number(expr, deduce(expr, {}))
            case OpCall():
                return self.operator(r, expr, args, b, own=self.program.is_own(frame.function, b.var))
            case MakeTuple() | Construct() | Closure():
                return self.made(expr, args, b)
            case TupleItem(index=index) if known_form(args[0], MakeTuple):
                return args[0].parts[index]
            case ShapeOf() if isinstance(a := args[0].annotation, TensorType) and symbols_in(a) <= r.known:
                shape = ShapeValue(a.shape)
                return Value(shape.annotation, shape)
            case ReferenceCall():
                return self.reference(r, expr, args, b)
            case FunctionCall(name, _, dims):
                return self.call(r, name, args, dims, b)
            case CallValue() if known_form(args[0], Closure):
                form = args[0].form
                assert isinstance(form, Closure)
                return self.call(r, form.function, [*args[1:], *args[0].parts], form.dims, b, of_value=True)
            case If():
                return self.condition(r, expr, args, b)
            case Match():
                return self.match(r, expr, args, b)
            case Loop():
                return self.loop(r, expr, args, b)
            case PackedCall(name, in_place=positions) if any(not isinstance(r.atom(args[k]), Var) for k in positions):
                raise GraphError(f"packed function {name!r} writes to a value that is known; leave it an argument")
        return self.left(r, expr, args, b)

    def left(self, r: Residual, expr: Expr, args: Sequence[Value], b: Binding) -> Value:
        """What is left to the run."""
        atoms = tuple(map(r.atom, args))
        named = with_callees(expr, {n: self.program.general(n) for n in callees(expr)})
        return r.emit(replace(named, args=atoms), b.var.name, b.where)  # type: ignore[arg-type]

    def made(self, expr: MakeTuple | Construct | Closure, args: Sequence[Value], b: Binding) -> Value:
        """A value whose form is known."""
        annotation = deduce(replace(expr, args=operands(args)), self.module.functions)
        return Value(annotation, None, replace(expr, args=()), tuple(args), b.var.name, b.where)

    def operator(self, r: Residual, call: OpCall, args: Sequence[Value], b: Binding, *, own: bool) -> Value:
        """An operator: computed where its operands are known, and it needs no value of its `own`."""
        if not own and all(a.array is not None or known_form(a, OpCall) for a in args):
            values = [scalar_value(a.form) if isinstance(a.form, OpCall) else a.array for a in args]
            annotation = deduce(replace(call, args=tuple(a.atom or v for a, v in zip(args, operands(args), strict=True))), {})
            if (found := constant_results(call, values, annotation, numbers=True)) is not None:
                parts = tuple(Value(c.annotation, c, name=b.var.name, where=b.where) for c in found)
                if not isinstance(annotation, TupleType):
                    return parts[0]
                return Value(annotation, None, MakeTuple(()), parts, b.var.name, b.where)
        if self.program.writes:
            # what an operand holds may change
            return self.left(r, call, args, b)
        return r.compute(replace(call, args=tuple(map(r.atom, args))), b.var.name, b.where)

    def reference(self, r: Residual, expr: ReferenceCall, args: Sequence[Value], b: Binding) -> Value:
        """An effect on a reference: simulated while nobody unknown has the reference, else written, too."""
        if expr.kind == "new":
            annotation = deduce(replace(expr, args=operands(args)), self.module.functions)
            made = Value(annotation, None, ReferenceCall("new", ()), tuple(args), b.var.name, b.where)
            r.store[made] = args[0]
            return made
        place = args[0]
        if expr.kind == "read":
            content = r.store.get(place)
            if content is None:
                content = self.left(r, expr, args, b)
                if place in r.store:
                    r.store[place] = content
            return content
        if place not in r.store or place.atom is not None:
            self.left(r, expr, args, b)
            if place not in r.store:
                # it may be any that somebody else has
                r.forget()
        if place in r.store:
            r.store[place] = args[1]
        return place

    def is_spent(self, r: Residual) -> bool:
        """Whether nothing more is written out. Within a recursion that is taken back as a whole, that is said by `Spent`."""
        return self.budget.is_spent and not r.catching

    def unfolds(self, r: Residual, name: str, args: Sequence[Value], of_value: bool) -> bool:
        """Whether a call is written out: where what is known may decide something in it."""
        f = self.module.functions[name]
        if name in self.program.stopped or self.is_spent(r) or any(isinstance(a.annotation, NeverType) for a in args):
            return False
        if name in self.program.groups:
            return any(a.decides for a in args)
        known = any(a.form is not None or a.array is not None for a in args)
        return of_value or known or (name in self.program.stacked and len(f.bindings) <= FEW)

    def call(
        self, r: Residual, name: str, args: Sequence[Value], dims: Sequence[Dim], b: Binding, *, of_value: bool = False
    ) -> Value | Task[Value]:
        """A call of a function: written out, or left."""
        if self.unfolds(r, name, args, of_value):
            return self.unfolded(r, name, args, dims, b)
        return self.left(r, FunctionCall(name, (), tuple(dims)), args, b)

    def unfolded(self, r: Residual, name: str, args: Sequence[Value], dims: Sequence[Dim], b: Binding) -> Task[Value]:
        """The result of a call, evaluated in place; of a recursion that does not end soon enough, a call that is left."""
        f = self.module.functions[name]
        group = self.program.groups.get(name)
        if name in self.program.stopped and not (group is not None and r.active[group]):
            return self.left(r, FunctionCall(name, (), tuple(dims)), args, b)
        if group is None or r.active[group]:
            result: Value = yield self.body(r, enter(r, f, args, dims, b.where))
            return result
        mark = r.mark()
        aside = self.budget.reserve()
        r.active[group] += 1
        r.catching += 1
        try:
            found: Value = yield self.body(r, enter(r, f, args, dims, b.where))
            return found
        except Spent:
            r.restore(mark)
            self.program.stop(name)
        finally:
            r.active[group] -= 1
            r.catching -= 1
            self.budget.release(aside)
        return self.left(r, FunctionCall(name, (), tuple(dims)), args, b)

    def condition(self, r: Residual, expr: If, args: Sequence[Value], b: Binding) -> Value | Task[Value]:
        """One of two functions: the one that is called, where that is known."""
        test = args[0].array
        names = (expr.then, expr.orelse)
        if test is not None and not self.is_spent(r):
            return self.unfolded(r, names[0 if test else 1], args[1:], expr.dims, b)
        return self.branches.condition(r, expr, args, b)

    def match(self, r: Residual, expr: Match, args: Sequence[Value], b: Binding) -> Value | Task[Value]:
        """The clause of a match that is known to be the one, else all of them."""
        for c in expr.clauses:
            found: list[Value] = []
            matches = self.matches(r, c.pattern, args[0], found)
            if matches is None:
                break
            if matches:
                if self.is_spent(r):
                    break
                return self.unfolded(r, c.function, [*found, *args[1:]], expr.dims, b)
        return self.branches.match(r, expr, args, b)

    def matches(self, r: Residual, pattern: Pattern, value: Value, found: list[Value]) -> bool | None:
        """Whether a value matches, None where that is not known; appends what the pattern binds."""
        if isinstance(pattern, Bind):
            found.append(value)
        if not isinstance(pattern, Case | Fields):
            return True
        if isinstance(pattern, Case):
            if not isinstance(value.form, Construct):
                return None
            if value.form.index != pattern.index:
                return False
            parts: Sequence[Value] = value.parts
        elif known_form(value, MakeTuple):
            parts = value.parts
        else:
            atom = r.atom(value)
            parts = [r.emit(TupleItem((atom,), k), value.name, value.where) for k in range(len(pattern.fields))]
        told: list[bool | None] = [self.matches(r, p, v, found) for p, v in zip(pattern.fields, parts, strict=True)]
        return False if False in told else None if None in told else True

    def loop(self, r: Residual, expr: Loop, args: Sequence[Value], b: Binding) -> Value | Task[Value]:
        """A loop: its rounds, where they are known to be few, or something in them is known and may decide."""
        given = list(args)
        count: int | None = None
        if expr.count is not None:
            count = int(expr.count) if expr.count.is_Integer else None
        elif (array := given.pop(0).array) is not None:
            count = int(array)
        if count is not None and not self.is_spent(r) and expr.body not in self.program.stopped:
            bound = expr.bound
            fits = bound is None or (bound.is_Integer and count <= int(bound))
            short = count <= ROUNDS and count * max(len(self.module.functions[expr.body].bindings), 1) <= UNROLLED
            if fits and (short or any(v.is_structure for v in given[: expr.carried])):
                return self.rounds(r, expr, args, given, count, b)
        return self.branches.loop(r, expr, args, b)

    def rounds(
        self, r: Residual, expr: Loop, args: Sequence[Value], given: Sequence[Value], count: int, b: Binding
    ) -> Task[Value]:
        """The rounds of a loop, one after the other; the loop itself where these are too many."""
        carried, invariant = list(given[: expr.carried]), given[expr.carried :]
        index = TensorType((), "int64")
        mark = r.mark()
        aside = self.budget.reserve()
        r.catching += 1
        try:
            for k in range(count):
                at = Value(index, Constant(np.asarray(k, np.int64), index), name="i")
                done = self.unfolded(r, expr.body, [at, *carried, *invariant], expr.dims, b)
                result = yield done
                carried = [result] if expr.carried == 1 else self.items(r, result, expr.carried)
        except Spent:
            r.restore(mark)
            self.program.stop(expr.body)
        else:
            return carried[0] if expr.carried == 1 else self.made(MakeTuple(()), carried, b)
        finally:
            r.catching -= 1
            self.budget.release(aside)
        left = self.branches.loop(r, expr, args, b)
        return left

    def items(self, r: Residual, value: Value, many: int) -> list[Value]:
        """The fields of a tuple."""
        if known_form(value, MakeTuple):
            return list(value.parts)
        atom = r.atom(value)
        return [r.emit(TupleItem((atom,), k), value.name, value.where) for k in range(many)]
