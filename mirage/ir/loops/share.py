"""Reductions to one number, in two stages: threads compute parts, one of them combines these."""

from __future__ import annotations

from dataclasses import replace

import sympy

from mirage.ir.dims import Dim, ceil_div
from mirage.ir.loops.interpret import identity
from mirage.ir.loops.program import LoopProgram, TensorExpr, fresh
from mirage.ir.loops.scalars import Loop, Read, constant, select, size, value_dtype
from mirage.ir.loops.traverse import substitute
from mirage.ir.types import DTYPES

#: parts of a reduction: enough for many threads, few enough to combine at once
_PARTS = 32
#: elements of known number up to which one thread reduces them
_SHORT = 1 << 16
_COMBINERS = ("sum", "prod", "max", "min")


def shared_reductions(program: LoopProgram) -> LoopProgram:
    """The program with reductions of many floating-point numbers to one in parts; itself where there are none.

    Sums and products are rounded in another order. Integers and booleans stay: C compilers vectorize plain loops over them,
    but not those that end at a size known at run time within.
    """
    taken = {n for n, _ in (*program.inputs, *program.stages)} | set(program.symbols)
    taken |= {loop for _, s in program.stages for loop in s.extents}
    stages: list[tuple[str, TensorExpr]] = []
    for name, stage in program.stages:
        loop = _shared_loop(stage)
        if loop is None:
            stages.append((name, stage))
            continue
        parts, part = fresh(f"{name}_parts", taken), fresh("part", taken)
        stages += [(parts, _in_parts(stage, loop, part)), (name, _combined(stage, parts, part))]
    return replace(program, stages=tuple(stages)) if len(stages) > len(program.stages) else program


def _shared_loop(stage: TensorExpr) -> str | None:
    """The reduction loop whose iterations threads share: the outermost of unknown extent, else the longest."""
    if stage.combiner not in _COMBINERS or stage.body.dtype not in DTYPES or any(d != 1 for d in stage.shape):
        return None
    unknown = [loop for loop, d in stage.reduce if not d.is_Integer]
    if unknown:
        return unknown[0]
    extents = {loop: int(d) for loop, d in stage.reduce}
    return max(extents, key=lambda loop: extents[loop]) if sympy.prod(extents.values()) > _SHORT else None


def _in_parts(stage: TensorExpr, loop: str, part: str) -> TensorExpr:
    extent = stage.extents[loop]
    chunk: Dim = ceil_div(extent, sympy.Integer(_PARTS))
    at = Loop(part) * size(chunk) + Loop(loop)
    nothing = constant(identity(stage.combiner, stage.body.dtype), stage.body.dtype)
    # the last parts may be shorter, or empty
    body = select(at < size(extent), substitute(stage.body, {loop: at}), nothing)
    reduce = tuple((r, chunk if r == loop else d) for r, d in stage.reduce)
    dtype = value_dtype(stage.dtype)
    return TensorExpr((sympy.Integer(_PARTS), *stage.shape), dtype, (part, *stage.loops), body, reduce, stage.combiner)


def _combined(stage: TensorExpr, parts: str, part: str) -> TensorExpr:
    read = Read(parts, (Loop(part), *map(Loop, stage.loops)), stage.body.dtype)
    return replace(stage, body=read, reduce=((part, sympy.Integer(_PARTS)),))
