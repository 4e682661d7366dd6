"""Pattern kinds of loop programs, found from the indices that they read and write (Relax, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TypeAlias

import sympy

from mirage.ir.dims import Dim
from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import Binary, Cast, Const, Loop, Read, Scalar, Size
from mirage.ir.loops.simplify import Affine, nonnegative, simplify_stage
from mirage.ir.loops.traverse import loops_of, reads_of

_ONE = sympy.Integer(1)


class Kind(IntEnum):
    """How the elements that a program writes depend on those that it reads; a later kind is harder to fuse."""

    ELEMENTWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    REDUCTION = 3
    OUTPUT_FUSIBLE = 4
    OPAQUE = 5


def stage_kind(stage: TensorExpr) -> Kind:
    """The kind of one tensor expression.

    Elementwise: some operand is read at the index that is written, others at that or at a broadcast of it. Injective: the
    indices read are functions of the one written (also through data, as in a gather). Output-fusible: a sum of products
    of two different operands, such as matmul.
    """
    stage = simplify_stage(stage)
    if stage.reduce:
        return Kind.OUTPUT_FUSIBLE if _multiplies_and_adds(stage) else Kind.REDUCTION
    found = [_read_kind(r, stage) for r in reads_of(stage.body)]
    if Kind.INJECTIVE in found:
        return Kind.INJECTIVE
    # C[i, j] = A[i, j] + B[j] is elementwise; what reads nothing can be computed anywhere
    return Kind.BROADCAST if found and Kind.ELEMENTWISE not in found else Kind.ELEMENTWISE


def pattern_kind(program: LoopProgram) -> Kind:
    """The kind of a program.

    Of several stages it is that of the hardest; opaque where outputs have different shapes, or where more follows a
    matmul, or precedes it, than elementwise stages.
    """
    kinds = {n: stage_kind(s) for n, s in program.stages}
    hardest = max(kinds.values())
    if len({program.expressions[o].shape for o in program.outputs}) > 1:
        return Kind.OPAQUE
    if hardest == Kind.OUTPUT_FUSIBLE and sum(k >= Kind.REDUCTION for k in kinds.values()) > 1:
        return Kind.OPAQUE
    return hardest


def _read_kind(r: Read, stage: TensorExpr) -> Kind:
    own = [Const(0, "int64") if d == 1 else Loop(n) for n, d in zip(stage.loops, stage.shape, strict=True)]
    if len(own) == len(r.index) and all(
        i is w or i is Loop(n) for i, w, n in zip(r.index, own, stage.loops, strict=True)
    ):
        return Kind.ELEMENTWISE
    at: list[int] = []
    for i in r.index:
        match i:
            case Const(value=0):
                continue
            case Loop():
                at.append(stage.loops.index(i.name))
            case _:
                return Kind.INJECTIVE
    return Kind.BROADCAST if at == sorted(set(at)) else Kind.INJECTIVE


def _multiplies_and_adds(stage: TensorExpr) -> bool:
    body = stage.body
    while isinstance(body, Cast):
        body = body.x
    if stage.combiner != "sum" or not isinstance(body, Binary) or body.op != "mul":
        return False
    reduced = {r for r, _ in stage.reduce}
    left, right = body.left, body.right
    return left is not right and all(reads_of(x) and loops_of(x) & reduced for x in (left, right))


def one_to_one(index: tuple[Scalar, ...], extents: Mapping[str, Dim]) -> bool:
    """Whether different iterations of the loops read different elements: the indices tell each loop that runs more than once,
    or all of its digits, as `i // 16` and `i % 16` do.
    """
    told = {d for i in index for d in _told(Affine.of(i), extents)}

    def known(loop: str, above: Dim) -> bool:
        return above == 1 or any(known(loop, unit) for name, unit, top in told if name == loop and top == above)

    return all(known(n, d) for n, d in extents.items())


#: of a loop, `loop // unit % (above // unit)`: the loop, the unit and what is above
_Digit: TypeAlias = tuple[str, Dim, Dim]


def _told(e: Affine, extents: Mapping[str, Dim]) -> set[_Digit]:
    """The digits of loops that the value of an index tells, from the one that counts most on."""
    found: set[_Digit] = set()
    rest = dict(e.terms)
    while rest:
        for atom, c in rest.items():
            below = Affine({a: k for a, k in rest.items() if a is not atom}).bounds(extents)
            if below is not None and below[0] == 0 and nonnegative(c - 1 - below[1]):
                break
        else:
            return found
        del rest[atom]
        digit = digit_of(atom, extents)
        if digit is not None:
            found.add(digit)
    return found


def digit_of(atom: Scalar, extents: Mapping[str, Dim]) -> _Digit | None:
    """The digit of a loop that an atom of an index is; None for others."""
    match atom:
        case Loop(name=name) if name in extents:
            return name, _ONE, extents[name]
        case Binary(op="floordiv", left=Loop(name=name), right=Const() | Size() as by) if name in extents:
            return name, Affine.of(by).const, extents[name]
        case Binary(op="mod", left=Loop(name=name), right=Const() | Size() as by) if name in extents:
            return name, _ONE, Affine.of(by).const
        case Binary(
            op="mod",
            left=Binary(op="floordiv", left=Loop(name=name), right=Const() | Size() as by),
            right=Const() | Size() as count,
        ) if name in extents:
            unit = Affine.of(by).const
            return name, unit, sympy.expand(unit * Affine.of(count).const)
    return None
