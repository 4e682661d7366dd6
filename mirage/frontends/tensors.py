"""Stand-ins for the values of a graph: tensors, of which dims may be unknown, and shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, cast

from mirage.frontends.proxy import Axes, Operand, Proxy, Traced, apply, axes_of, caller, fail, refuse, running
from mirage.ir.annotations import CallableType, PartialShape, PartialTensor, ShapeType
from mirage.ir.dims import Dim
from mirage.ir.graph.nodes import CallValue
from mirage.ir.types import TensorType

_NO_VALUE = (
    "a traced tensor has no value yet; choose between functions with mirage.cond, between elements with mirage.where"
)
_NAME_IT = "name its dims first: x = mirage.match_cast(x, mirage.tensor('m', ...))"


class TracedFunction(Traced):
    """A function that is a value, inside a traced function: it is called with values of the types of its parameters."""

    def __call__(self, *args: Any) -> Any:
        t = running("call").graph
        assert t is not None
        kind = cast(CallableType, self.annotation)
        wanted = kind.parameters if kind.parameters is not None and len(kind.parameters) == len(args) else (None,) * len(args)
        atoms = [t.value(f"call of a function: argument {k}", a, w) for k, (a, w) in enumerate(zip(args, wanted, strict=True))]
        return t.wrap(t.emit(CallValue((t.value("call of a function", self), *atoms)), caller()))


class UnknownDim:
    """A dim that only the run tells: whatever is done with it raises TraceError."""

    def __init__(self, of: Traced, position: int) -> None:
        self._of = of
        self._position = position

    def __repr__(self) -> str:
        return f"dim {self._position} of {self._of!r}"

    def _refuse(self, *args: object) -> NoReturn:
        fail(f"{self!r} is only known at run time; {_NAME_IT}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __rfloordiv__ = _refuse
    __truediv__ = __rtruediv__ = __mod__ = __rmod__ = __pow__ = __neg__ = __index__ = __int__ = __float__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _refuse
    __eq__: Any = _refuse
    __hash__ = object.__hash__


def _dims(of: Traced, dims: PartialShape) -> tuple[Any, ...]:
    return tuple(UnknownDim(of, i) if d is None else int(d) if d.is_Integer else d for i, d in enumerate(dims))


class GraphTensor(Proxy):
    """A tensor inside a function that `mirage.compile` traces: also compared, indexed and cast."""

    @property
    def type(self) -> TensorType:
        found = self.annotation
        if not isinstance(found, TensorType):
            fail(f"{found} is not known well enough for this; {_NAME_IT}")
        return found

    @property
    def shape(self) -> tuple[int | Dim, ...]:
        """Dims: integers where literal, else expressions; a dim that only the run tells is an `UnknownDim`."""
        known = cast("TensorType | PartialTensor", self.annotation).shape
        if known is None:
            fail(f"shape of {self!r}: even the rank is only known at run time; {_NAME_IT}")
        return _dims(self, known)

    @property
    def dtype(self) -> str:
        """Name of the element type; "scalar" for a constant, which takes that of what it meets."""
        found = cast("TensorType | PartialTensor", self.annotation).dtype
        if found is None:
            fail(f"dtype of {self!r}: it is only known at run time; match_cast the tensor to one of known type first")
        return found

    @property
    def ndim(self) -> int:
        return len(self.shape)

    _ufuncs: Mapping[str, str] = {
        **Proxy._ufuncs,
        **{name: name for name in ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")},
        **{name: name for name in ("logical_and", "logical_or", "logical_not", "floor_divide", "remainder", "sign")},
        **{name: name for name in ("log", "sin", "cos", "floor", "ceil", "isnan", "isfinite")},
        "absolute": "abs",
        "bitwise_and": "logical_and",
        "bitwise_or": "logical_or",
        "invert": "logical_not",
    }

    def reshape(self, *shape: Any) -> Proxy:
        """The same elements under another shape: ints, text such as "4*n", dims, a shape as a value; one may be -1."""
        if len(shape) == 1 and isinstance(shape[0], Shape):
            return apply("reshape_to", self, shape[0])
        return super().reshape(*shape)

    def astype(self, dtype: object) -> Proxy:
        """The elements in another type."""
        return apply("cast", self, dtype=dtype)

    def min(self, axis: Axes = None, keepdims: bool = False) -> Proxy:
        """The smallest element over `axis` (all dims by default)."""
        return apply("min", self, axes=axes_of("min", axis, self.ndim), keepdims=keepdims)

    def prod(self, axis: Axes = None, keepdims: bool = False) -> Proxy:
        """The product over `axis` (all dims by default)."""
        return apply("prod", self, axes=axes_of("prod", axis, self.ndim), keepdims=keepdims)

    def any(self, axis: Axes = None, keepdims: bool = False) -> Proxy:
        """Whether a boolean is set, over `axis` (all dims by default)."""
        return apply("any", self, axes=axes_of("any", axis, self.ndim), keepdims=keepdims)

    def all(self, axis: Axes = None, keepdims: bool = False) -> Proxy:
        """Whether all booleans are set, over `axis` (all dims by default)."""
        return apply("all", self, axes=axes_of("all", axis, self.ndim), keepdims=keepdims)

    def argmax(self, axis: int, keepdims: bool = False) -> Proxy:
        """The position of the first largest element along `axis`."""
        return apply("argmax", self, axis=axis, keepdims=keepdims)

    def argmin(self, axis: int, keepdims: bool = False) -> Proxy:
        """The position of the first smallest element along `axis`."""
        return apply("argmin", self, axis=axis, keepdims=keepdims)

    def __lt__(self, other: Operand) -> Proxy:
        return apply("less", self, other)

    def __le__(self, other: Operand) -> Proxy:
        return apply("less_equal", self, other)

    def __gt__(self, other: Operand) -> Proxy:
        return apply("greater", self, other)

    def __ge__(self, other: Operand) -> Proxy:
        return apply("greater_equal", self, other)

    def __eq__(self, other: Operand) -> Proxy:  # type: ignore[override]
        return apply("equal", self, other)

    def __ne__(self, other: Operand) -> Proxy:  # type: ignore[override]
        return apply("not_equal", self, other)

    __hash__ = object.__hash__

    def __and__(self, other: Operand) -> Proxy:
        return apply("logical_and", self, other)

    __rand__ = __and__

    def __or__(self, other: Operand) -> Proxy:
        return apply("logical_or", self, other)

    __ror__ = __or__

    def __xor__(self, other: Operand) -> Proxy:
        return apply("not_equal", self, other)

    __rxor__ = __xor__

    def __invert__(self) -> Proxy:
        return apply("logical_not", self)

    def __floordiv__(self, other: Operand) -> Proxy:
        return apply("floor_divide", self, other)

    def __rfloordiv__(self, other: Operand) -> Proxy:
        return apply("floor_divide", other, self)

    def __mod__(self, other: Operand) -> Proxy:
        return apply("remainder", self, other)

    def __rmod__(self, other: Operand) -> Proxy:
        return apply("remainder", other, self)

    __bool__ = refuse("truth value", _NO_VALUE)
    __setitem__ = refuse(
        "assignment to an item",
        "mirage.update_ writes in place, mirage.update_slice and mirage.where make a new tensor",
    )
    __index__ = refuse(
        "use as an index", "a traced tensor has no value yet; count with mirage.loop, pick elements with mirage.take"
    )
    __iter__ = refuse(
        "iteration", "a Python loop cannot run over a traced tensor; use mirage.loop, or whole-tensor operators"
    )
    __divmod__ = __rdivmod__ = refuse("divmod()", "use // and %")
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = refuse("a shift", "multiply with or divide by a power of 2")
    __round__ = refuse("round()", "add 0.5 and cast to an integer type")


class Shape(Traced):
    """A shape as a value."""

    @property
    def dims(self) -> tuple[Any, ...]:
        """Its dims: integers where literal, else expressions; one that only the run tells is an `UnknownDim`."""
        known = cast(ShapeType, self.annotation).dims
        if known is None:
            fail(
                f"dims of {self!r}: even their number is only known at run time; match_cast it to mirage.shape('m', ...)"
            )
        return _dims(self, known)

    def __getitem__(self, key: Any) -> Any:
        return self.dims[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dims)

    def __len__(self) -> int:
        return len(self.dims)
