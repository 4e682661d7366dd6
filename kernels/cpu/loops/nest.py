"""One loop nest as a C function that computes a range of its cells (BladeDISC, sections 4.2 and 5.1).

The group dims of the nest, as one index, are split into cells of enough work each; where every stage is computed
element by element along the last dim, that dim is split, too. Each row runs all stages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import sympy

from mirage.ir.dims import Dim
from mirage.ir.loops.nests import Nest
from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import value_dtype
from mirage.ir.loops.split import interleaves
from mirage.kernels.cpu.emit.writer import Writer, without_unused
from mirage.kernels.cpu.loops.access import along_output, last_long, strides_through
from mirage.kernels.cpu.loops.expressions import Expressions
from mirage.kernels.cpu.loops.frame import STORAGE, VALUES, Frame, Tensor, buffer_name, loop_name
from mirage.kernels.cpu.loops.stage import StageEmitter

#: elements that a cell computes at least, where there are so many
CELL = 16384
#: of them along the last dim, where a stage reduces others: so many columns at a time
COLUMNS = 256
#: columns of a cell where reads stride through memory along them: the next rows find these cache lines again
BLOCK = 64


class NestEmitter:
    """Prints a nest. `tensors` are inputs and the stages that are `kept` in memory; other stages get buffers here."""

    def __init__(
        self,
        number: int,
        program: LoopProgram,
        nest: Nest,
        frame: Frame,
        tensors: Mapping[str, Tensor],
        kept: frozenset[str],
    ) -> None:
        self.number = number
        self.frame = frame
        self.stages = {n: program.expressions[n] for n in nest.stages}
        self.shapes: dict[str, tuple[Dim, ...]] = {n: t.shape for n, t in program.inputs}
        self.shapes |= {n: s.shape for n, s in program.stages}
        self.tensors = dict(tensors)
        self.group = nest.group
        #: whether the dim after the group dims is split into cells as well
        self.split = self._splits()
        shape = next(iter(self.stages.values())).shape
        if self.split and len(self.stages) == 1 and interleaves(shape):
            self.split, self.group = False, len(shape) - 2
            self.group = self._whole_rows(shape)
        elif self.split:
            self.group = last_long(shape)
            self.split = (whole := self._whole_rows(shape)) == self.group
            self.group = whole
        self.rows = sympy.expand(sympy.prod(shape[: self.group]))
        self.columns = shape[self.group] if self.split else sympy.Integer(1)
        #: memory for one row: (C pointer, C type, elements)
        self.buffers: list[tuple[str, str, Dim]] = []
        for name, stage in self.stages.items():
            if name not in kept:
                self._keep(name, stage)

    def _splits(self) -> bool:
        """Whether all stages agree in all dims, and their elements are not reductions along rows."""
        stages = list(self.stages.values())
        if any(len(s.shape) != self.group for s in stages) or last_long(stages[0].shape) < 0:
            return False
        return all(along_output(s) for s in stages if s.reduce)

    def _whole_rows(self, shape: Sequence[Dim]) -> int:
        """The first group dims, if those behind them and the last one are few elements, of which a cell then has all: a row's
        indices are computed less often.
        """
        first = self.group
        if len(self.stages) > 1 or any(s.reduce or strides_through(s) for s in self.stages.values()):
            return first
        while first and all(d.is_Integer for d in shape[first - 1 :]) and sympy.prod(shape[first - 1 :]) <= CELL:
            first -= 1
        return first

    def _keep(self, name: str, stage: TensorExpr) -> None:
        """Where the nest keeps a stage: in a variable, or in scratch memory for one row."""
        dtype = value_dtype(stage.dtype)
        tile = stage.shape[self.group :]
        if all(d == 1 for d in tile):
            self.tensors[name] = Tensor("", dtype, ("",) * len(stage.shape), buffer_name(name, "value"))
            return
        pointer = buffer_name(name, "row")
        self.tensors[name] = self.frame.contiguous(pointer, dtype, stage.shape, self.group)
        self.buffers.append((pointer, STORAGE[dtype], sympy.expand(sympy.prod(tile))))

    def work(self) -> Dim:
        """Elements that a row computes and reduces; those of one column where columns are split."""
        total: Dim = sympy.Integer(0)
        for s in self.stages.values():
            tile = () if self.split else s.shape[self.group :]
            total += sympy.prod([*tile, *(d for _, d in s.reduce)])
        return sympy.expand(total)

    def scratch(self) -> str:
        """C text of the bytes of scratch memory that a cell needs."""
        return " + ".join(self._bytes(n, ctype) for _, ctype, n in self.buffers) or "0"

    def _bytes(self, count: Dim, ctype: str) -> str:
        return f"mi_lines({self.frame.dim(count)} * (long)sizeof({ctype}))"

    def emit_split(self) -> list[str]:
        """The C function that says how the nest is split into cells."""
        w = Writer(1)
        work, rows, columns = (self.frame.dim(d) for d in (self.work(), self.rows, self.columns))
        w.line("mi_split s = {1, 1, 1, 1};")
        if self.split:
            stages = self.stages.values()
            least = COLUMNS if any(s.reduce for s in stages) else CELL
            if any(strides_through(s) for s in stages):
                w.line(f"s.columns = {BLOCK};")
            else:
                w.line(f"s.columns = mi_clamp({CELL} / mi_clamp({work}, 1, {CELL}), {least}, {CELL});")
            w.line(f"s.column_cells = mi_blocks({columns}, s.columns);")
            work = f"{work} * mi_least(s.columns, {columns})"
        w.line(f"s.rows = {CELL} / mi_clamp({work}, 1, {CELL});")
        w.line(f"s.row_cells = mi_blocks({rows}, s.rows);")
        w.line("return s;")
        head = [f"static mi_split split_{self.number}(const mi_loops *args)", "{"]
        return without_unused([*head, *(f"    {x}" for x in self.frame.declarations()), *w.lines, "}"])

    def emit_cell(self, pointers: Mapping[str, str]) -> list[str]:
        """The C function of a cell; `pointers` are the declarations of tensors by C name."""
        body = Writer(1)
        self._cell(body)
        used = set(re.findall(r"\w+", "\n".join(body.lines)))
        w = Writer()
        w.comment(f"A cell of {', '.join(self.stages)}.")
        w.line(f"static void cell_{self.number}(void *given, long cell, int thread, void *scratch)")
        w.line("{")
        w.depth += 1
        w.line("mi_loops *const args = given;")
        w.add(["(void)thread;", *([] if self.buffers else ["(void)scratch;"])])
        w.add(self.frame.declarations())
        w.add([declaration for name, declaration in pointers.items() if name in used])
        return without_unused([*w.lines, *body.lines, "}"])

    def _cell(self, w: Writer) -> None:
        at = "0"
        for pointer, ctype, count in self.buffers:
            w.line(f"{ctype} *restrict const {pointer} = ({ctype} *)((char *)scratch + {at});")
            at = f"{at} + {self._bytes(count, ctype)}"
        w.line(f"const mi_split split = split_{self.number}(args);")
        row_cell = "cell"
        if self.split:
            w.line("const long first_column = cell % split.column_cells * split.columns;")
            w.line(f"const long last_column = mi_least(first_column + split.columns, {self.frame.dim(self.columns)});")
            row_cell = "cell / split.column_cells"
        w.line(f"const long first_row = {row_cell} * split.rows;")
        w.line(f"const long last_row = mi_least(first_row + split.rows, {self.frame.dim(self.rows)});")
        with w.block("for (long row = first_row; row < last_row; row++)"):
            group = self._group_indices(w)
            for name, stage in self.stages.items():
                self._stage(name, stage, group, w)

    def _group_indices(self, w: Writer) -> list[str]:
        """Print the indices of a row in the group dims; their C text."""
        shape = next(iter(self.stages.values())).shape[: self.group]
        long = [k for k, d in enumerate(shape) if d != 1]
        names = [f"g{k}" if k in long else "0L" for k in range(self.group)]
        rest = "row"
        for k in reversed(long[1:]):
            extent = self.frame.dim(shape[k])
            w.line(f"const long g{k} = {rest} % {extent};")
            w.line(f"const long rest{k} = {rest} / {extent};")
            rest = f"rest{k}"
        if long:
            w.line(f"const long g{long[0]} = {rest};")
        return names

    def _stage(self, name: str, stage: TensorExpr, group: Sequence[str], w: Writer) -> None:
        w.comment(name)
        loops = dict(zip(stage.loops, group, strict=False))
        loops |= {n: "0L" if d == 1 else loop_name(n) for n, d in stage.extents.items() if n not in loops}
        target = self.tensors[name]
        if target.value:
            w.line(f"{VALUES[target.dtype]} {target.value};")
        x = Expressions(self.frame, self.tensors, self.shapes, stage.extents, loops)
        with w.block():
            StageEmitter(stage, self.group, self.split, x, target, w).emit()
