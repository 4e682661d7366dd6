"""Where the loops of a kernel walk in memory: offsets as sums over loops, and loops that walk as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import sympy

from mirage.ir.dims import Dim
from mirage.ir.loops.scalars import Loop, Read, Scalar
from mirage.ir.loops.simplify import Affine, is_index
from mirage.ir.loops.traverse import loops_of
from mirage.kernels.cuda.loops.frame import LoopTensor
from mirage.kernels.cuda.loops.structure import Kernel


def offset(index: Sequence[Scalar], strides: Sequence[Dim]) -> Affine | None:
    """The offset of an element from the first one as a sum over loops and other expressions; None where an index is no sum."""
    total = Affine({})
    for i, stride in zip(index, strides, strict=True):
        if not is_index(i):
            return None
        total = total.plus(Affine.of(i).scaled(stride))
    return total


def _visits(kernel: Kernel, tensors: Mapping[str, LoopTensor]) -> Iterator[Affine | Loop]:
    """The offsets of all accesses of a kernel, and the loops that it uses in other ways."""
    own = {m.name for m in kernel.members}
    for m in kernel.members:
        if m.stored:
            at = offset(m.index, tensors[m.name].strides)
            assert at is not None
            yield at
        seen: set[Scalar] = set()
        stack = m.bodies
        while stack:
            n = stack.pop()
            if n in seen:
                continue
            seen.add(n)
            if isinstance(n, Loop):
                yield n
            elif isinstance(n, Read) and n.tensor in own:
                # a row's value, in registers
                continue
            elif isinstance(n, Read) and (at := offset(n.index, tensors[n.tensor].strides)) is not None:
                yield at
                stack += [a for a in at.terms if not isinstance(a, Loop)]
            else:
                stack += n.operands


def merged(kernel: Kernel, tensors: Mapping[str, LoopTensor]) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """The row loops, and those of each space, in groups: those of one group walk through all memory as one loop does
    (BladeDISC, section 4.2: dim collapse equality).
    """
    offsets: list[Affine] = []
    alone: set[str] = set()
    for x in _visits(kernel, tensors):
        if isinstance(x, Loop):
            alone.add(x.name)
        else:
            offsets.append(x)

    def same(outer: str, inner: str, extent: Dim) -> bool:
        if outer in alone or inner in alone:
            return False
        return all(
            sympy.expand(o.terms.get(Loop(outer), 0) - o.terms.get(Loop(inner), 0) * extent) == 0 for o in offsets
        )

    return tuple(_groups(loops, same) for loops in (kernel.rows, *kernel.spaces))


def _groups(loops: Sequence[tuple[str, Dim]], same: Callable[[str, str, Dim], bool]) -> tuple[tuple[str, ...], ...]:
    groups: list[tuple[str, ...]] = []
    for n, d in loops:
        if groups and same(groups[-1][-1], n, d):
            groups[-1] = (*groups[-1], n)
        else:
            groups.append((n,))
    return tuple(groups)


def contiguous_along(kernel: Kernel, tensors: Mapping[str, LoopTensor], loop: str) -> tuple[int, int]:
    """How many accesses walk through neighbouring elements along a loop, and how many through others."""
    near = far = 0
    for x in _visits(kernel, tensors):
        if isinstance(x, Affine):
            step = x.terms.get(Loop(loop), 0)
            if step == 1:
                near += 1
            elif step != 0 or any(loop in loops_of(a) for a in x.terms):
                far += 1
    return near, far


def walks_across(kernel: Kernel, tensors: Mapping[str, LoopTensor], loop: str, last: str) -> bool:
    """Whether an access walks through neighbouring elements along a loop, and through others along the last one."""
    return any(
        isinstance(x, Affine) and x.terms.get(Loop(loop), 0) == 1 and any(last in loops_of(a) for a in x.terms)
        for x in _visits(kernel, tensors)
    )
