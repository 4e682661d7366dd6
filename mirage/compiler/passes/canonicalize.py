"""One normal form: what has no effect on values is gone, and what is known of shapes is written down.

Identity casts, reshapes, transposes and broadcasts disappear (BladeDISC, section 3.2), chains of them are merged, neutral
arithmetic goes where it is exact; items of known tuples, shapes of known tensors, casts that cannot fail, branches and loops
that are decided, and aliases are resolved. A dim that a cast introduces under a second name is called by its first.

A variable that an effect writes to keeps its own value: no rule of operators touches it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import sympy

from mirage.compiler.constraints import Constraints
from mirage.compiler.context import Context
from mirage.compiler.passes.in_place import written_variables
from mirage.compiler.passes.rewrite import Rewriter
from mirage.compiler.passes.simplify import simplify
from mirage.errors import MirageError
from mirage.ir.annotations import (
    Annotation,
    PartialShape,
    PartialTensor,
    ShapeType,
    TupleType,
    at_least,
    substitute_dims,
    symbols_in,
)
from mirage.ir.dims import Dim, divide, symbol
from mirage.ir.graph.deduce import located
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Constant,
    Expr,
    Function,
    FunctionCall,
    If,
    Loop,
    MakeTuple,
    MatchCast,
    Module,
    OpCall,
    ShapeOf,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.graph.order import callees_first
from mirage.ir.graph.traverse import signature_symbols, variables
from mirage.ir.types import TensorType

#: steps that one binding can take; each makes it simpler, so that this is never reached
_MOST_STEPS = 32


def run(module: Module, context: Context) -> Module:
    """The module in normal form, callees before callers, so that callers know what calls return."""
    functions = dict(module.functions)
    for name in callees_first(module):
        functions[name] = canonicalize(functions[name], functions, context.of(name))
    return Module(functions, module.kernels, module.main)


def canonicalize(function: Function, functions: Mapping[str, Function], constraints: Constraints) -> Function:
    """The function in normal form. Raises what the deduction raises where that now sees that a shape cannot be right."""
    return _Canonicalizer(function, functions, constraints).result()


class _Canonicalizer(Rewriter):
    def __init__(self, function: Function, functions: Mapping[str, Function], constraints: Constraints) -> None:
        super().__init__(function, functions)
        self.constraints = constraints
        self.written = {v.name for v in written_variables(function, functions)}
        self.known = signature_symbols(function)

    def result(self) -> Function:
        for b in self.function.bindings:
            self._binding(b)
        return self.finish()

    def read(self, atom: Atom) -> Atom:
        found = super().read(atom)
        match found:
            case Var(name, ShapeType(dims)) if dims is not None and None not in dims and name not in self.written:
                return ShapeValue(tuple(d for d in dims if d is not None))
        return found

    def _binding(self, b: Binding) -> None:
        value = self.current(b)
        for _ in range(_MOST_STEPS):
            try:
                new = self._step(b.var, value)
            except MirageError as e:
                raise located(e, b.where) from None
            if new is None:
                break
            value = new
        if isinstance(value, MatchCast):
            self.known |= symbols_in(value.annotation)
        if isinstance(value, Var | Constant | ShapeValue):
            self.replace(b.var, value)
        else:
            self.keep(b, value)

    def _step(self, var: Var, value: Expr) -> Expr | None:
        match value:
            case OpCall():
                if {var.name, *(v.name for v in variables(value))} & self.written:
                    return None
                return simplify(value, self.definitions, self.constraints, self.written)
            case TupleItem((Var() as whole,), index):
                made = self.definitions.get(whole)
                return made.args[index] if isinstance(made, MakeTuple) else None
            case ShapeOf((x,)):
                shape = x.annotation.shape if isinstance(x.annotation, TensorType) else None
                return None if shape is None or var.name in self.written else ShapeValue(shape)
            case MatchCast():
                return self._cast(value)
            case If((Constant(array=condition), *args), then, orelse, dims):
                return FunctionCall(then if bool(condition) else orelse, tuple(args), dims)
            case Loop(count=count, bound=bound) if count is not None and count.is_Integer and count <= 1:
                return (
                    self._unrolled(value, int(count))
                    if bound is None or (bound.is_Integer and count <= bound)
                    else None
                )
            case Loop(args=(Constant(array=count), *args), count=None, bound=bound):
                known = sympy.Integer(max(int(count), 0))
                if bound is None or (bound.is_Integer and known <= bound):
                    return Loop(value.body, tuple(args), value.carried, known, bound, value.dims)
        return None

    def _unrolled(self, loop: Loop, count: int) -> Expr:
        if count == 1:
            first = Constant(np.zeros((), np.int64), TensorType((), "int64"))
            return FunctionCall(loop.body, (first, *loop.args), loop.dims)
        carried = loop.args[: loop.carried]
        return carried[0] if len(carried) == 1 else MakeTuple(carried)

    def _cast(self, cast: MatchCast) -> Expr | None:
        (x,) = cast.args
        names: dict[str, Dim] = {}
        _introduced(cast.annotation, x.annotation, self.known, names)
        # a bound on the new name, which the user gave, is a check of its own
        names = {name: dim for name, dim in names.items() if self.constraints.upper_bound(symbol(name)) is None}
        self.dims |= names
        wanted = substitute_dims(cast.annotation, names)
        if at_least(wanted, x.annotation):
            return x
        return MatchCast((x,), wanted) if names else None


def _introduced(wanted: Annotation, given: Annotation, known: set[str], found: dict[str, Dim]) -> None:
    """The symbols that a cast introduces for dims that are known already: `m` or `4*m`, where the value says what it is."""
    match wanted, given:
        case ((TensorType() | PartialTensor()), (TensorType() | PartialTensor())):
            _introduced_dims(wanted.shape, given.shape, known, found)
        case ShapeType(x), ShapeType(y):
            _introduced_dims(x, y, known, found)
        case TupleType(x), TupleType(y) if len(x) == len(y):
            for p, q in zip(x, y, strict=True):
                _introduced(p, q, known, found)


def _introduced_dims(
    wanted: PartialShape | None, given: PartialShape | None, known: set[str], found: dict[str, Dim]
) -> None:
    if wanted is None or given is None or len(wanted) != len(given):
        return
    for w, g in zip(wanted, given, strict=True):
        if w is None or g is None or len(w.free_symbols) != 1:
            continue
        (s,) = w.free_symbols
        if s.name in known or s.name in found or not (w / s).is_Integer:
            continue
        value = divide(g, w / s)
        if value is not None:
            found[s.name] = value
