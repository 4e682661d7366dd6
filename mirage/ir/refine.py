"""The same program with dims seen as products of smaller factors, or at some of its sizes only.

A program over named axes has the coarsest axes that its operators allow. A graph that keeps part of an axis needs finer
ones: the inputs are reshaped to the factors and back, which changes no value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from mirage.ir.dims import Dim, substitute
from mirage.ir.program import Program, ProgramBuilder
from mirage.ir.types import TensorType

#: per input, per dim, the factors of the dim, outermost first
Factors = Sequence[Sequence[Sequence[Dim]]]


def with_factors(program: Program, factors: Factors) -> Program:
    """The program whose inputs are seen under these factors.

    Raises ShapeError where the factors of a dim do not multiply to it for every size.
    """
    b = ProgramBuilder(program.name)
    new: dict[int, int] = {}
    for i in program.inputs:
        n = program.nodes[i]
        new[i] = b.input(n.attr["name"], n.type)
    for i, f in zip(program.inputs, factors, strict=True):
        shape = program.nodes[i].type.shape
        split = tuple(s for parts in f for s in parts)
        if split != shape:
            new[i] = b.op("reshape", b.op("reshape", new[i], shape=split), shape=shape)
    for i, n in enumerate(program.nodes):
        if n.op != "input":
            new[i] = b.op(n.op, *(new[j] for j in n.inputs), where=n.where, **n.attr)
    return b.finish([new[i] for i in program.outputs])


def substituted(program: Program, dims: Mapping[str, Dim]) -> Program:
    """The program with dims in the place of some of its dim symbols, by name."""
    b = ProgramBuilder(program.name)
    new: list[int] = []
    for n in program.nodes:
        if n.op == "input":
            shape = tuple(substitute(d, dims) for d in n.type.shape)
            new.append(b.input(n.attr["name"], TensorType(shape, n.type.dtype)))
        else:
            attrs = {name: _in_attr(value, dims) for name, value in n.attr.items()}
            new.append(b.op(n.op, *(new[j] for j in n.inputs), where=n.where, **attrs))
    return b.finish([new[i] for i in program.outputs])


def _in_attr(value: Any, dims: Mapping[str, Dim]) -> Any:
    if isinstance(value, tuple):
        return tuple(_in_attr(v, dims) for v in value)
    return substitute(value, dims) if isinstance(value, sympy.Expr) else value
