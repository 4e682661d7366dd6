"""Bodies of the loops that the gradient of a loop is made of: one that keeps what it carries, and one that goes back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirage.ir.dims import symbol
from mirage.ir.gradient import Emitter
from mirage.ir.graph.builder import FunctionBuilder
from mirage.ir.graph.cotangents import float_leaves, known_type, symbols_of_function, tensor_type
from mirage.ir.graph.nodes import (
    Atom,
    Function,
    FunctionCall,
    MakeTuple,
    OpCall,
    TupleItem,
    Var,
)
from mirage.ir.operator import get_operator
from mirage.ir.types import TensorType


def keeping(functions: dict[str, Function], name: str, body: Function, carried: int) -> str:
    """Add the body of a loop that writes its carried values to stacks before each round; returns its name.

    It takes the index, the carried values, their stacks, and what is invariant, and returns the carried values and the stacks.
    Raises GradientError for a carried value that is no tensor of known shape.
    """
    b = _Around(functions, name, body)
    index, *given = (b.parameter(p) for p in body.parameters[: 1 + carried])
    stacks = b.stacks(carried)
    fixed = [b.parameter(p) for p in body.parameters[1 + carried :]]
    after = b.items(b.call(body.name, (index, *given, *fixed)), carried)
    written = (b.emitter.op("scatter", s, index, x, axis=0) for s, x in zip(stacks, given, strict=True))
    return b.finish((*after, *written))


def going_back(
    functions: dict[str, Function], name: str, body: Function, carried: int, wanted: Sequence[bool], backward: str
) -> str:
    """Add the body of the loop that goes back over the rounds of another one; returns its name.

    `wanted` says of which parameters of the other body there are cotangents, `backward` is the function of these, which takes
    those of all carried floating-point values, too. The body takes the index, the cotangents of the carried values, and of what
    is invariant, summed over the rounds; then the number of the last round, the stacks, and what is invariant.
    """
    b = _Around(functions, name, body)
    index = b.parameter(body.parameters[0])
    leaves = [leaf for p, w in zip(body.parameters, wanted, strict=True) if w for leaf in float_leaves(p.annotation)]
    own = sum(len(float_leaves(p.annotation)) for p in body.parameters[1 : 1 + carried])
    cotangents = [b.b.fresh_parameter("g", leaf) for leaf in leaves]
    last = b.b.fresh_parameter("last", index.annotation)
    stacks = b.stacks(carried)
    fixed = [b.parameter(p) for p in body.parameters[1 + carried :]]
    at = b.emitter.sub(last, index)
    before = [b.emitter.op("take", s, at, axis=0) for s in stacks]
    found = b.items(b.call(backward, (at, *before, *fixed, *cotangents[:own])), len(leaves))
    sums = (b.emitter.add(x, y) for x, y in zip(cotangents[own:], found[own:], strict=True))
    return b.finish((*found[:own], *sums))


class _Around:
    """A function around the body of a loop, with its parameters and others."""

    def __init__(self, functions: dict[str, Function], name: str, body: Function) -> None:
        self.functions = functions
        self.body = body
        self.b = FunctionBuilder(name, functions)
        self.symbols = symbols_of_function(body)
        self.b.names |= self.symbols
        self.emitter = Emitter(self._operator, known_type)

    def _operator(self, name: str, operands: Sequence[Atom], attrs: Any) -> Var:
        return self.b.emit(OpCall(name, tuple(operands), tuple(get_operator(name).check_attrs(attrs).items())))

    def parameter(self, p: Var) -> Var:
        return self.b.fresh_parameter(p.name, p.annotation)

    def stacks(self, carried: int) -> list[Var]:
        """Parameters for the carried values of all rounds, a number that no other dim is called as."""
        name, k = "rounds", 0
        while name in self.symbols or name in self.b.names:
            name, k = f"rounds_{k}", k + 1
        types = [tensor_type(p, self.body) for p in self.body.parameters[1 : 1 + carried]]
        return [
            self.b.fresh_parameter("stack", TensorType((symbol(name), *t.shape), t.dtype)) for t in types
        ]

    def call(self, name: str, args: Sequence[Atom]) -> Var:
        return self.b.emit(FunctionCall(name, tuple(args), tuple(map(symbol, self.body.dims))))

    def items(self, value: Atom, count: int) -> list[Atom]:
        return [value] if count == 1 else [self.b.emit(TupleItem((value,), k)) for k in range(count)]

    def finish(self, values: Sequence[Atom]) -> str:
        """Add the function that returns these values."""
        result = values[0] if len(values) == 1 else self.b.emit(MakeTuple(tuple(values)))
        self.functions[self.b.name] = self.b.finish(result, dims=self.body.dims)
        return self.b.name
