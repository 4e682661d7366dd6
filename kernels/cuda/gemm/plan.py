"""Library plans in which CUTLASS kernels compute products with what follows them: epilogues that cuBLASLt lacks.

What follows a product elementwise (SiLU, GELU, a residual, the factor of a norm, ...) up to one result, through values that
nothing else reads, becomes its epilogue. Products that a kernel cannot compute at some sizes or strides, see `GemmCall.fits`, are
left to the plan without CUTLASS.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

import numpy as np

from mirage.ir.axes import AxisProgram
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.gemm.gemm import (
    EPILOGUE_FUNCTIONS,
    FACTORS,
    RESULTS,
    Epilogue,
    EpilogueOperand,
    Gemm,
    GemmCall,
    Operand,
    OperandKind,
)
from mirage.kernels.cuda.gemm.launch import Gemms
from mirage.kernels.cuda.library.program import CudaLibraryCalls, CudaLibraryProgram, CudaPlanner
from mirage.kernels.library import Arrays, Axes, Extents, Maxima, Product, Step

#: operands of an epilogue at most: each is read by every block
MAX_OPERANDS = 8


@dataclass(frozen=True)
class GemmStep:
    """The run of a step that a CUTLASS kernel computes: a product over named axes with its epilogue.

    The step's operands are both factors, then those in `outside` order; `fallback` are the steps that it stands for, by number,
    with the numbers of the operands' values and of the result.
    """

    gemm: Gemm
    product: Product
    #: per operand of the epilogue: which of the step's operands, and the axes of its array
    operands: tuple[tuple[int, Axes], ...]
    values: tuple[int, ...]
    fallback: tuple[tuple[int, Step], ...]
    gemms: Gemms
    xp: Any

    def __call__(self, arrays: list[Any], extents: Extents, out: Any) -> Any:
        shape = [extents[a] for a in self.product.layout]
        dtype = DTYPES[self.gemm.result]
        if 0 not in (*shape, *(extents[a] for a in self.product.summed)):
            direct = out is not None and out.dtype == dtype and out.flags.c_contiguous
            to = out if direct else self.xp.empty(shape, dtype)
            call, held = self.call(arrays, extents, to)
            if call.fits(self.gemm) and self.gemms.launch(self.gemm, call, (*held, to)):
                if out is None or direct:
                    return to
                out[...] = to
                return out
        found = dict(zip(self.values, arrays, strict=True))
        for i, s in self.fallback:
            assert s.run is not None
            to = out if i == self.fallback[-1][0] else None
            found[i] = s.run([found[j] for j in s.operands], extents, to)
        return found[self.fallback[-1][0]]

    def sizes(self, extents: Extents) -> tuple[int, int, int, int]:
        """Matrices of the batch, rows, columns and depth."""
        p = self.product
        batch, rows, columns, depth = (
            prod(extents[a] for a in axes) for axes in (p.batch, p.rows, p.columns, p.summed)
        )
        return batch, rows, columns, depth

    def call(self, arrays: Sequence[Any], extents: Extents, to: Any) -> tuple[GemmCall, list[Any]]:
        """The launch for arrays of no empty dim with its result in `to`, and the arrays that it reads: copies of those that are
        not laid out as the kernel needs them.
        """
        p, gemm = self.product, self.gemm
        batch, rows, columns, depth = self.sizes(extents)
        x = arrays[0].transpose(p.x).reshape((batch, rows, depth))
        y = arrays[1].transpose(p.y).reshape((batch, depth, columns))
        x = self._arranged(x if gemm.a_by_depth else x.swapaxes(1, 2))
        y = self._arranged(y.swapaxes(1, 2) if gemm.b_by_depth else y)
        d = to.reshape((batch, rows, columns))
        held, operands = [x, y], []
        for (place, axes), o in zip(self.operands, gemm.epilogue.operands, strict=True):
            array = self._operand(arrays[place], axes, extents, o)
            held.append(array)
            step, distance = _steps(array)
            operands.append(Operand(_address(array), 0 if o.kind is OperandKind.COLUMNS else step, distance))
        a, b, c = ((_address(t), *_steps(t)) for t in (x, y, d))
        return GemmCall(rows, columns, depth, batch, a, b, c, tuple(operands)), held

    def _arranged(self, x: Any) -> Any:
        """Matrices [batch, lines, neighbours] whose last dim is contiguous."""
        return x if x.shape[2] == 1 or x.strides[2] == x.itemsize else self.xp.ascontiguousarray(x)

    def _operand(self, array: Any, axes: Axes, extents: Extents, o: EpilogueOperand) -> Any:
        """An operand as matrices [batch or 1, rows or 1, columns or 1]."""
        p = self.product
        order = [a for a in p.layout if a in axes]
        groups = ([a for a in g if a in axes] for g in (p.batch, p.rows, p.columns))
        shape = [prod(extents[a] for a in g) for g in groups]
        array = array.transpose([axes.index(a) for a in order]).reshape(shape)
        if array.dtype.name != o.dtype:
            array = array.astype(DTYPES[o.dtype])
        if o.kind is OperandKind.ROWS:
            # one number per row: they are what is contiguous
            return self._arranged(array.swapaxes(1, 2)).swapaxes(1, 2)
        return self._arranged(array)


def _address(array: Any) -> int:
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr)


def _steps(array: Any) -> tuple[int, int]:
    """The strides of lines and of matrices, in elements; of a dim of one element what a contiguous array would have, or 0."""
    batch, lines, neighbours = array.shape
    line = array.strides[1] // array.itemsize if lines > 1 else neighbours
    return line, array.strides[0] // array.itemsize if batch > 1 else 0


class CutlassPlanner(CudaPlanner):
    """The plan of CuPy calls, with products and their epilogues as CUTLASS kernels.

    `types` are the element types of inputs, by name, where they are not the program's.
    """

    def __init__(
        self,
        program: AxisProgram,
        rows: Mapping[int, Sequence[Axes]],
        maxima: Mapping[int, Sequence[Maxima]],
        arrays: Arrays,
        gemms: Gemms,
        types: Mapping[str, str],
    ) -> None:
        super().__init__(program, rows, maxima, arrays)
        self._gemms = gemms
        self._types = types

    def factor_of_product(self, x: int) -> int:
        if self.storage != self.dtype and self.steps[x].what == ("convert", self.dtype):
            (given,) = self.steps[x].operands
            if self._type(given) == self.storage.name:
                return given
        return super().factor_of_product(x)

    def finish(self, outputs: list[int]) -> list[int]:
        # the last ones first: their epilogues may read what those of earlier ones leave
        for i in reversed(range(len(self.steps)) if self.storage.name in FACTORS else ()):
            product = self.steps[i].run
            readers = self._readers(outputs)
            if isinstance(product, Product) and product.columns and i in readers:
                self._replace(i, product, readers, outputs)
        return super().finish(outputs)

    def _readers(self, outputs: Sequence[int]) -> dict[int, set[int]]:
        """The steps that results depend on, each with those of them that read it."""
        readers: dict[int, set[int]] = {i: set() for i in outputs}
        for i in reversed(range(len(self.steps))):
            if i in readers:
                for j in self.steps[i].operands:
                    readers.setdefault(j, set()).add(i)
        return readers

    def _replace(self, first: int, product: Product, readers: Mapping[int, set[int]], outputs: Sequence[int]) -> None:
        """Have a kernel compute a product and as much of what follows as it can."""
        members = [i for i in self._followers(first, product) if i in readers]
        regions = (self._region(first, members, last) for last in reversed(members))
        region = next(r for r in regions if self._is_closed(r, product, readers, outputs))
        last = region[-1]
        stored = self.steps[last].what == ("convert", self.storage)
        found = self._epilogue(first, product, region)
        assert found is not None
        epilogue, read, converted = found
        x, y = self.steps[first].operands
        constants = [j for i in region[1:] for j in self.steps[i].operands if j in self.scalars]
        values = tuple(dict.fromkeys((*read, *constants)))
        fallback = [(i, self.steps[i]) for i in (*converted, *region)]
        gemm = Gemm(
            self.storage.name,
            (self.storage if stored else self.dtype).name,
            self._by_depth(x, product.summed),
            self._by_depth(y, product.summed),
            epilogue,
            self._gemms.config,
        )
        places = tuple((2 + values.index(j), self.steps[j].axes) for j in read)
        step = GemmStep(gemm, product, places, (x, y, *values), tuple(fallback), self._gemms, self.arrays.xp)
        self.steps[last] = Step((self.steps[first].what, "cutlass", last), (x, y, *values), product.layout, step)

    def _by_depth(self, factor: int, summed: Collection[str]) -> bool:
        """Whether neighbours in memory of a contiguous factor are neighbours in depth."""
        axes = self.steps[factor].axes
        return bool(axes) and axes[-1] in summed

    def _followers(self, first: int, product: Product) -> list[int]:
        """The product, and later steps that an epilogue may compute of it, each from earlier ones and from other values."""
        after, members = {first}, [first]
        for i in range(first + 1, len(self.steps)):
            s = self.steps[i]
            if after.isdisjoint(s.operands):
                continue
            after.add(i)
            others = [j for j in s.operands if j not in members]
            free = after.isdisjoint(others) and all(self._is_operand(j, product) for j in others)
            computed = _function(s) is not None and set(s.axes) == set(product.layout)
            if free and (computed or s.what == ("convert", self.storage)):
                members.append(i)
        return members

    def _is_operand(self, j: int, product: Product) -> bool:
        """Whether an epilogue may read a value: a constant, or one that has all or none of the batch, of rows and of columns."""
        if j in self.scalars:
            return _constant(self.scalars[j]) is not None
        axes = set(self.steps[j].axes)
        groups = product.batch, product.rows, product.columns
        return all(set(g) <= axes or axes.isdisjoint(g) for g in groups) and axes <= set(product.layout)

    def _region(self, first: int, members: Collection[int], last: int) -> list[int]:
        """The steps from the product to a result of it, in order."""
        needed = {first, last}
        for i in range(last, first, -1):
            if i in needed:
                needed.update(j for j in self.steps[i].operands if j in members)
        return sorted(needed)

    def _is_closed(
        self, region: Sequence[int], product: Product, readers: Mapping[int, set[int]], outputs: Collection[int]
    ) -> bool:
        """Whether nothing else reads values between a product and its result, which is laid out like the product."""
        *inner, last = region
        inside = all(i not in outputs and readers[i] <= set(region) for i in inner)
        # values that are rounded to be stored are read back as they are computed in
        rounded = any(self.steps[i].what == ("convert", self.storage) for i in inner)
        found = self._epilogue(region[0], product, region)
        few = found is not None and len(found[1]) <= MAX_OPERANDS
        return inside and not rounded and few and self.steps[last].axes == product.layout

    def _epilogue(
        self, first: int, product: Product, region: Sequence[int]
    ) -> tuple[Epilogue, list[int], list[int]] | None:
        """The epilogue of a region, the values that it reads, and the conversions of inputs that it makes itself."""
        steps: list[tuple[Any, ...]] = []
        numbers: dict[int, int] = {}
        operands: list[EpilogueOperand] = []
        read: list[int] = []
        converted: list[int] = []

        def value(j: int) -> int:
            if j not in numbers:
                if j in self.scalars:
                    steps.append(("constant", _constant(self.scalars[j])))
                else:
                    source, dtype = j, self.dtype.name
                    if self.steps[j].what == ("convert", self.dtype):
                        (source,) = self.steps[j].operands
                        dtype = self._type(source)
                        converted.append(j)
                    steps.append(("operand", len(read)))
                    operands.append(EpilogueOperand(self._kind(source, product), dtype))
                    read.append(source)
                numbers[j] = len(steps) - 1
            return numbers[j]

        for i in region:
            s = self.steps[i]
            if i == first:
                steps.append(("sum",))
            elif s.what == ("convert", self.storage):
                continue
            else:
                found = _function(s)
                assert found is not None
                name, constants = found
                arguments = [value(j) for j in s.operands]
                steps.append((name, *arguments, *constants))
            numbers[i] = len(steps) - 1
        if any(o.dtype not in RESULTS for o in operands):
            return None
        return Epilogue(tuple(operands), tuple(steps)), read, converted

    def _type(self, given: int) -> str:
        """The element type of an input's array."""
        what = self.steps[given].what
        names = [x.name for x in self.program.inputs]
        return self._types.get(names[what[1]], self.storage.name) if what[0] == "input" else self.storage.name

    def _kind(self, j: int, product: Product) -> OperandKind:
        axes = set(self.steps[j].axes)
        rows, columns = (bool(g) and set(g) <= axes for g in (product.rows, product.columns))
        if rows:
            return OperandKind.ELEMENTS if columns else OperandKind.ROWS
        return OperandKind.COLUMNS if columns else OperandKind.MATRIX


