"""CUTLASS as a library: its kernels compute products with what follows them, epilogues that cuBLASLt lacks.

What follows a product elementwise (SiLU, GELU, a residual, the factor of a norm, ...) up to one result, through values that
nothing else reads, becomes its epilogue. Products that a kernel cannot compute at some sizes or strides, see `GemmCall.fits`, or
that cannot be compiled, are left to cuBLASLt. Kernels are compiled ahead of time, without a GPU, and cached by content like those
of Triton: only what compiles needs nvidia-cutlass-dsl. Its version is part of the key, so it is fixed here rather than read from
what is installed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from mirage.errors import CompilerError, NoCompilerError
from mirage.ir.axes import AxisProgram
from mirage.ir.types import DTYPES
from mirage.kernels.cuda.compile.kernels import WORKER, CompiledKernel, compile_all
from mirage.kernels.cuda.device import CudaDevice, find_cupy
from mirage.kernels.cuda.gemm.gemm import FACTORS, FUNCTIONS, RESULTS, Epilogue, Gemm, GemmCall, config_for
from mirage.kernels.cuda.launch.loaded import LoadedKernels
from mirage.kernels.cuda.library.program import CudaLibraryCalls, CudaPlanner
from mirage.kernels.library_calls import Added, Arrays, Axes, Extents, Maxima, Product, Step

#: the version of nvidia-cutlass-dsl that kernels are compiled with
VERSION = "4.8.1"
KERNEL = Path(__file__).with_name("kernel.py")
#: operands of an epilogue at most: each is read by every block
MAX_OPERANDS = 8


def why_not(program: AxisProgram) -> str:
    """Why kernels compute no product of a program on this machine; empty where they may."""
    if not any(n.op == "matmul" for n in program.nodes):
        return "no product of matrices"
    if program.dtype not in FACTORS:
        return f"factors of {program.dtype}"
    if stored := {x.dtype for x in program.inputs} - {""}:
        return f"factors of {stored.pop()}"
    try:
        check_installed()
    except NoCompilerError as e:
        return str(e)
    return ""


def calls(device: CudaDevice, types: Mapping[str, str], arrays: Arrays) -> Callable[..., CudaLibraryCalls]:
    """What makes the calls of a program, see `CudaLibraryCalls`; `types` are the element types of inputs, by name."""
    return partial(CutlassCalls, arrays=arrays, gemms=Gemms(device), types=types)


def check_installed() -> None:
    """Raises NoCompilerError where nvidia-cutlass-dsl is not installed in the version that kernels are compiled with."""
    try:
        found = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        found = ""
    if found != VERSION:
        raise NoCompilerError(
            f"CUTLASS kernels are compiled by nvidia-cutlass-dsl {VERSION}, {f'and {found}' if found else 'which'} is "
            f"{'' if found else 'not '}installed; run pip install -e '.[cutlass]'"
        )


@dataclass(frozen=True)
class GemmRequest:
    """A kernel to compile for an architecture such as "sm_90"."""

    gemm: Gemm
    arch: str
    compiler = "CUTLASS"

    @property
    def function(self) -> str:
        """The first part of the name of its folder."""
        return f"cutlass_gemm_{self.gemm.dtype}"

    def key(self) -> str:
        """The hash of all that the machine code depends on."""
        content = {"gemm": asdict(self.gemm), "arch": self.arch, "cutlass": VERSION, "texts": _texts()}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]

    def job(self) -> dict[str, Any]:
        """What the worker is told; raises NoCompilerError where nvidia-cutlass-dsl of this version is not installed."""
        check_installed()
        config = self.gemm.config
        numbers = {"shared": config.shared_bytes, "num_warps": config.num_warps}
        return {"gemm": asdict(self.gemm), "script": str(KERNEL), "arch": self.arch, **numbers}


@cache
def _texts() -> list[str]:
    return [file.read_text(encoding="utf-8") for file in (WORKER, KERNEL)]


class Gemms:
    """Kernels for a device, compiled when they are first asked for. May be used from several threads."""

    def __init__(self, device: CudaDevice) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._compiled: dict[Gemm, CompiledKernel | None] = {}
        self._loaded = LoadedKernels()

    def compile(self, gemms: Sequence[Gemm]) -> None:
        """Have these kernels, side by side. Those that are neither in the cache nor to be compiled here are left to the library.

        Raises CompilerError where one is rejected.
        """
        try:
            found = compile_all([GemmRequest(g, self.device.arch) for g in gemms])
        except NoCompilerError:
            # of several, some may be in the cache: `launch` asks for each
            found = []
            self._compiled |= dict.fromkeys(gemms) if len(gemms) == 1 else {}
        with self._lock:
            for g, kernel in zip(gemms, found, strict=False):
                self._compiled[g] = None if isinstance(kernel, CompilerError) else kernel
        for kernel in found:
            if isinstance(kernel, CompilerError):
                raise kernel

    def launch(self, gemm: Gemm, call: GemmCall, held: Sequence[Any]) -> bool:
        """Enqueue a kernel on the arrays `held`, whose addresses are in `call`; False where there is no such kernel."""
        if gemm not in self._compiled:
            with suppress(CompilerError):
                self.compile([gemm])
        kernel = self._compiled[gemm]
        if kernel is None:
            return False
        cupy = find_cupy()
        assert cupy is not None and held
        function = self._loaded.get(cupy, cupy.cuda.runtime.getDevice(), kernel)
        function(call.grid(gemm.config), (gemm.config.threads, 1, 1), call.arguments(), shared_mem=kernel.shared)
        return True


@dataclass(frozen=True)
class GemmStep:
    """The run of a step that a kernel computes: a product over named axes with its epilogue.

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
            gemm = self.at(extents)
            if call.fits(gemm) and self.gemms.launch(gemm, call, (*held, to)):
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

    def at(self, extents: Extents) -> Gemm:
        """The kernel for these sizes."""
        return replace(self.gemm, config=config_for(self._sizes(extents)[1]))

    def _sizes(self, extents: Extents) -> tuple[int, int, int, int]:
        """Matrices of the batch, rows, columns and depth."""
        p = self.product
        batch, rows, columns, depth = (
            prod(extents[a] for a in axes) for axes in (p.batch, p.rows, p.columns, p.summed)
        )
        return batch, rows, columns, depth

    def call(self, arrays: Sequence[Any], extents: Extents, to: Any) -> tuple[GemmCall, list[Any]]:
        """The launch for arrays of no empty dim with its result in `to`, and the arrays that it reads: copies of factors that are
        not laid out as the kernel needs them.
        """
        p, gemm = self.product, self.gemm
        batch, rows, columns, depth = self._sizes(extents)
        x = arrays[0].transpose(p.x).reshape((batch, rows, depth))
        y = arrays[1].transpose(p.y).reshape((batch, depth, columns))
        x = self._arranged(x if gemm.a_by_depth else x.swapaxes(1, 2))
        y = self._arranged(y.swapaxes(1, 2) if gemm.b_by_depth else y)
        d = to.reshape((batch, rows, columns))
        held, operands = [x, y], []
        for (place, axes), dtype in zip(self.operands, gemm.epilogue.operands, strict=True):
            array = self._operand(arrays[place].astype(DTYPES[dtype], copy=False), axes, extents)
            held.append(array)
            by_batch, by_row, by_column = (
                s // array.itemsize if n > 1 else 0 for n, s in zip(array.shape, array.strides, strict=True)
            )
            operands.append((_address(array), by_row, by_column, by_batch))
        a, b, c = ((_address(t), *_steps(t)) for t in (x, y, d))
        return GemmCall(rows, columns, depth, batch, a, b, c, tuple(operands)), held

    def _arranged(self, x: Any) -> Any:
        """Matrices [batch, lines, neighbours] whose last dim is contiguous."""
        return x if x.shape[2] == 1 or x.strides[2] == x.itemsize else self.xp.ascontiguousarray(x)

    def _operand(self, array: Any, axes: Axes, extents: Extents) -> Any:
        """An operand as matrices [batch or 1, rows or 1, columns or 1]."""
        p = self.product
        order = [a for a in p.layout if a in axes]
        shape = [prod(extents[a] for a in g if a in axes) for g in (p.batch, p.rows, p.columns)]
        return array.transpose([axes.index(a) for a in order]).reshape(shape)


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
        added: Mapping[int, Sequence[Added]],
        arrays: Arrays,
        gemms: Gemms,
        types: Mapping[str, str],
    ) -> None:
        super().__init__(program, rows, maxima, added, arrays)
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
        epilogue, read = self._epilogue(region)
        x, y = self.steps[first].operands
        constants = [j for i in region[1:] for j in self.steps[i].operands if j in self.scalars]
        sources = {j: self._source(j)[0] for j in read}
        values = tuple(dict.fromkeys((*sources.values(), *constants)))
        fallback = [(i, self.steps[i]) for i in (*(j for j in read if sources[j] != j), *region)]
        gemm = Gemm(
            self.storage.name,
            (self.storage if stored else self.dtype).name,
            self._by_depth(x, product.summed),
            self._by_depth(y, product.summed),
            epilogue,
        )
        places = tuple((2 + values.index(sources[j]), self.steps[j].axes) for j in read)
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
        known = self._source(j)[1] in RESULTS and axes <= set(product.layout)
        return known and all(set(g) <= axes or axes.isdisjoint(g) for g in groups)

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
        few = len(self._epilogue(region)[1]) <= MAX_OPERANDS
        return inside and not rounded and few and self.steps[last].axes == product.layout

    def _epilogue(self, region: Sequence[int]) -> tuple[Epilogue, list[int]]:
        """The epilogue of a region, and the values that it reads."""
        given = (j for i in region[1:] for j in self.steps[i].operands if j not in region and j not in self.scalars)
        read = list(dict.fromkeys(given))
        numbers = {region[0]: 0} | {j: 1 + k for k, j in enumerate(read)}
        steps: list[tuple[Any, ...]] = []
        for i in region[1:]:
            s = self.steps[i]
            if s.what == ("convert", self.storage):
                continue
            found = _function(s)
            assert found is not None
            arguments = (_constant(self.scalars[j]) if j in self.scalars else numbers[j] for j in s.operands)
            steps.append((found[0], *arguments, *found[1]))
            numbers[i] = len(read) + len(steps)
        return Epilogue(tuple(self._source(j)[1] for j in read), tuple(steps)), read

    def _source(self, j: int) -> tuple[int, str]:
        """The value that an epilogue reads for a step, converting it itself, and its element type."""
        if self.steps[j].what != ("convert", self.dtype):
            return j, self.dtype.name
        (given,) = self.steps[j].operands
        return given, self._type(given)

    def _type(self, given: int) -> str:
        """The element type of an input's array."""
        what = self.steps[given].what
        names = [x.name for x in self.program.inputs]
        return self._types.get(names[what[1]], self.storage.name) if what[0] == "input" else self.storage.name


