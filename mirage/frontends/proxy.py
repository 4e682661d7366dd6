"""Tensor stand-ins: what a traced Python function computes with instead of arrays."""

from __future__ import annotations

import linecache
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import sympy

from mirage.errors import MirageError, TraceError
from mirage.ir.dims import Dim, DimLike
from mirage.ir.operators.movement import RESHAPE, Reshape
from mirage.ir.types import TensorType

if TYPE_CHECKING:
    from mirage.frontends.graph import GraphTrace
    from mirage.ir.annotations import Annotation

Scalar: TypeAlias = int | float | Fraction | sympy.Expr
#: what an operator accepts as an operand
Operand: TypeAlias = Any
Axes: TypeAlias = int | Sequence[int] | None


class Trace(Protocol):
    """What a traced function is recorded in: a program, or a function of a graph.

    Values are what it calls its operands: indices of nodes in a program, atoms in a graph.
    """

    @property
    def name(self) -> str:
        """The function's name, for errors."""
        ...

    @property
    def graph(self) -> GraphTrace | None:
        """The trace, where it records a function of a graph."""
        ...

    def call(self, op: str, operands: Sequence[Any], attrs: Mapping[str, Any], where: str) -> Any:
        """Append an operator and return its value; raises what its checks raise, with `where` in front."""
        ...

    def wrap(self, value: Any) -> Any:
        """The stand-in for a value; a tuple of them for a tuple."""
        ...

    def annotation(self, value: Any) -> Annotation:
        """The type of a value."""
        ...

    def adopt(self, name: str, value: Traced) -> Any:
        """The value here of a stand-in; raises TraceError, which names the operator, for one of an unrelated trace."""
        ...

    def array(self, name: str, array: np.ndarray) -> Any:
        """The value of a literal array; raises TraceError, which names the operator, where there are none."""
        ...


#: what the running trace records
TRACE: ContextVar[Trace] = ContextVar("trace")


#: modules that may stand between the user's line and a proxy's method
_NOT_THE_USER = ("mirage.frontends.", "mirage.compilation", "contextlib")


#: the user's line, where it is not in a frame that calls us
_PLACE: ContextVar[str] = ContextVar("place", default="")


@contextmanager
def placed(where: str) -> Iterator[None]:
    """Errors and bindings within name this line as the user's."""
    token = _PLACE.set(where)
    try:
        yield
    finally:
        _PLACE.reset(token)


def definition(fn: object) -> str:
    """The line on which a function begins, as `caller` gives lines; "" where it has none."""
    while isinstance(fn, partial):
        fn = fn.func
    code = getattr(fn, "__code__", None)
    return _line(code.co_filename, code.co_firstlineno, None) if isinstance(code, CodeType) else ""


def caller() -> str:
    """The user's line, `file.py:LINE: code`."""
    place = _PLACE.get()
    if place:
        return place
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_NOT_THE_USER):
        frame = frame.f_back
    return _line(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)


def raised_at(error: BaseException) -> str:
    """The user's line that led to an error of a library."""
    found, trace = "", error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith((*_NOT_THE_USER, "sympy.")):
            found = _line(trace.tb_frame.f_code.co_filename, trace.tb_lineno, trace.tb_frame.f_globals)
        trace = trace.tb_next
    return found


def _line(file: str, line: int, names: dict[str, Any] | None) -> str:
    code = linecache.getline(file, line, names).strip()
    return f"{os.path.basename(file)}:{line}: {code}" if code else f"{os.path.basename(file)}:{line}"


def fail(message: str) -> NoReturn:
    """Raise TraceError with the user's line in front."""
    raise TraceError(f"{caller()}: {message}")


@contextmanager
def located() -> Iterator[None]:
    """Put the user's line in front of errors that do not name one yet."""
    try:
        yield
    except MirageError as e:
        where = caller()
        raise (e if str(e).startswith(where) else type(e)(f"{where}: {e}")) from None


def running(name: str) -> Trace:
    """The running trace; raises TraceError outside of one."""
    found = TRACE.get(None)
    if found is None:
        fail(f"{name}: no function is being traced; call it inside a function passed to mirage.trace or mirage.compile")
    return found


