"""What nothing uses goes: pure bindings, functions and kernels, extra shape parameters.

A cast is a check and stays; so does a call that checks something at run time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mirage.compiler.context import Context
from mirage.compiler.passes.signatures import call_may_fail
from mirage.ir.annotations import symbols_in
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.effects import callees, is_pure
from mirage.ir.graph.nodes import (
    Binding,
    Block,
    Expr,
    Function,
    FunctionCall,
    If,
    KernelCall,
    Loop,
    MatchCast,
    Module,
    Var,
)
from mirage.ir.graph.order import callees_first, reachable
from mirage.ir.graph.traverse import symbols_used, variables


def run(module: Module, context: Context) -> Module:
    """The module without dead code."""
    functions = dict(module.functions)
    for name in callees_first(module):
        functions[name] = remove_dead_bindings(functions[name], functions)
    left = remove_dead_dims(remove_unused(Module(functions, module.kernels, module.main)))
    # a later function may get the name of one that is gone
    context.constraints = {name: store for name, store in context.constraints.items() if name in left.functions}
    return left


def remove_dead_bindings(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function without pure bindings that nothing uses."""
    live: set[Var] = {function.result} if isinstance(function.result, Var) else set()
    kept: list[Binding] = []
    for b in reversed(function.bindings):
        if b.var in live or not _removable(b.value, functions):
            live.update(variables(b.value))
            kept.append(b)
    if len(kept) == len(function.bindings):
        return function
    builder = FunctionBuilder(function.name, functions)
    builder.parameters.extend(function.parameters)
    builder.bind_all(reversed(kept))
    return builder.finish(function.result, dims=function.dims, attrs=function.attrs)


def _removable(value: Expr, functions: Mapping[str, Function]) -> bool:
    if isinstance(value, MatchCast) or not is_pure(value, functions):
        return False
    return not (isinstance(value, FunctionCall | If | Loop) and call_may_fail(value, functions))


def remove_unused(module: Module) -> Module:
    """The module without functions that the main function does not reach, and kernels that nothing calls.

    The function that prepares the main function's constants (`lift_constants`) stays, too.
    """
    prepare = module.functions[module.main].attr.get("prepare")
    names = reachable(module) | ({prepare} if isinstance(prepare, str) else set())
    functions = {name: f for name, f in module.functions.items() if name in names}
    called = {b.value.kernel for f in functions.values() for b in f.bindings if isinstance(b.value, KernelCall)}
    kernels = {name: k for name, k in module.kernels.items() if name in called}
    return Module(functions, kernels, module.main)


def remove_dead_dims(module: Module) -> Module:
    """The module without extra shape parameters that functions do not use, and the arguments for them.

    The two branches of an `if` take the same arguments, so that what one of them uses stays in both.
    """
    used: dict[str, set[int]] = {name: set() for name in module.functions}
    before = -1
    while before != (before := sum(map(len, used.values()))):
        for f in module:
            needed = _needed(f, used)
            used[f.name] |= {i for i, d in enumerate(f.dims) if d in needed}
            for b in f.bindings:
                if isinstance(b.value, If):
                    both = used[b.value.then] | used[b.value.orelse]
                    used[b.value.then], used[b.value.orelse] = set(both), set(both)
    if all(len(used[f.name]) == len(f.dims) for f in module):
        return module
    functions = {}
    for f in module:
        blocks = tuple(
            Block(tuple(replace(b, value=_passing(b.value, used)) for b in block.bindings), block.dataflow)
            for block in f.blocks
        )
        dims = tuple(d for i, d in enumerate(f.dims) if i in used[f.name])
        functions[f.name] = replace(f, blocks=blocks, dims=dims)
    return Module(functions, module.kernels, module.main)


def _needed(function: Function, used: Mapping[str, set[int]]) -> set[str]:
    """The dim symbols that a function needs, apart from passing them to callees that do not use them."""
    found = symbols_in(function.returns)
    for p in function.parameters:
        found |= symbols_in(p.annotation)
    for b in function.bindings:
        found |= symbols_used(_passing(b.value, used))
    return found


def _passing(value: Expr, used: Mapping[str, set[int]]) -> Expr:
    """The call with the shape arguments that its callees use."""
    if not isinstance(value, FunctionCall | If | Loop):
        return value
    kept = set().union(*(used[name] for name in callees(value)))
    return replace(value, dims=tuple(d for i, d in enumerate(value.dims) if i in kept))
