"""A call that is being evaluated: what its variables stand for, and what its dims are where the program is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mirage.compiler.partial.residual import Residual, open_dims
from mirage.compiler.partial.values import Value, known_form
from mirage.errors import GraphError
from mirage.ir.annotations import (
    Annotation,
    NeverType,
    PartialTensor,
    ShapeType,
    TupleType,
    at_least,
    substitute_dims,
    substitute_types,
    symbols_in,
)
from mirage.ir.dims import Dim, substitute, symbol
from mirage.ir.graph.fit import match_dims, solve_dims
from mirage.ir.graph.nodes import Atom, Binding, Expr, Function, MakeTuple, MatchCast, ShapeValue, Var
from mirage.ir.graph.traverse import determined, signature_symbols, symbols_used, with_dims
from mirage.ir.types import TensorType


@dataclass
class Frame:
    """A call of a function inside of one that is written.

    `dims` are its dim symbols in those of the function that is written; `open` are symbols of what its parameters hold that
    nothing has told yet.
    """

    function: Function
    dims: dict[str, Dim]
    values: dict[Var, Value] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)

    def value(self, atom: Atom) -> Value:
        """What an operand stands for."""
        if isinstance(atom, Var):
            return self.values[atom]
        if isinstance(atom, ShapeValue):
            atom = ShapeValue(tuple(substitute(d, self.dims) for d in atom.dims))
        return Value(atom.annotation, atom)

    def expression(self, expr: Expr) -> Expr:
        """An expression with its dims as they are where the program is written."""
        if self.open and (unknown := symbols_used(expr) & self.open):
            raise GraphError(f"{self.function.name}: nothing gives the size of {', '.join(sorted(unknown))} here")
        return with_dims(expr, lambda d: substitute(d, self.dims)) if self.dims else expr

    def bind(self, b: Binding, value: Value, r: Residual) -> None:
        """A variable has got its value, which may tell sizes of what parameters hold."""
        if new := determined([b.var.annotation], self.dims) & self.open if self.open else set():
            match_dims(b.var.annotation, value.annotation, self.dims, b.var.name, {})
            self.open -= self.dims.keys()
            if new & self.open:
                self.dims |= {s: symbol(r.fresh_symbol(s)) for s in new & self.open}
                self.open -= new
                value = r.cast(value, substitute_dims(b.var.annotation, self.dims))
        self.values[b.var] = value


def enter(r: Residual, f: Function, args: Sequence[Value], dims: Sequence[Dim], where: str) -> Frame:
    """A call that begins: casts check what its signature would check at run time, and name the sizes that only the run tells.

    Raises GraphError where an argument cannot fit.
    """
    values: dict[str, Dim] = dict(zip(f.dims, dims, strict=True))
    types: dict[str, Annotation] = {}
    what = f"{f'{where}: ' if where else ''}call of {f.name}"
    for p, a in zip(f.parameters, args, strict=True):
        match_dims(p.annotation, a.annotation, values, f"{what}: argument {p.name!r}", types)
    for p, a in zip(f.parameters, args, strict=True):
        solve_dims(p.annotation, a.annotation, values)
    own = symbols_in(f.returns).union(*(symbols_in(p.annotation) for p in f.parameters))
    told = set(values)
    for name in sorted(signature_symbols(f) - told):
        values[name] = symbol(r.fresh_symbol(name))
    frame = Frame(f, values, open=own - values.keys())
    given = list(args)
    for k in _in_order(f, given, told):
        wanted = substitute_dims(open_dims(f.parameters[k].annotation, set(values)), values)
        given[k] = _checked(r, given[k], substitute_types(wanted, types))
    frame.values.update(zip(f.parameters, given, strict=True))
    return frame


def _in_order(f: Function, args: Sequence[Value], told: set[str]) -> Iterator[int]:
    """The arguments to check, each behind those that tell the sizes in its dims."""
    known = set(told)
    left = [k for k, a in enumerate(args) if not isinstance(a.annotation, NeverType)]
    while left:
        annotations = {k: f.parameters[k].annotation for k in left}
        ready = (k for k in left if symbols_in(annotations[k]) <= determined([annotations[k]], known))
        k = next(ready, left[0])
        known |= determined([annotations[k]], known)
        left.remove(k)
        yield k


def _checked(r: Residual, value: Value, wanted: Annotation) -> Value:
    """The argument behind a check that it fits, where that is not certain. What data holds is checked where it is taken out."""
    given = value.annotation
    if isinstance(wanted, TupleType) and isinstance(given, TupleType) and known_form(value, MakeTuple):
        fields = zip(value.parts, wanted.fields, strict=True)
        parts = tuple(_checked(r, part, w) for part, w in fields)
        if all(a is b for a, b in zip(parts, value.parts, strict=True)):
            return value
        return Value(TupleType(tuple(p.annotation for p in parts)), None, value.form, parts, value.name, value.where)
    here = _tensors(wanted, given)
    if at_least(here, given):
        return value
    checked = r.cast(value, here)
    # a known tensor stays known behind the check
    return value if value.array is not None else checked


def _tensors(wanted: Annotation, given: Annotation) -> Annotation:
    """What is wanted of the tensors and shapes in a value; of anything else, what it is."""
    match wanted, given:
        case (TensorType() | PartialTensor()), (TensorType() | PartialTensor()):
            return wanted
        case ShapeType(), ShapeType():
            return wanted
        case TupleType(x), TupleType(y):
            return TupleType(tuple(_tensors(w, g) for w, g in zip(x, y, strict=True)))
    return given


def cast(r: Residual, frame: Frame, expr: MatchCast, value: Value, b: Binding) -> Value:
    """The value under another annotation: as it is where that is certain to fit, else behind a check."""
    dims = dict(frame.dims)
    new = symbols_in(expr.annotation) - dims.keys()
    match_dims(expr.annotation, value.annotation, dims, b.var.name, {})
    own = determined([expr.annotation], frame.dims)
    dims |= {s: symbol(r.fresh_symbol(s)) for s in sorted(new - dims.keys()) if s in own}
    wanted = substitute_dims(open_dims(expr.annotation, set(dims)), dims)
    frame.dims = dims
    frame.open -= dims.keys()
    if at_least(wanted, value.annotation):
        return value
    checked = r.cast(replace(value, name=b.var.name, where=b.where) if value.atom is not None else value, wanted)
    return value if value.array is not None else checked
