"""Lowerings: what an operator of ONNX is in the graph IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import sympy
from onnx import GraphProto, NodeProto

from mirage.frontends import array_ops
from mirage.frontends.graph import GraphTrace, graph_trace
from mirage.frontends.graph_ops import cast
from mirage.frontends.imported import as_tensor, unsupported
from mirage.frontends.onnx.types import NAMES
from mirage.frontends.onnx.values import Value
from mirage.frontends.shapes import as_broadcast, broadcast
from mirage.frontends.tensors import GraphTensor
from mirage.ir.types import DTYPES, ELEMENTS


@dataclass(frozen=True)
class Call:
    """One node: what its lowering may ask about it."""

    node: NodeProto
    version: int
    trace: GraphTrace
    attrs: Mapping[str, Any]
    values: Sequence[Value | None]
    #: the values that a graph among the attributes gives for these of its inputs
    values_of: Callable[..., list[Value]] = field(compare=False)

    def run(self, graph: GraphProto, inputs: Sequence[Any]) -> list[Any]:
        """The tensors that a graph among the attributes gives, recorded in the function whose trace runs."""
        return [v.tensor(graph_trace(self.node.op_type)) for v in self.values_of(graph, inputs)]

    @property
    def outputs(self) -> int:
        """How many results are asked for."""
        return len(self.node.output)

    def wants(self, k: int) -> bool:
        """Whether result k is used."""
        return k < len(self.node.output) and bool(self.node.output[k])

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute: text as str."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def dtype_of(self, name: str, default: str) -> str:
        """The element type that an attribute names."""
        code = self.attrs.get(name)
        if code is None or code == 0:
            return default
        return NAMES[code] if code in NAMES else unsupported(f"{name} is an element type that is not computed with")

    def known(self, k: int) -> np.ndarray | None:
        """What operand k holds, where that is known before a call."""
        value = self.values[k] if k < len(self.values) else None
        return None if value is None else value.known

    def constant(self, x: Any, dtype: str) -> GraphTensor:
        """A number, dim or array as a tensor of an element type."""
        if isinstance(x, sympy.Expr) and not x.is_number:
            return self.cast(array_ops.dim_value(x), dtype)
        return as_tensor(self.trace.wrap(self.trace.array(self.node.op_type, np.asarray(x).astype(ELEMENTS[dtype]))))

    def cast(self, x: Any, dtype: str) -> GraphTensor:
        """A tensor in an element type."""
        return as_tensor(x if x.dtype == dtype else cast(x, dtype))

    def number(self, k: int) -> Any:
        """Operand k: a number where it is one that is known and of a floating-point type, which the search computes with."""
        value = self.values[k]
        assert value is not None
        known = value.known
        if known is not None and known.dtype.name in DTYPES and known.shape == () and np.isfinite(known):
            return float(known)
        return value.tensor(self.trace)


def fitting(*xs: Any) -> tuple[Any, ...]:
    """Operands whose dims are written alike where they are to be equal: the run checks that they are."""
    tensors = [x for x in xs if isinstance(x, GraphTensor)]
    if len(tensors) < 2:
        return xs
    shape = broadcast(*(t.shape for t in tensors))
    return tuple(as_broadcast(x, shape) if isinstance(x, GraphTensor) else x for x in xs)


@dataclass(frozen=True)
class Lowering:
    """`fn` gives, from the call and its operands, the result, or a tuple of them, for nodes of the opset `since` and later.

    Operands at the positions `static` are arrays that are known before a call; others tensors; None where there is none.
    """

    fn: Callable[..., Any]
    static: tuple[int, ...]
    since: int


Function: TypeAlias = Callable[..., Any]
#: name of an operator, with its domain before it and a dot if that is not ONNX's own -> how it is lowered
LOWERINGS: dict[str, Lowering] = {}
#: the opset since which operators broadcast as they do today
BROADCASTING = 7


def lowers(*names: str, static: Sequence[int] = (), since: int = 1) -> Callable[[Function], Function]:
    """Decorator: the function lowers these operators."""

    def decorate(fn: Function) -> Function:
        add(dict.fromkeys(names, fn), static, since)
        return fn

    return decorate


def add(lowerings: Mapping[str, Function], static: Sequence[int] = (), since: int = 1) -> None:
    """Add lines to the table; an operator is lowered in one place."""
    for name, fn in lowerings.items():
        assert name not in LOWERINGS, f"{name} is lowered twice"
        LOWERINGS[name] = Lowering(fn, tuple(static), since)
