"""One loop nest as a C function that computes a range of its cells (BladeDISC, sections 4.2 and 5.1).

The group dims of the nest, as one index, are split into cells of enough work each; where every stage is computed
element by element along the last dim, that dim is split, too. Each row runs all stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sympy

from mirage.ir.dims import Dim
from mirage.ir.loops.interpret import identity
from mirage.ir.loops.nests import Nest
from mirage.ir.loops.program import LoopProgram, TensorExpr
from mirage.ir.loops.scalars import (
    COMPARISONS,
    Binary,
    Loop,
    Scalar,
    Select,
    constant,
    loops_of,
    reads_of,
    value_dtype,
    walk,
)
from mirage.ir.loops.simplify import Affine, is_index, resolve
from mirage.kernels.cpu.loops.expressions import Env, Expressions, constant_text, contiguous_reads
from mirage.kernels.cpu.loops.frame import STORAGE, VALUES, Frame, Tensor, loop_name
from mirage.kernels.cpu.writer import Writer, without_unused

#: elements that a cell computes at least, where there are so many
CELL = 16384
#: of them along the last dim, where a stage reduces others: so many columns at a time
COLUMNS = 256
#: conditions on a loop's index at which its range is split
_MOST_SPLITS = 3

_VECTOR_COMBINE = {
    "sum": "{a} + {b}",
    "prod": "{a} * {b}",
    "max": "mi_maximum({a}, {b})",
    "min": "mi_minimum({a}, {b})",
}
_HORIZONTAL = {"sum": "mi_hsum", "prod": "mi_hproduct", "max": "mi_hmaximum", "min": "mi_hminimum"}


class NestEmitter:
    """Prints a nest. `tensors` are those that the nest reads or writes in memory; it adds its own buffers."""

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
        self.program = program
        self.frame = frame
        self.stages = {n: program.expressions[n] for n in nest.stages}
        self.shapes: dict[str, tuple[Dim, ...]] = {n: t.shape for n, t in program.inputs}
        self.shapes |= {n: s.shape for n, s in program.stages}
        self.tensors = dict(tensors)
        self.group = nest.group
        #: whether the last dim of all stages is split into cells as well
        self.split = False
        self._choose_group()
        #: buffers: (C pointer, C type, elements)
        self.buffers: list[tuple[str, str, Dim]] = []
        for name, stage in self.stages.items():
            if name not in kept:
                self._buffer(name, stage)
        first = next(iter(self.stages.values()))
        self.rows = sympy.expand(sympy.prod(first.shape[: self.group]))
        self.columns = first.shape[self.group] if self.split else sympy.Integer(1)

    def _choose_group(self) -> None:
        """Where stages agree in all dims, rows are of the last one, unless its elements are reductions along rows."""
        stages = list(self.stages.values())
        if self.group == 0 or any(len(s.shape) != self.group for s in stages):
            return
        reductions = [s for s in stages if s.reduce]
        along = [self._along_output(s, self._probe(s)) for s in reductions]
        if all(along) or (any(along) and len(along) == 1):
            self.group -= 1
            self.split = True

    def _probe(self, stage: TensorExpr) -> Expressions:
        """Expressions in which every tensor is in memory."""
        tensors = {
            n: Tensor("", "float32", tuple("1L" if k == len(s) - 1 else "n" for k in range(len(s))))
            for n, s in self.shapes.items()
        }
        return Expressions(self.frame, tensors, self.shapes, stage.extents, {})

    def _along_output(self, stage: TensorExpr, expressions: Expressions) -> bool:
        """Whether a reduction is vectorized along its last output loop rather than its last reduction loop."""
        if not stage.loops or stage.shape[-1] == 1:
            return False
        own = contiguous_reads(stage.body, stage.loops[-1], expressions)
        return own > contiguous_reads(stage.body, stage.reduce[-1][0], expressions)

    def _buffer(self, name: str, stage: TensorExpr) -> None:
        """Where the nest keeps a stage: in a variable, or in scratch memory for one row."""
        dtype = value_dtype(stage.dtype)
        tile = stage.shape[self.group :]
        if all(d == 1 for d in tile):
            self.tensors[name] = Tensor("", dtype, ("",) * len(stage.shape), f"{_c(name)}_value")
            return
        pointer = f"{_c(name)}_row"
        self.tensors[name] = self.frame.contiguous(pointer, dtype, stage.shape, self.group)
        self.buffers.append((pointer, STORAGE[dtype], sympy.expand(sympy.prod(tile))))

    # ---- the function ----

    def emit(self, pointers: Sequence[str]) -> list[str]:
        """The C functions of the nest; `pointers` declare the tensors."""
        body = Writer(1)
        self._rows(body)
        text = "\n".join(body.lines)
        w = Writer()
        w.comment(f"Cells of {', '.join(self.stages)}.")
        w.line(f"static void cell_{self.number}(void *given, long cell, int thread, void *scratch)")
        with w.block():
            w.line("mi_loops *const args = given;")
            w.line("(void)thread;")
            w.line("(void)scratch;")
            w.add(self.frame.declarations())
            w.add(
                [
                    p
                    for p in pointers
                    if f"{p.split(' = ')[0].split()[-1].lstrip('*')} " in text
                    or f"{p.split(' = ')[0].split()[-1].lstrip('*')}[" in text
                ]
            )
        w.lines[-1:] = [*body.lines, "}"]
        return without_unused(w.lines)

    def work(self) -> Dim:
        """Elements that a row computes, with those that it reduces."""
        total: Dim = sympy.Integer(0)
        for s in self.stages.values():
            tile = s.shape[self.group :]
            total += sympy.prod([*(tile[:-1] if self.split else tile), *(d for _, d in s.reduce)])
        return sympy.expand(total)

    def scratch(self) -> str:
        """C text of the bytes of scratch memory that a cell needs."""
        sizes = [f"mi_lines({self.frame.dim(n)} * (long)sizeof({ctype}))" for _, ctype, n in self.buffers]
        return " + ".join(sizes) or "0"

    def _rows(self, w: Writer) -> None:
        at = "0"
        for pointer, ctype, count in self.buffers:
            w.line(f"{ctype} *restrict const {pointer} = ({ctype} *)((char *)scratch + {at});")
            at = f"{at} + mi_lines({self.frame.dim(count)} * (long)sizeof({ctype}))"
        w.line(f"const mi_split split = split_{self.number}(args);")
        if self.split:
            w.line("const long first_column = cell % split.column_cells * split.columns;")
            w.line(f"const long last_column = mi_least(first_column + split.columns, {self.frame.dim(self.columns)});")
            w.line("const long first_row = cell / split.column_cells * split.rows;")
        else:
            w.line("const long first_row = cell * split.rows;")
        w.line(f"const long last_row = mi_least(first_row + split.rows, {self.frame.dim(self.rows)});")
        with w.block("for (long row = first_row; row < last_row; row++)"):
            first = next(iter(self.stages.values()))
            loops = [f"g{k}" for k in range(self.group)]
            if self.group:
                rest = "row"
                for k in reversed(range(1, self.group)):
                    extent = self.frame.dim(first.shape[k])
                    w.line(f"const long g{k} = {rest} % {extent};")
                    w.line(f"const long rest{k} = {rest} / {extent};")
                    rest = f"rest{k}"
                w.line(f"const long g0 = {rest};")
                w.line(" ".join(f"(void)g{k};" for k in range(self.group)))
            for name, stage in self.stages.items():
                self._stage(name, stage, loops, w)

    # ---- a stage ----

    def _stage(self, name: str, stage: TensorExpr, group: Sequence[str], w: Writer) -> None:
        w.comment(name)
        loops = dict(zip(stage.loops, group, strict=False))
        loops |= {n: "0L" if d == 1 else loop_name(n) for n, d in stage.extents.items() if n not in loops}
        x = Expressions(self.frame, self.tensors, self.shapes, stage.extents, loops)
        t = self.tensors[name]
        value = t.value
        if value:
            w.line(f"{VALUES[t.dtype]} {value};")
        with w.block():
            StageEmitter(self, stage, x, t, w).emit()

    def range(self, loop: str, extent: str, stage: TensorExpr) -> tuple[str, str]:
        """C text of the first index of a loop in a cell and of the one behind its last."""
        if self.split and stage.loops[-1] == loop:
            return "first_column", "last_column"
        return "0L", extent


class StageEmitter:
    """Prints one stage for one row: loops over its tile dims, vectorized along one where the body allows."""

    def __init__(self, nest: NestEmitter, stage: TensorExpr, x: Expressions, target: Tensor, w: Writer) -> None:
        self.nest = nest
        self.frame = nest.frame
        self.stage = stage
        self.x = x
        self.target = target
        self.w = w
        self.index = tuple(Loop(n) for n in stage.loops)
        self.tile = [n for n, d in zip(stage.loops, stage.shape, strict=True) if d != 1][0:]
        self.tile = [n for k, n in enumerate(stage.loops) if k >= nest.group and stage.shape[k] != 1]

    def emit(self) -> None:
        if not self.stage.reduce:
            self._map()
        elif self.tile and self.nest._along_output(self.stage, self.x):
            self._reduce_along_output()
        else:
            self._reduce()

    def _loops(self, names: Sequence[str], inner: Callable[[], None]) -> None:
        """Plain loops around `inner`."""
        if not names:
            inner()
            return
        n = names[0]
        if self.stage.extents[n] == 1:
            self._loops(names[1:], inner)
            return
        first, last = self.nest.range(n, self.frame.dim(self.stage.extents[n]), self.stage)
        i = self.x.loops[n]
        with self.w.block(f"for (long {i} = {first}; {i} < {last}; {i}++)"):
            self._loops(names[1:], inner)

    def _pieces(
        self,
        body: Scalar,
        loop: str,
        first: str,
        last: str,
        piece: Callable[[Scalar, str, str], None],
        left: int = _MOST_SPLITS,
    ) -> None:
        """Print a loop's range in pieces in each of which choices by the loop's index are made."""
        found = self._condition(body, loop) if left else None
        if found is None:
            piece(body, first, last)
            return
        condition, point, below = found
        at = self.frame.local("split")
        self.w.line(f"const long {at} = mi_clamp({self.x.scalar(point, self.w, {})}, {first}, {last});")
        for begin, end, holds in ((first, at, below), (at, last, not below)):
            with self.w.block():
                self._pieces(resolve(body, condition, holds), loop, begin, end, piece, left - 1)

    def _condition(self, body: Scalar, loop: str) -> tuple[Scalar, Scalar, bool] | None:
        """A comparison that chooses by the loop's index: it, the index from which on it changes, whether it holds below."""
        for s in walk(body):
            if not isinstance(s, Select) or loop not in loops_of(s.condition):
                continue
            for c in walk(s.condition):
                if not (isinstance(c, Binary) and c.op in COMPARISONS and is_index(c.left) and is_index(c.right)):
                    continue
                affine = Affine.of(c.left).plus(Affine.of(c.right).scaled(sympy.Integer(-1)))
                step = affine.terms.get(Loop(loop))
                rest = Affine({a: k for a, k in affine.terms.items() if a is not Loop(loop)}, affine.const)
                if step not in (1, -1) or any(loop in loops_of(a) for a in rest.terms) or c.op in ("eq", "ne"):
                    continue
                if any(reads_of(a) for a in rest.terms):
                    continue
                # below `point`: loop < point, where loop + rest < 0 or rest - loop > 0
                inclusive = c.op in (("le", "gt") if step == 1 else ("lt", "ge"))
                point = rest.scaled(sympy.Integer(-1)) if step == 1 else rest
                if inclusive:
                    point = point.plus(Affine({}, sympy.Integer(1)))
                below = c.op in (("lt", "le") if step == 1 else ("gt", "ge"))
                return c, point.scalar(), below
        return None

    def _invariants(self, body: Scalar, loop: str) -> Env:
        env: Env = {}
        for n in self.x.invariants(body, loop):
            self.x.scalar(n, self.w, env)
        return env

    # ---- without a reduction ----

    def _map(self) -> None:
        if self.target.value or not self.tile:
            self._loops(self.tile, self._element)
            return
        *outer, loop = self.tile
        self._loops(outer, lambda: self._row(loop))

    def _element(self) -> None:
        env: Env = {}
        self._put(self.x.scalar(self.stage.body, self.w, env), env)

    def _put(self, value: str, env: Env) -> None:
        if self.target.value:
            self.w.line(f"{self.target.value} = {value};")
        else:
            self.x.store(self.target, self.index, value, self.w, env, None)

    def _row(self, loop: str) -> None:
        first, last = self.nest.range(loop, self.frame.dim(self.stage.extents[loop]), self.stage)
        self._pieces(self.stage.body, loop, first, last, lambda body, a, b: self._map_piece(body, loop, a, b))

    def _map_piece(self, body: Scalar, loop: str, first: str, last: str) -> None:
        w, i = self.w, self.x.loops[loop]
        known = self._invariants(body, loop)
        if not (self._vector_target(loop) and self.x.vectorizable(body, loop) and self._worth(body, loop)):
            with w.block(f"for (long {i} = {first}; {i} < {last}; {i}++)"):
                env = dict(known)
                self._put(self.x.scalar(body, w, env), env)
            return
        w.line(f"long {i} = {first};")
        with w.block(f"for (; {i} + MI_W <= {last}; {i} += MI_W)"):
            env = dict(known)
            value = self.x.vector(body, w, env, loop, "")
            self.x.store(self.target, self.index, value, w, env, "")
        with w.block(f"if ({i} < {last})"):
            w.line(f"const int lanes = (int)({last} - {i});")
            env = dict(known)
            value = self.x.vector(body, w, env, loop, "lanes")
            self.x.store(self.target, self.index, value, w, env, "lanes")

    def _vector_target(self, loop: str) -> bool:
        """Whether a vector along the loop is stored as one."""
        t = self.target
        if t.dtype not in (self.frame.real, self.frame.half, "bool", "int32", "int64"):
            return False
        return bool(t.strides) and t.strides[-1] == "1L" and self.stage.loops[-1] == loop

    def _worth(self, body: Scalar, loop: str) -> bool:
        """Whether the body has floating-point numbers: the compiler vectorizes loops over integers and booleans itself."""
        return any(n.dtype == self.frame.real for n in walk(body)) or loop not in loops_of(body)

    # ---- reductions ----

    def _reduce(self) -> None:
        self._loops(self.tile, self._reduce_element)

    def _identity(self) -> str:
        dtype = self.stage.body.dtype if not self.stage.combiner.startswith("arg") else "int64"
        return constant_text(constant(identity(self.stage.combiner, self._result_dtype()), dtype))

    def _result_dtype(self) -> str:
        return "int64" if self.stage.combiner.startswith("arg") else self.stage.body.dtype

    def _reduce_element(self) -> None:
        """One element: vectors along the innermost reduction loop, in several partial results."""
        w, combiner = self.w, self.stage.combiner
        *outer, loop = [r for r, _ in self.stage.reduce]
        if (
            self.stage.extents[loop] == 1
            or combiner not in _VECTOR_COMBINE
            or not self._vector_reduction(self.stage.body, loop)
        ):
            self._reduce_plainly()
            return
        initial = self._identity()
        w.line("mi_vec parts[MI_PARTS];")
        w.line(f"MI_UNROLL for (int part = 0; part < MI_PARTS; part++) parts[part] = mi_broadcast({initial});")

        def run() -> None:
            extent = self.frame.dim(self.stage.extents[loop])
            self._pieces(
                self.stage.body, loop, "0L", extent, lambda body, a, b: self._reduce_piece(body, loop, a, b, initial)
            )

        self._loops(outer, run)
        both = [_VECTOR_COMBINE[combiner].format(a=f"parts[{k}]", b=f"parts[{k + 1}]") for k in (0, 2)]
        total = f"{_HORIZONTAL[combiner]}({_VECTOR_COMBINE[combiner].format(a=both[0], b=both[1])})"
        self._put(total, {})

    def _vector_reduction(self, body: Scalar, loop: str) -> bool:
        return self.stage.body.dtype == self.frame.real and self._pieces_vectorizable(body, loop, _MOST_SPLITS)

    def _pieces_vectorizable(self, body: Scalar, loop: str, left: int) -> bool:
        found = self._condition(body, loop) if left else None
        if found is None:
            return self.x.vectorizable(body, loop)
        return all(self._pieces_vectorizable(resolve(body, found[0], holds), loop, left - 1) for holds in (True, False))

    def _reduce_piece(self, body: Scalar, loop: str, first: str, last: str, initial: str) -> None:
        w, i, combine = self.w, self.x.loops[loop], _VECTOR_COMBINE[self.stage.combiner]
        known = self._invariants(body, loop)
        w.line(f"long {i} = {first};")
        with w.block(f"for (; {i} + MI_PARTS * MI_W <= {last}; {i} += MI_PARTS * MI_W)"):
            with w.block("MI_UNROLL for (int part = 0; part < MI_PARTS; part++)"):
                self.x.loops[loop] = f"({i} + part * MI_W)"
                value = self.x.vector(body, w, dict(known), loop, "")
                w.line(f"parts[part] = {combine.format(a='parts[part]', b=value)};")
                self.x.loops[loop] = i
        with w.block(f"for (; {i} < {last}; {i} += MI_W)"):
            w.line(f"const int lanes = (int)mi_least({last} - {i}, MI_W);")
            value = self.x.vector(body, w, dict(known), loop, "lanes")
            w.line(f"const mi_vec rest = mi_fill_tail({value}, lanes, mi_broadcast({initial}));")
            w.line(f"parts[0] = {combine.format(a='parts[0]', b='rest')};")

    def _reduce_plainly(self) -> None:
        """One element, one step at a time."""
        w, combiner = self.w, self.stage.combiner
        result, dtype = self.frame.local("result"), self._result_dtype()
        w.line(f"{VALUES[dtype]} {result} = {self._identity()};")
        best = ""
        if combiner.startswith("arg"):
            best = self.frame.local("best")
            w.line(f"{VALUES[self.stage.body.dtype]} {best} = 0;")

        def step() -> None:
            env: Env = {}
            value = self.x.scalar(self.stage.body, w, env)
            if best:
                i = self.x.loops[self.stage.reduce[0][0]]
                relation = ">" if combiner == "argmax" else "<"
                # the first NaN is the extreme of all
                w.line(f"if ({i} == 0 || (!({best} != {best}) && ({value} {relation} {best} || {value} != {value})))")
                with w.block():
                    w.line(f"{best} = {value};")
                    w.line(f"{result} = {i};")
            else:
                w.line(f"{result} = {self._combined(result, value)};")

        self._loops([r for r, _ in self.stage.reduce], step)
        self._put(result, {})

    def _combined(self, a: str, b: str) -> str:
        combiner, dtype = self.stage.combiner, self.stage.body.dtype
        if combiner in ("any", "all"):
            return f"{a} {'|' if combiner == 'any' else '&'} {b}"
        if dtype.startswith("float"):
            named = {"max": "mi_maximum", "min": "mi_minimum"}
            return (
                f"{named[combiner]}_{VALUES[dtype]}({a}, {b})"
                if combiner in named
                else f"{a} {'+' if combiner == 'sum' else '*'} {b}"
            )
        bits = "32" if dtype == "int32" else "64"
        if combiner in ("sum", "prod"):
            return f"mi_{'add' if combiner == 'sum' else 'mul'}{bits}({a}, {b})"
        return f"{a} {'>' if combiner == 'max' else '<'} {b} ? {a} : {b}"

    def _reduce_along_output(self) -> None:
        """Elements along the last output loop at once, each vector of them with a result of its own."""
        w, combiner = self.w, self.stage.combiner
        *outer, loop = self.tile
        body = self.stage.body
        fits = self._vector_target(loop) and combiner in _VECTOR_COMBINE and body.dtype == self.frame.real
        if not fits or not self.x.vectorizable(body, loop):
            self._loops(self.tile, self._reduce_plainly)
            return
        combine, initial = _VECTOR_COMBINE[combiner], self._identity()
        i = self.x.loops[loop]
        reduce = [r for r, _ in self.stage.reduce]

        def columns() -> None:
            first, last = self.nest.range(loop, self.frame.dim(self.stage.extents[loop]), self.stage)
            w.line(f"long {i} = {first};")
            with w.block(f"for (; {i} + MI_PARTS * MI_W <= {last}; {i} += MI_PARTS * MI_W)"):
                w.line("mi_vec parts[MI_PARTS];")
                w.line(f"MI_UNROLL for (int part = 0; part < MI_PARTS; part++) parts[part] = mi_broadcast({initial});")
                self.x.loops[loop] = f"({i} + part * MI_W)"

                def step() -> None:
                    known = self._invariants(body, loop)
                    with w.block("MI_UNROLL for (int part = 0; part < MI_PARTS; part++)"):
                        value = self.x.vector(body, w, known, loop, "")
                        w.line(f"parts[part] = {combine.format(a='parts[part]', b=value)};")

                self._loops(reduce, step)
                with w.block("MI_UNROLL for (int part = 0; part < MI_PARTS; part++)"):
                    self.x.store(self.target, self.index, "parts[part]", w, {}, "")
                self.x.loops[loop] = i
            with w.block(f"for (; {i} < {last}; {i} += MI_W)"):
                w.line(f"const int lanes = (int)mi_least({last} - {i}, MI_W);")
                w.line(f"mi_vec total = mi_broadcast({initial});")

                def rest() -> None:
                    value = self.x.vector(body, w, self._invariants(body, loop), loop, "lanes")
                    w.line(f"total = {combine.format(a='total', b=value)};")

                self._loops(reduce, rest)
                self.x.store(self.target, self.index, "total", w, {}, "lanes")

        self._loops(outer, columns)


def _c(name: str) -> str:
    return "".join(c if (c.isalnum() and c.isascii()) or c == "_" else "_" for c in name)
