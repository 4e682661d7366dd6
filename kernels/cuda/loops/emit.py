"""A loop program as Triton source: a function per kernel, which computes a block of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from mirage.ir.dims import Dim, ceil_div
from mirage.ir.loops.program import LoopProgram
from mirage.ir.loops.scalars import Checked, value_dtype
from mirage.ir.loops.traverse import reads_of, walk
from mirage.kernels.cuda.emit.writer import Writer, comment_text, without_unused, words
from mirage.kernels.cuda.emitted import Argument, ArgumentKind, TritonKernel
from mirage.kernels.cuda.loops.access import merged
from mirage.kernels.cuda.loops.expressions import Expressions, Tile, Value
from mirage.kernels.cuda.loops.frame import FAILURES, STORAGE, Frame, LoopTensor
from mirage.kernels.cuda.loops.printing import parenthesized
from mirage.kernels.cuda.loops.reductions import Reductions
from mirage.kernels.cuda.loops.schedule import LoopSchedule
from mirage.kernels.cuda.loops.structure import PART, Kernel, Member

_ONE = sympy.Integer(1)


@dataclass(frozen=True)
class EmittedLoops:
    """The Triton source of a loop program.

    `kernels` run in order on one stream. Their pointers are to `tensors`: the inputs first, then the outputs, then what kernels
    hand on (`workspace` of them), and last the words that failed checks are written to, if there are `checks`. `index` is
    the type of their sizes, "i32" or "i64".
    """

    source: str
    kernels: tuple[TritonKernel, ...]
    tensors: tuple[LoopTensor, ...]
    workspace: int
    checks: tuple[str, ...]
    index: str

    def signature(self, kernel: TritonKernel) -> dict[str, str]:
        """The Triton types of a kernel's arguments that are not constexpr."""
        return {
            a.name: f"*{STORAGE[self.tensors[a.tensor].dtype]}" if a.kind is ArgumentKind.POINTER else self.index
            for a in kernel.arguments
        }


def tensors_of(program: LoopProgram, kernels: Sequence[Kernel]) -> tuple[list[LoopTensor], int]:
    """The tensors in global memory, and how many of them, the last ones, are workspace."""
    found = [LoopTensor(n, t.shape, t.dtype) for n, t in program.inputs]
    found += [LoopTensor(o, program.expressions[o].shape, program.expressions[o].dtype) for o in program.outputs]
    between: list[LoopTensor] = []
    for m in (m for k in kernels for m in k.members if m.stored and m.name not in program.outputs):
        # between kernels, 16-bit results are not rounded
        between.append(LoopTensor(m.name, m.shape, value_dtype(m.dtype)))
        if m.places:
            between.append(LoopTensor(m.places, m.shape, "int64"))
    return [*found, *between], len(between)


def emit(
    program: LoopProgram, kernels: Sequence[Kernel], schedules: Sequence[LoopSchedule], index: str = "i32"
) -> EmittedLoops:
    """The Triton source of a program in these kernels, with loops of the type `index`."""
    tensors, workspace = tensors_of(program, kernels)
    values = [b for k in kernels for m in k.members for b in m.bodies]
    checks = dict.fromkeys(n.where for b in values for n in walk(b) if isinstance(n, Checked))
    frame = Frame(tensors, list(checks), index)
    emitters = [
        _KernelEmitter(k, kernel, s, frame) for k, (kernel, s) in enumerate(zip(kernels, schedules, strict=True))
    ]
    bodies = [e.body() for e in emitters]
    if frame.checks:
        tensors = [*tensors, LoopTensor(FAILURES, (sympy.Integer(2 * len(frame.checks)),), "int64")]
    places = {t.name: k for k, t in enumerate(tensors)}
    steps = [e.step(lines, places, tensors) for e, lines in zip(emitters, bodies, strict=True)]
    lines = ["# Generated from a loop program:", "#"]
    lines += [f"# {comment_text(x)}".rstrip() for x in program.to_text().splitlines()]
    lines += ["", "import triton", "import triton.language as tl"]
    for source in frame.functions.sources:
        lines += ["", "", *source.splitlines()]
    for e, step, body in zip(emitters, steps, bodies, strict=True):
        lines += ["", "", *e.head(step), *body]
    return EmittedLoops("\n".join(lines) + "\n", tuple(steps), tuple(tensors), workspace, frame.checks, index)


