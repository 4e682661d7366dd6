"""Programs of the search as modules of the graph IR."""

from __future__ import annotations

from mirage.ir.graph.builder import FunctionBuilder, ModuleBuilder
from mirage.ir.graph.nodes import MakeTuple, Module, OpCall, Var
from mirage.ir.program import Program


def module_of(program: Program) -> Module:
    """The module of one function that computes a program; several results are a tuple."""
    module = ModuleBuilder()
    b = FunctionBuilder(program.name, module.functions)
    values: list[Var] = []
    for n in program.nodes:
        if n.op == "input":
            values.append(b.parameter(n.attr["name"], n.type))
        else:
            values.append(b.emit(OpCall(n.op, tuple(values[i] for i in n.inputs), n.attrs), where=n.where))
    results = tuple(values[i] for i in program.outputs)
    module.add(b.finish(results[0] if len(results) == 1 else b.emit(MakeTuple(results))))
    return module.finish(program.name)
