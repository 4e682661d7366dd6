"""One stage for one row of its nest: loops over its tile dims, vectorized along one of them or along a reduction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce

import sympy

from mirage.ir.loops.interpret import identity
from mirage.ir.loops.program import TensorExpr
from mirage.ir.loops.scalars import COMPARISONS, Binary, Loop, Read, Scalar, Select, constant, logical_and, size
from mirage.ir.loops.simplify import Affine, is_index, nonnegative, resolve, simplify
from mirage.ir.loops.split import interleaves
from mirage.ir.loops.traverse import loops_of, reads_of, substitute, walk
from mirage.kernels.cpu.emit.folds import COMBINE, EACH_PART, of_parts
from mirage.kernels.cpu.emit.writer import Writer
from mirage.kernels.cpu.loops.access import along_output
from mirage.kernels.cpu.loops.expressions import Env, Expressions, constant_text
from mirage.kernels.cpu.loops.frame import VALUES, Tensor
from mirage.kernels.cpu.loops.inverses import invertible, with_inverses

#: conditions on a loop's index at which its range is split
_MOST_SPLITS = 3

#: the reductions whose result the indices found are of
_VALUE_OF = {"argmax": "max", "argmin": "min"}


class StageEmitter:
    """Prints one stage for one row: loops over its tile dims, vectorized along one where the body allows."""

    def __init__(self, stage: TensorExpr, group: int, split: bool, x: Expressions, target: Tensor, w: Writer) -> None:
        self.frame = x.frame
        self.stage = stage
        self.split = split
        self.x = x
        self.target = target
        self.w = w
        self.index = tuple(Loop(n) for n in stage.loops)
        #: output loops that a row runs
        self.tile = [n for k, n in enumerate(stage.loops) if k >= group and stage.shape[k] != 1]

    def emit(self) -> None:
        if not self.stage.reduce:
            self._map()
        elif self.tile and along_output(self.stage):
            self._reduce_along_output()
        else:
            self._reduce()

    def _range(self, loop: str) -> tuple[str, str]:
        """C text of the first index of a loop, and of the one behind its last."""
        if self.split and self.tile == [loop]:
            return "first_column", "last_column"
        return "0L", self.frame.dim(self.stage.extents[loop])

    def _loops(self, names: Sequence[str], inner: Callable[[], None]) -> None:
        """Plain loops around `inner`."""
        if not names:
            inner()
            return
        n = names[0]
        if self.stage.extents[n] == 1:
            self._loops(names[1:], inner)
            return
        first, last = self._range(n)
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
        for c, least in _choices(body, loop):
            step, rest = least.terms[Loop(loop)], _without(least, loop)
            if step == 1:
                return c, rest.scaled(sympy.Integer(-1)).scalar(), False
            if step == -1:
                return c, rest.plus(Affine({}, sympy.Integer(1))).scalar(), True
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
        if outer and interleaves([self.stage.extents[n] for n in self.tile]):
            *outer, around = outer
            self._loops(outer, lambda: self._written_out(around, loop))
            return
        self._loops(outer, lambda: self._row(loop))

    def _written_out(self, loop: str, short: str) -> None:
        """The elements of a short loop one after the other within a longer one: compilers make interleaved vectors of them."""

        def piece(body: Scalar, first: str, last: str) -> None:
            i = self.x.loops[loop]
            if isinstance(body, Select) and not {loop, short} & loops_of(body.condition):
                condition = self.x.scalar(body.condition, self.w, {})
                for head, chosen in ((f"if ({condition})", body.then), ("else", body.orelse)):
                    with self.w.block(head):
                        piece(chosen, first, last)
                return
            with self.w.block(f"for (long {i} = {first}; {i} < {last}; {i}++)"):
                for k in range(int(self.stage.extents[short])):
                    at = {short: size(k)}
                    value = simplify(substitute(body, at), self.stage.extents)
                    env: Env = {}
                    text = self.x.scalar(value, self.w, env)
                    self.x.store(self.target, tuple(substitute(n, at) for n in self.index), text, self.w, env, None)

        self._pieces(self.stage.body, loop, *self._range(loop), piece)

    def _element(self) -> None:
        env: Env = {}
        self._put(self.x.scalar(self.stage.body, self.w, env), env)

    def _put(self, value: str, env: Env) -> None:
        if self.target.value:
            self.w.line(f"{self.target.value} = {value};")
        else:
            self.x.store(self.target, self.index, value, self.w, env, None)

    def _row(self, loop: str) -> None:
        first, last = self._range(loop)
        self._pieces(self.stage.body, loop, first, last, lambda body, a, b: self._map_piece(body, loop, a, b))

    def _map_piece(self, body: Scalar, loop: str, first: str, last: str) -> None:
        w, i = self.w, self.x.loops[loop]
        if not (self._vector_target(loop) and self.x.vectorizable(body, loop) and self._worth(body, loop)):
            known = self._invariants(body, loop)
            with w.block(f"for (long {i} = {first}; {i} < {last}; {i}++)"):
                env = dict(known)
                self._put(self.x.scalar(body, w, env), env)
            return
        self._inverted(body, loop, lambda inverted: self._map_vectors(inverted, loop, first, last))

    def _inverted(self, body: Scalar, loop: str, vectors: Callable[[Scalar], None]) -> None:
        """Print vectors of the body with inverses, where all of its divisors have one, else with quotients."""
        inverted, divisors = with_inverses(body, loop)
        if not divisors:
            vectors(inverted)
            return
        with self.w.block():
            condition = self.x.scalar(reduce(logical_and, map(invertible, divisors)), self.w, {})
            for head, form in ((f"if ({condition})", inverted), ("else", body)):
                with self.w.block(head):
                    vectors(form)

    def _map_vectors(self, body: Scalar, loop: str, first: str, last: str) -> None:
        w, i = self.w, self.x.loops[loop]
        known = self._invariants(body, loop)
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
        return t.strides[self.stage.loops.index(loop)] == "1L"

    def _worth(self, body: Scalar, loop: str) -> bool:
        """Whether the body has floating-point numbers: the compiler vectorizes loops over integers and booleans itself."""
        return any(n.dtype == self.frame.real for n in walk(body)) or loop not in loops_of(body)

    # ---- reductions ----

    def _reduce(self) -> None:
        self._loops(self.tile, self._reduce_element)

    def _identity(self) -> str:
        dtype = self._result_dtype()
        return constant_text(constant(identity(self.stage.combiner, dtype), dtype))

    def _result_dtype(self) -> str:
        return "int64" if self.stage.combiner.startswith("arg") else self.stage.body.dtype

    def _reduce_element(self) -> None:
        """One element: vectors along the innermost reduction loop, in several partial results."""
        combiner = _VALUE_OF.get(self.stage.combiner, self.stage.combiner)
        loop = self.stage.reduce[-1][0]
        if (
            self.stage.extents[loop] == 1
            or combiner not in COMBINE
            or not self._vector_reduction(self.stage.body, loop)
        ):
            self._reduce_plainly()
        elif combiner == self.stage.combiner:
            self._put(self._reduce_vectors(combiner), {})
        elif isinstance(self.stage.body, Read):
            self._find(self._reduce_vectors(combiner))
        else:
            # computed twice, a value may be rounded in two ways
            self._reduce_plainly()

    def _reduce_vectors(self, combiner: str) -> str:
        """C text of the reduction of all elements to a number."""
        w = self.w
        *outer, loop = [r for r, _ in self.stage.reduce]
        dtype = self.stage.body.dtype
        initial = constant_text(constant(identity(combiner, dtype), dtype))
        combine = COMBINE[combiner]
        w.line("mi_vec parts[MI_PARTS];")
        w.line(f"{EACH_PART} parts[part] = mi_broadcast({initial});")

        def run() -> None:
            extent = self.frame.dim(self.stage.extents[loop])

            def piece(body: Scalar, first: str, last: str) -> None:
                self._inverted(body, loop, lambda form: self._reduce_piece(form, loop, first, last, initial, combine))

            self._pieces(self.stage.body, loop, "0L", extent, piece)

        self._loops(outer, run)
        return of_parts(combiner, "parts")

    def _find(self, extreme: str) -> None:
        """The first index at which the elements are the extreme one; a NaN is that of all."""
        w, loop = self.w, self.stage.reduce[0][0]
        best, result = self.frame.local("best"), self.frame.local("result")
        w.line(f"const {VALUES[self.stage.body.dtype]} {best} = {extreme};")
        w.line(f"long {result} = 0;")
        i = self.x.loops[loop]
        with w.block(f"for (long {i} = 0; {i} < {self.frame.dim(self.stage.extents[loop])}; {i}++)"):
            value = self.x.scalar(self.stage.body, w, {})
            with w.block(f"if ({value} == {best} || {value} != {value})"):
                w.line(f"{result} = {i};")
                w.line("break;")
        self._put(result, {})

    def _vector_reduction(self, body: Scalar, loop: str) -> bool:
        return self.stage.body.dtype == self.frame.real and self._pieces_vectorizable(body, loop, _MOST_SPLITS)

    def _pieces_vectorizable(self, body: Scalar, loop: str, left: int) -> bool:
        found = self._condition(body, loop) if left else None
        if found is None:
            return self.x.vectorizable(body, loop)
        return all(self._pieces_vectorizable(resolve(body, found[0], holds), loop, left - 1) for holds in (True, False))

    def _reduce_piece(self, body: Scalar, loop: str, first: str, last: str, initial: str, combine: str) -> None:
        w, i = self.w, self.x.loops[loop]
        known = self._invariants(body, loop)
        w.line(f"long {i} = {first};")
        with w.block(f"for (; {i} + MI_PARTS * MI_W <= {last}; {i} += MI_PARTS * MI_W)"), w.block(EACH_PART):
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
        body: Scalar = self.stage.body
        inside: list[Affine] = []
        if not self.x.vectorizable(body, loop):
            body, inside = self._inside(loop)
        fits = self._vector_target(loop) and combiner in COMBINE and body.dtype == self.frame.real
        if not fits or not self.x.vectorizable(body, loop):
            self._loops(self.tile, self._reduce_plainly)
            return
        combine, initial = COMBINE[combiner], self._identity()
        i = self.x.loops[loop]
        reduce = [r for r, _ in self.stage.reduce]

        def columns() -> None:
            first, end = self._range(loop)
            w.line(f"long {i} = {first};")
            begin, last = self._inner_range(inside, loop, first, end)
            if begin != first:
                with w.block(f"for (; {i} < {begin}; {i}++)"):
                    self._reduce_plainly()
            with w.block(f"for (; {i} + MI_PARTS * MI_W <= {last}; {i} += MI_PARTS * MI_W)"):
                w.line("mi_vec parts[MI_PARTS];")
                w.line(f"{EACH_PART} parts[part] = mi_broadcast({initial});")
                self.x.loops[loop] = f"({i} + part * MI_W)"

                def step() -> None:
                    known = self._invariants(body, loop)
                    with w.block(EACH_PART):
                        value = self.x.vector(body, w, known, loop, "")
                        w.line(f"parts[part] = {combine.format(a='parts[part]', b=value)};")

                self._loops(reduce, step)
                with w.block(EACH_PART):
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
            if last != end:
                with w.block(f"for ({i} = {last}; {i} < {end}; {i}++)"):
                    self._reduce_plainly()

        self._loops(outer, columns)

    def _inside(self, loop: str) -> tuple[Scalar, list[Affine]]:
        """The body of a reduction where each choice by an output loop's index is the same for all elements reduced, that of an
        element within the tensor; and what is at least 0 there.
        """
        body, found = self.stage.body, []
        while choice := next(((c, a) for c, a in map(self._for_all, _choices(body, loop)) if a is not None), None):
            found.append(choice[1])
            body = resolve(body, choice[0], True)
        return body, found

    def _for_all(self, choice: tuple[Binary, Affine]) -> tuple[Binary, Affine | None]:
        """A choice, and its index expression where it is least among all elements reduced; None where that is not known."""
        c, a = choice
        for r, extent in self.stage.reduce:
            factor = a.terms.get(Loop(r), sympy.Integer(0))
            if not nonnegative(factor):
                if not nonnegative(-factor):
                    return c, None
                a = a.plus(Affine({}, factor * (extent - 1)))
            a = _without(a, r)
        reduced = {r for r, _ in self.stage.reduce}
        return c, None if any(reduced & loops_of(t) for t in a.terms) else a

    def _inner_range(self, least: Sequence[Affine], loop: str, first: str, last: str) -> tuple[str, str]:
        """Print the part of a loop's range in which these are at least 0: C text of where it begins and ends."""
        for a in least:
            factor, rest = a.terms[Loop(loop)], _without(a, loop)
            text = self.x.scalar(rest.scalar(), self.w, {})
            at = self.frame.local("at")
            if factor > 0:
                self.w.line(f"const long {at} = mi_clamp(-mi_floordiv64({text}, {factor}), {first}, {last});")
                first = at
            else:
                self.w.line(f"const long {at} = mi_clamp(mi_floordiv64({text}, {-factor}) + 1, {first}, {last});")
                last = at
        return first, last


def _without(a: Affine, loop: str) -> Affine:
    return Affine({t: k for t, k in a.terms.items() if t is not Loop(loop)}, a.const)


def _choices(body: Scalar, loop: str) -> Iterator[tuple[Binary, Affine]]:
    """The comparisons that choose by a number of times a loop's index, each with what is at least 0 where it holds."""
    for s in walk(body):
        if not isinstance(s, Select) or loop not in loops_of(s.condition):
            continue
        for c in walk(s.condition):
            if not (isinstance(c, Binary) and c.op in COMPARISONS and is_index(c.left) and is_index(c.right)):
                continue
            if c.op in ("eq", "ne"):
                continue
            below, above = (c.left, c.right) if c.op in ("lt", "le") else (c.right, c.left)
            less = Affine.of(below).scaled(sympy.Integer(-1))
            least = Affine.of(above).plus(less).plus(Affine({}, sympy.Integer(-1 if c.op in ("lt", "gt") else 0)))
            rest = _without(least, loop).terms
            step = least.terms.get(Loop(loop))
            if step is None or not step.is_Integer:
                continue
            if not any(loop in loops_of(t) or reads_of(t) for t in rest):
                yield c, least
