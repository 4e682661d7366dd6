"""Stages brought to the same group dims through reshapes between them (BladeDISC, section 4.2: dim collapse equality).

Where one stage has a dim `a*b` and another the dims `a, b` in its place, the former's loop is split in two. The elements
stay where they are in memory, so that an output may be written under the split dims.
"""

from __future__ import annotations

from dataclasses import replace

from mirage.ir.dims import Dim
from mirage.ir.loops.nests import nests
from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import Binary, Const, Loop, Read, Scalar, Size, size
from mirage.ir.loops.simplify import Affine, simplify_stage, size_of
from mirage.ir.loops.traverse import reads_of, substitute, transform
from mirage.ir.polynomials import divide

#: dims that are split at most: each makes a reshape of one dim into two vanish
_MOST_SPLITS = 16


def regrouped(program: LoopProgram) -> LoopProgram:
    """The program with dims of stages split where that lets more stages share a nest; else the program itself.

    Outputs may have other shapes of the same elements in the same order.
    """
    found = program
    for _ in range(_MOST_SPLITS):
        split = _next_split(found)
        if split is None:
            break
        found = _with_split(found, *split)
    return found if len(nests(found)) < len(nests(program)) else program


def _next_split(program: LoopProgram) -> tuple[str, int, Dim] | None:
    """A stage, one of its dims, and the inner of the two dims to split it into."""
    stages = program.expressions
    for name, stage in program.stages:
        for r in reads_of(stage.body):
            if r.tensor not in stages:
                continue
            for i in r.index:
                match i:
                    case Binary(op="floordiv" | "mod", left=Loop() as loop, right=Const() | Size() as by):
                        inner = Affine.of(by).const
                        if loop.name in stage.loops and _splits(stage.extents[loop.name], inner):
                            return name, stage.loops.index(loop.name), inner
            for k, i in enumerate(r.index):
                terms = Affine.of(i)
                units = [a for a, c in terms.terms.items() if c == 1 and isinstance(a, Loop) and a.name in stage.loops]
                if len(terms.terms) == 2 and len(units) == 1 and terms.const == 0:
                    inner = stage.extents[units[0].name]
                    if inner in terms.terms.values() and _splits(stages[r.tensor].shape[k], inner):
                        return r.tensor, k, inner
    return None


def _splits(dim: Dim, inner: Dim) -> bool:
    outer = divide(dim, inner)
    return outer is not None and 1 not in (outer, inner)


def _with_split(program: LoopProgram, name: str, k: int, inner: Dim) -> LoopProgram:
    stage = program.expressions[name]
    outer = divide(stage.shape[k], inner)
    assert outer is not None
    taken = {loop for _, s in program.stages for loop in s.extents} | set(program.symbols)
    fresh = [f"i{n}" for n in range(len(taken) + 2) if f"i{n}" not in taken][:2]
    at = Loop(fresh[0]) * size(inner) + Loop(fresh[1])
    new = replace(
        stage,
        shape=(*stage.shape[:k], outer, inner, *stage.shape[k + 1 :]),
        loops=(*stage.loops[:k], *fresh, *stage.loops[k + 1 :]),
        body=substitute(stage.body, {stage.loops[k]: at}),
    )

    def change(n: Scalar) -> Scalar | None:
        if isinstance(n, Read) and n.tensor == name:
            i = n.index[k]
            return Read(name, (*n.index[:k], i // size_of(inner), i % size_of(inner), *n.index[k + 1 :]), n.type)
        return None

    stages: list[tuple[str, TensorExpr]] = []
    for other, s in program.stages:
        s = new if other == name else replace(s, body=transform(s.body, change))
        stages.append((other, simplify_stage(s)))
    return replace(program, stages=tuple(stages))
