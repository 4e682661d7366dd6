"""Dim symbols with the names of tensors or loops: in a loop program, every name is that of one thing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from mirage.ir.annotations import map_dims, symbols_in
from mirage.ir.dims import Dim, substitute, symbol
from mirage.ir.graph.nodes import Atom, Binding, Block, Function, ShapeValue, Var
from mirage.ir.graph.traverse import rename, symbols_used, with_dims

#: what the definitions of operators call their operands, loops and stages
_DEFINED = re.compile(r"[xir]\d+|e|greatest|out|total")


def with_own_names(function: Function) -> tuple[Function, Mapping[str, Dim]]:
    """The function with other names for such dim symbols, and for each new one the dim that it stands for."""
    values = [*function.parameters, *(b.var for b in function.bindings)]
    symbols = set(function.dims).union(*(symbols_in(v.annotation) for v in values))
    symbols |= set().union(*(symbols_used(b.value) for b in function.bindings))
    names = {v.name for v in values}
    new: dict[str, str] = {}
    for s in sorted(symbols):
        if s in names or _DEFINED.fullmatch(s):
            new[s] = f"dim_{s}"
            while new[s] in names | symbols:
                new[s] += "_"
    if not new:
        return function, {}
    return _renamed(function, {s: symbol(n) for s, n in new.items()}), {n: symbol(s) for s, n in new.items()}


def _renamed(function: Function, new: Mapping[str, Dim]) -> Function:
    variables: dict[Var, Atom] = {}

    def dim(d: Dim) -> Dim:
        return substitute(d, new)

    def variable(v: Var) -> Var:
        made = Var(v.name, map_dims(v.annotation, dim))
        variables[v] = made
        return made

    def binding(b: Binding) -> Binding:
        value = with_dims(rename(b, variables).value, dim)
        return replace(b, var=variable(b.var), value=value)

    parameters = tuple(map(variable, function.parameters))
    blocks = tuple(Block(tuple(map(binding, block.bindings)), block.dataflow) for block in function.blocks)
    result = function.result
    if isinstance(result, Var):
        result = variables[result]
    elif isinstance(result, ShapeValue):
        result = ShapeValue(tuple(map(dim, result.dims)))
    dims = tuple(str(new.get(s, s)) for s in function.dims)
    return replace(function, parameters=parameters, blocks=blocks, result=result, dims=dims)
