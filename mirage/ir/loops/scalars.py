"""Scalar expressions: what one element of a tensor is computed from.

Expressions are immutable and interned: equal ones are one object, so that they may be compared with `is` and shared
subexpressions are computed once. Python's operators build them: `x[i, j] * 2.0 + y[j]`, `i // 4`, `i < n`;
`equal(a, b)` is a comparison, as `==` compares the objects.

The type of a value (`dtype`) is what it is computed in: float32 for the 16-bit floating-point types, int64 for integers that are
only stored, else the element type. Integers wrap around; `//` and `%` round down as in NumPy, and give 0 for the divisor 0.
`select` evaluates only the branch that it takes. A NaN makes the maximum and minimum NaN.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias, Union

import sympy

from mirage.errors import LoopError
from mirage.ir.dims import Dim, to_dim
from mirage.ir.functions import FUNCTIONS, ScalarFunction
from mirage.ir.types import DTYPES, ELEMENTS, INTEGERS, STORED_INTEGERS, TensorType

ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%"}
EXTREMES = ("max", "min")
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
LOGICAL = ("and", "or")

_TABLE: weakref.WeakValueDictionary[tuple[Any, ...], Scalar] = weakref.WeakValueDictionary()


class _Interned(type):
    """Makes equal expressions one object; operands are interned, so that comparing them is comparing identities."""

    def __call__(cls, *fields: Any, **named: Any) -> Any:
        assert not named, "interned by position"
        key = (cls, *fields)
        found = _TABLE.get(key)
        return _TABLE.setdefault(key, super().__call__(*fields)) if found is None else found


def value_dtype(dtype: str) -> str:
    """What a value of an element type is computed in: float32 for the 16-bit floating-point types, int64 for integers that are
    only stored, else the type itself.
    """
    if dtype in STORED_INTEGERS:
        return "int64"
    return "float32" if dtype in DTYPES and DTYPES[dtype].itemsize == 2 else dtype


@dataclass(frozen=True, eq=False)
class Scalar(metaclass=_Interned):
    """A scalar expression; see the module."""

    @property
    def dtype(self) -> str:
        """The type of the value: float32, float64, int32, int64 or bool."""
        raise NotImplementedError

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return ()

    def __add__(self, other: ScalarLike) -> Scalar:
        return binary("add", self, other)

    def __radd__(self, other: ScalarLike) -> Scalar:
        return binary("add", other, self)

    def __sub__(self, other: ScalarLike) -> Scalar:
        return binary("sub", self, other)

    def __rsub__(self, other: ScalarLike) -> Scalar:
        return binary("sub", other, self)

    def __mul__(self, other: ScalarLike) -> Scalar:
        return binary("mul", self, other)

    def __rmul__(self, other: ScalarLike) -> Scalar:
        return binary("mul", other, self)

    def __truediv__(self, other: ScalarLike) -> Scalar:
        return binary("div", self, other)

    def __rtruediv__(self, other: ScalarLike) -> Scalar:
        return binary("div", other, self)

    def __floordiv__(self, other: ScalarLike) -> Scalar:
        return binary("floordiv", self, other)

    def __mod__(self, other: ScalarLike) -> Scalar:
        return binary("mod", self, other)

    def __neg__(self) -> Scalar:
        return negative(self)

    def __lt__(self, other: ScalarLike) -> Scalar:
        return binary("lt", self, other)

    def __le__(self, other: ScalarLike) -> Scalar:
        return binary("le", self, other)

    def __gt__(self, other: ScalarLike) -> Scalar:
        return binary("gt", self, other)

    def __ge__(self, other: ScalarLike) -> Scalar:
        return binary("ge", self, other)


@dataclass(frozen=True, eq=False)
class Const(Scalar):
    """A constant: an int or bool, an exact Fraction, or one of the floats inf, -inf and nan. Made by `constant`."""

    value: int | Fraction | float
    type: str

    @property
    def dtype(self) -> str:
        return self.type


@dataclass(frozen=True, eq=False)
class Size(Scalar):
    """The value of a dim."""

    dim: Dim

    @property
    def dtype(self) -> str:
        return "int64"


@dataclass(frozen=True, eq=False)
class Loop(Scalar):
    """The index of a loop, by the loop's name."""

    name: str

    @property
    def dtype(self) -> str:
        return "int64"


