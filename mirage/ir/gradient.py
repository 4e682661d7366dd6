"""Reverse mode, one operator at a time: from the cotangent of its result to those of its operands.

The cotangent of a value is the derivative of a scalar by each of its elements (Baydin et al., "Automatic differentiation in
machine learning: a survey", section 3.2). Rules stand beside the definitions, as the method `gradient` of operators and the
field `backward` of scalar functions, and are written with a `Backward`. An elementwise operator needs none: its definition,
read in the algebra `Tape`, is differentiated function by function.

A cotangent has the rank of its value, and size 1 in dims along which it is the same: that of a sum is no larger than the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

import sympy

from mirage.errors import GradientError
from mirage.ir.dims import Dim
from mirage.ir.functions import ScalarFunction
from mirage.ir.types import TensorType, is_one

#: what a graph calls its operands
Value: TypeAlias = Any
#: the cotangents of an operator's operands; None where there is none
Cotangents: TypeAlias = "Sequence[Value | None]"


class Emitter:
    """Operators applied in the graph that a gradient becomes part of; an `Algebra` over its values.

    `emit` appends an operator with its attributes, by name or in order, `known` gives the type of a value, if it is known.
    """

    def __init__(self, emit: Callable[..., Value], known: Callable[[Value], TensorType | None]) -> None:
        self._emit = emit
        self.known = known

    def type(self, x: Value) -> TensorType:
        """The type of a value; raises GradientError where its shape is only known at run time."""
        found = self.known(x)
        if found is None:
            raise GradientError(
                f"the shape of {x} is only known at run time; name its dims with mirage.match_cast before it is used"
            )
        return found

    def op(self, name: str, *operands: Value, **attrs: Any) -> Value:
        """An operator applied to values; Python numbers are constants, dims their sizes."""
        return self._emit(name, [self._value(x) for x in operands], attrs)

    def _value(self, x: Value) -> Value:
        if isinstance(x, sympy.Expr):
            return self.dim(x)
        return self.constant(Fraction(x)) if isinstance(x, int | float | Fraction) else x

    def constant(self, value: Fraction) -> Value:
        return self._emit("constant", [], {"value": value})

    def dim(self, size: sympy.Expr) -> Value:
        return self._emit("size", [], {"dim": size})

    def add(self, x: Value, y: Value) -> Value:
        return self.op("add", x, y)

    def sub(self, x: Value, y: Value) -> Value:
        return self.op("sub", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        return self.op("mul", x, y)

    def div(self, x: Value, y: Value) -> Value:
        return self.op("div", x, y)

    def neg(self, x: Value) -> Value:
        return self.op("neg", x)

    def function(self, fn: ScalarFunction, x: Value, *params: Fraction) -> Value:
        """A scalar function, by the operator of its name."""
        return self._emit(fn.name, [x], params)

    def through(self, fn: ScalarFunction, g: Value, x: Value, y: Value, *params: Fraction) -> Value | None:
        """The cotangent of x, from that of y = fn(x); raises GradientError where the function has no derivative."""
        if fn.backward is None:
            raise GradientError(
                f"scalar function {fn.name!r} has no derivative; register it with backward=, or end gradients before it with "
                "mirage.stop_gradient"
            )
        return fn.backward(self, g, x, y, *params)

    def where(self, condition: Value, x: Value, y: Value = 0) -> Value:
        """x where the condition holds, else y."""
        return self.op("where", condition, x, y)

    def full(self, shape: Sequence[Dim], value: int | Fraction, dtype: str) -> Value:
        """A tensor of which every element is the value."""
        return self.op("full", shape=tuple(shape), value=Fraction(value), dtype=dtype)

    def zeros(self, t: TensorType) -> Value:
        return self.full(t.shape, 0, t.dtype)

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        return x if self.type(x).shape == tuple(shape) else self.op("reshape", x, shape=tuple(shape))

    def swapped(self, x: Value) -> Value:
        """The last two dims exchanged."""
        rank = self.type(x).rank
        return self.op("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))

    def sum(self, x: Value, axes: Sequence[int], keepdims: bool = False) -> Value:
        return self.op("sum", x, axes=tuple(axes), keepdims=keepdims) if axes else x

    def arange(self, n: Dim) -> Value:
        """0, 1, ... below n, of int64."""
        return self.op("arange", stop=n)

    def along(self, n: Dim, axis: int, rank: int) -> Value:
        """0, 1, ... below n along one dim of a tensor whose other dims are 1."""
        return self.reshape(self.arange(n), [n if k == axis else sympy.Integer(1) for k in range(rank)])

    def spread(self, x: Value, shape: Sequence[Dim]) -> Value:
        """The value with all its elements: dims of size 1 are repeated."""
        return x if self.type(x).shape == tuple(shape) else self.op("broadcast_to", x, shape=tuple(shape))

    def gathered(self, g: Value, out: Sequence[Dim], shape: Sequence[Dim]) -> Value:
        """The cotangent of a tensor of a shape, from that of what it was broadcast to: the sum over what was repeated.

        What was repeated, a dim that is there or literally 1, is decided by the types, as in broadcasting.
        """
        given = self.type(g).shape
        new = len(out) - len(shape)
        repeated = [k for k in range(len(out)) if k < new or (is_one(shape[k - new]) and not is_one(out[k]))]
        times = sympy.expand(sympy.prod([out[k] for k in repeated if is_one(given[k])]))
        summed = [k for k in repeated if not is_one(given[k])]
        if times != 1:
            g = self.mul(g, times)
        g = self.sum(g, summed, keepdims=not any(k < new for k in summed))
        left = [sympy.Integer(1) if k in repeated else d for k, d in enumerate(given)][new:]
        return self.reshape(g, left)


class Backward(Emitter):
    """One application of an operator, to be differentiated: `g` is the cotangent of its result `out`, or of one field each.

    `wanted` says of which operands a cotangent is used; others may be None.
    """

    def __init__(
        self,
        emitter: Emitter,
        args: Sequence[Value],
        out: Value,
        attrs: Any,
        g: Value,
        wanted: Sequence[bool],
    ) -> None:
        super().__init__(emitter._emit, emitter.known)
        self.args = tuple(args)
        self.out = out
        self.attrs = attrs
        self.g = g
        self.wanted = tuple(wanted)

    def types(self) -> list[TensorType]:
        """The types of the operands."""
        return [self.type(x) for x in self.args]

    def full_g(self) -> Value:
        """The cotangent with all its elements; that of a value of unknown shape has them."""
        out = self.known(self.out)
        return self.g if out is None else self.spread(self.g, out.shape)

    def to_operands(self, found: Cotangents) -> list[Value | None]:
        """The cotangents of operands that broadcast, from those of what they were broadcast to."""
        out = self.type(self.out).shape
        return [
            None if g is None or not wanted else self.gathered(self.ranked(g, len(out)), out, self.type(x).shape)
            for g, x, wanted in zip(found, self.args, self.wanted, strict=True)
        ]

    def ranked(self, g: Value, rank: int) -> Value:
        """A value under a shape with dims of size 1 in front."""
        shape = self.type(g).shape
        return self.reshape(g, (*(sympy.Integer(1),) * (rank - len(shape)), *shape))


@dataclass(eq=False)
class _Step:
    """A value of a definition: its operation and operands, and the value in the graph where there is one."""

    kind: str
    args: tuple[_Step, ...] = ()
    data: Any = None
    value: Value = None
    depends: bool = False
    cotangents: list[Value] = field(default_factory=list)


class Tape:
    """The algebra that records what an elementwise operator is made of, to go back over it."""

    def __init__(self, b: Backward) -> None:
        self.b = b
        self.steps: list[_Step] = []

    def _add(self, kind: str, *args: _Step, data: Any = None) -> _Step:
        step = _Step(kind, args, data, depends=any(a.depends for a in args))
        self.steps.append(step)
        return step

    def operand(self, value: Value, wanted: bool) -> _Step:
        step = self._add("operand")
        step.value, step.depends = value, wanted
        return step

    def constant(self, value: Fraction) -> _Step:
        return self._add("constant", data=value)

    def dim(self, size: sympy.Expr) -> _Step:
        return self._add("dim", data=size)

    def add(self, x: _Step, y: _Step) -> _Step:
        return self._add("add", x, y)

    def sub(self, x: _Step, y: _Step) -> _Step:
        return self._add("sub", x, y)

    def mul(self, x: _Step, y: _Step) -> _Step:
        return self._add("mul", x, y)

    def div(self, x: _Step, y: _Step) -> _Step:
        return self._add("div", x, y)

    def neg(self, x: _Step) -> _Step:
        return self._add("neg", x)

    def function(self, fn: ScalarFunction, x: _Step, *params: Fraction) -> _Step:
        return self._add("function", x, data=(fn, params))

    def value(self, s: _Step) -> Value:
        """The value in the graph; what nothing reads is dead code there."""
        if s.value is None:
            match s.kind:
                case "constant":
                    s.value = self.b.constant(s.data)
                case "dim":
                    s.value = self.b.dim(s.data)
                case "function":
                    s.value = self.b.function(s.data[0], self.value(s.args[0]), *s.data[1])
                case kind:
                    s.value = self.b.op(kind, *map(self.value, s.args))
        return s.value

    def back(self, result: _Step, g: Value) -> None:
        """Give every step its cotangents, from that of the result."""
        result.cotangents.append(g)
        for s in reversed(self.steps):
            if s.depends and s.cotangents and s.kind != "operand":
                g = self.total(s)
                for x, found in zip(s.args, self._operands(s, g), strict=True):
                    if x.depends and found is not None:
                        x.cotangents.append(found)

    def total(self, s: _Step) -> Value | None:
        """The sum of a step's cotangents."""
        found: Value | None = None
        for g in s.cotangents:
            found = g if found is None else self.b.add(found, g)
        s.cotangents = [] if found is None else [found]
        return found

    def _operands(self, s: _Step, g: Value) -> Cotangents:
        b = self.b
        if s.kind == "add":
            return g, g
        if s.kind == "sub":
            return g, b.neg(g) if s.args[1].depends else None
        if s.kind == "neg":
            return (b.neg(g),)
        if s.kind == "function":
            fn, params = s.data
            return (b.through(fn, g, self.value(s.args[0]), self.value(s), *params),)
        x, y = s.args
        if s.kind == "mul":
            if x is y:
                return b.mul(b.mul(g, 2), self.value(x)), None
            return (b.mul(g, self.value(y)) if x.depends else None, b.mul(g, self.value(x)) if y.depends else None)
        gx = b.div(g, self.value(y))
        return gx if x.depends else None, b.neg(b.mul(gx, self.value(s))) if y.depends else None


def elementwise_gradient(b: Backward, define: Callable[..., Any]) -> Cotangents:
    """The cotangents of the operands of an elementwise operator, from its definition over any algebra."""
    tape = Tape(b)
    operands = [tape.operand(x, wanted) for x, wanted in zip(b.args, b.wanted, strict=True)]
    result = define(tape, *operands, **b.attrs)
    if result.value is None:
        result.value = b.out
    tape.back(result, b.g)
    return b.to_operands([tape.total(s) for s in operands])
