"""What is known of nodes without their operands' values, and the values that they may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
from onnx import GraphProto, NodeProto, defs, helper

from mirage.errors import UnsupportedNode
from mirage.frontends.onnx.values import Value, known_dims
from mirage.ir.types import TensorType


@dataclass
class Scope:
    """Where names of values are looked up: a graph, within those around it, or the body of a function."""

    opsets: Mapping[str, int]
    parent: Scope | None = None
    values: dict[str, Any] = field(default_factory=dict)
    depth: int = 0

    def find(self, name: str) -> Any:
        if name in self.values:
            return self.values[name]
        if self.parent is None:
            raise UnsupportedNode(f"there is no value {name!r}")
        return self.parent.find(name)


def schema_of(node: NodeProto, version: int) -> Any:
    """The schema of an operator of an opset; None where ONNX has none."""
    try:
        return defs.get_schema(node.op_type, version, "" if node.domain == "ai.onnx" else node.domain)
    except defs.SchemaError:
        return None


def attributes_of(node: NodeProto) -> dict[str, Any]:
    """The attributes of a node, as values of Python."""
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def captured(node: NodeProto) -> list[str]:
    """The values around a node that its graphs read."""
    found: dict[str, None] = {}

    def visit(graph: GraphProto, own: set[str]) -> None:
        own = own | {i.name for i in graph.input} | {t.name for t in graph.initializer}
        for n in graph.node:
            found.update(dict.fromkeys(name for name in n.input if name and name not in own))
            for a in n.attribute:
                for g in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
                    visit(g, own)
            own |= set(n.output)
        found.update(dict.fromkeys(o.name for o in graph.output if o.name not in own))

    for a in node.attribute:
        for g in (*((a.g,) if a.HasField("g") else ()), *a.graphs):
            visit(g, set())
    return list(found)


def sizes_of(node: NodeProto, operand: Value | None) -> Sequence[Value] | None:
    """The shape or the number of elements of a value, as far as it is known."""
    if operand is None:
        return None
    if operand.traced is None:
        assert operand.known is not None
        dims: Sequence[Any] = operand.known.shape
    else:
        annotation = operand.traced.annotation
        if not isinstance(annotation, TensorType):
            return None
        dims = annotation.shape
    if node.op_type == "Size":
        size = sympy.expand(sympy.prod(dims)) if dims else 1
        return [Value(known=known_dims([size]).reshape(()))]
    attrs = attributes_of(node)
    return [Value(known=known_dims(dims[attrs.get("start", 0) : attrs.get("end", len(dims))]))]


def place_of(node: NodeProto) -> str:
    """What errors call a node."""
    return f"{node.op_type} {node.name or (node.output[0] if node.output else '')!r}"
