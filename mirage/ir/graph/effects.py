"""Effects: which expressions only compute, so that they may be moved, shared and removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage.ir.annotations import CallableType
from mirage.ir.graph.nodes import (
    CallValue,
    Closure,
    Expr,
    Function,
    FunctionCall,
    If,
    Loop,
    Match,
    PackedCall,
    ReferenceCall,
)


def is_pure(expr: Expr, functions: Mapping[str, Function]) -> bool:
    """Whether an expression has no effect but its result. Calls of functions of the module are as pure as their bodies."""
    match expr:
        case PackedCall() | ReferenceCall():
            return False
        case CallValue((called, *_)):
            return not isinstance(called.annotation, CallableType) or called.annotation.pure
        case Closure():
            return True
    return all(name not in functions or is_pure_function(functions[name]) for name in callees(expr))


def is_pure_function(function: Function) -> bool:
    """Whether a function, and all that it calls, has no effect but its result."""
    return all(block.dataflow for block in function.blocks)


def callees(expr: Expr) -> tuple[str, ...]:
    """Names of the functions of the module that an expression calls, or makes a value of."""
    match expr:
        case FunctionCall(function=name) | Loop(body=name) | Closure(function=name):
            return (name,)
        case If(then=then, orelse=orelse):
            return (then, orelse)
        case Match(clauses=clauses):
            return tuple(dict.fromkeys(c.function for c in clauses))
    return ()


def with_callees(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The expression with other functions in place of those that it calls, or makes values of."""
    match expr:
        case FunctionCall(function=name) | Closure(function=name):
            return replace(expr, function=names[name])
        case Loop(body=name):
            return replace(expr, body=names[name])
        case If(then=then, orelse=orelse):
            return replace(expr, then=names[then], orelse=names[orelse])
        case Match(clauses=clauses):
            return replace(expr, clauses=tuple(replace(c, function=names[c.function]) for c in clauses))
    return expr
