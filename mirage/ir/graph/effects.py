"""Effects: which expressions only compute, so that they may be moved, shared and removed."""

from __future__ import annotations

from collections.abc import Mapping

from mirage.ir.graph.nodes import Expr, Function, FunctionCall, If, Loop, PackedCall


def is_pure(expr: Expr, functions: Mapping[str, Function]) -> bool:
    """Whether an expression has no effect but its result. Calls of functions of the module are as pure as their bodies."""
    if isinstance(expr, PackedCall):
        return False
    return all(name not in functions or is_pure_function(functions[name]) for name in callees(expr))


def is_pure_function(function: Function) -> bool:
    """Whether a function, and all that it calls, has no effect but its result."""
    return all(block.dataflow for block in function.blocks)


def callees(expr: Expr) -> tuple[str, ...]:
    """Names of the functions of the module that an expression calls."""
    match expr:
        case FunctionCall(function=name) | Loop(body=name):
            return (name,)
        case If(then=then, orelse=orelse):
            return (then, orelse)
    return ()
