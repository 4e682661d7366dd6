"""One node as a model of its own, in text: what compiled programs hand to ONNX's reference evaluator."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from mirage.errors import FormatError

#: the name under which compiled programs call the reference evaluator
NAME = "onnx.reference"


def single(
    node: NodeProto, inputs: Sequence[str], opsets: Mapping[str, int], functions: Sequence[Any], ir_version: int
) -> ModelProto:
    """A node as a model of its own, whose inputs are what the node and its graphs read."""
    graph = helper.make_graph(
        [node], "node", [ValueInfoProto(name=n) for n in inputs], [ValueInfoProto(name=n) for n in node.output if n]
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=ir_version)


def constant(array: np.ndarray) -> ModelProto:
    """A node that gives an array."""
    node = helper.make_node("Constant", [], ["value"], value=numpy_helper.from_array(array))
    return single(node, [], {"": 21}, (), 10)


def encoded(model: ModelProto) -> str:
    """A model as text."""
    return base64.b64encode(model.SerializeToString(deterministic=True)).decode()


def decoded(text: str) -> ModelProto:
    """The model of such a text; raises FormatError for any other."""
    try:
        model: ModelProto = ModelProto.FromString(base64.b64decode(text, validate=True))
        return model
    except (DecodeError, ValueError) as e:
        raise FormatError(f"{NAME}: the node cannot be read: {e}") from None
