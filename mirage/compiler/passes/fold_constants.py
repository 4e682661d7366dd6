"""Operators over constants are evaluated at compile time, if the result is not much larger than the operands.

What depends on a size stays, and so do scalar constants, which cost nothing and are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mirage.compiler.constant_results import constant_results, scalar_value
from mirage.compiler.context import Context
from mirage.compiler.passes.in_place import written_variables
from mirage.compiler.passes.rewrite import Rewriter
from mirage.ir.annotations import TupleType
from mirage.ir.graph.deduce import deduce
from mirage.ir.graph.nodes import Atom, Constant, Function, MakeTuple, Module, OpCall, Var
from mirage.ir.graph.order import callees_first


def run(module: Module, context: Context) -> Module:
    """The module with constants folded, callees before callers."""
    functions = dict(module.functions)
    for name in callees_first(module):
        functions[name] = fold(functions[name], functions)
    return Module(functions, module.kernels, module.main)


def fold(function: Function, functions: Mapping[str, Function]) -> Function:
    """The function with operators over constants replaced by their results, as `constant_results` gives them."""
    r = Rewriter(function, functions)
    written = {v.name for v in written_variables(function, functions)}
    for b in function.bindings:
        value = r.current(b)
        found = _evaluate(value, r) if isinstance(value, OpCall) and b.var.name not in written else None
        if isinstance(found, Constant):
            r.replace(b.var, found)
        else:
            r.keep(b, found or value)
    return r.finish()


def _evaluate(call: OpCall, r: Rewriter) -> Constant | MakeTuple | None:
    operands = [_value(a, r) for a in call.args]
    if any(a is None for a in operands):
        return None
    annotation = deduce(call, r.functions)
    found = constant_results(call, operands, annotation)
    if found is None:
        return None
    return MakeTuple(found) if isinstance(annotation, TupleType) else found[0]


def _value(atom: Atom, r: Rewriter) -> Any:
    """The array or number that an operand is; None where that is not known."""
    if isinstance(atom, Constant):
        return atom.array
    made = r.definitions.get(atom) if isinstance(atom, Var) else None
    return scalar_value(made) if isinstance(made, OpCall) and made.op == "constant" else None
