"""One function of the program that is left, as it is written: bindings in order, and what its references hold.

Everything that is emitted is bound to a variable at once (A-normal form), so effects stay in their order. What is known is bound
when something unknown first needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from mirage.compiler.partial.budget import Budget
from mirage.compiler.partial.values import Value
from mirage.errors import MirageError
from mirage.ir.annotations import Annotation, map_dims, symbols_in
from mirage.ir.dims import symbols_of
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.deduce import deduce, located, settled
from mirage.ir.graph.effects import is_pure
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Closure,
    Constant,
    Expr,
    Function,
    MatchCast,
    OpCall,
    ReferenceCall,
    ShapeValue,
    Var,
)
from mirage.ir.graph.traverse import determined
from mirage.ir.program import AttrItems


@dataclass(frozen=True)
class Mark:
    """A place to which a function can be taken back."""

    bindings: int
    put: int
    known: frozenset[str]
    store: Mapping[Value, Value | None]


class Residual:
    """A function under construction.

    `functions` are those of the program that is left, and `closure` makes a known function a value of it.
    `known` are the dim symbols whose sizes are known so far, `store` what references hold, None where that is unknown. `active`
    counts, per recursion of the program, the calls that are being unfolded, and `catching` how many of these, and of loops, are
    taken back where they need too much.
    """

    def __init__(
        self,
        name: str,
        functions: Mapping[str, Function],
        closure: Callable[[Residual, Value], Closure],
        budget: Budget,
        dims: tuple[str, ...] = (),
    ) -> None:
        self.builder = FunctionBuilder(name, functions)
        self.functions = functions
        self.closure = closure
        self.budget = budget
        self.dims = dims
        self.bindings: list[Binding] = []
        self.known: set[str] = set(dims)
        self.held: set[str] = set()
        self.symbols: set[str] = set(dims)
        self.store: dict[Value, Value | None] = {}
        self.active: Counter[int] = Counter()
        self.catching = 0
        #: values in the order in which they were put into the function
        self._put: list[Value] = []
        self._numbers: dict[OpCall, Value] = {}
        #: what operators have computed, and the number of bindings with each
        self._computed: dict[object, Value] = {}
        self._keys: list[tuple[int, object]] = []

    def parameter(self, hint: str, annotation: Annotation) -> Value:
        """The next parameter, of which nothing is known."""
        var = self.builder.fresh_parameter(hint, annotation)
        self.held |= symbols_in(annotation)
        self.symbols |= self.held
        self.known = determined((p.annotation for p in self.builder.parameters), self.dims)
        return Value(annotation, var, name=hint)

    def fresh_symbol(self, name: str) -> str:
        """A name for a dim symbol that the function does not use yet."""
        fresh, k = name, 0
        while fresh in self.symbols:
            fresh, k = f"{name}_{k}", k + 1
        self.symbols.add(fresh)
        return fresh

    def number(self, call: OpCall, annotation: Annotation) -> Value:
        """A scalar constant."""
        return self._numbers.setdefault(call, Value(annotation, form=call))

    def compute(self, call: OpCall, name: str, where: str) -> Value:
        """Bind an operator, or take what is there already: unrolled calls compute many things again."""
        key = call.op, call.args, call.attrs
        found = self._computed.get(key)
        if found is None:
            found = self._computed[key] = self.emit(call, name, where)
            self._keys.append((len(self.bindings), key))
        return found

    def emit(self, expr: Expr, name: str = "v", where: str = "") -> Value:
        """Bind an expression; raises what the deduction raises, with the user's line in front."""
        self.budget.write()
        try:
            expr = settled(expr)
            found = deduce(expr, self.functions)
        except MirageError as e:
            raise located(e, where) from None
        # names without a meaning are numbered in order
        hint = "v" if name[1:].isdigit() and name[0] == "v" else name
        var = Var(self.builder.fresh(hint), found)
        self.bindings.append(Binding(var, expr, where))
        if isinstance(expr, MatchCast):
            self.known |= determined([expr.annotation], self.known)
            self.symbols |= symbols_in(expr.annotation)
        elif not isinstance(expr, Var | Constant | ShapeValue | OpCall):
            self.known |= determined([found], self.known) & self.held
        if not is_pure(expr, self.functions) and not isinstance(expr, ReferenceCall):
            self.forget()
        return Value(found, var, name=name, where=where)

    def forget(self) -> None:
        """Something unknown may have written to every reference that it can reach."""
        for reference in self.store:
            if reference.atom is not None:
                self.store[reference] = None

    def atom(self, value: Value) -> Atom:
        """What holds a value; it is put into the function, with its parts, if it is not there yet."""
        if value.atom is not None:
            return value.atom
        written: list[Value] = []
        self._bind(value, written)
        while written:
            # a reference is made with what it held at first, which cannot hold the reference itself
            reference = written.pop()
            content = self.store[reference]
            if content is not None and content is not reference.parts[0]:
                self._bind(content, written)
                assert reference.atom is not None and content.atom is not None
                self.emit(ReferenceCall("write", (reference.atom, content.atom)), reference.name, reference.where)
        assert value.atom is not None
        return value.atom

    def _bind(self, value: Value, written: list[Value]) -> None:
        """Bind a value and its parts; appends the references among them."""
        stack = [value]
        while stack:
            v = stack[-1]
            if v.atom is not None:
                stack.pop()
                continue
            form = v.form
            assert form is not None, "a value is known or held by an atom"
            made: Expr
            if isinstance(form, Closure):
                # only what is unknown in what it captures is put into the function
                made = self.closure(self, v)
            elif left := [p for p in v.parts if p.atom is None]:
                stack += reversed(left)
                continue
            else:
                args = tuple(p.atom for p in v.parts)
                made = replace(form, args=args)  # type: ignore[arg-type]
            stack.pop()
            if v.atom is not None:
                continue
            v.atom = self.emit(made, v.name, v.where).atom
            self._put.append(v)
            if v.is_reference:
                written.append(v)

    def mark(self) -> Mark:
        """The function as it is now."""
        return Mark(len(self.bindings), len(self._put), frozenset(self.known), dict(self.store))

    def restore(self, mark: Mark) -> None:
        """Take the function back to what it was."""
        del self.bindings[mark.bindings :]
        while self._keys and self._keys[-1][0] > mark.bindings:
            del self._computed[self._keys.pop()[1]]
        for v in self._put[mark.put :]:
            v.atom = None
        del self._put[mark.put :]
        self.known = set(mark.known)
        self.store = dict(mark.store)

    def cast(self, value: Value, wanted: Annotation) -> Value:
        """The value under an annotation that is checked at run time."""
        return self.emit(MatchCast((self.atom(value),), wanted), value.name, value.where)

    def finish(self, result: Value, attrs: AttrItems = ()) -> Function:
        """The function that returns a value."""
        atom = self.atom(result)
        for b in self.bindings:
            self.builder.bind(b)
        return self.builder.finish(atom, dims=self.dims, attrs=attrs)


def open_dims(annotation: Annotation, known: set[str]) -> Annotation:
    """The annotation in which dims that need other symbols than these are unknown."""
    return map_dims(annotation, lambda d: d if symbols_of(d) <= known else None)

