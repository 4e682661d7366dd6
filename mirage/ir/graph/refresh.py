"""Deducing a function's annotations again, after a pass has changed it (Relax, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping

from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Atom, Binding, Function, Module, Var
from mirage.ir.graph.order import callees_first
from mirage.ir.graph.traverse import rename


def refresh_function(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function with the annotation of every variable deduced from its operands; in time linear in the bindings.

    Variables whose annotation stays are kept. Raises what the deduction raises.
    """
    new: dict[Var, Atom] = {}
    builder = FunctionBuilder(function.name, functions)
    for p in function.parameters:
        builder.names.add(p.name)
        builder.parameters.append(p)
    for old in function.bindings:
        b = rename(old, new)
        annotation = deduce(b.value, functions)
        if annotation != b.var.annotation:
            b = Binding(Var(b.var.name, annotation), b.value, b.where)
            new[old.var] = b.var
        builder.bind(b)
    result = new.get(function.result, function.result) if isinstance(function.result, Var) else function.result
    return builder.finish(result, dims=function.dims, attrs=function.attrs)


def refresh(module: Module) -> Module:
    """The module with all annotations deduced again, callees before callers."""
    functions = dict(module.functions)
    for name in callees_first(module):
        functions[name] = refresh_function(functions[name], functions)
    return Module(functions, module.kernels, module.main)
