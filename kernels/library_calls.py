"""A program over named axes as a plan of array calls, NumPy's or another library's.

Over named axes a repeat costs nothing: an axis that an operand of a matmul lacks is folded into the rows or
columns of the other one (grouped-query attention is one batched matmul; Mirage, Fig. 4c). Arrays keep the
layout that they come in, and a transposed operand reaches BLAS as a view.

`Arrays` is what a plan calls: those of another library take NumPy's place with one of their own
(`mirage.kernels.cuda.library.program`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

import numpy as np
import sympy

from mirage.errors import MirageError
from mirage.ir.axes import AxisNode, AxisProgram, stored_dtypes
from mirage.ir.dims import evaluate
from mirage.ir.functions import EXP, ScalarFunction
from mirage.ir.operator import Elementwise, get_operator
from mirage.ir.types import DTYPES, compute_dtype

#: elements that are reduced to one, at most, and elements of an array from which on they are taken one after the other
FEW, MANY = 16, 1024

Axes = tuple[str, ...]
Extents = Mapping[str, int]
View = Callable[[Any], Any]


class Arrays:
    """The functions of arrays that plans call: NumPy's, and the signatures that another library's must have."""

    def __init__(self, module: Any = np) -> None:
        self.xp = module

    def elementwise(self, ufunc: np.ufunc) -> Callable[..., Any]:
        """What NumPy's function is here, called with arrays, scalars and `out`."""
        return ufunc

    def reduction(self, ufunc: np.ufunc, dtype: np.dtype, initial: float | None) -> Callable[..., Any]:
        """What folds an array with NumPy's function, from `initial` on, called with it, `axis` and `out`."""
        return partial(_reduced, ufunc, dtype, None if initial is None else dtype.type(initial))

    def function(self, fn: ScalarFunction, params: Sequence[Fraction], dtype: np.dtype) -> Callable[[Any], Any]:
        """A scalar function of arrays of that type; its result may be its argument."""
        values = tuple(float(p) for p in params)
        return lambda x: np.asarray(fn.numpy(x, *values), dtype=dtype)

    def matmul(self, x: Any, y: Any, out: Any = None) -> Any:
        """The batched product of matrices, in `out` if given."""
        return np.matmul(x, y, out=out)


def _reduced(
    ufunc: np.ufunc, dtype: np.dtype, initial: Any, x: np.ndarray, axis: tuple[int, ...], out: np.ndarray | None = None
) -> Any:
    """What NumPy's reduction gives, which goes through the axes of a few elements one by one: it is 2 to 40 times as slow as this
    where there are many such.
    """
    extents = [x.shape[a] for a in axis]
    if x.size < MANY or not 1 < prod(extents) <= FEW or x.dtype != dtype:
        more = {} if initial is None else {"initial": initial}
        return ufunc.reduce(x, axis=axis, dtype=dtype, out=out, **more)
    order = [*axis, *(a for a in range(x.ndim) if a not in axis)]
    first, second, *others = (x.transpose(order)[i] for i in np.ndindex(*extents))
    found = ufunc(first, second, out=out)
    for part in others:
        found = ufunc(found, part, out=found)
    return found if initial is None else ufunc(found, initial, out=found)


#: the functions of NumPy
NUMPY = Arrays()


@dataclass
class Step:
    """One NumPy call. `axes` names the dims of its result in memory order.

    `run(arrays, extents, out)` computes it from the operands' arrays; `out`, where not None, is the array over `axes`
    that takes the result: one that the caller gave, or that of operand `overwrites`, which nothing reads later.
    `fresh` results are arrays that no one else holds. `what` tells calls apart that have the same operands.
    """

    what: Any
    operands: tuple[int, ...]
    axes: Axes
    run: Callable[[list[Any], Extents, Any], Any] | None = None
    fresh: bool = True
    in_place: bool = False
    overwrites: int | None = None
    dead: list[int] = field(default_factory=list)


def aligned(axes: Axes, to: Axes) -> View | None:
    """The view of an array over `axes` that broadcasts as one over `to`; None where it does so itself."""
    present = [a for a in to if a in axes]
    if not axes or axes == to[len(to) - len(axes) :]:
        return None
    perm = tuple(axes.index(a) for a in present)
    first = to.index(present[0])
    index = tuple(slice(None) if a in axes else None for a in to[first:])
    return lambda x: x.transpose(perm)[index]