class _KernelEmitter:
    """Prints one kernel."""

    def __init__(self, number: int, kernel: Kernel, schedule: LoopSchedule, frame: Frame) -> None:
        self.number = number
        self.kernel = kernel
        self.schedule = schedule
        self.frame = frame
        self.w = Writer(1)
        self.rows, *self.spaces = merged(kernel, frame.tensors)
        self.extents = kernel.extents
        self.constexprs: dict[str, int] = {}
        dims: dict[int, str] = {}
        if schedule.second >= 0:
            dims[1] = self._constexpr("SECOND", schedule.seconds)
        if kernel.spaces:
            if schedule.rows > 1:
                dims[1] = self._constexpr("ROWS", schedule.rows)
            dims[2] = ""
        elif schedule.rows > 1:
            dims[2] = self._constexpr("ROWS", schedule.rows)
        #: the dim of rows
        self.row_dim = 0 if schedule.rows == 1 else 1 if kernel.spaces else 2
        self.tile = Tile(dims)
        self.x = Expressions(frame, self.tile, self.extents, [b for m in kernel.members for b in m.bodies], self.w)
        self.reductions = Reductions(self.x)
        #: spaces whose columns are known
        self.placed: set[int] = set()

    def _constexpr(self, name: str, value: int) -> str:
        self.constexprs[name] = value
        return name

    def _count(self, loops: Sequence[str]) -> Dim:
        return sympy.expand(sympy.prod([self.extents[n] for n in loops]))

    # ---- the function ----

    def head(self, step: TritonKernel) -> list[str]:
        w = Writer()
        w.line("@triton.jit")
        w.line(f"def {step.name}(")
        for p in (*(a.name for a in step.arguments), *(f"{c}: tl.constexpr" for c in step.constexprs)):
            w.line(f"    {p},")
        w.line("):")
        return w.lines

    def step(self, lines: Sequence[str], places: Mapping[str, int], tensors: Sequence[LoopTensor]) -> TritonKernel:
        """How the function is launched, whose lines these are."""
        used = words(lines)
        arguments = [
            Argument(t.pointer, ArgumentKind.POINTER, _ONE, k) for k, t in enumerate(tensors) if t.pointer in used
        ]
        arguments += [Argument(x, ArgumentKind.SIZE, d) for d, x in self.frame.dims.items() if x in used]
        members = self.kernel.members
        own = {places[n] for m in members if m.stored for n in (m.name, m.places) if n}
        read = {places[r.tensor] for m in members for b in m.bodies for r in reads_of(b) if r.tensor in places} - own
        if "failures" in used:
            own.add(len(tensors) - 1)
        return TritonKernel(
            f"kernel_{self.number}",
            tuple(arguments),
            {c: n for c, n in self.constexprs.items() if c in used},
            (self._programs(), _ONE, _ONE),
            self.schedule.num_warps,
            1 if self.schedule.whole or not self.kernel.spaces else 3,
            tuple(sorted(read)),
            tuple(sorted(own)),
        )

    def _tail(self) -> list[str]:
        """The loops that `rows` consecutive indices go over together."""
        groups = self.rows[self.schedule.outer + (self.schedule.second >= 0) :]
        return [n for g in groups for n in g]

    def _programs(self) -> Dim:
        s = self.schedule
        count = ceil_div(self._count(self._tail()), sympy.Integer(s.rows)) * self.kernel.parts
        for k, g in enumerate(self.rows):
            if k == s.second:
                count *= ceil_div(self._count(g), sympy.Integer(s.seconds))
            elif k in self._outer():
                count *= self._count(g)
        return sympy.expand(count)

    def _outer(self) -> list[int]:
        """The groups of rows of which a program has one index."""
        s = self.schedule
        return [k for k in range(s.outer + (s.second >= 0)) if k != s.second]

    def body(self) -> list[str]:
        """The lines of the function."""
        self.w.comment(", ".join(m.name for m in self.kernel.members))
        self._row_indices()
        for phase in self.kernel.phases:
            space = phase[0].space
            if space < 0:
                for m in phase:
                    self._row_value(m)
            elif self.schedule.whole:
                self._columns(space, "0")
                for m in phase:
                    self._whole(m)
            else:
                self._looped(phase, space)
        return without_unused(self.w.lines)

    def _row_indices(self) -> None:
        """Print the indices of the program's rows."""
        w, s, tail = self.w, self.schedule, self._tail()
        wide = ".to(tl.int64)" if self.frame.index == "i64" else ""
        w.line(f"program = tl.program_id(0){wide}")
        count = self.frame.dim(self._count(tail))
        rest = "program"

        def split(blocks: str) -> str:
            nonlocal rest
            name = self.x.local("rest")
            w.line(f"{name} = {rest} // {blocks}")
            at = f"{rest} % {blocks}"
            rest = name
            return at

        if self.kernel.parts > 1:
            parts = self._constexpr("PARTS", self.kernel.parts)
            self.x.loops[PART] = Value("part", 0)
            w.line(f"part = {split(parts)}")
        last = not self._outer() and s.second < 0
        block = rest if last else split(f"tl.cdiv({count}, ROWS)" if s.rows > 1 else count)
        if s.rows > 1:
            lift = self.tile.lift(self.row_dim)
            at = f"({parenthesized(block)} * ROWS + tl.arange(0, ROWS)){lift}"
            w.line(f"row = {at if lift else at[1:-1]}")
            self._mask(self.row_dim, "row", count, s.rows)
        elif tail:
            w.line(f"row = {block}")
        self._unravel(self.rows[s.outer + (s.second >= 0) :], Value("row", self.row_dim))
        if s.second >= 0:
            extent = self.frame.dim(self._count(self.rows[s.second]))
            block = split(f"tl.cdiv({extent}, SECOND)") if self._outer() else rest
            w.line(f"second = ({parenthesized(block)} * SECOND + tl.arange(0, SECOND))[:, None]")
            self._mask(1, "second", extent, s.seconds)
            self._unravel([self.rows[s.second]], Value("second", 1))
        outer = self._outer()
        for k in reversed(outer):
            extent = self.frame.dim(self._count(self.rows[k]))
            at = rest if k == outer[0] else split(extent)
            w.line(f"outer{k} = {at}")
            self._unravel([self.rows[k]], Value(f"outer{k}", 0))

    def _mask(self, dim: int, index: str, count: str, block: int) -> None:
        if _fills(count, block):
            return
        self.w.line(f"in_{index} = {index} < {count}")
        self.tile.masks[dim] = f"in_{index}"

    def _unravel(self, groups: Sequence[tuple[str, ...]], at: Value) -> None:
        """Print the indices of groups of loops, of which `at` is the position in all of them."""
        rest = at.text
        for k, g in reversed(list(enumerate(groups))):
            for n in g[:-1]:
                self.x.loops[n] = None
            index = rest
            if k > 0:
                extent = self.frame.dim(self._count(g))
                self.w.line(f"{g[-1]} = {rest} % {extent}")
                self.w.line(f"past_{g[-1]} = {rest} // {extent}")
                index, rest = g[-1], f"past_{g[-1]}"
            self.x.loops[g[-1]] = Value(index, at.span)

    # ---- members ----

    def _row_value(self, m: Member) -> None:
        value = self.x.data(m.body)
        self._finish(m, [value if value.text.isidentifier() else self.x.assign("v", value)])

    def _finish(self, m: Member, values: Sequence[Value]) -> None:
        """What a member gives each row is known: for extremes, the element and its place."""
        self.x.values[m.name] = values[0 if m.places else -1]
        if m.stored:
            self.x.store(self.frame.tensors[m.name], m.index, self.x.values[m.name])
        if m.places:
            self.x.store(self.frame.tensors[m.places], m.index, values[1])

    def _columns(self, space: int, start: str) -> None:
        """Print the indices of the columns of a space from `start` on, unless they are known."""
        name = self._constexpr(f"COLUMNS{space}", self.schedule.columns[space])
        self.tile.extents[2] = name
        column = f"column{space}"
        count = self.frame.dim(self._count([n for n, _ in self.kernel.spaces[space]]))
        if start != "0" or space not in self.placed:
            lift = self.tile.lift(2)
            wide = ".to(tl.int64)" if self.frame.index == "i64" else ""
            at = f"tl.arange(0, {name}){wide}{lift}"
            self.w.line(f"{column} = {at if start == '0' else f'{start} + {at}'}")
            self._mask(2, column, count, self.schedule.columns[space])
            self._unravel(self.spaces[space], Value(column, 2))
            self.placed.add(space)
        elif not _fills(count, self.schedule.columns[space]):
            self.tile.masks[2] = f"in_{column}"
        else:
            self.tile.masks.pop(2, None)

    def _whole(self, m: Member) -> None:
        value = self.x.data(m.body)
        if not m.combiner:
            self.x.store(self.frame.tensors[m.name], m.index, value)
            return
        self._finish(m, self.reductions.reduced(m, self.reductions.filled(m, value)))

    def _looped(self, phase: Sequence[Member], space: int) -> None:
        """A phase whose columns are gone over in blocks."""
        x, w = self.x, self.w
        loops = {n for n, _ in self.kernel.spaces[space]}
        for m in phase:
            for n in x.invariants(m.body, loops):
                x.named(n)
        before = dict(x.env), dict(self.tile.masks)
        self.tile.extents[2] = name = self._constexpr(f"COLUMNS{space}", self.schedule.columns[space])
        totals: dict[str, list[str]] = {}
        for m in phase:
            if m.combiner:
                first = [x.local("best"), x.local("at")] if m.place is not None else [x.local("all")]
                for t, text in zip(first, self.reductions.initial(m), strict=True):
                    w.line(f"{t} = {text}")
                totals[m.name] = first
        count = self.frame.dim(self._count([n for n, _ in self.kernel.spaces[space]]))
        bounds = f"0, {count}"
        if self.kernel.parts > 1:
            # whole blocks, but for the last one
            w.line(f"share = tl.cdiv(tl.cdiv({count}, PARTS), {name}) * {name}")
            bounds = f"part * share, tl.minimum((part + 1) * share, {count})"
        with w.block(f"for start in range({bounds}, {name})"):
            self._columns(space, "start")
            for m in phase:
                value = x.data(m.body)
                if not m.combiner:
                    x.store(self.frame.tensors[m.name], m.index, value)
                    continue
                filled, names = self.reductions.filled(m, value), totals[m.name]
                w.line(f"{', '.join(names)} = {self.reductions.combined(m, names, filled)}")
        x.env, self.tile.masks = before
        for m in phase:
            if m.combiner:
                self._finish(m, self.reductions.reduced(m, totals[m.name]))


def _fills(count: str, block: int) -> bool:
    """Whether blocks hold nothing past the end: not where there are no elements at all."""
    return count.isdigit() and int(count) > 0 and int(count) % block == 0
