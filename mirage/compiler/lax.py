"""Lax subprograms of a graph: functions whose operators all have an axis rule, as programs of the search."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from mirage.errors import AxisError, MirageError
from mirage.ir.annotations import dims_of, map_dims
from mirage.ir.axes import AxisProgram, to_axes
from mirage.ir.dims import Dim, symbol, symbols_of
from mirage.ir.graph.nodes import Atom, Function, MakeTuple, OpCall, Var
from mirage.ir.graph.traverse import with_dims
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import TensorType


@dataclass(frozen=True)
class LaxProgram:
    """A function as a program of the search. `dims` gives, per dim symbol of the program, the dim of the function that it is."""

    program: Program
    axes: AxisProgram
    dims: dict[str, Dim]


def lax_program(function: Function) -> LaxProgram:
    """The program that a function of Lax operators computes; a tuple that it returns are several results.

    A dim that is a sum, or no polynomial, is one symbol of the program, as its terms mean nothing to the search (an extra
    shape argument; Relax, Fig. 8). Raises AxisError where the function has no form over named axes.
    """
    names: dict[Dim, str] = {}
    try:
        return _convert(function, names, opaque=True)
    except MirageError:
        # a concat, or a reshape, may need the terms
        if not names:
            raise
    return _convert(function, {}, opaque=False)


def _convert(function: Function, names: dict[Dim, str], opaque: bool) -> LaxProgram:
    taken = {s for p in function.parameters for d in dims_of(p.annotation) for s in symbols_of(d)}

    def name(dim: Dim) -> Dim:
        if not opaque or dim == -1 or not (dim.is_Add or not dim.is_polynomial(*dim.free_symbols)):
            return dim
        if dim not in names:
            k = len(names)
            while f"d{k}" in taken:
                k += 1
            taken.add(f"d{k}")
            names[dim] = f"d{k}"
        return symbol(names[dim])

    builder = ProgramBuilder(function.name)
    values: dict[Var, int] = {}
    for p in function.parameters:
        t = map_dims(p.annotation, name)
        if not isinstance(t, TensorType):
            raise AxisError(f"{function.name}: parameter {p.name!r} is {p.annotation}; pass tensors of known dims")
        values[p] = builder.input(p.name, t)
    results: tuple[Atom, ...] = (function.result,)
    for b in function.bindings:
        if isinstance(b.value, MakeTuple) and b.var is function.result:
            results = b.value.args
            continue
        if not isinstance(b.value, OpCall):
            raise AxisError(f"{function.name}: {b.var.name} is no operator; only operators can be searched")
        call = with_dims(b.value, name)
        assert isinstance(call, OpCall)
        operands = [values[a] for a in call.args if isinstance(a, Var)]
        if len(operands) != len(call.args):
            raise AxisError(f"{function.name}: {b.var.name} reads a constant tensor; make it a parameter")
        values[b.var] = builder.op(call.op, *operands, where=b.where, **dict(call.attrs))
    if not all(isinstance(r, Var) for r in results):
        raise AxisError(f"{function.name}: a result is a constant; only what is computed can be searched")
    program = builder.finish([values[r] for r in results if isinstance(r, Var)])
    known = set(program.symbols())
    for n in program.nodes:
        if loose := sorted({s for _, v in n.attrs if isinstance(v, sympy.Expr) for s in symbols_of(v)} - known):
            raise AxisError(f"{function.name}: {n.op} uses dim {loose[0]}, which no tensor has; pass a tensor of that dim")
    back = {n: d for d, n in names.items()}
    dims = {s: back.get(s, symbol(s)) for s in program.symbols()}
    return LaxProgram(program, to_axes(program), dims)

