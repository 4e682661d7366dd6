"""What is known of the values of a model before a call: constants, and small integer tensors of which elements are dims."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import sympy
from onnx import SparseTensorProto, TensorProto, TypeProto, numpy_helper

from mirage.errors import FormatError
from mirage.frontends import array_ops, ops
from mirage.frontends.effects import call_packed
from mirage.frontends.graph import GraphTrace
from mirage.frontends.graph_ops import cast
from mirage.frontends.imported import unsupported
from mirage.frontends.onnx.node_models import NAME, constant, encoded
from mirage.frontends.tensors import GraphTensor
from mirage.ir.annotations import ObjectType
from mirage.ir.dims import floor_div, maximum, minimum, modulo, to_dim
from mirage.ir.types import ELEMENTS, STORED_INTEGERS, TensorType

#: elements of a tensor that is computed while a model is imported
SMALL = 1024


@dataclass(eq=False)
class Value:
    """A value of a model.

    `known` is what it holds, an array of numbers, or of objects where some are dims; `traced` its stand-in in the function that
    is recorded, made when it is first needed. `type` is what ONNX says of it, for objects. `sources` are the inputs of the model
    that it is computed from, where it is from these alone.
    """

    traced: Any = None
    known: np.ndarray | None = None
    type: TypeProto | None = None
    sources: frozenset[str] = frozenset()
    #: stand-ins by the functions that they were made in
    _made: dict[int, tuple[GraphTrace, Any]] = field(default_factory=dict)

    def tensor(self, trace: GraphTrace) -> Any:
        """The stand-in; constants are written out where they are used."""
        if self.traced is not None:
            return self.traced
        assert self.known is not None
        if id(trace) not in self._made:
            self._made[id(trace)] = trace, _written(trace, self.known)
        return self._made[id(trace)][1]

    @property
    def is_symbolic(self) -> bool:
        """Whether dims are among its elements."""
        return self.known is not None and _has_dims(self.known)


def _has_dims(known: np.ndarray) -> bool:
    """Whether dims are among the elements: strings are objects, too."""
    return known.dtype == object and any(isinstance(x, sympy.Expr) for x in known.flat)


def _written(trace: GraphTrace, known: np.ndarray) -> Any:
    if known.dtype in ELEMENTS.values():
        return trace.wrap(trace.array("a constant", known))
    if not _has_dims(known):
        return call_packed(NAME, result=ObjectType(), node=encoded(constant(known)))
    parts = [
        array_ops.dim_value(d).reshape(1) if isinstance(d, sympy.Expr) else np.asarray([d], np.int64)
        for d in known.flat
    ]
    whole = [trace.wrap(trace.array("a constant", p)) if isinstance(p, np.ndarray) else p for p in parts]
    return (ops.concat(whole) if len(whole) > 1 else whole[0]).reshape(known.shape)


def widened(value: Value | None) -> Value | None:
    """A tensor of integers that are only stored in int64; any other value is itself."""
    if value is None:
        return None
    known = value.known
    if known is not None and known.dtype.name in STORED_INTEGERS:
        known = known.astype(np.int64)
    if isinstance(value.traced, GraphTensor) and value.traced.dtype in STORED_INTEGERS:
        return Value(cast(value.traced, "int64"), known, sources=value.sources)
    return value if known is value.known else Value(known=known)


def array_of(tensor: TensorProto) -> np.ndarray:
    """A tensor as an array; raises FormatError where its data are not what its type and its dims say."""
    try:
        found: np.ndarray = numpy_helper.to_array(tensor)
        return found
    except (KeyError, TypeError, ValueError) as e:
        raise FormatError(f"tensor {tensor.name!r}: {e}; export the model again") from None


def dense(tensor: SparseTensorProto) -> np.ndarray:
    """A sparse tensor as an array; raises FormatError where it has no room in memory, or elements outside of its dims."""
    values, places = array_of(tensor.values), array_of(tensor.indices)
    what = f"sparse tensor {tensor.values.name!r}"
    if math.prod(tensor.dims) * values.dtype.itemsize > memory_bytes():
        raise FormatError(f"{what}: {list(tensor.dims)} is larger than this machine's memory")
    try:
        found = np.zeros(math.prod(tensor.dims), values.dtype)
        if places.ndim == 2:
            places = np.ravel_multi_index(tuple(places.T), tuple(tensor.dims))
        found[places] = values
        return found.reshape(tuple(tensor.dims))
    except (IndexError, TypeError, ValueError) as e:
        raise FormatError(f"{what}: {e}; export the model again") from None


def check_size(value: Value) -> None:
    """Raise UnsupportedNode for a tensor that has no room in this machine's memory, however it is computed."""
    annotation = getattr(value.traced, "annotation", None)
    if not isinstance(annotation, TensorType) or not all(d.is_Integer for d in annotation.shape):
        return
    if math.prod(map(int, annotation.shape)) * ELEMENTS[annotation.dtype].itemsize > memory_bytes():
        unsupported(f"a result of it, {annotation}, is larger than this machine's memory")


