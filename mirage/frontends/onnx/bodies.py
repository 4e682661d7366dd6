"""Operators that are functions of others: their bodies, as schemas and models have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import AttributeProto, FunctionProto, NodeProto, TypeProto


def body_of(schema: Any, node: NodeProto, version: int, types: Sequence[TypeProto | None]) -> FunctionProto | None:
    """The body that a schema gives for a node whose operands are of these types; None where there is none."""
    plain = [v for v in schema.function_opset_versions if v <= version]
    if plain:
        return _read(schema.get_function_with_opset_version(max(plain)))
    dependent = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if not dependent or any(t is None for t in types):
        return None
    texts = [t.SerializeToString() for t in types if t is not None]
    found = schema.get_context_dependent_function_with_opset_version(max(dependent), node.SerializeToString(), texts)
    return _read(found) if found else None


def _read(text: bytes) -> FunctionProto:
    found: FunctionProto = FunctionProto.FromString(text)
    return found


def arguments(body: FunctionProto, node: NodeProto, schema: Any = None) -> dict[str, AttributeProto]:
    """The attributes that a body reads: as the node has them, else their defaults."""
    found = {a.name: a for a in body.attribute_proto}
    if schema is not None:
        defaults = ((name, a.default_value) for name, a in schema.attributes.items())
        found |= {name: value for name, value in defaults if value is not None and value.type}
    return found | {a.name: a for a in node.attribute}


def resolved(node: NodeProto, given: Mapping[str, AttributeProto]) -> NodeProto:
    """A node of a body, with what its attributes refer to: those that nothing is given for are left out."""
    found = NodeProto()
    found.CopyFrom(node)
    del found.attribute[:]
    for a in node.attribute:
        if a.ref_attr_name:
            if a.ref_attr_name in given:
                found.attribute.append(given[a.ref_attr_name])
                found.attribute[-1].name = a.name
            continue
        found.attribute.append(a)
        for graph in (found.attribute[-1].g, *found.attribute[-1].graphs):
            nodes = [resolved(n, given) for n in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return found
