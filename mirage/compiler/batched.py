"""Functions over a leading dim: many calls of a function of tensors as one (TensorFlow Fold, DyNet's batching).

Operators get rules by what they do with dims: elementwise ones broadcast, those with axes have them one further on, and a product
of rows with a matrix that all calls share is one product of all rows. A function with an operator that has no rule has no
batched form, and its calls run one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import sympy

from mirage.compiler.passes.inline import inline_calls
from mirage.compiler.passes.rewrite import operator_call, reshaped
from mirage.ir.annotations import Annotation, ShapeType, TupleType
from mirage.ir.dims import Dim, symbol
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.effects import is_pure_function
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Constant,
    Function,
    MakeTuple,
    MatchCast,
    OpCall,
    ShapeOf,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.graph.traverse import signature_symbols, symbols_used
from mirage.ir.graph_operator import GraphElementwise
from mirage.ir.operator import Elementwise, get_operator
from mirage.ir.operators.comparison import Where
from mirage.ir.types import TensorType

#: rows of a batch: the symbol's name, and what it is called where that is taken
_ROWS = "cells"
#: operators with attributes of which each names dims of the only operand
_ONE_FURTHER = {
    "sum": "axes", "mean": "axes", "max": "axes", "min": "axes", "prod": "axes", "any": "axes", "all": "axes",
    "softmax": "axis", "log_softmax": "axis", "argmax": "axis", "argmin": "axis", "cumsum": "axis", "cumprod": "axis",
    "cummax": "axis", "cummin": "axis", "cumlogsumexp": "axis", "sort": "axis", "argsort": "axis", "repeat": "axis",
    "flip": "axes", "slice": "axes", "rms_norm": "axis", "layer_norm": "axis",
}  # fmt: skip


class _NoRule(Exception):
    """The function does what cannot be batched."""


class _Rows:
    """A tensor of every call, stacked: `atom` has the dim of the calls before those of `type`."""

    def __init__(self, atom: Atom, type: TensorType) -> None:
        self.atom, self.type = atom, type


#: what stands for a value: rows, what all calls share, or a tuple of such
_Value: TypeAlias = "_Rows | Atom | tuple[_Value, ...]"


def leaves(annotation: Annotation) -> list[TensorType | ShapeType]:
    """The tensors and shapes of a value, in order; raises `_NoRule` for other values, and for tensors not known well enough."""
    match annotation:
        case TupleType(fields):
            return [leaf for f in fields for leaf in leaves(f)]
        case TensorType() | ShapeType():
            return [annotation]
    raise _NoRule


def batched(function: Function, functions: Mapping[str, Function], shared: Collection[int]) -> tuple[Function, list[bool]] | None:
    """A function of many calls of a pure function at once, and of each of its parameters whether all calls share it.

    Its parameters are the tensors and shapes in those of `function`, in order; the parameters at the places `shared`, and all
    shapes, are the same for all calls, the others get a leading dim. It returns a tuple of the tensors in the result, all with a
    leading dim.
    None where an operator in it has no rule.
    """
    try:
        return _Batcher(function, functions).run(shared)
    except _NoRule:
        return None


class _Batcher:
    def __init__(self, function: Function, functions: Mapping[str, Function]) -> None:
        if not is_pure_function(function) or function.dims:
            raise _NoRule
        inlined = function
        while any(name for b in inlined.bindings for name in [getattr(b.value, "function", None)] if name in functions):
            before, inlined = inlined, inline_calls(inlined, functions, set(functions))
            if before.bindings == inlined.bindings:
                raise _NoRule
        self.function = inlined
        taken = signature_symbols(inlined).union(*(symbols_used(b.value) for b in inlined.bindings))
        name = _ROWS
        while name in taken:
            name += "_"
        self.rows: Dim = symbol(name)
        self.b = FunctionBuilder(f"{function.name}_batched", functions)
        self.b.names |= taken
        self.values: dict[Var, _Value] = {}

    def run(self, shared: Collection[int]) -> tuple[Function, list[bool]]:
        f, same = self.function, []
        for k, p in enumerate(f.parameters):
            found: list[_Value] = []
            for leaf in leaves(p.annotation):
                if k in shared or isinstance(leaf, ShapeType):
                    same.append(True)
                    found.append(self.b.fresh_parameter(p.name, leaf))
                else:
                    same.append(False)
                    stacked = TensorType((self.rows, *leaf.shape), leaf.dtype)
                    found.append(_Rows(self.b.fresh_parameter(p.name, stacked), leaf))
            self.values[p] = _nested(p.annotation, found)
        if all(same):
            raise _NoRule
        if not any(isinstance(binding.value, OpCall) for binding in f.bindings):
            # nothing is computed
            raise _NoRule
        for binding in f.bindings:
            self.values[binding.var] = self.binding(binding)
        results = [self.stacked(v) for v in _flat(self.value(f.result))]
        return self.b.finish(self.b.emit(MakeTuple(tuple(results)))), same

    def value(self, atom: Atom) -> _Value:
        return self.values[atom] if isinstance(atom, Var) else atom

    def binding(self, b: Binding) -> _Value:
        value = b.value
        if isinstance(value, Var | Constant | ShapeValue):
            return self.value(value)
        args = [self.value(a) for a in value.args]
        match value:
            case MakeTuple():
                return tuple(args)
            case TupleItem(index=index) if isinstance(args[0], tuple):
                return args[0][index]
            case ShapeOf() if isinstance(args[0], _Rows):
                return ShapeValue(args[0].type.shape)
            case MatchCast(annotation=TensorType() as type) if isinstance(args[0], _Rows):
                cast = MatchCast((args[0].atom,), TensorType((self.rows, *type.shape), type.dtype))
                return _Rows(self.b.emit(cast, where=b.where), type)
        given = [a for a in args if not isinstance(a, _Rows | tuple)]
        if len(given) == len(args):
            # the same in all calls
            if not isinstance(value, OpCall | ShapeOf | MatchCast):
                raise _NoRule
            replaced = MatchCast((given[0],), value.annotation) if isinstance(value, MatchCast) else (
                OpCall(value.op, tuple(given), value.attrs) if isinstance(value, OpCall) else ShapeOf((given[0],))
            )  # fmt: skip
            return self.b.emit(replaced, annotation=b.var.annotation, where=b.where)
        if not isinstance(value, OpCall) or not isinstance(b.var.annotation, TensorType):
            raise _NoRule
        return _Rows(self.operator(value, args, b), b.var.annotation)

    def operator(self, call: OpCall, args: Sequence[_Value], b: Binding) -> Atom:
        """The operator for all calls, of operands of which one at least is in rows."""
        attrs: dict[str, Any] = dict(call.attrs)
        operator, where = get_operator(call.op), b.where
        assert isinstance(b.var.annotation, TensorType)
        out = b.var.annotation.shape

        def emit(*atoms: Atom, **changed: Any) -> Atom:
            return self.b.emit(operator_call(call.op, *atoms, **attrs | changed), where=where)

        if isinstance(operator, Elementwise | GraphElementwise | Where) or call.op == "cast":
            return emit(*(self.aligned(a, len(out)) for a in args))
        if call.op == "matmul":
            return self.product(args, out, where)
        if call.op in _ONE_FURTHER:
            first, *others = args
            if not isinstance(first, _Rows) or any(isinstance(o, _Rows) for o in others):
                raise _NoRule
            name = _ONE_FURTHER[call.op]
            axes = attrs[name]
            if name == "axes" and call.op != "slice" and not axes:
                raise _NoRule
            further = tuple(map(_further, axes)) if isinstance(axes, tuple) else _further(axes)
            return emit(first.atom, *(self.atom(o) for o in others), **{name: further})
        if call.op == "concat":
            return emit(*map(self.stacked, args), axis=_further(attrs["axis"]))
        if call.op == "transpose":
            rank = len(out)
            return emit(self.stacked(args[0]), perm=(0, *(p % rank + 1 for p in attrs["perm"])))
        if call.op == "reshape":
            return emit(self.stacked(args[0]), shape=(self.rows, *out))
        if call.op == "broadcast_to":
            return emit(self.aligned(args[0], len(out)), shape=(self.rows, *out))
        if call.op == "pad":
            return emit(self.stacked(args[0]), low=(0, *attrs["low"]), high=(0, *attrs["high"]))
        if call.op == "take":
            return self.taken(args, attrs["axis"], emit)
        raise _NoRule

    def taken(self, args: Sequence[_Value], axis: int, emit: Callable[..., Atom]) -> Atom:
        x, indices = args
        if isinstance(x, _Rows):
            if isinstance(indices, _Rows):
                raise _NoRule
            return emit(x.atom, self.atom(indices), axis=_further(axis))
        table = self.atom(x)
        assert isinstance(table, Var | Constant) and isinstance(table.annotation, TensorType)
        # the dims of the indices stand where the axis was
        if axis % table.annotation.rank:
            raise _NoRule
        return emit(table, self.stacked(indices))

    def product(self, args: Sequence[_Value], out: Sequence[Dim], where: str) -> Atom:
        x, y = args
        if isinstance(x, _Rows) and not isinstance(y, _Rows):
            right = self.atom(y)
            assert isinstance(right.annotation, TensorType)
            if right.annotation.rank == 2:
                # one product of the rows of all calls
                count = sympy.expand(sympy.prod([self.rows, *x.type.shape[:-1]]))
                flat = reshaped(x.atom, (count, x.type.shape[-1]), self.b.emit)
                found = self.b.emit(operator_call("matmul", flat, right), where=where)
                return reshaped(found, (self.rows, *out), self.b.emit)
        return self.b.emit(operator_call("matmul", *(self.aligned(a, len(out)) for a in args)), where=where)

    def atom(self, value: _Value) -> Atom:
        """What all calls share."""
        if isinstance(value, _Rows | tuple):
            raise _NoRule
        return value

    def aligned(self, value: _Value, rank: int) -> Atom:
        """An operand that broadcasts to rows of tensors of that rank."""
        if not isinstance(value, _Rows):
            return self.atom(value)
        missing = rank - value.type.rank
        return reshaped(value.atom, (self.rows, *[1] * missing, *value.type.shape), self.b.emit) if missing else value.atom

    def stacked(self, value: _Value) -> Atom:
        """A tensor with a row for each call."""
        if isinstance(value, _Rows):
            return value.atom
        atom = self.atom(value)
        type = atom.annotation
        if isinstance(atom, ShapeValue) or not isinstance(type, TensorType) or type.dtype == "scalar":
            raise _NoRule
        return self.b.emit(operator_call("broadcast_to", atom, shape=(self.rows, *type.shape)))


def _further(axis: int) -> int:
    """An axis, behind one more dim at the front."""
    return axis if axis < 0 else axis + 1


def _flat(value: _Value) -> list[_Rows | Atom]:
    return [v for item in value for v in _flat(item)] if isinstance(value, tuple) else [value]


def _nested(annotation: Annotation, found: list[_Value]) -> _Value:
    """A value of an annotation, of its leaves, which are taken from the list."""
    if isinstance(annotation, TupleType):
        return tuple(_nested(f, found) for f in annotation.fields)
    return found.pop(0)