def merged(extents: Extents, *groups: Sequence[str]) -> list[int]:
    return [prod(extents[a] for a in g) for g in groups]


@dataclass(frozen=True)
class Product:
    """One batched matmul over named axes: those of both operands are batch dims, those of one are its rows or columns.

    `x` and `y` are the operands' dims in the order (batch, rows, summed) and (batch, summed, columns).
    """

    matmul: Callable[..., Any]
    may_share_memory: Callable[[Any, Any], bool]
    batch: Axes
    rows: Axes
    summed: Axes
    columns: Axes
    x: tuple[int, ...]
    y: tuple[int, ...]

    @property
    def layout(self) -> Axes:
        """The axes of the result in memory order."""
        return (*self.batch, *self.rows, *self.columns)

    def __call__(self, arrays: list[Any], extents: Extents, out: Any) -> Any:
        if len(self.rows) == len(self.summed) == len(self.columns) == 1:
            return self.matmul(arrays[0].transpose(self.x), arrays[1].transpose(self.y), out=out)
        lead = [extents[a] for a in self.batch]
        m, k, n = merged(extents, self.rows, self.summed, self.columns)
        xm = arrays[0].transpose(self.x).reshape((*lead, m, k))
        ym = arrays[1].transpose(self.y).reshape((*lead, k, n))
        if out is None:
            return self.matmul(xm, ym).reshape([extents[a] for a in self.layout])
        to = out.reshape((*lead, m, n))
        if self.may_share_memory(to, out):
            self.matmul(xm, ym, out=to)
        else:
            # rows (or columns) that are apart in memory
            out[...] = self.matmul(xm, ym).reshape(out.shape)
        return out