def tensor_operand(name: str, x: Operand) -> Proxy:
    """The operand where it is a traced tensor, whose type a function needs to know; raises TraceError for anything else."""
    if not isinstance(x, Proxy):
        running(name)
        fail(f"{name}: a {type(x).__name__} is not a tensor of the trace; pass what is computed from the parameters")
    return x


def apply(name: str, *operands: Operand, **attrs: Any) -> Proxy:
    """Apply a registered operator to tensors and numbers, also one that users registered.

    Raises what the operator's checks raise (ShapeError, AttributeValueError, UnknownOperator), with the
    user's line in front.
    """
    return cast("Proxy", _record(name, operands, attrs))


def apply_many(name: str, *operands: Operand, **attrs: Any) -> tuple[Proxy, ...]:
    """`apply` for an operator with several results."""
    return cast("tuple[Proxy, ...]", _record(name, operands, attrs))


F = TypeVar("F", bound=Callable[..., Any])


class Unary(Protocol):
    """An operator of one operand as a function."""

    def __call__(self, x: Operand) -> Proxy: ...


class Binary(Protocol):
    """An operator of two operands as a function."""

    def __call__(self, x: Operand, y: Operand) -> Proxy: ...


def unary(name: str, says: str) -> Unary:
    """The function of a registered operator, and what its docstring says."""

    def function(x: Operand) -> Proxy:
        return apply(name, x)

    return _named(function, name, says)


def binary(name: str, says: str) -> Binary:
    """As `unary`, of two operands."""

    def function(x: Operand, y: Operand) -> Proxy:
        return apply(name, x, y)

    return _named(function, name, says)


def _named(function: F, name: str, says: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = says
    # the one that defines it, where pickles look for it
    function.__module__ = sys._getframe(2).f_globals["__name__"]
    return function


def _record(name: str, operands: Sequence[Operand], attrs: Mapping[str, Any]) -> Any:
    t = running(name)
    for key, value in attrs.items():
        if isinstance(value, Traced):
            fail(f"{name}: {key}={value!r} is a tensor; {key} has to be a constant")
    values = [operand(t, name, x) for x in operands]
    return t.wrap(t.call(name, values, attrs, caller()))


def operand(t: Trace, name: str, x: Operand) -> Any:
    """The value of an operand: a tensor of this trace, a number, a dim used as a number, or an array."""
    if isinstance(x, Traced):
        return t.adopt(name, x)
    if isinstance(x, np.ndarray) and x.ndim == 0 and x.dtype.kind != "b":
        x = x[()]
    match x:
        case bool() | np.bool_():
            fail(f"{name}: {x!r} is not a number; use 0 or 1")
        case int() | float() | Fraction() | np.integer() | np.floating() | sympy.Rational():
            value = Fraction(int(x.p), int(x.q)) if isinstance(x, sympy.Rational) else x
            return t.call("constant", (), {"value": value}, caller())
        case sympy.Expr():
            if not (x.is_polynomial(*x.free_symbols) or x.is_integer):
                fail(f"{name}: {x} is not a sum of products of dims; use mirage.sqrt and others on dims")
            return t.call("size", (), {"dim": x}, caller())
        case np.ndarray():
            return t.array(name, x)
    fail(
        f"{name}: a {type(x).__name__} is not a tensor or a number; pass what is computed from the parameters"
    )


def axes_of(name: str, axis: Axes, rank: int) -> tuple[int, ...]:
    """The `axes` attribute from NumPy's `axis`: None is every dim."""
    if axis is None:
        return tuple(range(rank))
    if isinstance(axis, Sequence) and not isinstance(axis, str):
        return tuple(axis)
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        fail(f"{name}: axis={axis!r} is not an integer, a tuple of integers or None")
    return (int(axis),)


def refuse(what: str, instead: str) -> Callable[..., Any]:
    """A method that raises TraceError: what cannot be done with the stand-in, and what to do instead."""

    def method(self: Traced, *args: object, **kwargs: object) -> NoReturn:
        fail(f"{what} of {self!r}: {instead}")

    return method


_NO_VALUE = "a traced tensor has no value yet; move this decision out of the traced function"
_NO_DECISION = (
    "a program has no values to compare; move this decision out of the traced function, or compile it with mirage.compile"
)
_NO_ITEMS = "a Python loop cannot run over a traced tensor; index it, split dims with reshape, or reduce them with sum"
_NO_OPERATOR = (
    "there is no such operator in a program; use +, -, *, /, @ and ** or mirage.apply('name', ...), "
    "or compile the function with mirage.compile"
)

class Traced:
    """A value inside a traced function."""

    def __init__(self, trace: Trace, value: Any) -> None:
        self._trace = trace
        self._value = value

    @property
    def annotation(self) -> Annotation:
        """What is known of the value."""
        return self._trace.annotation(self._value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.annotation})"


