"""Loops over a dim that a reshape has joined, as loops over the dims that it was joined of.

A mean over `[b, groups, c/groups * h * w]` of a tensor `[b, c, h, w]` reads at `r // (h*w)`, `r // w % h` and `r % w`: divisions
for each element, of which no two are known to lie side by side. Over three loops, it reads where they stand. So does a copy of
the patches of an image, whose elements stay where they are in memory when it is written under more dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import sympy

from mirage.ir.dims import Dim
from mirage.ir.loops.analysis import digit_of
from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import Loop, Scalar, size
from mirage.ir.loops.simplify import simplify_stage
from mirage.ir.loops.traverse import reads_of, substitute, walk
from mirage.ir.polynomials import divide

#: the shortest loop that is worth being the innermost one; shorter ones, of so many iterations at most, are written out within
#: the loop around them: what lies side by side is interleaved
_SHORTEST, WRITTEN_OUT = 8, 4


def with_split_reductions(stage: TensorExpr) -> TensorExpr:
    """The stage with a loop for each of the digits of its reductions' loops that its body reads at, in the same order."""
    if not stage.reduce or stage.combiner.startswith("arg"):
        return stage
    loops, whole = _split(stage, stage.reduce, "r")
    if len(loops) == len(stage.reduce):
        return stage
    return simplify_stage(replace(stage, reduce=tuple(loops), body=substitute(stage.body, whole)))


def with_split_outputs(program: LoopProgram) -> LoopProgram:
    """The program with a loop for each of the digits of the loops of outputs, where these are no reductions and nothing reads
    them. The outputs have other shapes of the same elements in the same order.
    """
    read = {r.tensor for _, s in program.stages for r in reads_of(s.body)}
    return replace(program, stages=tuple((n, s if n in read else _with_split_output(s)) for n, s in program.stages))


def _with_split_output(stage: TensorExpr) -> TensorExpr:
    if stage.reduce:
        return stage
    loops, whole = _split(stage, list(zip(stage.loops, stage.shape, strict=True)), "i")
    if len(loops) == len(stage.loops):
        return stage
    names, shape = zip(*loops, strict=True)
    if shape[-1].is_Integer and shape[-1] < _SHORTEST and not interleaves(shape):
        return stage
    return simplify_stage(replace(stage, shape=shape, loops=names, body=substitute(stage.body, whole)))


def interleaves(shape: Sequence[Dim]) -> bool:
    """Whether the last loop of an element by element stage is written out, within a longer one."""
    *_, outer, last = (sympy.Integer(1), sympy.Integer(1), *shape)
    return bool(last.is_Integer and 1 < last <= WRITTEN_OUT and not (outer.is_Integer and outer < _SHORTEST))


def _split(
    stage: TensorExpr, loops: Sequence[tuple[str, Dim]], prefix: str
) -> tuple[list[tuple[str, Dim]], dict[str, Scalar]]:
    """Loops for the digits of these loops of a stage, and each of these in terms of its digits."""
    names = (f"{prefix}{k}" for k in count() if f"{prefix}{k}" not in {*stage.extents, *stage.symbols()})
    found: list[tuple[str, Dim]] = []
    whole: dict[str, Scalar] = {}
    for name, extent in loops:
        units = _units(stage.body, name, extent)
        at: Scalar | None = None
        for unit, above in zip([*units, sympy.Integer(1)], [extent, *units], strict=True):
            times = divide(above, unit)
            assert times is not None
            found.append((digit := next(names), times))
            part = Loop(digit) * size(unit)
            at = part if at is None else at + part
        assert at is not None
        whole[name] = at
    return found, whole


def _units(body: Scalar, loop: str, extent: Dim) -> Sequence[Dim]:
    """What the digits of a loop count that a body reads at, each a multiple of the next; none where there is no such form."""
    found: dict[Dim, None] = {}
    for n in walk(body):
        digit = digit_of(n, {loop: extent})
        if digit is not None:
            found |= dict.fromkeys(digit[1:])
    units: list[Dim] = []
    above = extent
    for no_unit in (extent, sympy.Integer(1)):
        found.pop(no_unit, None)
    while found:
        largest = next((u for u in found if all(divide(u, other) is not None for other in found)), None)
        if largest is None or divide(above, largest) is None:
            return []
        del found[largest]
        units.append(largest)
        above = largest
    return units