@cache
def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def known_dims(dims: Sequence[Any]) -> np.ndarray:
    """Dims as an array that is known."""
    if all(isinstance(d, int) or d.is_Integer for d in dims):
        return np.array([int(d) for d in dims], np.int64)
    found = np.empty(len(dims), object)
    found[:] = [int(d) if isinstance(d, int) or d.is_Integer else d for d in dims]
    return found


def _simple(found: np.ndarray) -> np.ndarray:
    """An array of numbers where no element is a dim."""
    found = np.asarray(found, object)
    for place in np.ndindex(found.shape):
        x = found[place]
        if isinstance(x, sympy.Integer):
            found[place] = int(x)
    if any(isinstance(x, sympy.Expr) for x in found.flat):
        return found
    return found.astype(np.bool_ if found.size and all(isinstance(x, bool) for x in found.flat) else np.int64)


def _each(fn: Callable[[Any, Any], Any]) -> Callable[..., np.ndarray]:
    def function(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        x, y = np.broadcast_arrays(x, y)
        found = np.empty(x.shape, object)
        for place in np.ndindex(x.shape):
            a, b = (v[place].item() if isinstance(v[place], np.generic) else v[place] for v in (x, y))
            found[place] = fn(a, b)
        return found

    return function


def _divided(a: Any, b: Any) -> Any:
    # sizes are not negative, so both ways of rounding agree
    return sympy.expand(floor_div(to_dim(a), to_dim(b))) if b != 0 else unsupported("it divides a dim by 0")


def _equal(a: Any, b: Any) -> bool:
    difference = sympy.expand(a - b)
    if difference.is_Integer:
        return bool(difference == 0)
    numbers = [x for x in (a, b) if isinstance(x, int) or x.is_Integer]
    if numbers and numbers[0] < 0:
        return False
    unsupported(f"it compares {a} with {b}, which only the call tells")


def _gathered(x: np.ndarray, indices: np.ndarray, axis: int = 0) -> np.ndarray:
    return np.asarray(np.take(x, indices.astype(np.int64), axis=axis), object)


def _sliced(x: np.ndarray, starts: np.ndarray, ends: np.ndarray, axes: Any = None, steps: Any = None) -> np.ndarray:
    axes = range(len(starts)) if axes is None else axes
    key: list[slice] = [slice(None)] * x.ndim
    for k, a in enumerate(axes):
        step = 1 if steps is None else int(steps[k])
        stop = int(ends[k])
        key[int(a)] = slice(int(starts[k]), None if step < 0 and stop < -x.shape[int(a)] else stop, step)
    return x[tuple(key)]


def _unsqueezed(x: np.ndarray, axes: Any) -> np.ndarray:
    return np.expand_dims(x, tuple(int(a) for a in axes))


def _squeezed(x: np.ndarray, axes: Any = None) -> np.ndarray:
    return np.squeeze(x, None if axes is None else tuple(int(a) for a in axes))


#: operators that compute with dims while a model is imported: from operands, as arrays, and attributes
SYMBOLIC: dict[str, Callable[..., np.ndarray]] = {
    "Identity": lambda x: x,
    "Cast": lambda x, to, **_: x if to == 7 else unsupported("a dim is cast"),
    "Add": _each(lambda a, b: sympy.expand(a + b)),
    "Sub": _each(lambda a, b: sympy.expand(a - b)),
    "Mul": _each(lambda a, b: sympy.expand(a * b)),
    "Div": _each(_divided),
    "Mod": _each(lambda a, b: modulo(to_dim(a), to_dim(b))),
    "Max": _each(lambda a, b: maximum(sympy.sympify(a), sympy.sympify(b))),
    "Min": _each(lambda a, b: minimum(sympy.sympify(a), sympy.sympify(b))),
    "Equal": _each(_equal),
    "Neg": lambda x: _each(lambda a, b: -a)(x, x),
    "Where": lambda c, x, y: np.where(c.astype(np.bool_), np.asarray(x, object), np.asarray(y, object)),
    "Concat": lambda *xs, axis: np.concatenate([np.asarray(x, object) for x in xs], axis),
    "Gather": _gathered,
    "Slice": _sliced,
    "Unsqueeze": _unsqueezed,
    "Squeeze": _squeezed,
    "Reshape": lambda x, shape, allowzero=0: x.reshape([int(n) for n in shape]),
    "ReduceProd": lambda x, axes=None, keepdims=1, noop_with_empty_axes=0: np.array(
        [sympy.expand(math.prod(x.flat))] if keepdims else sympy.expand(math.prod(x.flat)), object
    ),
}


def folded(op: str, operands: Sequence[np.ndarray | None], attrs: dict[str, Any]) -> np.ndarray:
    """What an operator gives for operands of which some have dims as elements; raises UnsupportedNode where that is not known."""
    if op not in SYMBOLIC:
        unsupported(f"{op} does not compute with dims")
    given = list(operands)
    while given and given[-1] is None:
        given.pop()
    try:
        return _simple(SYMBOLIC[op](*given, **attrs))
    except (AttributeError, IndexError, TypeError, ValueError) as e:
        unsupported(f"{op} of dims: {e}")
