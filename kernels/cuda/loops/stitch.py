"""The stages of a loop program in few kernels: what one launch computes (BladeDISC, sections 4.1 and 4.2).

A kernel goes over *rows*: the output indices that its stages share. Within a row, a phase goes over *columns*: it reduces
them to one value, which later phases of the row read from registers, or writes an element for each. Elementwise stages are
computed where they are read; what cannot be is handed on in a workspace, from one kernel to the next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mirage.ir.dims import Dim
from mirage.ir.loops.analysis import one_to_one
from mirage.ir.loops.fuse import work
from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import Const, Loop, Read, Scalar
from mirage.ir.loops.simplify import simplify, simplify_stage
from mirage.ir.loops.traverse import reads_of, substitute, transform, walk
from mirage.kernels.cuda.loops.divide import can_divide, divided
from mirage.kernels.cuda.loops.structure import Division, Kernel, Member

#: work of an elementwise stage, in reads, up to which it is repeated for each element that reads it
_CHEAP = 4
#: nodes of an expression into which stages are put at most: longer ones take the compiler minutes
_MOST_NODES = 600


def stitch(program: LoopProgram, division: Division) -> tuple[Kernel, ...]:
    """The kernels of a program in order."""
    stages = _inlined(program)
    groups: list[list[str]] = []
    for name in stages:
        if groups and _kernel(stages, [*groups[-1], name], program.outputs, division) is not None:
            groups[-1].append(name)
        else:
            groups.append([name])
    own = {n: k for k, g in enumerate(groups) for n in g}
    reads = [(n, r.tensor) for n, s in stages.items() for r in reads_of(s.body) if r.tensor in stages]
    stored = {*program.outputs, *(t for n, t in reads if own[n] != own[t])}
    taken = {n for n, _ in (*program.inputs, *program.stages)}
    kernels: list[Kernel] = []
    for g in groups:
        kernel = _kernel(stages, g, stored, division)
        assert kernel is not None
        kernels += divided(kernel, division, taken)
    return tuple(kernels)


def _inlined(program: LoopProgram) -> dict[str, TensorExpr]:
    """The stages that are left when elementwise ones are computed where they are read."""
    left = {n: simplify_stage(s) for n, s in program.stages}
    for name in list(left):
        producer = left[name]
        if producer.reduce:
            continue
        readers = {c: s for c, s in left.items() if any(r.tensor == name for r in reads_of(s.body))}
        inlined = {c: _with(s, name, producer) for c, s in readers.items()}
        if not all(_may_inline(producer, name, s, inlined[c]) for c, s in readers.items()):
            continue
        left.update(inlined)
        if name not in program.outputs:
            del left[name]
    # a stage may be unused only after its consumers are gone
    used = {r.tensor for s in left.values() for r in reads_of(s.body)} | set(program.outputs)
    while not left.keys() <= used:
        left = {n: s for n, s in left.items() if n in used}
        used = {r.tensor for s in left.values() for r in reads_of(s.body)} | set(program.outputs)
    return left


def _with(stage: TensorExpr, name: str, producer: TensorExpr) -> TensorExpr:
    def change(n: Scalar) -> Scalar | None:
        if isinstance(n, Read) and n.tensor == name:
            return substitute(producer.body, dict(zip(producer.loops, n.index, strict=True)))
        return None

    return simplify_stage(replace(stage, body=transform(stage.body, change)))


def _may_inline(producer: TensorExpr, name: str, reader: TensorExpr, inlined: TensorExpr) -> bool:
    """Whether a reader computes a stage itself: cheaply, or each element once for each place where it is read."""
    if sum(1 for _ in walk(inlined.body)) > _MOST_NODES:
        return False
    if work(producer.body) <= _CHEAP:
        return True
    return all(one_to_one(r.index, reader.extents) for r in reads_of(reader.body) if r.tensor == name)


def _kernel(
    stages: Mapping[str, TensorExpr], names: Sequence[str], stored: Collection[str], division: Division
) -> Kernel | None:
    """One kernel of these stages; None where they are better off in several, or one has to be complete before another starts."""
    own = {n: stages[n] for n in names}
    reduced = [s for s in own.values() if s.reduce]
    rows = _long((reduced or list(own.values()))[0].shape)
    reads = [r.tensor for s in own.values() for r in reads_of(s.body) if r.tensor in own]
    if any(_long(own[t].shape) != rows for t in reads):
        return None
    if not reduced and not reads and any(_long(s.shape) != rows for s in own.values()):
        return None
    placed: dict[str, list[str]] = {}
    for n, s in own.items():
        found = _place(s, own, rows)
        if found is None:
            return None
        placed[n] = found
        columns = [d for n, d in zip(s.loops, s.shape, strict=True) if d != 1 and n not in found]
        if len(own) > 1 and columns and not division.shares(rows, columns):
            return None
    kernel = _Builder(own, rows, placed, stored).kernel()
    return kernel if len(own) == 1 or can_divide(kernel, division) else None


def _long(shape: Sequence[Dim]) -> list[Dim]:
    return [d for d in shape if d != 1]


def _place(stage: TensorExpr, own: Mapping[str, TensorExpr], rows: list[Dim]) -> list[str] | None:
    """The loops of a stage that are the row loops; None where it has no such loops."""
    long = [n for n, d in zip(stage.loops, stage.shape, strict=True) if d != 1]
    extents = stage.extents
    found: list[str] | None = None
    for r in reads_of(stage.body):
        if r.tensor not in own:
            continue
        index: list[str] = []
        for i, d in zip(r.index, own[r.tensor].shape, strict=True):
            if d == 1:
                continue
            if not isinstance(i, Loop) or i.name not in long:
                return None
            index.append(i.name)
        if found not in (None, index) or len(set(index)) < len(index):
            return None
        found = index
    if found is None:
        if stage.reduce:
            found = long
        elif [extents[n] for n in long[: len(rows)]] == rows:
            found = long[: len(rows)]
        else:
            found = _subsequence(long, extents, rows)
    if found is None or [extents[n] for n in found] != rows or (stage.reduce and found != long):
        return None
    return found


def _subsequence(loops: Sequence[str], extents: Mapping[str, Dim], rows: Sequence[Dim]) -> list[str] | None:
    """The first loops in order that have these extents."""
    found: list[str] = []
    for n in loops:
        if len(found) < len(rows) and extents[n] == rows[len(found)]:
            found.append(n)
    return found if len(found) == len(rows) else None


class _Builder:
    """Puts the stages of a kernel on common loops, `g0`, `g1`, ... over rows and `c0_0`, ... over columns."""

    def __init__(
        self,
        stages: Mapping[str, TensorExpr],
        rows: Sequence[Dim],
        placed: Mapping[str, list[str]],
        stored: Collection[str],
    ) -> None:
        self.stages = stages
        self.placed = placed
        self.stored = stored
        self.rows = tuple((f"g{k}", d) for k, d in enumerate(rows))
        self.spaces: list[tuple[tuple[str, Dim], ...]] = []

    def kernel(self) -> Kernel:
        members = {n: self._member(n, s) for n, s in self.stages.items()}
        level: dict[str, int] = {}
        phases: dict[tuple[int, int], list[Member]] = {}
        for n, m in members.items():
            before = [level[r.tensor] + 1 for r in reads_of(m.body) if r.tensor in members]
            level[n] = max(before, default=0)
            phases.setdefault((level[n], m.space), []).append(m)
        order = sorted(phases, key=lambda k: k[0])
        return Kernel(self.rows, tuple(self.spaces), tuple(tuple(phases[k]) for k in order))

    def _member(self, name: str, stage: TensorExpr) -> Member:
        rows = self.placed[name]
        columns = [n for n, d in zip(stage.loops, stage.shape, strict=True) if d != 1 and n not in rows]
        columns += [n for n, d in stage.reduce if d != 1]
        space = self._space(tuple(stage.extents[n] for n in columns)) if columns else -1
        loops: dict[str, Scalar] = {n: Const(0, "int64") for n, d in stage.extents.items() if d == 1}
        loops |= {n: Loop(g) for n, (g, _) in zip(rows, self.rows, strict=True)}
        if columns:
            loops |= {n: Loop(c) for n, (c, _) in zip(columns, self.spaces[space], strict=True)}
        extents = dict([*self.rows, *(self.spaces[space] if columns else ())])
        body, combiner = simplify(substitute(stage.body, loops), extents), stage.combiner
        if combiner and all(d == 1 for _, d in stage.reduce):
            # of one element
            body, combiner = Const(0, "int64") if combiner.startswith("arg") else body, ""
        index = tuple(loops[n] for n in stage.loops)
        place = loops[stage.reduce[0][0]] if combiner.startswith("arg") else None
        return Member(name, stage.dtype, body, combiner, space, stage.shape, index, name in self.stored, place)

    def _space(self, extents: tuple[Dim, ...]) -> int:
        for k, s in enumerate(self.spaces):
            if tuple(d for _, d in s) == extents:
                return k
        k = len(self.spaces)
        self.spaces.append(tuple((f"c{k}_{j}", d) for j, d in enumerate(extents)))
        return k