@dataclass(frozen=True, eq=False)
class Read(Scalar):
    """The element of an input, or of an earlier stage, at an index; `type` is the type of the value."""

    tensor: str
    index: tuple[Scalar, ...]
    type: str

    @property
    def dtype(self) -> str:
        return self.type

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return self.index


@dataclass(frozen=True, eq=False)
class Checked(Scalar):
    """An index into a dim of `extent` elements that is not known to be in range: negative ones count from the end.

    What is out of range is an InputError that begins with `where` (the operator and its dim).
    """

    index: Scalar
    extent: Dim
    where: str

    @property
    def dtype(self) -> str:
        return "int64"

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (self.index,)


@dataclass(frozen=True, eq=False)
class Unary(Scalar):
    """`neg` of a number or `not` of a bool."""

    op: str
    x: Scalar

    @property
    def dtype(self) -> str:
        return self.x.dtype

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (self.x,)


@dataclass(frozen=True, eq=False)
class Binary(Scalar):
    """Arithmetic, max, min, a comparison, or `and`, `or` of two values of one type. Made by `binary`."""

    op: str
    left: Scalar
    right: Scalar

    @property
    def dtype(self) -> str:
        return "bool" if self.op in COMPARISONS else self.left.dtype

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class Select(Scalar):
    """`then` where the condition holds, else `orelse`; the other is not evaluated."""

    condition: Scalar
    then: Scalar
    orelse: Scalar

    @property
    def dtype(self) -> str:
        return self.then.dtype

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (self.condition, self.then, self.orelse)


@dataclass(frozen=True, eq=False)
class Apply(Scalar):
    """A registered scalar function of a floating-point value and constant parameters."""

    function: str
    x: Scalar
    parameters: tuple[Fraction, ...] = ()

    @property
    def dtype(self) -> str:
        return self.x.dtype

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (self.x,)


@dataclass(frozen=True, eq=False)
class Cast(Scalar):
    """The value in another element type, as NumPy's astype: one to a 16-bit type rounds to it, one to a short integer wraps."""

    x: Scalar
    to: str

    @property
    def dtype(self) -> str:
        return value_dtype(self.to)

    @property
    def operands(self) -> tuple[Scalar, ...]:
        return (self.x,)


ScalarLike: TypeAlias = Union[Scalar, int, float, Fraction, sympy.Expr]  # noqa: UP007 (the metaclass hides |)


def constant(value: int | float | Fraction, dtype: str) -> Const:
    """A constant of an element type; raises LoopError where the type cannot hold such a value."""
    dtype = value_dtype(dtype)
    if dtype == "bool":
        return _made(Const(bool(value), dtype))
    if dtype in INTEGERS:
        if not math.isfinite(value) or value != int(value):
            raise LoopError(f"constant {value} is not a whole number; {dtype} cannot hold it")
        return _made(Const(int(value), dtype))
    if isinstance(value, float) and not math.isfinite(value):
        # one object for all NaNs, as NaN differs from itself
        return _made(Const(math.nan if math.isnan(value) else value, dtype))
    return _made(Const(Fraction(value), dtype))


def _made(c: Any) -> Const:
    assert isinstance(c, Const)
    return c


def size(dim: Dim | int | str) -> Scalar:
    """A dim as a value (int64): a constant where it is one."""
    d = to_dim(dim)
    return Const(int(d), "int64") if d.is_Integer else Size(d)


def to_scalar(value: ScalarLike, dtype: str = "int64") -> Scalar:
    """An expression from one, a dim, or a number of this type."""
    if isinstance(value, Scalar):
        return value
    return size(value) if isinstance(value, sympy.Expr) else constant(value, dtype)


def binary(op: str, left: ScalarLike, right: ScalarLike) -> Scalar:
    """A binary expression; numbers take the type of the other operand. Raises LoopError for types that differ."""
    known = next((x.dtype for x in (left, right) if isinstance(x, Scalar)), "int64")
    a, b = to_scalar(left, known), to_scalar(right, known)
    if a.dtype != b.dtype:
        raise LoopError(f"{op}: operands are {a.dtype} and {b.dtype}; cast one of them")
    if (op in LOGICAL) != (a.dtype == "bool") and op not in COMPARISONS and op not in EXTREMES:
        raise LoopError(f"{op}: operands are {a.dtype}; cast them first")
    if (op == "div" and a.dtype not in DTYPES) or (op in ("floordiv", "mod") and a.dtype not in INTEGERS):
        raise LoopError(f"{op}: operands are {a.dtype}; / takes floating-point numbers, // and % take integers")
    return Binary(op, a, b)


