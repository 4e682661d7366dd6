"""How reads walk through memory as a loop runs."""

from __future__ import annotations

import sympy

from mirage.ir.dims import Dim
from mirage.ir.loops.program import TensorExpr
from mirage.ir.loops.scalars import Loop, Scalar
from mirage.ir.loops.simplify import Affine, is_index
from mirage.ir.loops.traverse import loops_of, reads_of

#: elements of a row of a window, at most, whose sums are better made side by side
WINDOW = 8


def step(index: Scalar, loop: str) -> Dim | None:
    """The dim by which an index grows in each iteration of a loop; None if it does so in another way."""
    if loop not in loops_of(index):
        return sympy.Integer(0)
    if not is_index(index):
        return None
    terms = Affine.of(index).terms
    if any(loop in loops_of(a) for a in terms if a is not Loop(loop)):
        return None
    return terms[Loop(loop)]


def _votes(body: Scalar, loop: str) -> int:
    """Reads that are contiguous along a loop less those that it strides through."""
    votes = 0
    for r in reads_of(body):
        if loop in loops_of(r):
            *outer, last = [step(i, loop) for i in r.index]
            votes += 1 if last == 1 and all(s == 0 for s in outer) else -1
    return votes


def last_long(shape: tuple[Dim, ...]) -> int:
    """The last dim that is not of size 1, or -1."""
    return max((k for k, d in enumerate(shape) if d != 1), default=-1)


def _slides(stage: TensorExpr, loop: str) -> bool:
    """Whether a reduction is one of short windows that a loop moves along memory, as those of a pooling."""
    _, size = stage.reduce[-1]
    extent = stage.extents[loop]
    if not size.is_Integer or size > WINDOW or (extent.is_Integer and extent < size):
        return False
    moving = [[step(i, loop) for i in r.index] for r in reads_of(stage.body) if loop in loops_of(r)]
    return bool(moving) and all(
        last is not None and last.is_Integer and last > 0 and all(s == 0 for s in outer) for *outer, last in moving
    )


def along_output(stage: TensorExpr) -> bool:
    """Whether a reduction is vectorized along its last output loop rather than its last reduction loop."""
    k = last_long(stage.shape)
    if k < 0:
        return False
    last = stage.loops[k]
    return _votes(stage.body, last) > _votes(stage.body, stage.reduce[-1][0]) or _slides(stage, last)


def strides_through(stage: TensorExpr) -> bool:
    """Whether a stage reads memory that is not contiguous along its last output loop, but is along another."""
    k = last_long(stage.shape)
    if k < 0:
        return False
    last = stage.loops[k]
    return any(
        len(r.index) > 1
        and last not in loops_of(r.index[-1])
        and any(last in loops_of(i) for i in r.index[:-1])
        and any(step(r.index[-1], n) == 1 for n in stage.loops[:k])
        for r in reads_of(stage.body)
    )
