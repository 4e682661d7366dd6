"""Gradients of functions that call themselves, make data or are values, by a tape (Pearlmutter and Siskind, "Reverse-mode AD in a
functional framework"; Relay, section 4.2).

A function becomes one of duals (`mirage.ir.graph.duals`) and of the tape, a reference to a list. What it computes between two
calls is a function, its segment; the segment's operands and places go into a closure on the tape, which hands cotangents back
through the segment (`Differentiation.backward`). Calls, matches and closures stay what they are, over duals. At last, the
closures run, the latest first: a loop of last calls, however deep the calls were that left them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mirage.errors import GradientError, MirageError
from mirage.ir.annotations import Annotation, CallableType, DataType, ReferenceType, TupleType, symbols_in
from mirage.ir.data import CONS, LIST, NIL
from mirage.ir.dims import symbol
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.cotangents import float_leaves, is_float, symbols_of_function
from mirage.ir.graph.deduce import located
from mirage.ir.graph.duals import Duals, operator, place_type
from mirage.ir.graph.effects import callees, is_pure
from mirage.ir.graph.functional import FUNCTIONAL, functional, plain
from mirage.ir.graph.gradient import Differentiation
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Block,
    CallValue,
    Clause,
    Closure,
    Constant,
    Construct,
    Expr,
    Function,
    FunctionCall,
    If,
    Loop,
    MakeTuple,
    Match,
    MatchCast,
    Module,
    OpCall,
    ReferenceCall,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.graph.patterns import Bind, Case
from mirage.ir.graph.traverse import atoms, determined, rename, symbols_used, variables
from mirage.ir.types import TensorType

#: what a closure on the tape returns, and is; the type of the tape
NOTHING = TupleType(())
STEP = CallableType((), NOTHING, pure=False)
STEPS = DataType(LIST.name, (STEP,))
TAPE = ReferenceType(STEPS)


def needs_tape(f: Function, module: Differentiation) -> bool:
    """Whether a function calls itself, makes data or is about functions as values, or calls what does."""
    return f.name in functional(Module({**module.functions, f.name: f}, main=f.name))


@dataclass
class Taped:
    """The gradients of functions of one module on a tape."""

    module: Differentiation
    duals: Duals
    stacked: frozenset[str] = frozenset()
    _made: dict[str, str] = field(default_factory=dict)

    def gradient(self, f: Function, wrt: Sequence[int], name: str, *, seeded: bool, value: bool) -> Function:
        """As `Differentiation.gradient`."""
        functions, duals = self.module.functions, self.duals
        self.stacked = functional(Module({**functions, f.name: f}, main=f.name))
        called = self.dual(f)
        b = FunctionBuilder(name, functions)
        b.names |= symbols_of_function(f)
        parameters = [b.fresh_parameter(p.name, p.annotation) for p in f.parameters]
        seed = b.fresh_parameter("cotangent", f.returns) if seeded else None
        tape = b.emit(ReferenceCall("new", (b.emit(Construct(LIST, NIL), annotation=STEPS),)), name="tape")
        given = [duals.new(b, p) for p in parameters]
        dims = tuple(map(symbol, f.dims))
        result = b.emit(FunctionCall(called, (*given, tape), dims), annotation=duals.type(f.returns))
        found = self._seeded(b, f.returns, result, seed)
        steps = b.emit(ReferenceCall("read", (tape,)))
        b.emit(FunctionCall(self.unwinding(), (steps,)))
        gradients = [duals.gradient(b, f.parameters[k].annotation, given[k]) for k in wrt]
        only = gradients[0] if len(gradients) == 1 else b.emit(MakeTuple(tuple(gradients)))
        return b.finish(b.emit(MakeTuple((found, only))) if value else only, dims=f.dims, attrs=f.attrs)

    def _seeded(self, b: FunctionBuilder, a: Annotation, dual: Atom, seed: Atom | None) -> Atom:
        """The value of a dual, whose places get the cotangents."""
        if isinstance(a, TupleType):
            fields = []
            for k, t in enumerate(a.fields):
                own = None if seed is None else b.emit(TupleItem((seed,), k))
                fields.append(self._seeded(b, t, b.emit(TupleItem((dual,), k)), own))
            return b.emit(MakeTuple(tuple(fields)))
        if not is_float(a):
            raise GradientError(f"it returns {a}; return floating-point tensors alone, and tuples of these")
        if seed is None:
            assert isinstance(a, TensorType)
            seed = b.emit(operator("full", (), shape=(), value=1, dtype=a.dtype))
        b.emit(ReferenceCall("write", (b.emit(TupleItem((dual,), 1)), seed)))
        return b.emit(TupleItem((dual,), 0))

    def unwinding(self) -> str:
        """The function that runs the closures of a tape."""
        if "" not in self._made:
            functions, reserve = self.module.functions, self.module.reserve
            name, back, done = (reserve(n) for n in ("unwind", "unwind_step", "unwind_done"))
            self._made[""] = name
            functions[name] = Function(name, (Var("steps", STEPS),), (Block((), dataflow=False),), Var("result", NOTHING))
            b = FunctionBuilder(done, functions)
            functions[done] = b.finish(b.emit(MakeTuple(())))
            b = FunctionBuilder(back, functions)
            step, rest = b.fresh_parameter("step", STEP), b.fresh_parameter("rest", STEPS)
            b.emit(CallValue((step,)))
            functions[back] = b.finish(b.emit(FunctionCall(name, (rest,))))
            b = FunctionBuilder(name, functions)
            steps = b.fresh_parameter("steps", STEPS)
            clauses = Clause(Case(LIST, NIL), done), Clause(Case(LIST, CONS, (Bind("step"), Bind("rest"))), back)
            functions[name] = b.finish(b.emit(Match((steps,), clauses), annotation=NOTHING))
        return self._made[""]

    def dual(self, f: Function) -> str:
        """The name of the function of duals and of the tape that a function becomes."""
        if f.name not in self._made:
            if isinstance(f.result, Var) and f.result not in {*f.parameters, *(b.var for b in f.bindings)}:
                raise GradientError(f"{f.name}: its gradient is used in itself; differentiate it where it is called")
            name = self._made[f.name] = self.module.reserve(f"{f.name}_dual")
            parameters = tuple(Var(p.name, self.duals.type(p.annotation)) for p in f.parameters)
            header = Function(
                name, (*parameters, Var("tape", TAPE)), (Block((), dataflow=False),), Var("result", self.duals.type(f.returns)),
                f.dims,
            )  # fmt: skip
            self.module.functions[name] = header
            self.module.functions[name] = _Dual(self, f, name).run()
        return self._made[f.name]


class _Dual:
    """One function, of duals and of the tape."""

    def __init__(self, taped: Taped, f: Function, name: str) -> None:
        self.taped, self.duals, self.f = taped, taped.duals, f
        self.b = FunctionBuilder(name, taped.module.functions)
        self.b.names |= symbols_of_function(f)
        #: duals of variables, and of values of tensors their values and places
        self.of: dict[Var, Atom] = {}
        self.plain: dict[Var, tuple[Atom, list[Atom]]] = {}
        #: numbers without an element type, which every segment has for itself
        self.numbers: dict[Var, Binding] = {}
        self.pending: list[Binding] = []
        self.where = ""

    def run(self) -> Function:
        f = self.f
        for p in f.parameters:
            self.of[p] = self.b.fresh_parameter(p.name, self.duals.type(p.annotation))
        self.tape = self.b.fresh_parameter("tape", TAPE)
        for b in f.bindings:
            self.where = b.where
            try:
                self.binding(b)
            except MirageError as e:
                raise located(e, b.where) from None
        self.flush()
        return self.b.finish(self.dual(f.result), dims=f.dims)

    def emit(self, value: Expr, annotation: Annotation | None = None) -> Var:
        return self.b.emit(value, annotation=annotation, where=self.where)

    # values

    def dual(self, a: Atom) -> Atom:
        """The dual of an operand."""
        if not isinstance(a, Var):
            return self.duals.new(self.b, a, self.where)
        if a not in self.of:
            value, places = self.plain[a]
            self.of[a] = self._paired(a.annotation, value, iter(places))
        return self.of[a]

    def _paired(self, a: Annotation, value: Atom, places: Iterator[Atom]) -> Atom:
        if isinstance(a, TupleType):
            items = [self.emit(TupleItem((value,), k)) for k in range(len(a.fields))]
            return self.emit(MakeTuple(tuple(self._paired(t, i, places) for t, i in zip(a.fields, items, strict=True))))
        return self.emit(MakeTuple((value, next(places)))) if is_float(a) else value

    def opened(self, v: Var) -> tuple[Atom, list[Atom]]:
        """A tensor, shape or tuple of these, and the places of its floating-point tensors."""
        if v not in self.plain:
            self.plain[v] = self._opened(v.annotation, self.of[v])
        return self.plain[v]

    def _opened(self, a: Annotation, dual: Atom) -> tuple[Atom, list[Atom]]:
        if isinstance(a, TupleType):
            found = [self._opened(t, self.emit(TupleItem((dual,), k))) for k, t in enumerate(a.fields)]
            return self.emit(MakeTuple(tuple(x for x, _ in found))), [p for _, places in found for p in places]
        if is_float(a):
            return self.emit(TupleItem((dual,), 0)), [self.emit(TupleItem((dual,), 1))]
        return dual, []

    # bindings

    def binding(self, b: Binding) -> None:
        value, a = b.value, b.var.annotation
        if not is_pure(value, self.b.functions):
            raise GradientError(
                f"{b.var.name}: has effects, which cannot be gone back over; compute a new value instead, or call it outside of "
                "what is differentiated"
            )
        if isinstance(a, TensorType) and a.dtype == "scalar":
            self.numbers[b.var] = b
            return
        waiting = {p.var for p in self.pending}
        reads = not waiting.isdisjoint(variables(value))
        if self.computes(b, reads):
            self.pending.append(b)
            return
        if reads:
            self.flush()
        self.of[b.var] = self.moved(b)

    def computes(self, b: Binding, reads: bool) -> bool:
        """Whether a binding computes tensors, and is a part of a segment."""
        value = b.value
        if isinstance(value, (*FUNCTIONAL, Var, Constant, ShapeValue, MatchCast)):
            return False
        if isinstance(value, MakeTuple | TupleItem) and not reads:
            return False
        if any(name in self.taped.stacked for name in callees(value)):
            return False
        return plain(b.var.annotation) and all(plain(a.annotation) for a in atoms(value))

    def moved(self, b: Binding) -> Atom:
        """The dual of what a binding moves, makes or calls."""
        value, wanted = b.value, self.duals.type(b.var.annotation)
        if isinstance(value, Var | Constant | ShapeValue):
            return self.dual(value)
        if isinstance(value, MatchCast):
            return self.cast(value, b.var.annotation)
        given = tuple(self.dual(a) if k or not isinstance(value, If) else self.value(a) for k, a in enumerate(value.args))
        match value:
            case FunctionCall(name):
                return self.emit(replace(value, function=self.callee(name), args=(*given, self.tape)), wanted)
            case If(then=then, orelse=orelse):
                made = replace(value, then=self.callee(then), orelse=self.callee(orelse), args=(*given, self.tape))
                return self.emit(made, wanted)
            case Loop(body=body):
                return self.emit(replace(value, body=self.callee(body), args=(*given, self.tape)), wanted)
            case Match(clauses=clauses):
                new = tuple(Clause(self.duals.pattern(c.pattern), self.callee(c.function)) for c in clauses)
                return self.emit(replace(value, clauses=new, args=(*given, self.tape)), wanted)
            case Closure(name):
                return self.emit(replace(value, function=self.callee(name), args=(*given, self.tape)), wanted)
            case Construct(data, index):
                return self.emit(Construct(self.duals.declaration(data.name), index, given), wanted)
            case CallValue() | MakeTuple() | TupleItem():
                return self.emit(replace(value, args=given), wanted)  # type: ignore[arg-type]
        raise GradientError(f"{b.var.name}: a {type(value).__name__} has no gradient; use tensors, data and functions")

    def value(self, a: Atom) -> Atom:
        return self.opened(a)[0] if isinstance(a, Var) else a

    def callee(self, name: str) -> str:
        return self.taped.dual(self.b.functions[name])

    def cast(self, value: MatchCast, wanted: Annotation) -> Atom:
        """The dual of a tensor under another annotation: its place is the same."""
        (x,) = value.args
        if is_float(wanted):
            own = self.dual(x)
            inner, place = (self.emit(TupleItem((own,), k)) for k in (0, 1))
            return self.emit(MakeTuple((self.emit(MatchCast((inner,), wanted)), place)))
        if float_leaves(wanted) or not plain(wanted):
            raise GradientError(f"match_cast of {wanted} has no gradient here; cast its tensors one by one")
        return self.emit(MatchCast((self.dual(x),), wanted))

    # segments

    def flush(self) -> None:
        """Make a segment of what is pending: a call of it now, and one of its backward function on the tape."""
        members, self.pending = self.pending, []
        own = {b.var for b in members}
        read = {v for b in self.f.bindings if b.var not in own for v in variables(b.value)} | {self.f.result}
        outputs = [b.var for b in members if b.var in read]
        if not outputs:
            return
        needed = self._with_numbers(members)
        inputs = list(dict.fromkeys(v for b in needed for v in variables(b.value) if v not in own and v not in self.numbers))
        segment = self._segment(needed, inputs, outputs)
        self.where = members[-1].where
        values = [self.opened(v) for v in inputs]
        dims = tuple(map(symbol, segment.dims))
        result = self.emit(FunctionCall(segment.name, tuple(x for x, _ in values), dims))
        found = [result] if len(outputs) == 1 else [self.emit(TupleItem((result,), k)) for k in range(len(outputs))]
        for v, x in zip(outputs, found, strict=True):
            self.plain[v] = x, self._places(v.annotation, x)
        places = [p for v in outputs for p in self.plain[v][1]]
        if places and any(p for _, p in values):
            step = self._step(segment, inputs, outputs)
            args = (*(x for x, _ in values), *places, *(p for _, own_places in values for p in own_places))
            closure = self.emit(Closure(step.name, args, tuple(map(symbol, step.dims))))
            before = self.emit(ReferenceCall("read", (self.tape,)))
            after = self.emit(Construct(LIST, CONS, (closure, before)), STEPS)
            self.emit(ReferenceCall("write", (self.tape, after)))

    def _with_numbers(self, members: Sequence[Binding]) -> list[Binding]:
        """The bindings, and before them those of the numbers that they read."""
        found: dict[Var, Binding] = {}
        left = [v for b in members for v in variables(b.value)]
        while left:
            v = left.pop()
            if v in self.numbers and v not in found:
                found[v] = self.numbers[v]
                left += variables(found[v].value)
        order = [b for v, b in self.numbers.items() if v in found]
        return [*order, *members]

    def _places(self, a: Annotation, x: Atom) -> list[Atom]:
        if isinstance(a, TupleType):
            return [p for k, t in enumerate(a.fields) for p in self._places(t, self.emit(TupleItem((x,), k)))]
        return [self.duals.place(self.b, x, self.where)] if is_float(a) else []

    def _segment(self, members: Sequence[Binding], inputs: Sequence[Var], outputs: Sequence[Var]) -> Function:
        """The function of what is computed between two calls, which is added to the module."""
        module = self.taped.module
        b = FunctionBuilder(module.reserve(f"{self.f.name}_segment"), module.functions)
        b.names |= symbols_of_function(self.f)
        new: dict[Var, Atom] = {v: b.fresh_parameter(v.name, v.annotation) for v in inputs}
        for m in members:
            var = Var(b.fresh(m.var.name), m.var.annotation)
            new[m.var] = b.bind(Binding(var, rename(m, new).value, m.where))
        results = tuple(new[v] for v in outputs)
        result = results[0] if len(results) == 1 else b.emit(MakeTuple(results))
        needed = {s for m in members for s in (*symbols_used(m.value), *symbols_in(m.var.annotation))}
        needed |= {s for v in inputs for s in symbols_in(v.annotation)}
        dims = tuple(sorted(needed - determined(v.annotation for v in inputs)))
        module.functions[b.name] = b.finish(result, dims=dims)
        return module.functions[b.name]

    def _step(self, segment: Function, inputs: Sequence[Var], outputs: Sequence[Var]) -> Function:
        """The function that hands the cotangents of a segment back, which is added to the module."""
        module = self.taped.module
        wanted = [bool(float_leaves(v.annotation)) for v in inputs]
        backward = module.backward(segment.name, wanted, [True] * len(float_leaves(segment.returns)))
        b = FunctionBuilder(module.reserve(f"{segment.name}_step"), module.functions)
        b.names |= symbols_of_function(segment)
        values = [b.fresh_parameter(v.name, v.annotation) for v in inputs]
        ends = [(leaf, b.fresh_parameter("end", place_type(leaf))) for v in outputs for leaf in float_leaves(v.annotation)]
        starts = [(leaf, b.fresh_parameter("start", place_type(leaf))) for v in inputs for leaf in float_leaves(v.annotation)]
        cotangents = [self._held(b, p, leaf) for leaf, p in ends]
        dims = tuple(map(symbol, segment.dims))
        result = b.emit(FunctionCall(backward, (*values, *cotangents), dims), where=self.where)
        found = [result] if len(starts) == 1 else [b.emit(TupleItem((result,), k)) for k in range(len(starts))]
        for (leaf, place), g in zip(starts, found, strict=True):
            total = b.emit(OpCall("add", (self._held(b, place, leaf), g)), where=self.where)
            b.emit(ReferenceCall("write", (place, total)), where=self.where)
        module.functions[b.name] = b.finish(b.emit(MakeTuple(())), dims=segment.dims)
        return module.functions[b.name]

    def _held(self, b: FunctionBuilder, place: Var, leaf: Annotation) -> Var:
        """What a place holds, as a tensor of its shape."""
        return b.emit(MatchCast((b.emit(ReferenceCall("read", (place,)), where=self.where),), leaf), where=self.where)
