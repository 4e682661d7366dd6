"""Steps from which `tests.random_graphs` makes functions: each binds another value of a kind of operator.

A value is `exact` where every way of computing it gives the same bits: only such values are compared, rounded to integers,
or sorted by position, as the smallest error would make another result of anything else. `most` bounds the magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import sympy

from mirage.errors import ShapeError
from mirage.ir.annotations import Annotation, PartialTensor, tensor_annotation
from mirage.ir.dims import Dim, symbol
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.nodes import (
    Atom,
    Constant,
    Function,
    MakeTuple,
    MatchCast,
    OpCall,
    PackedCall,
    ShapeOf,
    ShapeValue,
    TupleItem,
    Var,
)
from mirage.ir.operator import get_operator
from mirage.ir.operators.in_place import get_effect
from mirage.ir.types import DTYPES, ELEMENTS, INTEGERS, TensorType

#: how many elements a sum is taken to have, at most
_SUMMED = 100
#: the largest magnitude of a value that others are made of
_MOST = 1e4
_HALF = Fraction(1, 2)
_UNARY = ("neg", "abs", "relu", "square", "exp", "sigmoid", "tanh", "silu", "gelu", "sin", "cos", "maximum", "clamp")


class NotNow(ShapeError):
    """The function has no values that a step could use."""


@dataclass(frozen=True)
class Value:
    """A tensor of a function under construction."""

    var: Var
    exact: bool
    most: float

    @property
    def type(self) -> TensorType:
        assert isinstance(self.var.annotation, TensorType)
        return self.var.annotation

    @property
    def rank(self) -> int:
        return self.type.rank


class Writer:
    """A function under construction: its tensors of known shape, and the dims that new tensors may have."""

    def __init__(self, rng: Random, name: str, functions: Mapping[str, Function]) -> None:
        self.rng = rng
        self.builder = FunctionBuilder(name, functions)
        self.values: list[Value] = []
        self.dims: list[Dim] = [sympy.Integer(1), sympy.Integer(3)]
        #: values that a tuple, cast or call may share the memory of
        self.shared: set[Var] = set()
        self.casts = 0
        #: how many functions call each other around it
        self.depth = 0

    def parameter(self, name: str, annotation: TensorType) -> None:
        var = self.builder.parameter(name, annotation)
        # see `random_array`
        self.values.append(Value(var, True, 8.0))
        self.shared.add(var)
        self.dims += [d for d in annotation.shape if d not in self.dims]

    def pick(self, accepts: Callable[[Value], bool] = lambda v: True) -> Value:
        """One of the values, often the last, so that little is computed in vain; raises NotNow where there is none."""
        found = [v for v in self.values if accepts(v)]
        if not found:
            raise NotNow("no value of this kind")
        return self.rng.choice((found[-1], self.rng.choice(found)))

    def op(self, op: str, *args: Atom, **attrs: Any) -> Var:
        return self.builder.emit(OpCall(op, args, tuple(get_operator(op).check_attrs(attrs).items())))

    def keep(self, var: Var, exact: bool, most: float) -> Value:
        """Note a new value; raises NotNow for one that is too large to compute with."""
        if most > _MOST or not isinstance(var.annotation, TensorType) or var.annotation.rank > 5:
            raise NotNow("too large")
        self.values.append(Value(var, exact, most))
        return self.values[-1]

    def number(self, value: Any) -> Var:
        return self.op("constant", value=value)


def is_float(v: Value) -> bool:
    return v.type.dtype in DTYPES


def is_number(v: Value) -> bool:
    return v.type.dtype != "bool"


def _exact_number(v: Value) -> bool:
    return v.exact and is_number(v)


def _ranked(v: Value) -> bool:
    return v.rank > 0


def _unary(w: Writer) -> None:
    x = w.pick(is_number)
    if not is_float(x):
        op = w.rng.choice(["neg", "abs", "sign", "square"])
        w.keep(w.op(op, x.var), x.exact, x.most**2 if op == "square" else x.most)
        return
    op = w.rng.choice(_UNARY)
    attrs: dict[str, Any] = {"value": -1} if op == "maximum" else {"lo": -1, "hi": _HALF} if op == "clamp" else {}
    if op == "exp" and x.most > 8:
        x = w.keep(w.op("tanh", x.var), False, 1.0)
    small = op in ("sigmoid", "tanh", "sin", "cos", "clamp")
    most = {"square": x.most**2, "exp": 3e3}.get(op, 1.0 if small else x.most + 1)
    w.keep(w.op(op, x.var, **attrs), x.exact and op in ("neg", "abs", "relu", "maximum", "clamp"), most)


def _positive(w: Writer) -> None:
    x = w.pick(is_float)
    positive = w.op("add", w.op("sigmoid", x.var), w.number(_HALF))
    op = w.rng.choice(["log", "sqrt", "rsqrt", "pow", "div"])
    if op == "div":
        y = w.pick(lambda v: v.type.dtype == x.type.dtype)
        w.keep(w.op("div", y.var, positive), False, 2 * y.most)
    else:
        w.keep(w.op(op, positive, **({"exponent": Fraction(-3, 4)} if op == "pow" else {})), False, 2.0)


def _binary(w: Writer) -> None:
    x = w.pick(is_number)
    y = w.pick(lambda v: v.type.dtype == x.type.dtype)
    op = w.rng.choice(["add", "sub", "mul", "elementwise_max", "elementwise_min"])
    most = x.most * y.most if op == "mul" else x.most + y.most
    # multiples of 1/4 of wide types stay exact in small sums
    exact = op.startswith("elementwise") or x.type.dtype in INTEGERS or (op != "mul" and most < 1000 and _wide(x))
    w.keep(w.op(op, x.var, y.var), x.exact and y.exact and exact, most)


def _wide(v: Value) -> bool:
    return v.type.dtype in ("float32", "float64")


def _with_constant(w: Writer) -> None:
    x = w.pick(is_number)
    if is_float(x):
        y: Atom = w.number(Fraction(w.rng.randint(-8, 8), w.rng.choice((1, 3, 8))))
        if w.rng.random() < 0.5 and x.rank and x.type.shape[-1].is_Integer:
            y = _constant(w.rng, TensorType(x.type.shape[-1:], x.type.dtype))
        w.keep(w.op(w.rng.choice(["add", "mul", "sub"]), x.var, y), False, 8 * x.most + 8)
    else:
        op = w.rng.choice(["remainder", "floor_divide", "add"])
        w.keep(w.op(op, x.var, w.number(w.rng.choice((2, 7)))), x.exact, x.most + 7)


def _constant(rng: Random, type_: TensorType) -> Constant:
    array = random_array(rng, tuple(int(d) for d in type_.shape), type_.dtype)
    array.setflags(write=False)
    return Constant(array, type_)


def _compare(w: Writer) -> None:
    x = w.pick(_exact_number)
    op = w.rng.choice(["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"])
    y = w.number(0) if w.rng.random() < 0.4 else w.pick(lambda v: v.exact and v.type.dtype == x.type.dtype).var
    w.keep(w.op(op, x.var, y), True, 1.0)


def _logic(w: Writer) -> None:
    def boolean(v: Value) -> bool:
        return not is_number(v)

    x = w.pick(boolean)
    op = w.rng.choice(["logical_and", "logical_or", "logical_not", "any", "all"])
    if op in ("any", "all"):
        w.keep(w.op(op, x.var, **_axes(w, x)), True, 1.0)
    else:
        w.keep(w.op(op, x.var, *([] if op == "logical_not" else [w.pick(boolean).var])), True, 1.0)


def _where(w: Writer) -> None:
    condition = w.pick(lambda v: not is_number(v))
    x = w.pick()
    y = w.pick(lambda v: v.type.dtype == x.type.dtype)
    w.keep(w.op("where", condition.var, x.var, y.var), x.exact and y.exact, max(x.most, y.most))


def _cast(w: Writer) -> None:
    x = w.pick()
    dtype = w.rng.choice(["float32", "float32", "float64", "int32", "int64", "float16", "bfloat16", "bool"])
    if dtype not in DTYPES and not x.exact:
        raise NotNow("rounding would tell another error")
    # a multiple of 1/4 below 64 is one in every float type
    w.keep(
        w.op("cast", x.var, dtype=dtype), x.exact and (x.most < 64 or dtype not in ("float16", "bfloat16")), x.most + 1
    )


def _rounding(w: Writer) -> None:
    x = w.pick(lambda v: v.exact and is_float(v))
    w.keep(w.op(w.rng.choice(["floor", "ceil", "round"]), x.var), True, x.most + 1)


def _matmul(w: Writer) -> None:
    x = w.pick(lambda v: is_float(v) and v.rank > 1)
    y = w.pick(lambda v: v.type.dtype == x.type.dtype and v.rank > 1).var
    assert isinstance(y.annotation, TensorType)
    if x.type.shape[-1] != y.annotation.shape[-2]:
        perm = list(range(y.annotation.rank))
        y = w.op("transpose", y, perm=(*perm[:-2], perm[-1], perm[-2]))
    scaled = w.op("tanh", x.var)
    w.keep(w.op("matmul", scaled, y), False, 8.0 * _SUMMED)


def _axes(w: Writer, x: Value) -> dict[str, Any]:
    if not x.rank:
        raise NotNow("no dims")
    axes = sorted(w.rng.sample(range(x.rank), w.rng.randint(1, min(x.rank, 2))))
    return {"axes": axes, "keepdims": w.rng.random() < 0.6}


def _reduce(w: Writer) -> None:
    x = w.pick(lambda v: _ranked(v) and is_number(v))
    op = w.rng.choice(["sum", "mean", "prod"] if is_float(x) else ["sum"])
    if w.rng.random() < 0.3:
        # of no elements, the largest is infinite
        found = w.op(w.rng.choice(["max", "min"]), w.op("concat", x.var, x.var, axis=0), **_axes(w, x))
        w.keep(found, x.exact, x.most)
        return
    y = w.op("tanh", x.var) if op == "prod" else x.var
    w.keep(w.op(op, y, **_axes(w, x)), not is_float(x), x.most if op != "sum" else _SUMMED * x.most)


def _norm(w: Writer) -> None:
    x = w.pick(lambda v: _ranked(v) and is_float(v))
    op = w.rng.choice(["softmax", "rms_norm", "layer_norm"])
    axis = w.rng.choice((x.rank - 1, w.rng.randrange(x.rank)))
    w.keep(w.op(op, x.var, axis=axis, **({} if op == "softmax" else {"eps": _HALF})), False, 10.0)


def _positions(w: Writer) -> None:
    x = w.pick(lambda v: _ranked(v) and _exact_number(v))
    axis = w.rng.randrange(x.rank)
    op = w.rng.choice(["argmax", "argmin", "argsort", "sort", "topk"])
    match op:
        case "argmax" | "argmin":
            w.keep(w.op(op, x.var, axis=axis, keepdims=w.rng.random() < 0.5), True, 1000.0)
        case "argsort":
            order = w.op(op, x.var, axis=axis, descending=w.rng.random() < 0.5)
            w.keep(order, True, 1000.0)
            w.keep(w.op("take_along_axis", x.var, order, axis=axis), x.exact, x.most)
        case "sort":
            w.keep(w.op(op, x.var, axis=axis, descending=w.rng.random() < 0.5), x.exact, x.most)
        case _:
            both = w.op(op, w.op("concat", x.var, x.var, axis=axis), k=1, axis=axis)
            for k, most in ((0, x.most), (1, 1000.0)):
                w.keep(w.builder.emit(TupleItem((both,), k)), True, most)


def _move(w: Writer) -> None:
    x = w.pick(_ranked)
    rank, shape, rng = x.rank, x.type.shape, w.rng
    axis = rng.randrange(rank)
    op = rng.choice(
        ["transpose", "reshape", "reshape", "repeat", "flip", "slice", "pad", "broadcast_to", "concat", "cumsum"]
    )
    most = x.most
    match op:
        case "transpose":
            found = w.op(op, x.var, perm=rng.sample(range(rank), rank))
        case "reshape":
            merged = (*shape[:axis], -1, *shape[axis + 2 :])
            found = w.op(op, x.var, shape=rng.choice([merged, (*shape[:axis], 1, *shape[axis:])]))
        case "repeat":
            found = w.op(op, x.var, axis=axis, times=rng.choice((2, 3)))
        case "flip":
            found = w.op(op, x.var, axes=rng.sample(range(rank), rng.randint(1, rank)))
        case "slice":
            n = shape[axis]
            start, stop = rng.choice([(0, n), (1, n), (0, n - 1), (n // 2, n), (0, (n + 1) // 2)])
            found = w.op(op, x.var, axes=(axis,), starts=(start,), stops=(stop,), steps=(rng.choice((1, 1, 2)),))
        case "pad":
            low, high = ([rng.choice((0, 0, 1, 2)) for _ in shape] for _ in range(2))
            found, most = w.op(op, x.var, low=low, high=high, value=rng.choice((0, 1))), most + 1
        case "broadcast_to":
            found = w.op(op, x.var, shape=(rng.choice(w.dims), *shape))
        case "concat":
            y = w.pick(lambda v: v.type.dtype == x.type.dtype and v.rank == rank)
            most = max(most, y.most)
            w.keep(w.op(op, x.var, y.var, axis=axis), x.exact and y.exact, most)
            return
        case _:
            if not is_number(x):
                raise NotNow("sums of numbers")
            w.keep(w.op(op, x.var, axis=axis), not is_float(x), _SUMMED * most)
            return
    w.keep(found, x.exact, most)


def _index(w: Writer) -> None:
    x = w.pick(_ranked)
    axis = w.rng.randrange(x.rank)
    n = w.op("dim_value", dim=x.type.shape[axis])
    integers = [v for v in w.values if v.type.dtype == "int64" and v.rank in (1, 2) and v.exact]
    given = w.rng.choice(integers).var if integers else w.op("arange", stop=w.rng.choice(w.dims))
    at = w.op("remainder", given, n)
    found = w.op("take", x.var, at, axis=axis)
    if w.rng.random() < 0.3 and isinstance(at.annotation, TensorType) and at.annotation.rank == 1:
        # the positions are distinct, so that the order of the writes does not matter
        at = w.op("arange", stop=x.type.shape[axis])
        found = w.op("scatter", x.var, at, w.op("take", x.var, w.op("flip", at, axes=(0,)), axis=axis), axis=axis)
    w.keep(found, x.exact, x.most)


def _create(w: Writer) -> None:
    shape = [w.rng.choice(w.dims) for _ in range(w.rng.randint(0, 2))]
    dtype = w.rng.choice(["float32", "float32", "int64"])
    match w.rng.randrange(3):
        case 0:
            w.keep(w.op("full", shape=shape, value=w.rng.choice((0, 1, -2)), dtype=dtype), True, 2.0)
        case 1:
            w.keep(w.op("arange", stop=w.rng.choice(w.dims), dtype=dtype), True, 500.0)
        case _:
            w.keep(w.op("dim_value", dim=w.rng.choice(w.dims)), True, 500.0)


def _shapes(w: Writer) -> None:
    """Shapes as values: of a tensor, or written down."""
    x = w.pick()
    shape: Atom = w.builder.emit(ShapeOf((x.var,))) if w.rng.random() < 0.5 else ShapeValue(x.type.shape)
    if w.rng.random() < 0.5:
        w.keep(w.op("full_of", shape, value=1, dtype=x.type.dtype), True, 1.0)
    else:
        y = w.op("reshape_to", x.var, shape)
        w.keep(y, x.exact, x.most)


def _tuples(w: Writer) -> None:
    picked = [w.pick() for _ in range(w.rng.randint(1, 3))]
    group = w.builder.emit(MakeTuple(tuple(v.var for v in picked)))
    k = w.rng.randrange(len(picked))
    item = w.builder.emit(TupleItem((group,), k))
    w.shared |= {v.var for v in picked} | {item}
    w.keep(item, picked[k].exact, picked[k].most)


def match_cast(w: Writer, x: Var, exact: bool, most: float) -> Value:
    """Give the unknown dims of a tensor names that are new in the function."""
    partial = x.annotation
    assert isinstance(partial, PartialTensor) and partial.shape is not None
    shape = list(partial.shape)
    for i, d in enumerate(shape):
        if d is None:
            shape[i] = symbol(f"c{w.casts}")
            w.casts += 1
    w.shared.add(x)
    var = w.builder.emit(MatchCast((x,), tensor_annotation(tuple(shape), partial.dtype)))
    w.shared.add(var)
    return w.keep(var, exact, most)


def _data_dependent(w: Writer) -> None:
    x = w.pick(_ranked)
    match w.rng.randrange(3):
        case 0:
            exact = w.pick(lambda v: _exact_number(v) and _ranked(v))
            match_cast(w, w.op("unique", exact.var), True, exact.most)
        case 1:
            match_cast(w, w.op("nonzero", w.pick(lambda v: v.exact and _ranked(v)).var), True, 500.0)
        case _:
            rows = w.op("arange", stop=x.type.shape[0])
            odd = w.op("equal", w.op("remainder", rows, w.number(2)), w.number(1))
            match_cast(w, w.op("boolean_mask", x.var, odd), x.exact, x.most)


def _in_place(w: Writer) -> None:
    """Write to a value that only its variable reaches."""
    x = w.pick(lambda v: v.var not in w.shared and v.exact)
    y = w.pick(lambda v: v.exact and v.type == x.type and v.var is not x.var)
    attrs: dict[str, Any] = {}
    name = w.rng.choice(["copy_", "fill_", "add_"])
    args: tuple[Var, ...] = (x.var, y.var)
    if name == "fill_":
        args, attrs = (x.var,), {"value": 1}
    elif name == "add_" and (not is_number(x) or x.most + y.most > 60):
        raise NotNow("the sum may be inexact")
    checked = get_effect(name).check_attrs(attrs)
    w.builder.emit(PackedCall(name, args, x.var.annotation, tuple(checked.items()), (0,)))
    k = w.values.index(x)
    w.values[k] = Value(x.var, True, max(x.most + y.most if name == "add_" else y.most, 1.0, x.most))
    w.shared.add(x.var)


#: (how often, step) of the steps that any function may take
STEPS: Sequence[tuple[int, Callable[[Writer], None]]] = (
    (4, _unary),
    (2, _positive),
    (5, _binary),
    (2, _with_constant),
    (2, _compare),
    (1, _logic),
    (2, _where),
    (2, _cast),
    (1, _rounding),
    (4, _matmul),
    (3, _reduce),
    (3, _norm),
    (2, _positions),
    (6, _move),
    (2, _index),
    (1, _create),
    (1, _shapes),
    (1, _tuples),
    (1, _data_dependent),
)
#: the step that has effects
IN_PLACE = _in_place


def squashed(w: Writer, x: Value) -> Value:
    """The value with its magnitudes made small, so that a loop may repeat it."""
    if is_float(x):
        return w.keep(w.op("tanh", x.var), False, 1.0)
    if not is_number(x):
        return w.keep(w.op("logical_not", x.var), True, 1.0)
    return w.keep(w.op("remainder", x.var, w.number(7)), True, 7.0)


def random_array(rng: Random, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small integers, or multiples of 1/4 in -4..4, which every float type has."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    if dtype == "bool":
        return numbers.integers(0, 2, shape).astype(bool)
    if dtype in INTEGERS:
        return numbers.integers(-5, 6, shape).astype(ELEMENTS[dtype])
    return (numbers.integers(-16, 17, shape) / 4).astype(ELEMENTS[dtype])


def generalized(annotations: Sequence[Annotation]) -> list[TensorType]:
    """Signatures that these tensors fit: each distinct dim is a symbol of its own, numbers stay, and so do multiples."""
    names: dict[Dim, Dim] = {}

    def name(d: Dim) -> Dim:
        if d.is_Integer:
            return d
        for known, short in names.items():
            if d == 2 * known:
                return 2 * short
        return names.setdefault(d, symbol(f"p{len(names)}"))

    return [TensorType(tuple(map(name, a.shape)), a.dtype) for a in annotations if isinstance(a, TensorType)]