class Proxy(Traced):
    """A tensor inside a traced function. Operators follow NumPy; what needs values raises TraceError."""

    # sympy leaves `dim * tensor` to the tensor
    _op_priority = 100.0
    #: NumPy ufuncs with the same meaning as an operator
    _ufuncs: Mapping[str, str] = {
        "add": "add",
        "subtract": "sub",
        "multiply": "mul",
        "divide": "div",
        "negative": "neg",
        "matmul": "matmul",
        "exp": "exp",
        "sqrt": "sqrt",
        "square": "square",
        "tanh": "tanh",
        "power": "pow",
        "maximum": "maximum",
        "minimum": "minimum",
    }

    @property
    def type(self) -> TensorType:
        """Shape and element type."""
        return cast(TensorType, self.annotation)

    @property
    def shape(self) -> tuple[int | Dim, ...]:
        """Dims: integers where literal, else expressions that `reshape` and arithmetic accept."""
        return tuple(int(d) if d.is_Integer else d for d in self.type.shape)

    @property
    def dtype(self) -> str:
        """Name of the element type; "scalar" for a constant, which takes that of what it meets."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        return self.type.rank

    @property
    def T(self) -> Proxy:
        """All dims in reverse order."""
        return self.transpose()

    @property
    def mT(self) -> Proxy:
        """The last two dims swapped."""
        if self.ndim < 2:
            fail(f"mT of {self!r}: needs two dims; reshape it first")
        return self.swapaxes(-1, -2)

    # arithmetic

    def __add__(self, other: Operand) -> Proxy:
        return apply("add", self, other)

    def __radd__(self, other: Operand) -> Proxy:
        return apply("add", other, self)

    def __sub__(self, other: Operand) -> Proxy:
        return apply("sub", self, other)

    def __rsub__(self, other: Operand) -> Proxy:
        return apply("sub", other, self)

    def __mul__(self, other: Operand) -> Proxy:
        return apply("mul", self, other)

    def __rmul__(self, other: Operand) -> Proxy:
        return apply("mul", other, self)

    def __truediv__(self, other: Operand) -> Proxy:
        return apply("div", self, other)

    def __rtruediv__(self, other: Operand) -> Proxy:
        return apply("div", other, self)

    def __matmul__(self, other: Operand) -> Proxy:
        return apply("matmul", self, other)

    def __rmatmul__(self, other: Operand) -> Proxy:
        return apply("matmul", other, self)

    def __neg__(self) -> Proxy:
        return apply("neg", self)

    def __pos__(self) -> Proxy:
        return self

    def __abs__(self) -> Proxy:
        return apply("abs", self)

    def __getitem__(self, key: Any) -> Proxy:
        from mirage.frontends.indexing import item

        return item(self, key)

    def __pow__(self, exponent: Scalar) -> Proxy:
        constant = float(exponent) if isinstance(exponent, int | float | Fraction) else 0.0
        named = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt"}.get(constant)
        return apply(named, self) if named else apply("pow", self, exponent=exponent)

    def __rpow__(self, base: Operand) -> NoReturn:
        fail(f"pow: the exponent {self!r} is a tensor; write mirage.exp(x * log_of_base)")

    # methods of arrays

    def reshape(self, *shape: DimLike | Sequence[DimLike]) -> Proxy:
        """The same elements under another shape: ints, text such as "4*n", dims; one may be -1."""
        dims = shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence | np.ndarray) else shape
        dims = shape if isinstance(dims, str) else dims
        with located():
            assert isinstance(RESHAPE, Reshape)
            # the inferred dim is written out: at size 0 it could not be found from the sizes alone
            resolved = RESHAPE.resolve(self.type, RESHAPE.check_attrs({"shape": list(dims)})["shape"])
        return apply("reshape", self, shape=resolved)

    def transpose(self, *perm: int | Sequence[int]) -> Proxy:
        """Dims in the order `perm`, which defaults to reverse order."""
        order = perm[0] if len(perm) == 1 and isinstance(perm[0], Sequence) else perm
        return apply("transpose", self, perm=tuple(order) or tuple(reversed(range(self.ndim))))

    def swapaxes(self, axis1: int, axis2: int) -> Proxy:
        """Two dims exchanged."""
        order = list(range(self.ndim))
        for a in (axis1, axis2):
            if not -self.ndim <= a < self.ndim:
                fail(f"swapaxes: axis {a} is out of range for {self!r}; use {-self.ndim} to {self.ndim - 1}")
        order[axis1], order[axis2] = order[axis2], order[axis1]
        return apply("transpose", self, perm=tuple(order))

    def sum(self, axis: Axes = None, keepdims: bool = False) -> Proxy:
        """Sum over `axis` (all dims by default)."""
        return apply("sum", self, axes=axes_of("sum", axis, self.ndim), keepdims=keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Proxy:
        """Mean over `axis` (all dims by default)."""
        return apply("mean", self, axes=axes_of("mean", axis, self.ndim), keepdims=keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False) -> Proxy:
        """The largest element over `axis` (all dims by default)."""
        return apply("max", self, axes=axes_of("max", axis, self.ndim), keepdims=keepdims)

    def exp(self) -> Proxy:
        return apply("exp", self)

    def sqrt(self) -> Proxy:
        return apply("sqrt", self)

    def rsqrt(self) -> Proxy:
        return apply("rsqrt", self)

    def square(self) -> Proxy:
        return apply("square", self)

    # what a tensor without values cannot do

    __bool__ = refuse("truth value", _NO_VALUE)
    __float__ = refuse("float()", _NO_VALUE)
    __int__ = refuse("int()", _NO_VALUE)
    __index__ = refuse("use as an index", _NO_VALUE)
    __array__ = refuse("conversion to an array", _NO_VALUE)
    __len__ = refuse("len()", "use x.shape[0]")
    __iter__ = refuse("iteration", _NO_ITEMS)
    __contains__ = refuse("`in`", _NO_VALUE)
    __setitem__ = refuse("assignment to an item", "values are immutable; make a new one")
    __lt__ = refuse("comparison", _NO_DECISION)
    __le__ = __gt__ = __ge__ = __lt__
    __eq__: Any = refuse("comparison", _NO_DECISION)
    __ne__: Any = refuse("comparison", _NO_DECISION)
    __hash__ = object.__hash__
    __floordiv__ = __rfloordiv__ = __divmod__ = __rdivmod__ = refuse("//", _NO_OPERATOR)
    __mod__ = __rmod__ = refuse("%", _NO_OPERATOR)
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = refuse("a bitwise operator", _NO_OPERATOR)
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = refuse("a shift", _NO_OPERATOR)
    __invert__ = __round__ = refuse("~, round()", _NO_OPERATOR)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Operand, **kwargs: Any) -> Proxy:
        name = self._ufuncs.get(ufunc.__name__)
        if name is None or method != "__call__" or kwargs:
            how = f"numpy.{ufunc.__name__}" + (f".{method}" if method != "__call__" else "")
            options = f" with {', '.join(kwargs)}" if kwargs else ""
            fail(f"{how}{options} is not an operator; use a function of mirage or mirage.apply('name', ...)")
        if name in ("pow", "maximum", "minimum"):
            from mirage.frontends import ops

            function: Callable[..., Proxy] = getattr(ops, name)
            return function(*inputs)
        return apply(name, *inputs)

    def __array_function__(self, func: Callable[..., Any], *args: object) -> NoReturn:
        fail(f"numpy.{func.__name__} of a traced tensor: use a function of mirage or a method of the tensor")