class Planner:
    """The algebra of NumPy calls: a value is the index of a step; equal steps are shared.

    `rows`, `maxima` and `added` are those of `LibraryCalls`, `arrays` the functions that are called.
    """

    def __init__(
        self,
        program: AxisProgram,
        rows: Mapping[int, Sequence[Axes]],
        maxima: Mapping[int, Sequence[Maxima]],
        added: Mapping[int, Sequence[Added]],
        arrays: Arrays,
    ) -> None:
        self.program = program
        self.arrays = arrays
        self.storage = DTYPES[program.dtype]
        self.dtype = compute_dtype(self.storage)
        self.steps: list[Step] = []
        self.scalars: dict[int, sympy.Expr | Fraction] = {}
        self.shared: dict[Any, int] = {}
        self.rows = rows
        self.maxima = maxima
        self.added = added
        #: per exp that is shifted, by its node and its number there, the step of what is subtracted
        self.shifts: dict[tuple[int, int], int] = {}
        self.node = -1
        self.node_rows: list[Axes] = []

    def plan(self) -> tuple[list[int], list[int]]:
        """Fills `steps`; returns the steps of the program's inputs and of all its nodes."""
        given = [self._add(("input", k), (), x.axes, None, fresh=False) for k, x in enumerate(self.program.inputs)]
        stored = stored_dtypes(self.program.inputs, self.program.dtype)
        read = [i if t == self.dtype else self._convert(i, self.dtype) for i, t in zip(given, stored, strict=True)]
        inputs = iter(range(len(given)))
        new: list[int] = []
        for i, n in enumerate(self.program.nodes):
            self.node, self.node_rows = i, list(self.rows.get(i, ()))
            if n.op == "input":
                k = next(inputs)
                new.append(read[k])
                for m in self.maxima.get(k, ()):
                    new[-1] = self.mul(new[-1], self.factor(read[m.input], m.parts))
            else:
                args = [new[j] for j in n.operands]
                for a in self.added.get(i, ()):
                    if a.operand is not None:
                        args[a.operand] = self._corrected(args[a.operand], a, read)
                new.append(self._node(n, args))
                for a in self.added.get(i, ()):
                    if a.operand is None:
                        new[-1] = self._corrected(new[-1], a, read)
        return given, new

    def _corrected(self, x: int, added: Added, read: Sequence[int]) -> int:
        of = added.of
        shift = self._largest(read[of.input], of.parts) if isinstance(of, Maxima) else self.shifts[of]
        for _ in range(abs(added.times)):
            x = self.add(x, shift) if added.times > 0 else self.sub(x, shift)
        return x

    def outputs(self, nodes: Sequence[int]) -> list[int]:
        """The steps of the program's results, as they are stored."""
        found = [nodes[o.value] for o in self.program.outputs]
        return found if self.storage == self.dtype else [self._convert(i, self.storage) for i in found]

    def finish(self, outputs: list[int]) -> list[int]:
        """The steps of the program's results after the last changes to the plan."""
        return outputs

    def readers(self) -> dict[int, list[int]]:
        """Per step, those that read its result."""
        found: dict[int, list[int]] = {i: [] for i in range(len(self.steps))}
        for i, s in enumerate(self.steps):
            for j in s.operands:
                found[j].append(i)
        return found

    def drop_unread(self, outputs: Sequence[int]) -> None:
        """Leave out the calls whose results none of the `outputs` needs."""
        needed = set(outputs)
        for i in range(len(self.steps) - 1, -1, -1):
            if i in needed:
                needed.update(self.steps[i].operands)
            elif self.steps[i].run is not None:
                self.steps[i] = replace(self.steps[i], operands=(), run=None)

    def _convert(self, x: int, dtype: np.dtype) -> int:
        array = self.arrays.xp.array

        def run(arrays: list[Any], extents: Extents, out: Any) -> Any:
            if out is None:
                return array(arrays[0], dtype)
            out[...] = arrays[0]
            return out

        return self._add(("convert", dtype), (x,), self.steps[x].axes, run)

    def factor(self, maximum: int, parts: Axes) -> int:
        """exp(own maximum - largest of all parts): what brings partial results to one maximum."""
        return self._ufunc(np.exp, self.sub(maximum, self._largest(maximum, parts)))

    def _largest(self, x: int, reduced: Sequence[str]) -> int:
        """The largest element along some axes, but a finite one."""
        # where all exponents are -inf, exp is exp(-inf) = 0, not exp(-inf + inf)
        return self.reduce(np.maximum, x, reduced, initial=float(np.finfo(self.dtype).min))

    def _node(self, n: AxisNode, args: list[int]) -> int:
        if n.op == "matmul":
            return self.matmul(args[0], args[1], n.reduce)
        if n.op == "sum":
            return self.reduce(np.add, args[0], n.reduce)
        if n.op == "max":
            return self.reduce(np.maximum, args[0], n.reduce, initial=-np.inf)
        if n.op == "concat":
            return self.concat(n, args)
        op = get_operator(n.op)
        if not isinstance(op, Elementwise):
            raise MirageError(f"{n.op}: not an operator over named axes; lower the program with to_axes")
        return int(op.apply(self, args, n.attr))

    def _add(
        self,
        what: Any,
        operands: tuple[int, ...],
        axes: Axes,
        run: Any,
        *,
        fresh: bool = True,
        in_place: bool = False,
    ) -> int:
        key = (what, operands)
        if key not in self.shared:
            self.shared[key] = len(self.steps)
            self.steps.append(Step(what, operands, axes, run, fresh, in_place))
        return self.shared[key]

    def constant(self, value: Fraction) -> int:
        return self._scalar(Fraction(value))

    def dim(self, size: sympy.Expr) -> int:
        return self._scalar(size)

    def _scalar(self, value: sympy.Expr | Fraction) -> int:
        i = self._add(("scalar", value), (), (), None, fresh=False)
        self.scalars[i] = value
        return i

    def _layout(self, operands: Sequence[int]) -> Axes:
        """That of the operand that has all axes; else the order of the program's table."""
        axes = {a for i in operands for a in self.steps[i].axes}
        full = (self.steps[i].axes for i in operands if len(self.steps[i].axes) == len(axes))
        return next(full, self.program.order(axes))

    def _ufunc(self, ufunc: np.ufunc, *operands: int) -> int:
        layout = self._layout(operands)
        views = [aligned(self.steps[i].axes, layout) for i in operands]
        call = self.arrays.elementwise(ufunc)

        def run(arrays: list[Any], extents: Extents, out: Any) -> Any:
            return call(*(a if v is None else v(a) for a, v in zip(arrays, views, strict=True)), out=out)

        return self._add(ufunc, operands, layout, run, in_place=True)

    def add(self, x: int, y: int) -> int:
        return self._ufunc(np.add, x, y)

    def sub(self, x: int, y: int) -> int:
        return self._ufunc(np.subtract, x, y)

    def mul(self, x: int, y: int) -> int:
        return self._ufunc(np.multiply, x, y)

    def div(self, x: int, y: int) -> int:
        return self._ufunc(np.divide, x, y)

    def neg(self, x: int) -> int:
        return self._ufunc(np.negative, x)

    def function(self, fn: ScalarFunction, x: int, *params: Fraction) -> int:
        if fn is EXP and self.node_rows:
            k = len(self.rows[self.node]) - len(self.node_rows)
            rows = self.node_rows.pop(0)
            shift = self._largest(x, tuple(a for a in self.steps[x].axes if a not in rows))
            self.shifts[self.node, k] = shift
            x = self.sub(x, shift)
        native = f"{self.dtype.char}->{self.dtype.char}"
        if isinstance(fn.numpy, np.ufunc) and native in fn.numpy.types and not params:
            return self._ufunc(fn.numpy, x)
        call, may_share_memory = self.arrays.function(fn, params, self.dtype), self.arrays.xp.may_share_memory

        def run(arrays: list[Any], extents: Extents, out: Any) -> Any:
            result = call(arrays[0])
            if out is not None:
                out[...] = result
                return out
            # a function may return its argument, which is someone else's
            return result.copy() if may_share_memory(result, arrays[0]) else result

        return self._add((fn.name, params), (x,), self.steps[x].axes, run)

    def reduce(self, ufunc: np.ufunc, x: int, reduced: Sequence[str], initial: float | None = None) -> int:
        axes = self.steps[x].axes
        where = tuple(axes.index(a) for a in reduced)
        call = self.arrays.reduction(ufunc, self.dtype, initial)

        def run(arrays: list[Any], extents: Extents, out: Any) -> Any:
            return call(arrays[0], axis=where, out=out)

        rest = tuple(a for a in axes if a not in reduced)
        return self._add((ufunc, "reduce", frozenset(reduced)), (x,), rest, run)

    def matmul(self, x: int, y: int, reduced: Sequence[str]) -> int:
        """One batched matmul: axes of both operands are batch dims, those of one are its rows or columns."""
        alone = [
            tuple(a for a in reduced if a in self.steps[i].axes and a not in self.steps[j].axes)
            for i, j in ((x, y), (y, x))
        ]
        x, y = (self.reduce(np.add, i, axes) if axes else i for i, axes in zip((x, y), alone, strict=True))
        xs, ys = self.steps[x].axes, self.steps[y].axes
        # in the order of the operand of more axes: where the two disagree, the other one is copied
        both = [a for a in (xs if len(xs) > len(ys) else ys) if a in xs and a in ys]
        summed = [a for a in both if a in reduced]
        if not summed:
            return self.mul(x, y)
        batch = [a for a in both if a not in reduced]
        rows, columns = [a for a in xs if a not in ys], [a for a in ys if a not in xs]
        product = Product(
            self.arrays.matmul,
            self.arrays.xp.may_share_memory,
            tuple(batch),
            tuple(rows),
            tuple(summed),
            tuple(columns),
            tuple(xs.index(a) for a in (*batch, *rows, *summed)),
            tuple(ys.index(a) for a in (*batch, *summed, *columns)),
        )
        operands = self.factor_of_product(x), self.factor_of_product(y)
        return self._add(("matmul", frozenset(summed)), operands, product.layout, product)

    def factor_of_product(self, x: int) -> int:
        """The step that a matmul reads for this one."""
        return x

    def concat(self, n: AxisNode, args: list[int]) -> int:
        assert n.joined is not None
        joined, parts = n.joined
        layout, where = n.axes, n.axes.index(joined)
        layouts = [tuple(part if a == joined else a for a in layout) for part in parts]
        views = [aligned(self.steps[i].axes, to) for i, to in zip(args, layouts, strict=True)]
        broadcast_to, concatenate = self.arrays.xp.broadcast_to, self.arrays.xp.concatenate

        def run(arrays: list[Any], extents: Extents, out: Any) -> Any:
            blocks = [
                broadcast_to(a if v is None else v(a), [extents[e] for e in to])
                for a, v, to in zip(arrays, views, layouts, strict=True)
            ]
            return concatenate(blocks, axis=where, out=out)

        return self._add(("concat", n.joined), tuple(args), layout, run)


