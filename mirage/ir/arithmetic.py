"""Arithmetics: algebras whose values are arrays, so that programs and muGraphs can be run over them.

Floats are here; the finite fields of the verifier are in `verify/field.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import sympy

from mirage.ir.dims import evaluate
from mirage.ir.functions import ScalarFunction, largest
from mirage.ir.types import DTYPES, compute_dtype

A = TypeVar("A")
#: NumPy, or a module with its functions
ArrayModule: TypeAlias = Any


class Arithmetic(ABC, Generic[A]):
    """An `Algebra` over arrays.

    `lead` leading dims of every non-scalar array are a batch of independent runs (the verifier's random tests); no
    operator sees them. `sizes` binds the dim symbols for `dim`.
    """

    lead: int = 0
    #: whether values are floating-point numbers, so that a stable form is to be preferred
    is_float: bool = False
    #: the module of the arrays
    xp: ArrayModule = np

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = dict(sizes)

    @property
    def weights(self) -> Mapping[str, A]:
        """By axis, how often each of its elements counts in a sum; once along an axis that is not named."""
        return {}

    @abstractmethod
    def constant(self, value: Fraction) -> A: ...
    @abstractmethod
    def add(self, x: A, y: A) -> A: ...
    @abstractmethod
    def sub(self, x: A, y: A) -> A: ...
    @abstractmethod
    def mul(self, x: A, y: A) -> A: ...
    @abstractmethod
    def div(self, x: A, y: A) -> A: ...
    @abstractmethod
    def neg(self, x: A) -> A: ...
    @abstractmethod
    def function(self, fn: ScalarFunction, x: A, *params: Fraction) -> A: ...

    @abstractmethod
    def apply(self, fn: Callable[..., np.ndarray], *xs: A) -> A:
        """Apply a structural NumPy function (reshape, slice, concatenate) to each component array."""

    @abstractmethod
    def einsum(self, x: A, y: A, xl: Sequence[int], yl: Sequence[int], ol: Sequence[int]) -> A:
        """Sum of products over the labels that are not in `ol`; labels of dims after the lead."""

    @abstractmethod
    def sum(self, x: A, axes: tuple[int, ...]) -> A:
        """Sum over dims (negative indices), which are removed."""

    def max(self, x: A, axes: tuple[int, ...], weighted: Callable[[A], A] = lambda y: y) -> A:
        """The largest elements along dims (negative indices), which are removed; `weighted` multiplies what is summed by the
        weights of axes, if they have some.
        """
        found: A = largest(self, x, lambda y: self.sum(weighted(y), axes))
        return found

    @abstractmethod
    def zeros(self, shape: Sequence[int]) -> A:
        """Zeros of that shape (the lead is added)."""

    @abstractmethod
    def shape(self, x: A) -> tuple[int, ...]:
        """Shape without the lead; () for a scalar constant."""

    def stored(self, x: A) -> A:
        """The value that a tensor in memory holds: rounded, where its elements are stored in fewer bits."""
        return x

    def dim(self, size: sympy.Expr) -> A:
        return self.constant(Fraction(evaluate(size, self.sizes)))

    def lift(self, x: A, rank: int, to: int) -> A:
        """Insert dims of size 1 behind the lead so that `x` of `rank` dims broadcasts as one of `to` dims."""
        if rank == to:
            return x
        lead = self.lead

        def insert(a: np.ndarray) -> np.ndarray:
            # a scalar constant has no lead and broadcasts as it is
            return a.reshape(a.shape[:lead] + (1,) * (to - rank) + a.shape[lead:]) if a.ndim else a

        return self.apply(insert, x)


class FloatArithmetic(Arithmetic[Any]):
    """Floating point with the arrays of a module `xp`, NumPy: values are of the type that `dtype` is computed in.

    `dtype` is one of `mirage.ir.types.DTYPES`, or another that NumPy knows.
    """

    is_float = True

    def __init__(self, sizes: Mapping[str, int], dtype: str = "float64") -> None:
        super().__init__(sizes)
        self.storage = DTYPES[dtype] if dtype in DTYPES else np.dtype(dtype)
        self.dtype = compute_dtype(self.storage)

    def stored(self, x: Any) -> Any:
        return x if self.storage == self.dtype else x.astype(self.storage).astype(self.dtype)

    def constant(self, value: Fraction) -> Any:
        return self.xp.full((), float(value), self.dtype)

    def add(self, x: Any, y: Any) -> Any:
        return self.xp.asarray(self.xp.add(x, y))

    def sub(self, x: Any, y: Any) -> Any:
        return self.xp.asarray(self.xp.subtract(x, y))

    def mul(self, x: Any, y: Any) -> Any:
        return self.xp.asarray(self.xp.multiply(x, y))

    def div(self, x: Any, y: Any) -> Any:
        return self.xp.asarray(self.xp.divide(x, y))

    def neg(self, x: Any) -> Any:
        return self.xp.asarray(self.xp.negative(x))

    def function(self, fn: ScalarFunction, x: Any, *params: Fraction) -> Any:
        return np.asarray(fn.numpy(x, *(float(p) for p in params)), dtype=self.dtype)

    def apply(self, fn: Callable[..., Any], *xs: Any) -> Any:
        return self.xp.asarray(fn(*xs))

    def einsum(self, x: Any, y: Any, xl: Sequence[int], yl: Sequence[int], ol: Sequence[int]) -> Any:
        return contract(x, y, xl, yl, ol, self.xp)

    def sum(self, x: Any, axes: tuple[int, ...]) -> Any:
        return self.xp.asarray(self.xp.sum(x, axis=axes, dtype=self.dtype))

    def max(self, x: Any, axes: tuple[int, ...], weighted: Callable[[Any], Any] = lambda y: y) -> Any:
        if x.size:
            return self.xp.asarray(self.xp.max(x, axis=axes))
        gone = {a % x.ndim for a in axes}
        return self.xp.full([n for a, n in enumerate(x.shape) if a not in gone], -np.inf, self.dtype)

    def zeros(self, shape: Sequence[int]) -> Any:
        return self.xp.zeros(tuple(shape), dtype=self.dtype)

    def shape(self, x: Any) -> tuple[int, ...]:
        return tuple(x.shape)


#: arithmetics of floats, by sizes and the name of a type
Floats: TypeAlias = type[FloatArithmetic]


def contract(
    x: Any, y: Any, xl: Sequence[int], yl: Sequence[int], ol: Sequence[int], xp: ArrayModule = np
) -> Any:
    """A two-operand einsum through one batched matmul: batch, rows, contracted and columns are grouped by label."""
    xs, ys, os = set(xl), set(yl), set(ol)
    # labels in one operand only that are summed can be summed before
    for lab in [v for v in xl if v not in ys and v not in os]:
        x, xl = x.sum(axis=list(xl).index(lab)), [v for v in xl if v != lab]
    for lab in [v for v in yl if v not in xs and v not in os]:
        y, yl = y.sum(axis=list(yl).index(lab)), [v for v in yl if v != lab]
    xs, ys = set(xl), set(yl)
    batch = [v for v in ol if v in xs and v in ys]
    rows = [v for v in ol if v in xs and v not in ys]
    cols = [v for v in ol if v in ys and v not in xs]
    summed = [v for v in xl if v in ys and v not in os]
    xt = x.transpose([list(xl).index(v) for v in batch + rows + summed])
    yt = y.transpose([list(yl).index(v) for v in batch + summed + cols])
    nb, nr, ns = len(batch), len(rows), len(summed)
    bs, rs, cs, ss = xt.shape[:nb], xt.shape[nb : nb + nr], yt.shape[nb + ns :], xt.shape[nb + nr :]
    r = xp.matmul(xt.reshape((*bs, math.prod(rs), math.prod(ss))), yt.reshape((*bs, math.prod(ss), math.prod(cs))))
    order = batch + rows + cols
    return xp.asarray(r.reshape((*bs, *rs, *cs)).transpose([order.index(v) for v in ol]))
