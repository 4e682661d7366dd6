"""Contractions as calls of the matrix micro-kernels (mirage_gemm.h)."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from mirage.ir.types import ELEMENTS
from mirage.kernels.cpu.compile.shipped import MICRO_KERNELS, micro_kernel
from mirage.kernels.cpu.emit.layout import BlockAxes, View, function_of
from mirage.kernels.cpu.emit.loops import Nest, fill
from mirage.kernels.cpu.emit.writer import Writer

#: Costs of a call and of an element that is copied, in multiply-adds, for comparing plans only.
CALL, COPY = 200.0, 4.0
#: The kernel that reads its second operand once, in order, wins where that operand comes from memory and has so many
#: elements: up to so many rows, and up to more where its rows are long or as a register block is wide
#: (`benchmarks.kernels.micro`).
#: Sums of so few terms stay in registers instead, as its sums in the cache would be read and written as often as the operand.
_FEW_ROWS, STREAM_ROWS = 8, 32
_LONG_ROW, STREAM_ELEMENTS = 128, 4096
FEW_TERMS = 24
#: Of two plans that are as good otherwise and copy nothing, the one is faster whose columns' operand is smaller, which each call
#: reads whole, and from 24 rows by way of a copy; but not with a single vector of columns, which counts as so many.
_PANEL, _NARROW = 0.01, 8
#: Multiply-adds of mi_gemm_outer with one, two, three and more rows, as a share of the peak.
_OUTER = (0.4, 0.75, 0.7, 0.95)
#: And of mi_gemm_dot where it adds up whole vectors, for one or two rows or few columns; of its other sums.
_DOT_FEW, _DOT = 0.4, 0.95

#: How many times as fast bytes are multiplied as such.
BYTES_AT_ONCE = 2.5

#: extents along an axis, of one plan or of many
Extent = float | np.ndarray


@dataclass(frozen=True)
class MatmulPlan:
    """One row, one column and one contracted axis for the micro-kernel; the other axes are loops around it.

    `swap`: the second operand gives the rows. `dot`: both operands are contiguous along `k`; else the
    columns' operand is contiguous along `n`. `pack` maps an operand (0 or 1) to the axis along which a copy
    of it is contiguous. Up to `stream_rows` rows the columns' operand is read in order, if it comes from memory.
    """

    swap: bool
    dot: bool
    m: str | None
    n: str | None
    k: str
    loops: tuple[str, ...]
    sums: tuple[str, ...]
    pack: tuple[tuple[int, str], ...]
    stream_rows: int

    @property
    def packed(self) -> dict[int, str]:
        return dict(self.pack)


@dataclass(frozen=True)
class Product:
    """The axes of two operands, the axes along which they are contiguous, and the axes that are summed.

    `narrow`: which operands are of narrow elements; `bytes`: whether both are of bytes, which processors multiply as such.
    """

    operands: tuple[Sequence[str], Sequence[str]]
    units: tuple[str | None, str | None]
    reduce: tuple[str, ...]
    narrow: tuple[bool, bool] = (False, False)
    bytes: bool = False

    def choices(self, out: Sequence[str]) -> list[tuple[bool, list[str | None], list[str | None]]]:
        """(whether the second operand gives the rows, the axes for rows, those for columns), None where there is none."""
        own: list[list[str | None]] = [
            [a for a in out if a in self.operands[i] and a not in self.operands[1 - i]] or [None] for i in (0, 1)
        ]
        return [(False, own[0], own[1]), (True, own[1], own[0])]


def plan_products(
    axes: BlockAxes,
    out: Sequence[str],
    products: Sequence[Product],
    looping: bool,
    prefer: str | None,
    lanes: int,
    wanted: Sequence[str | None] = (),
    vector: str | None = None,
) -> tuple[MatmulPlan, ...]:
    """The cheapest plans, at the expected sizes, of products that are summed into one result over the axes `out`.

    The plans that have a column axis have the same one, one of those `wanted` if any are. A result contiguous along `prefer`
    saves a copy. Vectors lie along `vector`, if it is given: of sums along the columns, or of terms along a contracted axis.
    """
    columns = [a for p in products for _, _, cols in p.choices(out) for a in cols]
    if len(products) > 1:
        columns.append(None)
    columns = [vector] if vector in out else [*wanted] or columns
    best: tuple[float, tuple[MatmulPlan, ...]] | None = None
    for n in dict.fromkeys(columns):
        found = [_plan_product(axes, out, p, looping, n, lanes, vector) for p in products]
        # what follows works on whole vectors along the columns
        cost = sum(c for c, _ in found) + COPY * lanes * _size(axes, out, looping) / min(lanes, _size(axes, [n], looping))
        if prefer is not None and n != prefer:
            cost += COPY * _size(axes, out, looping)
        if best is None or cost < best[0]:
            best = cost, tuple(plan for _, plan in found)
    assert best is not None
    return best[1]


def _size(axes: BlockAxes, names: Sequence[str | None], looping: bool) -> float:
    return prod(float(axes.hint(a, looping)) for a in names if a is not None)


def _plan_product(
    axes: BlockAxes,
    out: Sequence[str],
    product: Product,
    looping: bool,
    column: str | None,
    lanes: int,
    vector: str | None,
) -> tuple[float, MatmulPlan]:
    """The cheapest plan with this column axis, or with none where the product cannot have it, and with vectors along `vector`,
    if it is an axis of the product; and its cost.
    """

    extents = {a: float(axes.hint(a, looping)) for a in {*out, *product.reduce, *product.operands[0], *product.operands[1]}}

    def size(*names: str | None) -> float:
        return prod(extents[a] for a in names if a is not None)

    choices = product.choices(out)
    n = column if any(column in cols for _, _, cols in choices) else None
    usable = [c for c in choices if n in c[2]] or choices
    work = size(*out, *product.reduce)
    best: tuple[float, MatmulPlan] | None = None
    for swap, rows, _ in usable:
        first, second = (1, 0) if swap else (0, 1)
        for m, k, dot in itertools.product(rows, product.reduce, (False, True) if n is not None else (True,)):
            if vector is not None and vector in (n, *product.reduce) and vector != (k if dot else n):
                continue
            pack: dict[int, str] = {}
            whole = dot and product.bytes and product.units == (k, k)
            # the other micro-kernels convert the columns' operand only: narrow rows are copied
            if (product.narrow[first] and not whole) or (dot and product.units[first] != k):
                pack[first] = k
            unit = k if dot else n
            if unit is not None and product.units[second] != unit:
                pack[second] = unit
            speed = BYTES_AT_ONCE if whole else 1.0
            cost = work / speed / _efficiency(dot, size(m), size(n), size(k), lanes) + CALL * work / size(m, n, k)
            if not (dot or pack):
                wide = size(n) if size(n) > lanes else _NARROW * lanes
                cost += _PANEL * wide * work / size(m, n)
            cost += sum(COPY * size(*{*product.operands[i], a}) for i, a in pack.items())
            if best is None or cost < best[0]:
                loops = tuple(a for a in out if a not in (m, n))
                sums = tuple(a for a in product.reduce if a != k)
                most = int(stream_rows(size(m), size(n), lanes))
                stream = not dot and second not in pack and size(m) <= most
                stream = stream and size(k) > FEW_TERMS and size(k, n) >= STREAM_ELEMENTS
                best = cost, MatmulPlan(swap, dot, m, n, k, loops, sums, tuple(pack.items()), most if stream else 0)
    assert best is not None
    return best


def type_macros(dtypes: Collection[str]) -> list[str]:
    """What C code that reads tensors of these types defines before it includes the headers: the type that is computed in, and,
    a line each, those of fewer bits, of which the headers are to be included one after the other.
    """
    sizes = {t: ELEMENTS[t].itemsize for t in dtypes}
    real = f"#define MI_REAL {'double' if 8 in sizes.values() else 'float'}"
    return [real, *(f"#define MI_NARROW {t}" for t, size in sizes.items() if size < 4)]


def product_parts(dtypes: Collection[str], wanted: Collection[str] = MICRO_KERNELS) -> tuple[str, ...]:
    """The sources of the micro-kernels of these products of tensors of these types: compiling them takes longer than all else,
    and they are the same for all programs of the same types.
    """
    if not wanted:
        return ()
    real, *narrow = type_macros(dtypes)
    # those of narrow elements call the others
    parts = [micro_kernel(p, [real]) for p in MICRO_KERNELS if narrow or p in wanted]
    parts += [f'{real}\n{columns}\n#include "mirage_narrow_gemm.c"\n' for columns in narrow]
    of_bytes = [t for t in dtypes if ELEMENTS[t].itemsize == 1]
    for rows, columns in itertools.product(of_bytes, repeat=2):
        types = "\n".join([*type_macros((columns,)), f"#define MI_ROWS {rows}"])
        parts.append(f'{types}\n#include "mirage_byte_dot.c"\n')
    return tuple(parts)


def block_vectors(m: Extent) -> np.ndarray:
    """Vectors beside one another in a register block for so many rows (mirage_gemm_block.h), at most."""
    return np.where(np.asarray(m) > 4, 3, np.where(np.asarray(m) > 2, 4, 8))


def stream_rows(m: Extent, n: Extent, lanes: int) -> np.ndarray:
    """The most rows for which mi_gemm_stream is called, where `m` are expected and rows of its operand have `n` elements."""
    wide = (np.asarray(n) >= _LONG_ROW) | (np.asarray(n) == lanes * block_vectors(m))
    return np.where(wide, STREAM_ROWS, _FEW_ROWS)


def efficiency(dot: bool, m: Extent, n: Extent, k: Extent, lanes: int) -> np.ndarray:
    """Estimated share of the multiply-add peak, for each of the given extents."""

    def whole(x: Extent, step: int) -> np.ndarray:
        return np.asarray(x / (np.ceil(x / step) * step))

    if dot:
        few = _DOT_FEW * whole(k, lanes) * k / (k + 2 * lanes)
        rows = np.where(np.asarray(m) <= lanes, 2 ** np.ceil(np.log2(m)), np.ceil(m / lanes) * lanes)
        return np.where((np.asarray(m) < 3) | (np.asarray(n) < lanes), few, _DOT * m / rows * k / (k + 16))
    share = np.array(_OUTER)[np.clip(m, 1, len(_OUTER)).astype(int) - 1]
    return np.asarray(share * whole(n, lanes) * k / (k + 6))


@functools.lru_cache(maxsize=1 << 14)
def _efficiency(dot: bool, m: float, n: float, k: float, lanes: int) -> float:
    """`efficiency`, remembered: NumPy takes long for single numbers, and plans ask for the same ones again and again."""
    return float(efficiency(dot, m, n, k, lanes))


def emit_matmul(
    w: Writer,
    axes: BlockAxes,
    plan: MatmulPlan,
    looping: bool,
    x: View,
    y: View,
    target: View,
    accumulate: bool,
    streamed: Sequence[bool],
) -> None:
    """Print target (+)= x y; `target` is contiguous along `plan.n`. `streamed` operands are read from memory once.

    Where another axis of the rows follows on theirs in memory, as query groups do on tokens, both are rows of one product; where
    all contracted axes follow on one another in both operands, as heads do on their elements, they are one.
    """
    rows, cols = (y, x) if plan.swap else (x, y)
    assert not target.narrow and (not rows.narrow or (plan.dot and cols.narrow))
    printed = _Printed(w, axes, plan, looping, rows, cols, target, accumulate, streamed[0 if plan.swap else 1])
    nested = [a for a in rows.strides if a in plan.sums and axes.constant(a, looping) != 1]
    if not nested:
        printed.filled()
        return
    order = [*nested, plan.k]
    conditions = [
        f"{v.stride(outer)} == {_extent(axes, inner, looping)} * {v.stride(inner)}"
        for outer, inner in itertools.pairwise(order)
        for v in (rows, cols)
    ]
    with w.block(f"if ({' && '.join(conditions)})"):
        printed.calls(" * ".join(_extent(axes, a, looping) for a in order), [])
    with w.block("else"):
        printed.filled()


@dataclass(frozen=True)
class _Printed:
    """Prints one product by its plan; see `emit_matmul`."""

    w: Writer
    axes: BlockAxes
    plan: MatmulPlan
    looping: bool
    rows: View
    cols: View
    target: View
    accumulate: bool
    streamed: bool

    def filled(self) -> None:
        """Term by term of the sums around the product, which are added to zeros if they are not added to what there is."""
        plan = self.plan
        if plan.sums and not self.accumulate:
            around = [a for a in self.target.strides if a in (*plan.loops, plan.m, plan.n)]
            fill(self.w, self.axes, self.looping, self.target, "0", around)
        self.calls(_extent(self.axes, plan.k, self.looping), plan.sums)

    def calls(self, k: str, sums: Sequence[str]) -> None:
        """With so many terms, and these sums around it."""
        plan, axes, looping = self.plan, self.axes, self.looping
        m = _extent(axes, plan.m, looping)
        also = _second_row_axis(axes, plan, looping, self.rows, self.cols, self.target)
        if also is None or plan.m is None:
            self._in_rows(m, plan.m, k, [*plan.loops, *sums])
            return
        outer, inner = sorted((plan.m, also), key=list(self.target.strides).index)
        step = _extent(axes, inner, looping)
        adjacent = [f"{v.stride(outer)} == {step} * {v.stride(inner)}" for v in (self.rows, self.target)]
        with self.w.block(f"if ({' && '.join(adjacent)})"):
            others = [a for a in plan.loops if a != also]
            self._in_rows(f"{_extent(axes, outer, looping)} * {step}", inner, k, [*others, *sums])
        with self.w.block("else"):
            self._in_rows(m, plan.m, k, [*plan.loops, *sums])

    def _in_rows(self, m: str, inner: str | None, k: str, loops: Sequence[str]) -> None:
        """`m` rows, whose strides are those along `inner`."""
        plan, w, rows, cols, target = self.plan, self.w, self.rows, self.cols, self.target
        stream = plan.stream_rows if self.streamed else 0
        mode = "1" if self.accumulate or any(a in plan.sums for a in loops) else "0"
        nest = Nest(w, self.axes, self.looping)
        with nest.over(loops):
            n = _extent(self.axes, plan.n, self.looping)
            left = f"{rows.at(nest.index)}, {rows.stride(inner)}"
            o = f"{target.at(nest.index)}, {target.stride(inner)}, {mode}"
            if plan.dot:
                right = f"{cols.at(nest.index)}, {cols.stride(plan.n)}"
                name = function_of("mi_gemm_dot", cols.narrow)
                name = f"mi_gemm_dot_bytes_{rows.narrow}_{cols.narrow}" if rows.narrow else name
                w.line(f"{name}({m}, {k}, {n}, {left}, {right}, {o});")
                return
            right = f"{cols.at(nest.index)}, {cols.stride(plan.k)}"
            args = f"({m}, {k}, {n}, {left}, {rows.stride(plan.k)}, {right}, {o});"
            names = {name: function_of(f"mi_gemm_{name}", cols.narrow) for name in ("stream", "outer")}
            if stream and not (m.isdigit() and int(m) <= stream):
                w.line(f"if ({m} <= {stream})")
                w.line(f"    {names['stream']}{args}")
                w.line("else")
                w.line(f"    {names['outer']}{args}")
            else:
                w.line(f"{names['stream' if stream else 'outer']}{args}")


def _extent(axes: BlockAxes, a: str | None, looping: bool) -> str:
    return axes.extent(a, looping) if a is not None else "1"


def _second_row_axis(
    axes: BlockAxes, plan: MatmulPlan, looping: bool, rows: View, cols: View, target: View
) -> str | None:
    """An axis around the product, other than the rows', along which the same columns are multiplied."""
    if plan.m is None or plan.m not in rows.strides or axes.constant(plan.m, looping) == 1:
        return None
    found = [
        a
        for a in plan.loops
        if axes.constant(a, looping) != 1 and a in rows.strides and a in target.strides and a not in cols.strides
    ]
    return found[-1] if found else None
