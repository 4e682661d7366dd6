"""Reading and rebuilding expressions: their atoms, their dims, their uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import sympy

from mirage.ir.annotations import (
    Annotation,
    CallableType,
    DataType,
    ReferenceType,
    TupleType,
    dims_of,
    map_attrs,
    map_dims,
    noted,
)
from mirage.ir.dims import Dim, symbol, symbols_of
from mirage.ir.graph.nodes import (
    Atom,
    Binding,
    Closure,
    Constant,
    Expr,
    Function,
    FunctionCall,
    If,
    KernelCall,
    LibraryCall,
    Loop,
    Match,
    MatchCast,
    OpCall,
    PackedCall,
    ShapeValue,
    Var,
)
from mirage.ir.types import TensorType


def atoms(expr: Expr) -> tuple[Atom, ...]:
    """The operands of an expression; of an atom, itself."""
    return (expr,) if isinstance(expr, Var | Constant | ShapeValue) else expr.args


def variables(expr: Expr) -> Iterator[Var]:
    """The variables that an expression reads."""
    return (a for a in atoms(expr) if isinstance(a, Var))


def with_atoms(expr: Expr, fn: Callable[[Atom], Atom]) -> Expr:
    """The expression with every operand replaced."""
    if isinstance(expr, Var | Constant | ShapeValue):
        return fn(expr)
    # the number of operands stays
    args = tuple(fn(a) for a in expr.args)
    same = all(a is b for a, b in zip(args, expr.args, strict=True))
    return expr if same else replace(expr, args=args)  # type: ignore[arg-type]


def with_dims(expr: Expr, fn: Callable[[Dim], Dim]) -> Expr:
    """The expression with every dim in it replaced: in shapes, attributes, shape arguments and annotations."""

    def tensors(types: tuple[TensorType, ...]) -> tuple[Any, ...]:
        return tuple(map_dims(t, fn) for t in types)

    result = with_atoms(expr, lambda a: ShapeValue(tuple(map(fn, a.dims))) if isinstance(a, ShapeValue) else a)
    match result:
        case OpCall(attrs=attrs):
            return _with(result, attrs=map_attrs(attrs, fn))
        case KernelCall(out=out, dims=dims, workspace=workspace):
            return _with(result, out=tensors(out), dims=tuple(map(fn, dims)), workspace=tensors(workspace))
        case LibraryCall(out=out, attrs=attrs):
            return _with(result, out=tensors(out), attrs=map_attrs(attrs, fn))
        case PackedCall(annotation=annotation, attrs=attrs):
            return _with(result, annotation=map_dims(annotation, fn), attrs=map_attrs(attrs, fn))
        case MatchCast(annotation=annotation):
            return _with(result, annotation=map_dims(annotation, fn))
        case FunctionCall(dims=dims) | If(dims=dims) | Match(dims=dims) | Closure(dims=dims):
            return _with(result, dims=tuple(map(fn, dims)))
        case Loop(count=count, bound=bound, dims=dims):
            return _with(
                result, count=None if count is None else fn(count), bound=None if bound is None else fn(bound),
                dims=tuple(map(fn, dims)),
            )  # fmt: skip
    return result


def _with(expr: Expr, **fields: Any) -> Expr:
    """The expression with these fields; itself, where it has them."""
    return expr if all(getattr(expr, name) == value for name, value in fields.items()) else replace(expr, **fields)


def dims_in(expr: Expr) -> list[Dim]:
    """The dims in an expression, in order of appearance."""
    return noted(partial(with_dims, expr))


def symbols_used(expr: Expr) -> set[str]:
    """Names of the dim symbols that an expression needs the values of; those that a match_cast introduces are among them."""
    return set().union(*(symbols_of(d) for d in dims_in(expr)))


def uses(function: Function) -> Counter[Var]:
    """How often each variable is read, the result of the function included."""
    found = Counter(v for b in function.bindings for v in variables(b.value))
    if isinstance(function.result, Var):
        found[function.result] += 1
    return found


def rename(binding: Binding, new: Mapping[Var, Atom]) -> Binding:
    """The binding with the variables that it reads replaced."""
    return replace(binding, value=with_atoms(binding.value, lambda a: new.get(a, a) if isinstance(a, Var) else a))


def value_dims(annotation: Annotation) -> list[Dim]:
    """The known dims of the tensors and shapes of a value; what a function takes or gives is not
    part of it, nor what a data type or a reference holds, which there may be none of.
    """
    match annotation:
        case TupleType(fields):
            return [d for f in fields for d in value_dims(f)]
        case CallableType() | DataType() | ReferenceType():
            return []
    return dims_of(annotation)


def determined(annotations: Iterable[Annotation], known: Iterable[str] = ()) -> set[str]:
    """The dim symbols that are known once the shapes of values of these annotations are: `known`, and all that follows.

    A dim determines the only symbol in it that is not known yet, if it is a polynomial that no two sizes make equal: n, 4*n,
    n - 1, n**2, n*m where m is known; but not n//2.
    """
    found = set(known)
    left = [d for a in annotations for d in value_dims(a)]
    while left:
        rest = []
        for d in left:
            new = symbols_of(d) - found
            if len(new) == 1 and _determines(d, symbol(next(iter(new)))):
                found |= new
            elif new:
                rest.append(d)
        if len(rest) == len(left):
            break
        left = rest
    return found


def _determines(dim: Dim, unknown: sympy.Symbol) -> bool:
    if dim == unknown:
        return True
    if not dim.is_polynomial(unknown):
        return False
    terms = sympy.Poly(dim, unknown).all_coeffs()
    return len(terms) == 2 or all(c.is_nonnegative for c in terms)


def signature_symbols(function: Function) -> set[str]:
    """The dim symbols that the arguments of a call determine: those of the parameters, and the extra shape parameters."""
    return determined((p.annotation for p in function.parameters), function.dims)