def _function(step: Step) -> tuple[str, tuple[float, ...]] | None:
    """The name and the constants of a step's function, where epilogues have it."""
    if isinstance(step.what, np.ufunc):
        return (step.what.__name__, ()) if step.what.__name__ in EPILOGUE_FUNCTIONS else None
    match step.what:
        case (str(name), tuple(params)) if name in EPILOGUE_FUNCTIONS:
            return name, tuple(map(float, params))
    return None


def _constant(value: Any) -> float | None:
    """The value of a scalar that is the same at all sizes."""
    return float(value) if isinstance(value, Fraction) or value.is_number else None


class CutlassCalls(CudaLibraryCalls):
    """As `CudaLibraryCalls`, with products by kernels of `gemms`; `types` are those of `CutlassPlanner`.

    `steps` are what the kernels compute, `others` the other calls.
    """

    def __init__(
        self,
        program: AxisProgram,
        rows: Mapping[int, Sequence[Axes]],
        maxima: Mapping[int, Sequence[Maxima]] | None = None,
        arrays: Arrays | None = None,
        *,
        gemms: Gemms,
        types: Mapping[str, str] | None = None,
    ) -> None:
        self.planner = partial(CutlassPlanner, gemms=gemms, types=types or {})
        super().__init__(program, rows, maxima, arrays)
        self.steps = tuple(s.run for _, s in self._compute if isinstance(s.run, GemmStep))
        self.others = tuple(s for _, s in self._compute if not isinstance(s.run, GemmStep))


class CutlassProgram(CudaLibraryProgram):
    """As `CudaLibraryProgram`, with products by kernels of `gemms`."""

    def __init__(self, axis_program: AxisProgram, gemms: Gemms, arrays: Arrays | None = None) -> None:
        self.gemms = gemms
        self.calls = partial(CutlassCalls, gemms=gemms)
        super().__init__(axis_program, arrays)

    @property
    def plan(self) -> CutlassCalls:
        """The calls."""
        assert isinstance(self._calls, CutlassCalls)
        return self._calls