def _function(step: Step) -> tuple[str, tuple[float, ...]] | None:
    """The name and the constants of a step's function, where epilogues have it."""
    if isinstance(step.what, np.ufunc):
        return (step.what.__name__, ()) if step.what.__name__ in FUNCTIONS else None
    match step.what:
        case (str(name), tuple(params)) if name in FUNCTIONS:
            return name, tuple(map(float, params))
    return None


def _constant(value: Any) -> float | None:
    """The value of a scalar that is the same at all sizes."""
    return float(value) if isinstance(value, Fraction) or value.is_number else None


class CutlassCalls(CudaLibraryCalls):
    """As `CudaLibraryCalls`, with products by kernels of `gemms`; `types` are those of `CutlassPlanner`."""

    def __init__(
        self,
        program: AxisProgram,
        rows: Mapping[int, Sequence[Axes]],
        maxima: Mapping[int, Sequence[Maxima]] | None = None,
        added: Mapping[int, Sequence[Added]] | None = None,
        arrays: Arrays | None = None,
        *,
        gemms: Gemms,
        types: Mapping[str, str] | None = None,
    ) -> None:
        self.planner = partial(CutlassPlanner, gemms=gemms, types=types or {})
        self._gemms = gemms
        super().__init__(program, rows, maxima, added, arrays)

    def prepare(self, extents: Extents) -> None:
        steps = [s.run for _, s in self._compute if isinstance(s.run, GemmStep)]
        self._gemms.compile(list(dict.fromkeys(s.at(extents) for s in steps)))
