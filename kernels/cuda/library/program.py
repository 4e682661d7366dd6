"""The library version of a program on a GPU: a call of cuBLASLt or CuPy per operator, on the current stream.

The plan is that of `mirage.kernels.library`, with CuPy's functions in NumPy's place and three changes. Products of 16-bit
numbers read their factors as stored, a factor that was computed is rounded to that type first (as every GPU library does; sums
are kept in float32). A bias, a ReLU and the rounding of a result that follow a product become its epilogue. Steps whose results
nothing reads any more are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache, cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np

from mirage.errors import LibraryError
from mirage.ir.axes import AxisProgram
from mirage.ir.functions import RELU, ScalarFunction
from mirage.kernels.cuda.device import CudaDevice
from mirage.kernels.cuda.library.cublaslt import CublasLt
from mirage.kernels.library import LibraryProgram
from mirage.kernels.library_calls import Added, Arrays, Axes, Extents, LibraryCalls, Maxima, Planner, Product, Step


class CupyArrays(Arrays):
    """CuPy's functions of arrays, and cuBLASLt's products. Raises LibraryError where one of them is not installed."""

    def __init__(self) -> None:
        try:
            super().__init__(import_module("cupy"))
            special = import_module("cupyx.scipy.special")
        except ImportError as e:
            raise LibraryError(f"CuPy: {e}; run pip install -e '.[cuda]'") from None
        self._functions: dict[str, Callable[..., Any]] = {
            "sigmoid": special.expit,
            "erf": special.erf,
            "gauss_cdf": special.ndtr,
            "relu": lambda x: self.xp.maximum(x, x.dtype.type(0)),
            "log_step": lambda x: self.xp.where(x > 0, x.dtype.type(0), x.dtype.type(-np.inf)),
            "maximum": lambda x, c: self.xp.maximum(x, x.dtype.type(c)),
            "clamp": lambda x, lo, hi: self.xp.clip(x, x.dtype.type(lo), x.dtype.type(hi)),
            "pow": lambda x, p: self.xp.power(x, x.dtype.type(p)),
        }

    @cached_property
    def matmul(self) -> Callable[..., Any]:
        """The batched product of matrices (`CublasLt.matmul`)."""
        return _cublaslt().matmul

    def elementwise(self, ufunc: np.ufunc) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(self.xp, ufunc.__name__)
        return found

    def reduction(self, ufunc: np.ufunc, dtype: np.dtype, initial: float | None) -> Callable[..., Any]:
        fold = partial(self.xp.sum, dtype=dtype) if ufunc is np.add else self.xp.amax
        assert ufunc in (np.add, np.maximum)

        def run(x: Any, axis: tuple[int, ...], out: Any = None) -> Any:
            if not axis:
                found = self.xp.array(x, dtype)
            elif initial is not None and x.size == 0:
                # CuPy knows no least element of nothing
                found = self.xp.full([n for d, n in enumerate(x.shape) if d not in axis], initial, dtype)
            else:
                found = fold(x, axis=axis, out=out)
            if initial is not None and initial > -np.inf:
                found = self.xp.maximum(found, dtype.type(initial), out=out)
            if out is None or found is out:
                return found
            out[...] = found
            return out

        return run

    def function(self, fn: ScalarFunction, params: Sequence[Fraction], dtype: np.dtype) -> Callable[[Any], Any]:
        call = self._functions.get(fn.name) or (getattr(self.xp, fn.numpy.__name__) if _is_ufunc(fn) else None)
        if call is None:
            raise LibraryError(f"{fn.name}: CuPy has no such function; leave it to generated kernels")
        values = tuple(float(p) for p in params)
        return lambda x: self.xp.asarray(call(x, *values), dtype=dtype)


@cache
def _cublaslt() -> CublasLt:
    """The one that all plans share, with the algorithms that it has chosen."""
    return CublasLt()


def _is_ufunc(fn: ScalarFunction) -> bool:
    return isinstance(fn.numpy, np.ufunc)


class CudaPlanner(Planner):
    """The plan of CuPy calls, with the epilogues of its products."""

    def factor_of_product(self, x: int) -> int:
        """The step whose result is this one's in the type that tensors are stored in."""
        step, storage = self.steps[x], self.storage
        if storage == self.dtype:
            return x
        if step.what != ("convert", self.dtype):
            return self._convert(x, storage)

        def run(arrays: list[Any], extents: Extents, out: Any) -> Any:
            # tensors between kernels may be of the type that is computed in
            return arrays[0].astype(storage, copy=False)

        return self._add(("stored", storage), step.operands, step.axes, run, fresh=False)

    def finish(self, outputs: list[int]) -> list[int]:
        readers = self.readers()
        for i, s in enumerate(self.steps):
            if isinstance(s.run, Product):
                self._fuse(i, s.run, readers, outputs)
        self.drop_unread(outputs)
        return outputs

    def _fuse(self, first: int, product: Product, readers: dict[int, list[int]], outputs: Sequence[int]) -> None:
        """Give a product what follows it as epilogue; the last of these steps becomes the product."""
        bias: int | None = None
        relu, stored, last = False, False, first
        while last not in outputs and len(readers[last]) == 1:
            (reader,) = readers[last]
            step = self.steps[reader]
            if step.what is np.add and bias is None and not relu and self._is_bias(step, last, product):
                bias = next(j for j in step.operands if j != last)
            elif step.what == (RELU.name, ()) and not relu:
                relu = True
            elif step.what == ("convert", self.storage) and (bias is None or self._is_read(bias)):
                stored, last = True, reader
                break
            else:
                break
            last = reader
        if last == first:
            return
        dtype = self.storage if stored else self.dtype
        if bias is not None and stored:
            # the bias has the type of the result
            bias = self.steps[bias].operands[0]
        matmul = partial(product.matmul, dtype=dtype, relu=relu)
        operands = (*self.steps[first].operands, *(() if bias is None else (bias,)))
        run = _WithEpilogue(replace(product, matmul=matmul), dtype)
        self.steps[last] = Step((self.steps[first].what, "epilogue", last), operands, product.layout, run)

    def _is_bias(self, add: Step, product: int, p: Product) -> bool:
        """Whether a step adds one number per column to a product."""
        others = [self.steps[j].axes for j in add.operands if j != product]
        return bool(p.columns and others == [p.columns] and add.axes == p.layout)

    def _is_read(self, x: int) -> bool:
        """Whether a step is an input in the type that is computed in."""
        return bool(self.steps[x].what == ("convert", self.dtype))