def _reuse(steps: Sequence[Step], outputs: Sequence[int]) -> None:
    """Per step, the operands that die there, and the one whose array may take the result."""
    seen = set(outputs)
    for i in range(len(steps) - 1, -1, -1):
        s = steps[i]
        s.dead = [j for j in dict.fromkeys(s.operands) if j not in seen]
        seen.update(s.operands)
        fit = [j for j in s.dead if steps[j].fresh and steps[j].axes and steps[j].axes == s.axes]
        s.overwrites = fit[0] if s.in_place and fit else None


@dataclass(frozen=True)
class Maxima:
    """Where the maxima of an input's partial results are: an input of the program, and the axes of the parts."""

    input: int
    parts: Axes


@dataclass(frozen=True)
class Added:
    """What a log lacks whose argument is relative to a maximum: `times` the maximum of an exp, `of` (its node, its number
    there), or of partial results, to be added to operand `operand` of a node, or to its result where None.
    """

    operand: int | None
    of: tuple[int, int] | Maxima
    times: int


class LibraryCalls:
    """The NumPy and BLAS calls of a program over named axes, for arrays with one dim per axis.

    `rows` are, per node, the rows of each of its exps in order, where the maximum of a row may be subtracted. `maxima`
    are given for inputs that hold partial results, each part relative to a maximum of its own: those are scaled to the
    largest maximum first. `added` is, per node, what its logs lack. `inputs` are the steps of the inputs, `nodes` of all
    nodes, `axes` the memory order of each step's result. `arrays` are the functions that are called.
    """

    #: what makes the plan
    planner: Callable[..., Planner] = Planner

    def __init__(
        self,
        program: AxisProgram,
        rows: Mapping[int, Sequence[Axes]],
        maxima: Mapping[int, Sequence[Maxima]] | None = None,
        added: Mapping[int, Sequence[Added]] | None = None,
        arrays: Arrays = NUMPY,
    ) -> None:
        planner = self.planner(program, rows, maxima or {}, added or {}, arrays)
        self.inputs, self.nodes = planner.plan()
        self.outputs = planner.finish(planner.outputs(self.nodes))
        self._scalars = planner.scalars
        self._type = planner.dtype.type
        self._steps = planner.steps
        _reuse(self._steps, self.outputs)
        self._compute = [(i, s) for i, s in enumerate(self._steps) if s.run is not None]

    def axes(self, step: int) -> Axes:
        """The axes of a step's result in memory order."""
        return self._steps[step].axes

    def computes(self, step: int) -> bool:
        """Whether a step is a call: neither an input nor a scalar."""
        return self._steps[step].run is not None

    def computed(self) -> list[tuple[int, Step]]:
        """The steps that are calls, with their numbers, in order."""
        return self._compute

    def reads(self) -> set[int]:
        """The steps whose results calls read, or that are results."""
        return {j for _, s in self._compute for j in s.operands} | set(self.outputs)

    def fresh(self, step: int) -> bool:
        """Whether a step's result is an array that no one else holds."""
        return self._steps[step].fresh

    def values(self, sizes: Mapping[str, int]) -> list[Any]:
        """One value per step: the scalars at these sizes (dim symbol -> size), None for what is still to come."""
        values: list[Any] = [None] * len(self._steps)
        for i, v in self._scalars.items():
            values[i] = self._type(float(v) if isinstance(v, Fraction) else evaluate(v, sizes))
        return values

    def run(self, values: list[Any], extents: Extents, out: Mapping[int, np.ndarray]) -> None:
        """Compute all values that are not there yet, in place; `out` (step -> array over its axes) takes the results of those
        steps.
        """
        with np.errstate(all="ignore"):
            for i, s in self._compute:
                assert s.run is not None
                if values[i] is not None:
                    continue
                to = out.get(i)
                if to is None and s.overwrites is not None:
                    to = values[s.overwrites]
                values[i] = s.run([values[j] for j in s.operands], extents, to)
                for j in s.dead:
                    values[j] = None
