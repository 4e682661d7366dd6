"""The same program with dims seen as products of smaller factors.

A program over named axes has the coarsest axes that its operators allow. A graph that keeps part of an axis needs finer
ones: the inputs are reshaped to the factors and back, which changes no value.
"""

from __future__ import annotations

from collections.abc import Sequence

from mirage.ir.dims import Dim
from mirage.ir.program import Program, ProgramBuilder

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
