"""Element types and tensor types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import ml_dtypes
import numpy as np
import sympy

from mirage.errors import DTypeError
from mirage.ir.dims import Dim, DimLike, dim_text, evaluate, symbols_of, to_dim

#: name -> NumPy type of the floating-point types: what tensors of programs and muGraphs are stored in
DTYPES: dict[str, np.dtype] = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
#: those of 16 bits
HALVES = ("float16", "bfloat16")
#: those that are computed with in float32
IN_FLOAT32 = ("float32", *HALVES)
#: name -> NumPy type of the integer types, which only values of graphs have
INTEGERS: dict[str, np.dtype] = {"int32": np.dtype(np.int32), "int64": np.dtype(np.int64)}
#: name -> NumPy type of integer types that are stored, moved, compared and cast, but not computed with: cast them before
STORED_INTEGERS: dict[str, np.dtype] = {
    "int8": np.dtype(np.int8),
    "uint8": np.dtype(np.uint8),
    "int16": np.dtype(np.int16),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
}
#: what else inputs of programs of float32 may be stored in: kernels widen these, exactly, where they read them
WIDENED = ("int8", "uint8", *HALVES)
#: name -> NumPy type of every element type of a graph
ELEMENTS: dict[str, np.dtype] = {**DTYPES, **INTEGERS, "bool": np.dtype(np.bool_), **STORED_INTEGERS}


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """What is computed and accumulated in: float32 for the 16-bit floating-point types, else the type itself."""
    return DTYPES["float32"] if dtype.name in HALVES else dtype


def between_dtype(dtype: np.dtype) -> np.dtype:
    """What a result that only other kernels read is stored in: it may be too large for float16."""
    return DTYPES["float32"] if dtype == DTYPES["float16"] else dtype


def epsilon(dtype: np.dtype) -> float:
    """The distance from 1 to the next larger number of a type."""
    return float(np.spacing(np.ones((), dtype)))


def largest(dtype: np.dtype) -> float:
    """The largest finite number of a type."""
    return float(np.nextafter(np.array(np.inf, dtype), np.zeros((), dtype)))


def check_dtype(name: object) -> str:
    """The canonical name of an element type, given as such or as a type of NumPy, ml_dtypes or torch.

    Raises DTypeError listing the known ones.
    """
    text = name if isinstance(name, str) else getattr(name, "__name__", None) or str(name).removeprefix("torch.")
    if text not in ELEMENTS:
        raise DTypeError(f"dtype {name!r} is not supported; use one of {', '.join(ELEMENTS)}")
    return text


def check_float(dtype: object, what: str) -> str:
    """The canonical name of a floating-point type; raises DTypeError, which begins with `what`, for any other."""
    name = check_dtype(dtype)
    if name not in DTYPES:
        raise DTypeError(f"{what} is {name}; only {', '.join(DTYPES)} are superoptimized: cast it to one of them first")
    return name


#: the canonical name of an element type
DType: TypeAlias = Annotated[str, check_dtype]


@dataclass(frozen=True)
class TensorType:
    """Shape (dims in elements, symbolic) and element type of a tensor."""

    shape: tuple[Dim, ...]
    dtype: DType = "float32"

    @property
    def rank(self) -> int:
        return len(self.shape)

    def symbols(self) -> set[str]:
        return set().union(*(symbols_of(d) for d in self.shape)) if self.shape else set()

    def bind(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The concrete shape under a binding of the dim symbols."""
        return tuple(evaluate(d, sizes) for d in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{shape_text(self.shape)}]"


def shape_text(shape: tuple[Dim, ...]) -> str:
    """Dims separated by commas; "()" for a scalar."""
    return ", ".join(dim_text(d) for d in shape) if shape else "()"


def tensor(*dims: DimLike, dtype: str = "float32") -> TensorType:
    """The type of a tensor argument: `tensor("b", 4096)`, `tensor("4*n", dtype="float64")`.

    String dims are symbolic; equal names are equal dims wherever they appear in one program. Raises DimError or
    DTypeError.
    """
    return TensorType(tuple(to_dim(d, f"tensor(), dim {i}") for i, d in enumerate(dims)), check_dtype(dtype))


def is_one(dim: Dim) -> bool:
    """Whether a dim is literally 1, the size that broadcasts."""
    return bool(dim == sympy.Integer(1))