class _WithEpilogue:
    """A product whose third operand, where there is one, is the bias; its result is of type `dtype`."""

    def __init__(self, product: Product, dtype: np.dtype) -> None:
        self._product, self._dtype = product, dtype

    def __call__(self, arrays: list[Any], extents: Extents, out: Any) -> Any:
        product = self._product
        if len(arrays) == 3:
            bias = arrays[2].reshape(-1).astype(self._dtype, copy=False)
            product = replace(product, matmul=partial(product.matmul, bias=bias))
        return product(arrays[:2], extents, out)


def why_not(program: AxisProgram) -> str:
    """See `mirage.kernels.cuda.library.libraries`: every operator has a call."""
    return ""


def calls(device: CudaDevice, types: Mapping[str, str], arrays: Arrays) -> Callable[..., CudaLibraryCalls]:
    """See `mirage.kernels.cuda.library.libraries`: calls take arrays of any type."""
    return partial(CudaLibraryCalls, arrays=arrays)


class CudaLibraryCalls(LibraryCalls):
    """The CuPy and cuBLASLt calls of a program over named axes; see `LibraryCalls`, which it stands in for on a GPU.

    `nodes` are the steps of all nodes before products took their epilogues: only those in `outputs` are computed for sure.
    """

    planner: Callable[..., CudaPlanner] = CudaPlanner

    def __init__(
        self,
        program: AxisProgram,
        rows: Mapping[int, Sequence[Axes]],
        maxima: Mapping[int, Sequence[Maxima]] | None = None,
        added: Mapping[int, Sequence[Added]] | None = None,
        arrays: Arrays | None = None,
    ) -> None:
        super().__init__(program, rows, maxima, added, CupyArrays() if arrays is None else arrays)

    def prepare(self, extents: Extents) -> None:
        """Compile what calls at these sizes of axes need; needs no device. Raises CompilerError."""


class CudaLibraryProgram(LibraryProgram):
    """A program over named axes as CuPy and cuBLASLt calls, for CuPy arrays; see `LibraryProgram`.

    Launched on CuPy's current stream; results are not waited for. Raises LibraryError where CuPy or nvmath-python is not
    installed, or has no function that the program needs.
    """

    def __init__(
        self,
        axis_program: AxisProgram,
        arrays: Arrays | None = None,
        calls: Callable[..., CudaLibraryCalls] = CudaLibraryCalls,
    ) -> None:
        self.calls = calls
        super().__init__(axis_program, CupyArrays() if arrays is None else arrays)

    def prepare(self, sizes: Mapping[str, int]) -> None:
        """See `CudaLibraryCalls.prepare`; `sizes` are those of the dim symbols."""
        assert isinstance(self._calls, CudaLibraryCalls)
        self._calls.prepare(self._bind(sizes).extents)