def negative(x: Scalar) -> Scalar:
    """-x of a number; raises LoopError for a bool."""
    if x.dtype == "bool":
        raise LoopError("neg: the operand is bool; cast it to a number")
    if isinstance(x, Const):
        return constant(-x.value, x.type)
    return Unary("neg", x)


def logical_not(x: Scalar) -> Scalar:
    """Not x; raises LoopError unless it is a bool."""
    if x.dtype != "bool":
        raise LoopError(f"not: the operand is {x.dtype}; compare it with something")
    return Unary("not", x)


def logical_and(a: Scalar, b: Scalar) -> Scalar:
    return binary("and", a, b)


def logical_or(a: Scalar, b: Scalar) -> Scalar:
    return binary("or", a, b)


def equal(a: ScalarLike, b: ScalarLike) -> Scalar:
    return binary("eq", a, b)


def maximum(a: ScalarLike, b: ScalarLike) -> Scalar:
    return binary("max", a, b)


def minimum(a: ScalarLike, b: ScalarLike) -> Scalar:
    return binary("min", a, b)


def select(condition: Scalar, then: ScalarLike, orelse: ScalarLike) -> Scalar:
    """A choice; numbers take the type of the other branch. Raises LoopError for other types."""
    known = next((x.dtype for x in (then, orelse) if isinstance(x, Scalar)), "int64")
    a, b = to_scalar(then, known), to_scalar(orelse, known)
    if condition.dtype != "bool" or a.dtype != b.dtype:
        raise LoopError(f"select: the condition is {condition.dtype}, the branches {a.dtype} and {b.dtype}; cast them")
    return Select(condition, a, b)


def apply(fn: ScalarFunction | str, x: Scalar, *parameters: Fraction) -> Scalar:
    """A registered function of a floating-point value; raises LoopError for others."""
    name = fn if isinstance(fn, str) else fn.name
    if name not in FUNCTIONS:
        raise LoopError(f"function {name!r} is not registered; one of {', '.join(FUNCTIONS)}")
    if x.dtype not in DTYPES:
        raise LoopError(f"{name}: the operand is {x.dtype}; cast it to a floating-point type")
    return Apply(name, x, tuple(parameters))


def cast(x: Scalar, dtype: str) -> Scalar:
    """The value in another element type: itself where that changes nothing."""
    if dtype not in ELEMENTS:
        raise LoopError(f"cast: dtype {dtype!r} is not known; one of {', '.join(ELEMENTS)}")
    if x.dtype == dtype:
        return x
    if isinstance(x, Const) and x.dtype in ("bool", *INTEGERS) and value_dtype(dtype) == dtype:
        return constant(x.value, dtype)
    return Cast(x, dtype)


def checked(index: Scalar, extent: Dim, where: str) -> Scalar:
    """An index of data, made safe; see `Checked`."""
    if index.dtype not in INTEGERS:
        raise LoopError(f"{where}: the index is {index.dtype}; cast it to int64")
    return Checked(cast(index, "int64"), to_dim(extent), where)


class Operand:
    """A tensor to read from: `x[i, j]` is a read of it, with expressions, dims or integers as indices."""

    def __init__(self, name: str, type: TensorType) -> None:
        self.name = name
        self.type = type

    def __getitem__(self, index: ScalarLike | tuple[ScalarLike, ...]) -> Scalar:
        given = index if isinstance(index, tuple) else (index,)
        if len(given) != self.type.rank:
            raise LoopError(f"{self.name}: {len(given)} indices for a tensor of rank {self.type.rank}")
        return Read(self.name, tuple(cast(to_scalar(i), "int64") for i in given), value_dtype(self.type.dtype))

    def broadcast(self, index: Sequence[ScalarLike]) -> Scalar:
        """The element that NumPy's broadcasting takes for an element of a result: the last dims, 0 where a dim is 1."""
        last = index[len(index) - self.type.rank :]
        return self[tuple(0 if d == 1 else i for i, d in zip(last, self.type.shape, strict=True))]
