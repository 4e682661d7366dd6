"""Stages that share a loop nest: stitching on processors with caches (BladeDISC, section 4.2).

The first dims of all stages of a nest are its *group dims*: one iteration over them runs all stages, one after the other,
over the other dims, the *tile dims*; what they hand on stays in a buffer of that size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import Loop
from mirage.ir.loops.traverse import reads_of


@dataclass(frozen=True)
class Nest:
    """Consecutive stages over the same `group` first dims."""

    stages: tuple[str, ...]
    group: int


def nests(program: LoopProgram, vectors: bool = True) -> tuple[Nest, ...]:
    """The stages of a program in as few nests as their dims and reads allow; in order.

    With `vectors`, a vector shares a nest with its reductions, which then runs on one thread.
    """
    found: list[Nest] = []
    for name, _ in program.stages:
        if found:
            group = _group(program.expressions, (*found[-1].stages, name), vectors)
            if group is not None:
                found[-1] = Nest((*found[-1].stages, name), group)
                continue
        found.append(Nest((name,), len(program.expressions[name].shape)))
    return tuple(found)


def _group(stages: Mapping[str, TensorExpr], names: Sequence[str], vectors: bool) -> int | None:
    """How many first dims all of these stages share; None if they cannot share a nest.

    An element of a stage may depend only on elements of the others with the same index in these dims. Numbers, and with
    `vectors` stages of one loop, may do without any.
    """
    own = [stages[n] for n in names]
    group = min(len(s.shape) for s in own)
    while any(s.shape[:group] != own[0].shape[:group] for s in own):
        group -= 1
    for s in own:
        for r in reads_of(s.body):
            if r.tensor in names:
                same = 0
                for i, loop in zip(r.index, s.loops, strict=False):
                    if i is not Loop(loop):
                        break
                    same += 1
                group = min(group, same)
    loose = all(len(s.extents) <= 1 if vectors else all(d == 1 for d in s.shape) for s in own)
    return group if group or loose else None
